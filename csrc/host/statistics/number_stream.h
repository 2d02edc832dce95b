// The numbers of one stream of the generator, one block or one number after the other.
#pragma once

#include <cstdint>

#include "philox.h"

namespace fastbudget {

class NumberStream {
 public:
  NumberStream(std::uint64_t seed, Purpose purpose, std::uint64_t stream)
      : seed_(seed), stream_(stream), purpose_(purpose) {}

  // The next kPhiloxNumbers numbers; valid until the next call.
  const std::uint32_t* block() {
    philox_numbers(seed_, purpose_, stream_, counter_, numbers_);
    counter_ += kPhiloxLanes;
    taken_ = kPhiloxNumbers;
    return numbers_;
  }

  std::uint32_t next() {
    if (taken_ == kPhiloxNumbers) {
      block();
      taken_ = 0;
    }
    return numbers_[taken_++];
  }

  // A uniform integer in [0, count), all equally likely: D. Lemire, "Fast random integer generation in an interval",
  // ACM Transactions on Modeling and Computer Simulation 29, 2019.
  std::uint32_t below(std::uint32_t count) {
    std::uint64_t product = std::uint64_t{next()} * count;
    if (static_cast<std::uint32_t>(product) < count) {
      const std::uint32_t surplus = -count % count;  // 2^32 mod count
      while (static_cast<std::uint32_t>(product) < surplus) product = std::uint64_t{next()} * count;
    }
    return static_cast<std::uint32_t>(product >> 32);
  }

  // In [0, 1), of 53 bits.
  double uniform() {
    const std::uint64_t high = next();
    return static_cast<double>((high << 32 | next()) >> 11) * 0x1p-53;
  }

 private:
  std::uint64_t seed_, stream_;
  Purpose purpose_;
  std::uint32_t counter_ = 0;
  int taken_ = kPhiloxNumbers;
  alignas(64) std::uint32_t numbers_[kPhiloxNumbers];
};

}  // namespace fastbudget
