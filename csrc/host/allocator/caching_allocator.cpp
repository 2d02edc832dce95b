#include "caching_allocator.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "sizes.h"

namespace fastbudget::allocator {
namespace {

// With expandable segments a block's size, for best fit, is what it could grow to. So the block at the growing end is
// the last resort.
std::int64_t size_when_expanded(const Block* block) {
  const Block* next = block->next;
  return block->size + (next != nullptr && !next->mapped ? next->size : 0);
}

}  // namespace

CachingAllocator::CachingAllocator(const AllocatorOptions& options)
    : options_(options),
      capacity_(options.capacity_bytes < 0 ? kMaxSimulatedBytes : options.capacity_bytes),
      max_split_size_(options.max_split_size_bytes < 0 ? std::numeric_limits<std::int64_t>::max()
                                                       : options.max_split_size_bytes) {}

Block* CachingAllocator::allocate(std::int64_t requested) {
  const std::int64_t size = block_bytes(requested, options_);
  BlockPool& pool = size <= kSmallRequestBytes ? small_ : large_;
  Block* block = take_cached(pool, size);
  if (block == nullptr) block = take_from_device(pool, size);
  if (block == nullptr && release_oversize(pool, size)) block = take_from_device(pool, size);
  if (block == nullptr) {
    release_cached(large_);
    release_cached(small_);
    ++counts_.retries;
    block = take_from_device(pool, size);
  }
  if (block == nullptr) return nullptr;

  if (should_split(*block, size)) {
    Block* rest = block;
    block = store_.split_front(rest, size);
    pool.free.insert(rest);
    ++counts_.splits;
  }
  block->in_use = true;
  block->requested = requested;
  counts_.bytes.allocated += block->size;  // more than `size` where the block was not split
  counts_.bytes.requested += requested;
  return block;
}

void CachingAllocator::free(Block* block) {
  block->in_use = false;
  counts_.bytes.allocated -= block->size;
  counts_.bytes.requested -= block->requested;
  absorb(block, block->previous);
  absorb(block, block->next);
  block->pool->free.insert(block);
}

// Best fit: the smallest free block that is large enough, at the lowest address.
Block* CachingAllocator::take_cached(BlockPool& pool, std::int64_t size) {
  auto found = pool.free.lower_bound(size);
  if (found == pool.free.end()) return nullptr;
  if (options_.expandable_segments) {
    auto larger = std::next(found);
    while (larger != pool.free.end() && size_when_expanded(*larger) < size_when_expanded(*found)) found = larger++;
  }
  Block* block = *found;
  // Oversize blocks are never split, so only an oversize request of about their size may have one.
  if (size < max_split_size_ && block->size >= max_split_size_) return nullptr;
  if (size >= max_split_size_ && block->size >= size + options_.max_non_split_rounding_bytes) return nullptr;
  pool.free.erase(found);
  return block;
}

Block* CachingAllocator::take_from_device(BlockPool& pool, std::int64_t size) {
  if (options_.expandable_segments) return grow_expandable(pool, size);
  const std::int64_t bytes = segment_bytes(size, options_);
  if (!take_bytes(bytes)) return nullptr;
  return store_.make(&pool, nullptr, next_address(bytes), bytes, true);
}

bool CachingAllocator::should_split(const Block& block, std::int64_t size) const {
  const std::int64_t rest = block.size - size;
  if (block.pool->is_small || options_.expandable_segments) return rest >= kMinBlockBytes;
  return size < max_split_size_ && rest > kSmallRequestBytes;
}

// On failure, and only with max_split_size: gives back one oversize block that is large enough, else the largest ones
// until their sum is. False when that is not enough, even though some may be gone.
bool CachingAllocator::release_oversize(BlockPool& pool, std::int64_t size) {
  // Expandable segments give back pages, not blocks. (Older versions of torch fail an internal check here.)
  if (options_.max_split_size_bytes < 0 || options_.expandable_segments) return false;
  const std::int64_t wanted = std::max(size, max_split_size_);
  const auto found = pool.free.lower_bound(wanted);
  if (found != pool.free.end()) {
    release_segment(*found);
    return true;
  }
  std::int64_t released = 0;
  while (released < wanted && !pool.free.empty()) {
    Block* largest = *std::prev(pool.free.end());
    if (largest->size < max_split_size_) break;
    released += largest->size;
    release_segment(largest);
  }
  return released >= wanted;
}

void CachingAllocator::release_cached(BlockPool& pool) {
  // Releasing changes the set; blocks that it adds can't be released either.
  const std::vector<Block*> cached(pool.free.begin(), pool.free.end());
  for (Block* block : cached) {
    if (options_.expandable_segments) {
      unmap_whole_pages(block);
    } else if (block->is_whole_segment()) {
      release_segment(block);
    }
  }
}

void CachingAllocator::release_segment(Block* block) {
  give_back_bytes(block->size);
  block->pool->free.erase(block);
  store_.destroy(block);
}

// Merges a neighbor into a block that is in no set, if both are free and both have memory behind them or neither has.
void CachingAllocator::absorb(Block* block, Block* neighbor) {
  if (neighbor == nullptr || neighbor->in_use || neighbor->mapped != block->mapped) return;
  if (neighbor->mapped) {
    neighbor->pool->free.erase(neighbor);
  } else {
    neighbor->pool->unmapped.erase(neighbor);
  }
  if (block->previous == neighbor) {
    block->address = neighbor->address;
    block->previous = neighbor->previous;
    if (block->previous != nullptr) block->previous->next = block;
  } else {
    block->next = neighbor->next;
    if (block->next != nullptr) block->next->previous = block;
  }
  block->size += neighbor->size;
  store_.destroy(neighbor);
}

bool CachingAllocator::take_bytes(std::int64_t bytes) {
  if (bytes > capacity_ - counts_.bytes.reserved) return false;
  counts_.bytes.reserved += bytes;
  ++counts_.segments;
  return true;
}

void CachingAllocator::give_back_bytes(std::int64_t bytes) {
  counts_.bytes.reserved -= bytes;
  ++counts_.releases;
}

// Addresses only grow: among equal blocks the one whose segment is older wins. cudaMalloc promises no order, so this
// is the one rule of the real allocator that can't be known.
std::uint64_t CachingAllocator::next_address(std::int64_t bytes) {
  const std::uint64_t address = address_end_;
  address_end_ += static_cast<std::uint64_t>(round_up(bytes, kSmallSegmentBytes));
  return address;
}

}  // namespace fastbudget::allocator
