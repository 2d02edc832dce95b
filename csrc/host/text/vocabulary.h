// Tokens to consecutive ids.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace fastbudget::text {

class Vocabulary {
 public:
  std::int32_t id_of(std::string_view token) {
    if (2 * tokens_.size() >= slots_.size()) grow();
    const std::uint64_t hash = hash_of(token);
    for (std::size_t i = hash & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
      Slot& slot = slots_[i];
      if (slot.id < 0) {
        slot = {hash, static_cast<std::int32_t>(tokens_.size())};
        tokens_.push_back({letters_.size(), token.size()});
        letters_.insert(letters_.end(), token.begin(), token.end());
        return slot.id;
      }
      if (slot.hash == hash && equals(slot.id, token)) return slot.id;
    }
  }
  std::string_view operator[](std::int32_t id) const {
    return {letters_.data() + tokens_[id].begin, tokens_[id].length};
  }
  std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::int32_t id = -1;
  };
  struct Place {
    std::size_t begin, length;
  };
  // Of tokens with equal hashes.
  bool equals(std::int32_t id, std::string_view token) const {
    if (tokens_[id].length != token.size()) return false;
    return token.size() <= 8 || (*this)[id] == token;  // the hash of eight bytes or fewer is one to one
  }
  static std::uint64_t hash_of(std::string_view token) {
    std::uint64_t hash = token.size() * 0x9E3779B97F4A7C15u;
    const char* data = token.data();
    std::size_t left = token.size();
    for (; left >= 8; left -= 8, data += 8) hash = mixed(hash ^ load<std::uint64_t>(data));
    std::uint64_t word = 0;  // all bytes left, some twice
    if (left >= 4) {
      word = std::uint64_t{load<std::uint32_t>(data)} << 32 | load<std::uint32_t>(data + left - 4);
    } else if (left > 0) {
      word = load<std::uint8_t>(data) << 16 | load<std::uint8_t>(data + left / 2) << 8 |
             load<std::uint8_t>(data + left - 1);
    }
    return mixed(hash ^ word);
  }
  template <typename T>
  static T load(const char* data) {
    T value;
    std::memcpy(&value, data, sizeof value);
    return value;
  }
  static std::uint64_t mixed(std::uint64_t value) {
    value *= 0xBF58476D1CE4E5B9u;
    value ^= value >> 31;
    value *= 0x94D049BB133111EBu;
    return value ^ value >> 29;
  }
  void grow() {
    std::vector<Slot> larger(slots_.empty() ? 1024 : 2 * slots_.size());
    for (const Slot& slot : slots_) {
      if (slot.id < 0) continue;
      std::size_t i = slot.hash & (larger.size() - 1);
      while (larger[i].id >= 0) i = (i + 1) & (larger.size() - 1);
      larger[i] = slot;
    }
    slots_.swap(larger);
  }
  std::vector<Slot> slots_;
  std::vector<Place> tokens_;
  std::vector<char> letters_;
};

}  // namespace fastbudget::text
