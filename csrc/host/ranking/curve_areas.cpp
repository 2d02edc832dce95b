#include <algorithm>
#include <limits>
#include <vector>

#include "fastbudget/ranking.h"
#include "fastbudget/threads.h"
#include "radix_sort.h"

namespace fastbudget {
namespace {

using Keys = std::vector<std::uint64_t>;

// The keys of negatives and positives, ascending each: two sorts of half the size, on two threads.
void sort_by_label(const double* scores, const std::uint8_t* labels, std::int64_t n, int threads, Keys sides[2]) {
  parallel_for(2, 1, threads, [&](int, std::int64_t side, std::int64_t) {
    for (std::int64_t i = 0; i < n; ++i) {
      if ((labels[i] != 0) == (side == 1)) sides[side].push_back(ranking::ordered_key(scores[i]));
    }
    ranking::radix_sort(&sides[side]);
  });
}

}  // namespace

double roc_area(const double* scores, const std::uint8_t* labels, std::int64_t n, int threads) {
  Keys sides[2];
  sort_by_label(scores, labels, n, threads, sides);
  const Keys &negatives = sides[0], &positives = sides[1];
  if (negatives.empty() || positives.empty()) return std::numeric_limits<double>::quiet_NaN();
  // Twice the Mann-Whitney statistic, so that ties stay whole numbers.
  std::uint64_t twice = 0;
  std::size_t below = 0, not_above = 0;
  for (const std::uint64_t key : positives) {
    while (below < negatives.size() && negatives[below] < key) ++below;
    not_above = std::max(not_above, below);
    while (not_above < negatives.size() && negatives[not_above] <= key) ++not_above;
    twice += below + not_above;
  }
  return static_cast<double>(twice) / 2.0 / static_cast<double>(negatives.size()) /
         static_cast<double>(positives.size());
}

double average_precision(const double* scores, const std::uint8_t* labels, std::int64_t n, int threads) {
  Keys sides[2];
  sort_by_label(scores, labels, n, threads, sides);
  const Keys &negatives = sides[0], &positives = sides[1];
  if (positives.empty()) return std::numeric_limits<double>::quiet_NaN();
  double area = 0;
  std::size_t found = 0, wrong = 0;  // at or above the threshold, which falls from one positive score to the next
  while (found < positives.size()) {
    const std::uint64_t threshold = positives[positives.size() - 1 - found];
    const std::size_t before = found;
    while (found < positives.size() && positives[positives.size() - 1 - found] == threshold) ++found;
    while (wrong < negatives.size() && negatives[negatives.size() - 1 - wrong] >= threshold) ++wrong;
    area += static_cast<double>(found - before) * static_cast<double>(found) / static_cast<double>(found + wrong);
  }
  return area / static_cast<double>(positives.size());
}

}  // namespace fastbudget
