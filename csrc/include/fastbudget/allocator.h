// Replays allocations and frees through a simulation of PyTorch's CUDA caching allocator: what it would reserve from
// the device, without a device. One device, one stream, no CUDA graph pools.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "fastbudget/status.h"

namespace fastbudget {

inline constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
inline constexpr int kRoundupIntervals = 16;

// More than any device holds. A lower limit than int64 keeps every sum and every address in 64 bits.
inline constexpr std::int64_t kMaxSimulatedBytes = std::int64_t{1} << 56;

// PyTorch's own options (PYTORCH_ALLOC_CONF) in bytes, with its defaults.
struct AllocatorOptions {
  bool expandable_segments = false;
  std::int64_t max_split_size_bytes = -1;                      // -1: a block of any size may be split
  std::int64_t max_non_split_rounding_bytes = 20 * kMebibyte;  // slack allowed for blocks that may not be split
  std::int64_t large_segment_bytes = 20 * kMebibyte;           // segment (or page) that requests of 1..10 MiB share
  std::array<std::int64_t, kRoundupIntervals> roundup_power2_divisions{};  // [i]: for sizes of [2^i, 2^(i+1)) MiB
  std::int64_t capacity_bytes = -1;  // what the allocator may reserve; -1: no limit
};

// [count] each. delta_bytes > 0 allocates that many requested bytes for a storage, < 0 frees it (minus its bytes);
// 0 is an empty storage, for which PyTorch allocates nothing.
struct AllocationEvents {
  const std::int64_t* storage;
  const std::int64_t* delta_bytes;
  std::int64_t count;
};

// Bytes: requested is unrounded, allocated is the blocks in use, reserved is the segments (or mapped pages).
// PyTorch's `active` adds blocks that wait for another stream: with one stream it always equals allocated.
struct AllocatorBytes {
  std::int64_t requested = 0, allocated = 0, reserved = 0;
};

struct AllocatorReplay {
  AllocatorBytes peak;                      // of each by itself, at different events
  AllocatorBytes final;                     // at the end; when memory ran out, what the last attempt left
  std::int64_t reserved_at_peak_bytes = 0;  // while allocated was at its peak
  std::int64_t event_at_peak = -1;          // the first event with allocated at its peak
  std::int64_t event_at_reserved_peak = -1;
  std::int64_t out_of_memory_event = -1;  // the replay ends before this event
  std::int64_t num_segments = 0;          // times memory was taken from the device: segments, or page mappings
  std::int64_t num_releases = 0;          // times it was given back
  std::int64_t num_splits = 0;
  std::int64_t num_retries = 0;                   // allocations that had to free every cached segment first
  std::vector<std::int64_t> allocated, reserved;  // with timeline: after each event replayed
  std::vector<std::int64_t> address;              // with addresses: where the event's storage lies; -1 for an empty one
};

// InvalidArgument names the first offending event: a storage allocated twice, freed while unknown or by another size,
// or sizes beyond kMaxSimulatedBytes. Running out of capacity is an answer, not an error.
Status replay_allocations(const AllocationEvents& events, const AllocatorOptions& options, bool timeline,
                          bool addresses, AllocatorReplay* replay);

}  // namespace fastbudget
