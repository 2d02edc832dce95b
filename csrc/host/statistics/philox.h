// Philox4x32-10: a counter-based generator, so that number i of stream s is the same whichever thread makes it.
// J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <cstdint>

namespace fastbudget {

// What a stream of numbers is for: each purpose has counters of its own under the same seed.
enum class Purpose : std::uint32_t { kDrawOrder = 1, kBootstrap = 2, kPicking = 3, kSingleDraws = 4 };

// So many counters are made at a time, in the lanes of vectors.
inline constexpr int kPhiloxLanes = 16;
inline constexpr int kPhiloxNumbers = 4 * kPhiloxLanes;

// Numbers of the counters {first + lane, stream (low, high), purpose}: word w of lane l at numbers[16 w + l].
void philox_numbers(std::uint64_t seed, Purpose purpose, std::uint64_t stream, std::uint32_t first,
                    std::uint32_t* numbers);

}  // namespace fastbudget
