// expandable_segments:True. A pool has one segment: address space for more than the whole device, of which pages of
// 2 MiB (small pool) or 20 MiB (large pool) are mapped as needed and unmapped on a shortage. Unmapped space is a block
// too, so that the neighbors of a block tell where it could grow.
#include <algorithm>

#include "caching_allocator.h"
#include "sizes.h"

namespace fastbudget::allocator {

Block* CachingAllocator::grow_expandable(BlockPool& pool, std::int64_t size) {
  Block* block = find_address_space(pool, size);
  if (!block->mapped && !map(block, std::min(block->size, size))) return nullptr;
  while (block->size < size) {
    // Free, then unmapped: map() merges the two into the second. What it mapped before a failure stays cached.
    Block* unmapped = block->next;
    if (!map(unmapped, std::min(unmapped->size, size - block->size))) return nullptr;
    block = unmapped;
  }
  pool.free.erase(block);
  return block;
}

// The lowest address from which free and unmapped blocks run for `size` bytes.
Block* CachingAllocator::find_address_space(BlockPool& pool, std::int64_t size) {
  for (Block* unmapped : pool.unmapped) {
    Block* first = unmapped;
    if (first->previous != nullptr && !first->previous->in_use) first = first->previous;
    std::int64_t bytes = 0;
    for (const Block* block = first; bytes < size && block != nullptr && !block->in_use; block = block->next) {
      bytes += block->size;
    }
    if (bytes >= size) return first;
  }
  const std::int64_t page_bytes = pool.is_small ? kSmallSegmentBytes : options_.large_segment_bytes;
  // PyTorch takes address space for 9/8 of the device's memory, to have room beyond holes that were unmapped.
  const std::int64_t bytes = round_up(capacity_ + capacity_ / 8, page_bytes);
  ExpandableSegment* segment =
      &expandable_segments_.emplace_back(ExpandableSegment{next_address(bytes), bytes, page_bytes});
  Block* block = store_.make(&pool, segment, segment->begin, bytes, false);
  pool.unmapped.insert(block);
  return block;
}

// Maps whole pages for the first `size` bytes of an unmapped block; all of them or none.
bool CachingAllocator::map(Block* block, std::int64_t size) {
  BlockPool& pool = *block->pool;
  const std::int64_t bytes = round_up(size, block->segment->page_bytes);
  if (!take_bytes(bytes)) return false;
  pool.unmapped.erase(block);
  if (bytes < block->size) {
    // The caller holds `block` as the part that gets memory, so the rest becomes the new one.
    Block* rest = store_.make(&pool, block->segment, block->address + static_cast<std::uint64_t>(bytes),
                              block->size - bytes, false);
    rest->previous = block;
    rest->next = block->next;
    if (rest->next != nullptr) rest->next->previous = rest;
    block->next = rest;
    block->size = bytes;
    pool.unmapped.insert(rest);
  }
  block->mapped = true;
  absorb(block, block->previous);
  absorb(block, block->next);
  pool.free.insert(block);
  return true;
}

// Unmaps the pages that lie wholly inside a free block; its ends stay free where they share a page with others.
void CachingAllocator::unmap_whole_pages(Block* block) {
  BlockPool& pool = *block->pool;
  const std::int64_t page_bytes = block->segment->page_bytes;
  const auto begin = static_cast<std::int64_t>(block->address - block->segment->begin);
  const std::int64_t first_page = round_up(begin, page_bytes);
  const std::int64_t end_of_pages = (begin + block->size) / page_bytes * page_bytes;
  if (first_page >= end_of_pages) return;

  pool.free.erase(block);
  if (first_page > begin) pool.free.insert(store_.split_front(block, first_page - begin));
  const std::int64_t bytes = end_of_pages - first_page;
  if (block->size > bytes) {
    Block* rest = block;
    block = store_.split_front(rest, bytes);
    pool.free.insert(rest);
  }
  block->mapped = false;
  give_back_bytes(bytes);
  absorb(block, block->previous);
  absorb(block, block->next);
  if (block->is_whole_segment()) {
    // Nothing of the segment is left: PyTorch drops its address space, and the next growth starts a new segment.
    store_.destroy(block);
  } else {
    pool.unmapped.insert(block);
  }
}

}  // namespace fastbudget::allocator
