#include <algorithm>
#include <vector>

#include "../vectorized.h"
#include "fastbudget/text.h"
#include "fastbudget/threads.h"
#include "position_masks.h"

namespace fastbudget {
namespace {

constexpr std::int64_t kDocumentsPerPiece = 64;

// Four pairs whose patterns have as many words are compared at a time, each in a lane.
constexpr int kLanes = 4;
constexpr std::int64_t kMostWordsInLanes = 8;
typedef std::uint64_t Lanes __attribute__((vector_size(8 * kLanes)));

// How the cells of a column differ from those above them; a bit each.
template <typename Word>
struct Vertical {
  Word positive, negative;
};

// How they differ from those of the column before.
template <typename Word>
struct Horizontal {
  Word positive, negative;
};

// Takes 64 cells to the next column. `above` is the difference of the cell above them, in the lowest bit, and becomes
// that of the last.
template <typename Word>
__attribute__((always_inline)) inline Horizontal<Word> next_column(const Word& mask, Vertical<Word>& v,
                                                                   Horizontal<Word>& above) {
  const Word x = mask | above.negative;
  const Word diagonal = (((x & v.positive) + v.positive) ^ v.positive) | x | v.negative;
  const Horizontal<Word> change{v.negative | ~(diagonal | v.positive), diagonal & v.positive};
  const Word positive = change.positive << 1 | above.positive, negative = change.negative << 1 | above.negative;
  above = {change.positive >> 63, change.negative >> 63};
  v = {negative | ~(diagonal | positive), positive & diagonal};
  return change;
}

// A pair without what its texts begin and end with alike; the pattern is what masks are made of.
struct Pair {
  const std::int32_t *pattern, *text;
  std::int64_t length, text_length;
  std::int64_t* distance;

  void trim() {
    while (length > 0 && text_length > 0 && *pattern == *text) ++pattern, ++text, --length, --text_length;
    while (length > 0 && text_length > 0 && pattern[length - 1] == text[text_length - 1]) --length, --text_length;
  }
  std::int64_t words() const { return (length + 63) / 64; }
};

struct Scratch {
  text::PositionMasks masks[kLanes];
  std::vector<Vertical<std::uint64_t>> column;
  std::vector<Pair> waiting[kMostWordsInLanes + 1];  // by number of words
};

// Levenshtein distance, 64 cells of a column of the table at a time. Source: G. Myers, "A fast bit-vector algorithm for
// approximate string matching based on dynamic programming", J. ACM 46 (1999), in the form of H. Hyyrö (2003).
std::int64_t distance(const Pair& pair, Scratch* s) {
  text::PositionMasks& masks = s->masks[0];
  masks.set(pair.pattern, pair.length);
  s->column.assign(masks.words(), {~std::uint64_t{0}, 0});
  const std::int64_t last = (pair.length - 1) % 64;
  std::int64_t result = pair.length;
  for (std::int64_t j = 0; j < pair.text_length; ++j) {
    const std::uint64_t* mask = masks.of(pair.text[j]);
    Horizontal<std::uint64_t> above{1, 0}, change{};
    for (std::int64_t w = 0; w < masks.words(); ++w) change = next_column(mask[w], s->column[w], above);
    result += static_cast<std::int64_t>(change.positive >> last & 1);
    result -= static_cast<std::int64_t>(change.negative >> last & 1);
  }
  return result;
}

// The same of kLanes pairs.
FASTBUDGET_VECTORIZED
void distances_in_lanes(const Pair* pairs, const text::PositionMasks* masks) {
  const std::int64_t words = pairs[0].words();
  Vertical<Lanes> column[kMostWordsInLanes];
  for (std::int64_t w = 0; w < words; ++w) column[w] = {~Lanes{}, Lanes{}};
  Lanes last, text_length, result;
  std::int64_t longest = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    last[lane] = (pairs[lane].length - 1) % 64;
    result[lane] = pairs[lane].length;
    text_length[lane] = pairs[lane].text_length;
    longest = std::max(longest, pairs[lane].text_length);
  }
  for (std::int64_t j = 0; j < longest; ++j) {
    const std::uint64_t* mask[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      mask[lane] = masks[lane].of(pairs[lane].text[std::min(j, pairs[lane].text_length - 1)]);
    }
    Horizontal<Lanes> above{Lanes{} + 1, Lanes{}}, change{};
    for (std::int64_t w = 0; w < words; ++w) {
      change = next_column(Lanes{mask[0][w], mask[1][w], mask[2][w], mask[3][w]}, column[w], above);
    }
    const Lanes difference = (change.positive >> last & 1) - (change.negative >> last & 1);
    result += difference & reinterpret_cast<Lanes>(text_length > Lanes{} + j);  // texts that have ended stay
  }
  for (int lane = 0; lane < kLanes; ++lane) *pairs[lane].distance = static_cast<std::int64_t>(result[lane]);
}

void add(Pair pair, Scratch* s) {
  pair.trim();
  if (pair.length == 0 || pair.text_length == 0) {
    *pair.distance = pair.length + pair.text_length;
  } else if (pair.words() > kMostWordsInLanes) {
    *pair.distance = distance(pair, s);
  } else {
    std::vector<Pair>& waiting = s->waiting[pair.words()];
    waiting.push_back(pair);
    if (waiting.size() < kLanes) return;
    for (int lane = 0; lane < kLanes; ++lane) s->masks[lane].set(waiting[lane].pattern, waiting[lane].length);
    distances_in_lanes(waiting.data(), s->masks);
    waiting.clear();
  }
}

}  // namespace

void edit_distances(const TokenPairs& pairs, int threads, std::int64_t* distances) {
  std::vector<Scratch> scratch(max_slots(pairs.n, kDocumentsPerPiece, threads));
  parallel_for(pairs.n, kDocumentsPerPiece, threads, [&](int slot, std::int64_t begin, std::int64_t end) {
    Scratch& s = scratch[slot];
    const std::int64_t *h = pairs.hypothesis_offsets, *r = pairs.reference_offsets;
    for (std::int64_t d = begin; d < end; ++d) {
      add({pairs.ids + r[d], pairs.ids + h[d], r[d + 1] - r[d], h[d + 1] - h[d], distances + d}, &s);
    }
    for (std::vector<Pair>& waiting : s.waiting) {
      for (const Pair& pair : waiting) *pair.distance = distance(pair, &s);
      waiting.clear();
    }
  });
}

}  // namespace fastbudget
