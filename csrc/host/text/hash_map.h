// Small open-addressing maps that are cleared and filled again for every document.
#pragma once

#include <cstdint>
#include <vector>

namespace fastbudget::text {

// 64-bit keys to consecutive numbers 0, 1, 2, … in the order of first use.
class Numbering {
 public:
  void reset(std::size_t most) {
    std::size_t size = 16;
    while (size < 2 * most) size *= 2;
    if (size > slots_.size()) slots_.resize(size);
    mask_ = size - 1;
    ++epoch_;
    count_ = 0;
  }
  std::int32_t operator[](std::uint64_t key) {
    for (std::size_t i = mixed(key) & mask_;; i = (i + 1) & mask_) {
      Slot& slot = slots_[i];
      if (slot.epoch != epoch_) {
        slot = {key, epoch_, count_};
        return count_++;
      }
      if (slot.key == key) return slot.number;
    }
  }
  // -1 if the key was never numbered.
  std::int32_t find(std::uint64_t key) const {
    for (std::size_t i = mixed(key) & mask_;; i = (i + 1) & mask_) {
      const Slot& slot = slots_[i];
      if (slot.epoch != epoch_) return -1;
      if (slot.key == key) return slot.number;
    }
  }
  std::int32_t size() const { return count_; }

 private:
  struct Slot {
    std::uint64_t key = 0;
    std::uint32_t epoch = 0;
    std::int32_t number = 0;
  };
  static std::size_t mixed(std::uint64_t key) {
    key = (key ^ key >> 32) * 0x9E3779B97F4A7C15u;
    return key ^ key >> 29;
  }
  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  std::uint32_t epoch_ = 0;
  std::int32_t count_ = 0;
};

}  // namespace fastbudget::text
