#include <algorithm>
#include <vector>

#include "fastbudget/text.h"
#include "fastbudget/threads.h"
#include "hash_map.h"

namespace fastbudget {
namespace {

constexpr std::int64_t kDocumentsPerPiece = 32;

// An n-gram is named by the name of its first n - 1 tokens and its last token, so names are exact, without hashing of
// whole n-grams.
struct Scratch {
  text::Numbering names;
  std::vector<std::int32_t> grams;  // per position of all documents of a pair: the name of the n-gram that begins there
  std::vector<std::int64_t> hypothesis, reference, one;
};

}  // namespace

void ngram_overlap(const TokenPairs& pairs, int max_order, int threads, std::int64_t* counts) {
  std::vector<Scratch> scratch(max_slots(pairs.n, kDocumentsPerPiece, threads));
  parallel_for(pairs.n, kDocumentsPerPiece, threads, [&](int slot, std::int64_t begin, std::int64_t end) {
    Scratch& s = scratch[slot];
    for (std::int64_t d = begin; d < end; ++d) {
      struct Document {
        const std::int32_t* tokens;
        std::int64_t length, at;  // `at`: where its grams begin
      };
      std::vector<Document> documents;
      std::int64_t total = 0;
      const auto take = [&](const std::int64_t* offsets, std::int64_t index) {
        const std::int64_t length = offsets[index + 1] - offsets[index];
        documents.push_back({pairs.ids + offsets[index], length, total});
        total += length;
      };
      take(pairs.hypothesis_offsets, d);
      for (std::int64_t r = pairs.first_reference[d]; r < pairs.first_reference[d + 1]; ++r) {
        take(pairs.reference_offsets, r);
      }
      s.grams.assign(total, 0);
      for (int order = 1; order <= max_order; ++order) {
        s.names.reset(total);
        for (const Document& document : documents) {
          for (std::int64_t i = 0; i + order <= document.length; ++i) {
            const auto last = static_cast<std::uint32_t>(document.tokens[i + order - 1]);
            std::int32_t& gram = s.grams[document.at + i];
            gram = s.names[std::uint64_t{static_cast<std::uint32_t>(gram)} << 32 | last];
          }
        }
        s.hypothesis.assign(s.names.size(), 0);
        s.reference.assign(s.names.size(), 0);
        std::int64_t* out = counts + (d * max_order + order - 1) * 3;
        out[0] = std::max<std::int64_t>(0, documents[0].length - order + 1);
        for (std::int64_t i = 0; i < out[0]; ++i) ++s.hypothesis[s.grams[i]];
        for (std::size_t r = 1; r < documents.size(); ++r) {
          s.one.assign(s.names.size(), 0);
          for (std::int64_t i = 0; i + order <= documents[r].length; ++i) ++s.one[s.grams[documents[r].at + i]];
          for (std::size_t g = 0; g < s.one.size(); ++g) s.reference[g] = std::max(s.reference[g], s.one[g]);
        }
        out[1] = out[2] = 0;
        for (std::size_t g = 0; g < s.reference.size(); ++g) {
          out[1] += s.reference[g];
          out[2] += std::min(s.reference[g], s.hypothesis[g]);
        }
      }
    }
  });
}

}  // namespace fastbudget
