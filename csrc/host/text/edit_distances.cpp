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

// Levenshtein distance, 64 cells of a column of the table at a time. Source: G. Myers, "A fast bit-vector algorithm for
// approximate string matching based on dynamic programming", J. ACM 46 (1999), in the form of H. Hyyrö (2003).
std::int64_t distance(const std::int32_t* a, std::int64_t m, const std::int32_t* b, std::int64_t n, Scratch* s) {
  while (m > 0 && n > 0 && a[0] == b[0]) ++a, ++b, --m, --n;
  while (m > 0 && n > 0 && a[m - 1] == b[n - 1]) --m, --n;
  if (m == 0 || n == 0) return m + n;
  s->masks.set(a, m);
  const std::int64_t words = s->masks.words();
  s->columns.assign(words, Vertical{});
  const std::uint64_t last = std::uint64_t{1} << (m - 1) % 64;
  std::int64_t result = m;
  for (std::int64_t j = 0; j < n; ++j) {
    const std::uint64_t* mask = s->masks.of(b[j]);
    std::uint64_t carry_positive = 1, carry_negative = 0;
    for (std::int64_t w = 0; w < words; ++w) {
      Vertical& v = s->columns[w];
      const std::uint64_t x = (mask ? mask[w] : 0) | carry_negative;
      const std::uint64_t diagonal = (((x & v.positive) + v.positive) ^ v.positive) | x | v.negative;
      std::uint64_t positive = v.negative | ~(diagonal | v.positive), negative = diagonal & v.positive;
      if (w == words - 1) result += (positive & last) ? 1 : (negative & last) ? -1 : 0;
      const std::uint64_t next_positive = positive >> 63, next_negative = negative >> 63;
      positive = positive << 1 | carry_positive;
      negative = negative << 1 | carry_negative;
      carry_positive = next_positive;
      carry_negative = next_negative;
      v.positive = negative | ~(diagonal | positive);
      v.negative = positive & diagonal;
    }
  }
  return result;
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
