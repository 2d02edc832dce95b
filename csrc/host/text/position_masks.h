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
    bits_.clear();
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int32_t name = names_[static_cast<std::uint32_t>(pattern[i])];
      if (static_cast<std::size_t>(name) * words_ == bits_.size()) bits_.resize(bits_.size() + words_, 0);
      bits_[name * words_ + i / 64] |= std::uint64_t{1} << i % 64;
    }
  }
  // words() masks, or null for a token that the pattern lacks.
  const std::uint64_t* of(std::int32_t token) const {
    const std::int32_t name = names_.find(static_cast<std::uint32_t>(token));
    return name < 0 ? nullptr : bits_.data() + name * words_;
  }
  std::int64_t words() const { return words_; }

 private:
  Numbering names_;
  std::vector<std::uint64_t> bits_;
  std::int64_t words_ = 0;
};

}  // namespace fastbudget::text
