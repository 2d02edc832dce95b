#include "sizes.h"

#include <algorithm>
#include <bit>

namespace fastbudget::allocator {
namespace {

int floor_log2(std::int64_t value) { return std::bit_width(static_cast<std::uint64_t>(value)) - 1; }

std::int64_t divisions_for(std::int64_t size, const AllocatorOptions& options) {
  const int interval = floor_log2(size) - floor_log2(kMebibyte);
  return options.roundup_power2_divisions[std::clamp(interval, 0, kRoundupIntervals - 1)];
}

}  // namespace

std::int64_t block_bytes(std::int64_t requested, const AllocatorOptions& options) {
  if (requested < kMinBlockBytes) return kMinBlockBytes;
  const std::int64_t divisions = divisions_for(requested, options);
  if (divisions <= 1 || requested <= kMinBlockBytes * divisions) return round_up(requested, kMinBlockBytes);
  // Cuts [2^k, 2^(k+1)) into equal parts. Divisions are a power of two, so a part is one too, and at least 512.
  return round_up(requested, (std::int64_t{1} << floor_log2(requested)) / divisions);
}

std::int64_t segment_bytes(std::int64_t block, const AllocatorOptions& options) {
  if (block <= kSmallRequestBytes) return kSmallSegmentBytes;
  if (block < kMinOwnSegmentBytes) return options.large_segment_bytes;
  return round_up(block, kOwnSegmentRounding);
}

}  // namespace fastbudget::allocator
