// For bit-parallel algorithms: where each token of a pattern occurs, as bits.
#pragma once

#include <cstdint>
#include <vector>

#include "hash_map.h"

namespace fastbudget::text {

class PositionMasks {
 public:
  void set(const std::int32_t* pattern, std::int64_t length) {
    words_ = (length + 63) / 64;
    names_.reset(length);
    bits_.assign((kSmall + 1) * words_, 0);
    for (std::int64_t i = 0; i < length; ++i) {
      const auto token = static_cast<std::uint32_t>(pattern[i]);
      const std::int64_t row = token < kSmall ? token : kSmall + 1 + names_[token];
      if (row * words_ == static_cast<std::int64_t>(bits_.size())) bits_.resize((row + 1) * words_, 0);
      bits_[row * words_ + i / 64] |= std::uint64_t{1} << i % 64;
    }
  }
  // words() masks; zeros for a token that the pattern lacks.
  const std::uint64_t* of(std::int32_t token) const {
    const auto key = static_cast<std::uint32_t>(token);
    return bits_.data() + (key < kSmall ? key : kSmall + 1 + names_.find(key)) * words_;
  }
  std::int64_t words() const { return words_; }

 private:
  static constexpr std::int64_t kSmall = 128;  // smaller tokens (ASCII letters) need no look-up

  Numbering names_;
  std::vector<std::uint64_t> bits_;  // rows of words(): small tokens, those without a name, then by name
  std::int64_t words_ = 0;
};

}  // namespace fastbudget::text
