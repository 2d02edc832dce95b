#include <algorithm>
#include <cmath>
#include <utility>

#include "fastbudget/sequential_test.h"
#include "philox.h"

namespace fastbudget {

std::vector<std::int64_t> draw_order(const double* weights, std::int64_t count, std::uint64_t seed) {
  std::vector<std::pair<double, std::int64_t>> keys(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const double uniform = philox_uniform(seed, Purpose::kDrawOrder, static_cast<std::uint64_t>(i));
    keys[i] = {-std::log(uniform) / weights[i], i};
  }
  std::sort(keys.begin(), keys.end());
  std::vector<std::int64_t> order(keys.size());
  std::transform(keys.begin(), keys.end(), order.begin(), [](const auto& key) { return key.second; });
  return order;
}

}  // namespace fastbudget
