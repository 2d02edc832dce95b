#include <vector>

#include "fastbudget/text.h"
#include "fastbudget/threads.h"
#include "hash_map.h"

namespace fastbudget {
namespace {

constexpr std::int64_t kDocumentsPerPiece = 32;

// Matches each still unmatched token of the hypothesis, from its end, to the last unmatched equal one of the reference.
void match(const std::int32_t* hypothesis, const std::int32_t* reference, std::int64_t n,
           std::vector<std::int64_t>* partner, std::vector<char>* taken) {
  text::Numbering names;
  names.reset(n + taken->size());
  std::vector<std::vector<std::int64_t>> places;
  for (std::size_t j = 0; j < taken->size(); ++j) {
    if ((*taken)[j]) continue;
    const std::int32_t name = names[static_cast<std::uint32_t>(reference[j])];
    if (name == static_cast<std::int32_t>(places.size())) places.emplace_back();
    places[name].push_back(static_cast<std::int64_t>(j));
  }
  for (std::int64_t i = n - 1; i >= 0; --i) {
    if ((*partner)[i] >= 0) continue;
    const std::int32_t name = names.find(static_cast<std::uint32_t>(hypothesis[i]));
    if (name < 0 || places[name].empty()) continue;
    (*partner)[i] = places[name].back();
    (*taken)[places[name].back()] = 1;
    places[name].pop_back();
  }
}

}  // namespace

void meteor_alignments(const TokenPairs& pairs, const std::int32_t* stems, int threads, std::int64_t* counts) {
  parallel_for(pairs.n, kDocumentsPerPiece, threads, [&](int, std::int64_t begin, std::int64_t end) {
    for (std::int64_t d = begin; d < end; ++d) {
      const std::int64_t h = pairs.hypothesis_offsets[d], n = pairs.hypothesis_offsets[d + 1] - h;
      const std::int64_t r = pairs.reference_offsets[d], m = pairs.reference_offsets[d + 1] - r;
      std::vector<std::int64_t> partner(n, -1);
      std::vector<char> taken(m, 0);
      match(pairs.ids + h, pairs.ids + r, n, &partner, &taken);
      match(stems + h, stems + r, n, &partner, &taken);
      std::int64_t matches = 0, chunks = 0, last_i = -2, last_j = -2;
      for (std::int64_t i = 0; i < n; ++i) {
        if (partner[i] < 0) continue;
        ++matches;
        if (i != last_i + 1 || partner[i] != last_j + 1) ++chunks;
        last_i = i;
        last_j = partner[i];
      }
      counts[2 * d] = matches;
      counts[2 * d + 1] = chunks;
    }
  });
}

}  // namespace fastbudget
