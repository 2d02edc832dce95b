#include <bit>
#include <vector>

#include "fastbudget/text.h"
#include "fastbudget/threads.h"
#include "position_masks.h"

namespace fastbudget {
namespace {

constexpr std::int64_t kDocumentsPerPiece = 16;

struct Scratch {
  text::PositionMasks masks;
  std::vector<std::uint64_t> row;
};

// Length of the longest common subsequence, 64 cells of a row of the table at a time. Source: H. Hyyrö, "Bit-Parallel
// LCS-length Computation Revisited", AWOCA 2004.
std::int64_t common_length(const std::int32_t* a, std::int64_t m, const std::int32_t* b, std::int64_t n, Scratch* s) {
  if (m == 0 || n == 0) return 0;
  s->masks.set(a, m);
  const std::int64_t words = s->masks.words();
  s->row.assign(words, ~std::uint64_t{0});
  for (std::int64_t j = 0; j < n; ++j) {
    const std::uint64_t* mask = s->masks.of(b[j]);
    std::uint64_t carry = 0;
    for (std::int64_t w = 0; w < words; ++w) {
      const std::uint64_t v = s->row[w], u = v & mask[w];
      const std::uint64_t sum = v + u + carry;
      carry = sum < v || (carry && sum == v);
      s->row[w] = sum | (v - u);
    }
  }
  std::int64_t length = 0;
  for (std::int64_t w = 0; w < words; ++w) length += 64 - std::popcount(s->row[w]);
  // Bits beyond the pattern stay 1: no token sets their masks.
  return length;
}

// Marks the positions of one longest common subsequence in `reference`, the one that rouge-score reads out.
void mark_common(const std::int32_t* reference, std::int64_t m, const std::int32_t* candidate, std::int64_t n,
                 std::vector<std::int32_t>* table, std::vector<char>* marks) {
  const std::int64_t columns = n + 1;
  table->assign((m + 1) * columns, 0);
  std::int32_t* t = table->data();
  for (std::int64_t i = 1; i <= m; ++i) {
    for (std::int64_t j = 1; j <= n; ++j) {
      t[i * columns + j] = reference[i - 1] == candidate[j - 1]
                               ? t[(i - 1) * columns + j - 1] + 1
                               : std::max(t[(i - 1) * columns + j], t[i * columns + j - 1]);
    }
  }
  for (std::int64_t i = m, j = n; i > 0 && j > 0;) {
    if (reference[i - 1] == candidate[j - 1]) {
      (*marks)[--i] = 1;
      --j;
    } else if (t[i * columns + j - 1] > t[(i - 1) * columns + j]) {
      --j;
    } else {
      --i;
    }
  }
}

}  // namespace

void common_subsequences(const TokenPairs& pairs, int threads, std::int64_t* lengths) {
  std::vector<Scratch> scratch(max_slots(pairs.n, kDocumentsPerPiece, threads));
  parallel_for(pairs.n, kDocumentsPerPiece, threads, [&](int slot, std::int64_t begin, std::int64_t end) {
    const std::int64_t *h = pairs.hypothesis_offsets, *r = pairs.reference_offsets;
    for (std::int64_t d = begin; d < end; ++d) {
      lengths[d] = common_length(pairs.ids + r[d], r[d + 1] - r[d], pairs.ids + h[d], h[d + 1] - h[d], &scratch[slot]);
    }
  });
}

void union_subsequences(const SummaryPairs& pairs, int threads, std::int64_t* hits) {
  parallel_for(pairs.n, kDocumentsPerPiece, threads, [&](int, std::int64_t begin, std::int64_t end) {
    std::vector<std::int32_t> table;
    std::vector<char> marks;
    std::vector<std::int64_t> left;  // how often a token may still be counted
    text::Numbering names;
    const std::int64_t *h = pairs.hypothesis_offsets, *r = pairs.reference_offsets;
    for (std::int64_t d = begin; d < end; ++d) {
      const std::int64_t h0 = pairs.hypothesis_sentences[d], h1 = pairs.hypothesis_sentences[d + 1];
      const std::int64_t r0 = pairs.reference_sentences[d], r1 = pairs.reference_sentences[d + 1];
      names.reset(h[h1] - h[h0]);
      left.assign(h[h1] - h[h0], 0);
      for (std::int64_t i = h[h0]; i < h[h1]; ++i) ++left[names[static_cast<std::uint32_t>(pairs.ids[i])]];
      hits[d] = 0;
      // A token's count in the reference needs no check: each of its places is visited once.
      for (std::int64_t sentence = r0; sentence < r1; ++sentence) {
        const std::int32_t* reference = pairs.ids + r[sentence];
        const std::int64_t m = r[sentence + 1] - r[sentence];
        marks.assign(m, 0);
        for (std::int64_t other = h0; other < h1; ++other) {
          mark_common(reference, m, pairs.ids + h[other], h[other + 1] - h[other], &table, &marks);
        }
        for (std::int64_t i = 0; i < m; ++i) {
          if (!marks[i]) continue;
          std::int64_t& count = left[names.find(static_cast<std::uint32_t>(reference[i]))];
          if (count > 0) {
            --count;
            ++hits[d];
          }
        }
      }
    }
  });
}

}  // namespace fastbudget
