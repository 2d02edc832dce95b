#include <vector>

#include "fastbudget/text.h"
#include "fastbudget/threads.h"
#include "position_masks.h"

namespace fastbudget {
namespace {

constexpr std::int64_t kDocumentsPerPiece = 16;

struct Vertical {
  std::uint64_t positive = ~std::uint64_t{0}, negative = 0;
};

struct Scratch {
  text::PositionMasks masks;
  std::vector<Vertical> columns;
};

// The changes of the last row's cells, from one column of the table to the next.
struct Horizontal {
  std::uint64_t positive, negative;
};

// 64 cells of a column: takes the change above them and returns that of the 64 (each bit one cell).
inline Horizontal next_column(std::uint64_t mask, Vertical& v, std::uint64_t& carry_positive,
                              std::uint64_t& carry_negative) {
  const std::uint64_t x = mask | carry_negative;
  const std::uint64_t diagonal = (((x & v.positive) + v.positive) ^ v.positive) | x | v.negative;
  const Horizontal change{v.negative | ~(diagonal | v.positive), diagonal & v.positive};
  const std::uint64_t positive = change.positive << 1 | carry_positive;
  const std::uint64_t negative = change.negative << 1 | carry_negative;
  carry_positive = change.positive >> 63;
  carry_negative = change.negative >> 63;
  v.positive = negative | ~(diagonal | positive);
  v.negative = positive & diagonal;
  return change;
}

// Distance to the pattern that the masks hold. W > 0: its number of words, so that a column stays in registers.
template <int W>
std::int64_t distance_to_pattern(const text::PositionMasks& masks, std::int64_t m, const std::int32_t* b,
                                 std::int64_t n, Vertical* column) {
  const std::int64_t words = W > 0 ? W : masks.words();
  const int last = static_cast<int>((m - 1) % 64);
  Vertical own[W > 0 ? W : 1];
  Vertical* v = W > 0 ? own : column;
  std::int64_t result = m;
  for (std::int64_t j = 0; j < n; ++j) {
    const std::uint64_t* mask = masks.of(b[j]);
    std::uint64_t carry_positive = 1, carry_negative = 0;
    Horizontal change{};
    for (std::int64_t w = 0; w < words; ++w) change = next_column(mask[w], v[w], carry_positive, carry_negative);
    result +=
        static_cast<std::int64_t>(change.positive >> last & 1) - static_cast<std::int64_t>(change.negative >> last & 1);
  }
  return result;
}

// Levenshtein distance, 64 cells of a column of the table at a time. Source: G. Myers, "A fast bit-vector algorithm for
// approximate string matching based on dynamic programming", J. ACM 46 (1999), in the form of H. Hyyrö (2003).
std::int64_t distance(const std::int32_t* a, std::int64_t m, const std::int32_t* b, std::int64_t n, Scratch* s) {
  while (m > 0 && n > 0 && a[0] == b[0]) ++a, ++b, --m, --n;
  while (m > 0 && n > 0 && a[m - 1] == b[n - 1]) --m, --n;
  if (m == 0 || n == 0) return m + n;
  s->masks.set(a, m);
  switch (s->masks.words()) {
    case 1: return distance_to_pattern<1>(s->masks, m, b, n, nullptr);
    case 2: return distance_to_pattern<2>(s->masks, m, b, n, nullptr);
    case 3: return distance_to_pattern<3>(s->masks, m, b, n, nullptr);
    case 4: return distance_to_pattern<4>(s->masks, m, b, n, nullptr);
    default: s->columns.assign(s->masks.words(), Vertical{});
  }
  return distance_to_pattern<0>(s->masks, m, b, n, s->columns.data());
}

}  // namespace

void edit_distances(const TokenPairs& pairs, int threads, std::int64_t* distances) {
  std::vector<Scratch> scratch(max_slots(pairs.n, kDocumentsPerPiece, threads));
  parallel_for(pairs.n, kDocumentsPerPiece, threads, [&](int slot, std::int64_t begin, std::int64_t end) {
    const std::int64_t *h = pairs.hypothesis_offsets, *r = pairs.reference_offsets;
    for (std::int64_t d = begin; d < end; ++d) {
      distances[d] = distance(pairs.ids + r[d], r[d + 1] - r[d], pairs.ids + h[d], h[d + 1] - h[d], &scratch[slot]);
    }
  });
}

}  // namespace fastbudget
