#include <vector>

#include "fastbudget/ranking.h"
#include "radix_sort.h"

namespace fastbudget {
namespace {

struct Keyed {
  std::uint64_t key;
  std::int64_t index;
};

std::uint64_t key_of(const Keyed& item) { return item.key; }

}  // namespace

void average_ranks(const double* values, std::int64_t n, double* ranks) {
  std::vector<Keyed> items(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) items[i] = {ranking::ordered_key(values[i]), i};
  ranking::radix_sort(&items);
  for (std::int64_t begin = 0, end; begin < n; begin = end) {
    for (end = begin; end < n && items[end].key == items[begin].key; ++end) {
    }
    const double rank = (static_cast<double>(begin + 1) + static_cast<double>(end)) / 2.0;
    for (std::int64_t i = begin; i < end; ++i) ranks[items[i].index] = rank;
  }
}

}  // namespace fastbudget
