// Blocks: consecutive pieces of a segment, linked in address order; and the two pools that hold the free ones.
#pragma once

#include <cstdint>
#include <deque>
#include <memory_resource>
#include <set>
#include <vector>

namespace fastbudget::allocator {

struct BlockPool;

// Address space for the device's whole memory, of which pages are mapped and unmapped.
struct ExpandableSegment {
  std::uint64_t begin;
  std::int64_t bytes, page_bytes;
};

struct Block {
  std::uint64_t address = 0;
  std::int64_t size = 0;
  std::int64_t requested = 0;
  BlockPool* pool = nullptr;
  Block* previous = nullptr;  // neighbors in the same segment
  Block* next = nullptr;
  ExpandableSegment* segment = nullptr;  // null: an ordinary segment
  bool in_use = false;
  bool mapped = true;  // false: address space of an expandable segment with no memory behind it

  bool is_whole_segment() const { return previous == nullptr && next == nullptr; }
};

struct SmallestFirst {
  using is_transparent = void;
  bool operator()(const Block* a, const Block* b) const {
    return a->size != b->size ? a->size < b->size : a->address < b->address;
  }
  bool operator()(const Block* a, std::int64_t size) const { return a->size < size; }
};

struct LowestAddressFirst {
  bool operator()(const Block* a, const Block* b) const { return a->address < b->address; }
};

struct BlockPool {
  BlockPool(bool small, std::pmr::memory_resource* memory) : is_small(small), free(memory), unmapped(memory) {}

  // A block's size and address are its place in these sets: take it out before changing them.
  const bool is_small;
  std::pmr::set<Block*, SmallestFirst> free;
  std::pmr::set<Block*, LowestAddressFirst> unmapped;
};

// Hands out blocks and takes them back; a block's address never changes while it lives.
class BlockStore {
 public:
  Block* make(BlockPool* pool, ExpandableSegment* segment, std::uint64_t address, std::int64_t size, bool mapped);
  // Makes a block of the first `size` bytes of `block`, which keeps the rest. Neither may be in a set.
  Block* split_front(Block* block, std::int64_t size);
  void destroy(Block* block) { spare_.push_back(block); }

 private:
  std::deque<Block> blocks_;
  std::vector<Block*> spare_;
};

}  // namespace fastbudget::allocator
