// For bit-parallel algorithms: where each token of a pattern occurs, as bits.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "hash_map.h"

namespace fastbudget::text {

class PositionMasks {
 public:
  void set(const std::int32_t* pattern, std::int64_t length) {
    words_ = (length + 63) / 64;
    names_.reset(length);
    small_.fill(-1);
    bits_.assign(words_, 0);
    for (std::int64_t i = 0; i < length; ++i) {
      const auto token = static_cast<std::uint32_t>(pattern[i]);
      const std::int32_t name = names_[token];
      if (token < small_.size()) small_[token] = name;
      const std::size_t row = static_cast<std::size_t>(name + 1) * words_;
      if (row == bits_.size()) bits_.resize(row + words_, 0);
      bits_[row + i / 64] |= std::uint64_t{1} << i % 64;
    }
  }
  // words() masks; zeros for a token that the pattern lacks.
  const std::uint64_t* of(std::int32_t token) const {
    const auto key = static_cast<std::uint32_t>(token);
    const std::int32_t name = key < small_.size() ? small_[key] : names_.find(key);
    return bits_.data() + (name + 1) * words_;
  }
  std::int64_t words() const { return words_; }

 private:
  Numbering names_;
  std::array<std::int32_t, 128> small_;  // names of small tokens (ASCII letters), which need no look-up
  std::vector<std::uint64_t> bits_;      // words() for tokens without a name, then for each name
  std::int64_t words_ = 0;
};

}  // namespace fastbudget::text
