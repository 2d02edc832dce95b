// The simulated allocator: one device, one stream. Follows DeviceCachingAllocator in
// torch/c10/cuda/CUDACachingAllocator.cpp; bench/cost/torch_allocator compares it with torch's own binary.
// Older versions differ in options only: no large_segment_size_mb, earlier no max_non_split_rounding_mb (20 both).
#pragma once

#include <cstdint>
#include <deque>
#include <memory_resource>

#include "blocks.h"
#include "fastbudget/allocator.h"

namespace fastbudget::allocator {

struct AllocatorCounts {
  AllocatorBytes bytes;
  std::int64_t segments = 0, releases = 0, splits = 0, retries = 0;
};

class CachingAllocator {
 public:
  explicit CachingAllocator(const AllocatorOptions& options);
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // A block in use, or null when the capacity does not suffice. requested: 1..kMaxSimulatedBytes.
  Block* allocate(std::int64_t requested);
  void free(Block* block);

  const AllocatorCounts& counts() const { return counts_; }

 private:
  // caching_allocator.cpp
  Block* take_cached(BlockPool& pool, std::int64_t size);
  Block* take_from_device(BlockPool& pool, std::int64_t size);
  bool should_split(const Block& block, std::int64_t size) const;
  bool release_oversize(BlockPool& pool, std::int64_t size);
  void release_cached(BlockPool& pool);
  void release_segment(Block* block);
  void absorb(Block* block, Block* neighbor);
  bool take_bytes(std::int64_t bytes);
  void give_back_bytes(std::int64_t bytes);
  std::uint64_t next_address(std::int64_t bytes);

  // expandable_segments.cpp
  Block* grow_expandable(BlockPool& pool, std::int64_t size);
  Block* find_address_space(BlockPool& pool, std::int64_t size);
  bool map(Block* block, std::int64_t size);
  void unmap_whole_pages(Block* block);

  AllocatorOptions options_;
  std::int64_t capacity_, max_split_size_;
  AllocatorCounts counts_;
  std::uint64_t address_end_ = 0;
  std::pmr::unsynchronized_pool_resource memory_;
  BlockStore store_;
  std::deque<ExpandableSegment> expandable_segments_;
  BlockPool small_{true, &memory_}, large_{false, &memory_};
};

}  // namespace fastbudget::allocator
