// The size rules of PyTorch's CUDA caching allocator. Constants: torch/include/c10/core/AllocatorConfig.h.
#pragma once

#include <cstdint>

#include "fastbudget/allocator.h"

namespace fastbudget::allocator {

inline constexpr std::int64_t kMinBlockBytes = 512;            // every block is a multiple of this
inline constexpr std::int64_t kSmallRequestBytes = kMebibyte;  // up to here, inclusive: the small pool
inline constexpr std::int64_t kSmallSegmentBytes = 2 * kMebibyte;
inline constexpr std::int64_t kMinOwnSegmentBytes = 10 * kMebibyte;  // from here: a segment of its own size
inline constexpr std::int64_t kOwnSegmentRounding = 2 * kMebibyte;

constexpr std::int64_t round_up(std::int64_t size, std::int64_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

// The block size for a request of 1..kMaxSimulatedBytes.
std::int64_t block_bytes(std::int64_t requested, const AllocatorOptions& options);

// The segment that is taken from the device when no cached block fits; not used with expandable segments.
std::int64_t segment_bytes(std::int64_t block, const AllocatorOptions& options);

}  // namespace fastbudget::allocator
