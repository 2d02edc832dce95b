// Philox4x32-10: a counter-based generator, so that draw i of stream s is the same whichever thread makes it.
// J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

namespace fastbudget {

// The words of one counter. Checked in tests against Random123's known answers.
inline std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::uint32_t key0,
                                           std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(a)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// What a stream of numbers is for; each purpose has counters of its own under the same seed.
enum class Purpose : std::uint32_t { kDrawOrder = 1, kResampling = 2, kPermutation = 3 };

// Uniform in (0, 1), never at its ends: 53 bits of the counter `index`.
inline double philox_uniform(std::uint64_t seed, Purpose purpose, std::uint64_t index) {
  const auto words = philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0,
                             static_cast<std::uint32_t>(purpose)},
                            static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  const std::uint64_t bits = (std::uint64_t{words[0]} << 32 | words[1]) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1p-53;
}

}  // namespace fastbudget
