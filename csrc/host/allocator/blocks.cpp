#include "blocks.h"

namespace fastbudget::allocator {

Block* BlockStore::make(BlockPool* pool, ExpandableSegment* segment, std::uint64_t address, std::int64_t size,
                        bool mapped) {
  Block* block;
  if (spare_.empty()) {
    block = &blocks_.emplace_back();
  } else {
    block = spare_.back();
    spare_.pop_back();
    *block = Block{};
  }
  block->pool = pool;
  block->segment = segment;
  block->address = address;
  block->size = size;
  block->mapped = mapped;
  return block;
}

Block* BlockStore::split_front(Block* block, std::int64_t size) {
  Block* front = make(block->pool, block->segment, block->address, size, block->mapped);
  front->previous = block->previous;
  front->next = block;
  if (front->previous != nullptr) front->previous->next = front;
  block->previous = front;
  block->address += static_cast<std::uint64_t>(size);
  block->size -= size;
  return front;
}

}  // namespace fastbudget::allocator
