#include <algorithm>
#include <cmath>
#include <utility>

#include "fastbudget/sequential_test.h"
#include "philox.h"

namespace fastbudget {

std::vector<std::int64_t> draw_order(const double* weights, std::int64_t count, std::uint64_t seed) {
  std::vector<std::pair<double, std::int64_t>> keys(static_cast<std::size_t>(count));
  std::uint32_t numbers[kPhiloxNumbers];
  for (std::int64_t i = 0; i < count; ++i) {
    // Unit i: 53 bits of two words of lane i % 16 of the stream i / 16.
    const int lane = static_cast<int>(i % kPhiloxLanes);
    if (lane == 0) philox_numbers(seed, Purpose::kDrawOrder, static_cast<std::uint64_t>(i / kPhiloxLanes), 0, numbers);
    const std::uint64_t bits = (std::uint64_t{numbers[lane]} << 32 | numbers[kPhiloxLanes + lane]) >> 11;
    const double uniform = (static_cast<double>(bits) + 0.5) * 0x1p-53;  // never 0 or 1
    keys[i] = {-std::log(uniform) / weights[i], i};
  }
  std::sort(keys.begin(), keys.end());
  std::vector<std::int64_t> order(keys.size());
  std::transform(keys.begin(), keys.end(), order.begin(), [](const auto& key) { return key.second; });
  return order;
}

}  // namespace fastbudget
