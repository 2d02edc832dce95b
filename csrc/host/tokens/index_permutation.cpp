#include <algorithm>
#include <bit>

#include "fastbudget/threads.h"
#include "fastbudget/tokens.h"

namespace fastbudget {
namespace {

constexpr std::int64_t kGrain = 1 << 16;
constexpr int kFewestBits = 10;  // fewer would leave the halves too small to mix

// One step of SplitMix64 (Steele, Lea and Flood 2014): its output for the state `state`.
std::uint64_t splitmix64(std::uint64_t state) {
  std::uint64_t z = state + 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

}  // namespace

IndexPermutation::IndexPermutation(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch) : size_(size) {
  const int bits = std::max(kFewestBits, static_cast<int>(std::bit_width(size - 1)));
  low_bits_ = bits / 2;
  low_mask_ = (std::uint64_t{1} << low_bits_) - 1;
  high_mask_ = (std::uint64_t{1} << (bits - low_bits_)) - 1;
  std::uint64_t state = splitmix64(seed) ^ splitmix64(~epoch);
  for (std::uint64_t& key : keys_) {
    key = splitmix64(state);
    state += 0x9E3779B97F4A7C15u;
  }
}

void permute_range(const IndexPermutation& permutation, std::int64_t begin, std::int64_t count, int threads,
                   std::int64_t* out) {
  parallel_for(count, kGrain, threads, [&](int, std::int64_t from, std::int64_t to) {
    for (std::int64_t i = from; i < to; ++i) out[i] = static_cast<std::int64_t>(permutation(begin + i));
  });
}

}  // namespace fastbudget
