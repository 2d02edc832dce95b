// Philox4x32-10: a counter-based generator, so that number i of stream s is the same whichever thread makes it.
// J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <cstdint>

// AVX2 where the machine has it, chosen when the program is loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FASTBUDGET_VECTORIZED __attribute__((target_clones("avx2", "default")))
#else
#define FASTBUDGET_VECTORIZED
#endif

namespace fastbudget {

// What a stream of numbers is for: each purpose has counters of its own under the same seed.
enum class Purpose : std::uint32_t { kDrawOrder = 1, kBootstrap = 2, kPicking = 3 };

// Counters are made `kPhiloxLanes` at a time, so that compilers turn the lanes into vectors.
inline constexpr int kPhiloxLanes = 16;
inline constexpr int kPhiloxNumbers = 4 * kPhiloxLanes;

// Numbers of the counters {first + lane, stream (low, high), purpose}: word w of lane l at numbers[16 w + l].
__attribute__((always_inline)) inline void philox_numbers(std::uint64_t seed, Purpose purpose, std::uint64_t stream,
                                                          std::uint32_t first, std::uint32_t* numbers) {
  std::uint32_t c0[kPhiloxLanes], c1[kPhiloxLanes], c2[kPhiloxLanes], c3[kPhiloxLanes];
  for (int lane = 0; lane < kPhiloxLanes; ++lane) {
    c0[lane] = first + static_cast<std::uint32_t>(lane);
    c1[lane] = static_cast<std::uint32_t>(stream);
    c2[lane] = static_cast<std::uint32_t>(stream >> 32);
    c3[lane] = static_cast<std::uint32_t>(purpose);
  }
  std::uint32_t key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int lane = 0; lane < kPhiloxLanes; ++lane) {
      const std::uint64_t a = std::uint64_t{0xD2511F53u} * c0[lane];
      const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * c2[lane];
      c0[lane] = static_cast<std::uint32_t>(b >> 32) ^ c1[lane] ^ key0;
      c1[lane] = static_cast<std::uint32_t>(b);
      c2[lane] = static_cast<std::uint32_t>(a >> 32) ^ c3[lane] ^ key1;
      c3[lane] = static_cast<std::uint32_t>(a);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (int lane = 0; lane < kPhiloxLanes; ++lane) {
    numbers[lane] = c0[lane];
    numbers[kPhiloxLanes + lane] = c1[lane];
    numbers[2 * kPhiloxLanes + lane] = c2[lane];
    numbers[3 * kPhiloxLanes + lane] = c3[lane];
  }
}

}  // namespace fastbudget
