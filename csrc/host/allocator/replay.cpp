#include <string>
#include <unordered_map>

#include "caching_allocator.h"

namespace fastbudget {
namespace {

using allocator::Block;

Status offending(std::int64_t event, const std::string& problem) {
  return Status::InvalidArgument("event " + std::to_string(event) + ": " + problem);
}

std::string named(std::int64_t storage) { return "storage " + std::to_string(storage); }

Status too_large(std::int64_t event, const std::string& what) {
  return offending(event, what + " exceeds 2^56 bytes, more than can be simulated");
}

// What is in use, by storage number. Numbers are dense in practice, and a table is several times faster than hashing.
class LiveStorages {
 public:
  explicit LiveStorages(const AllocationEvents& events) {
    const std::int64_t table_size = 2 * events.count + 1024;
    is_dense_ = true;
    for (std::int64_t i = 0; i < events.count && is_dense_; ++i) {
      is_dense_ = events.storage[i] >= 0 && events.storage[i] < table_size;
    }
    if (is_dense_) table_.resize(static_cast<std::size_t>(table_size));
  }

  Block*& operator[](std::int64_t storage) {
    return is_dense_ ? table_[static_cast<std::size_t>(storage)] : map_[storage];
  }

 private:
  bool is_dense_;
  std::vector<Block*> table_;
  std::unordered_map<std::int64_t, Block*> map_;
};

Status check(const AllocatorOptions& options) {
  if (options.capacity_bytes == 0 || options.capacity_bytes < -1 || options.capacity_bytes > kMaxSimulatedBytes) {
    return Status::InvalidArgument("capacity_bytes must be in [1, 2^56], or -1 for no limit, got " +
                                   std::to_string(options.capacity_bytes));
  }
  if (options.large_segment_bytes <= 10 * kMebibyte || options.large_segment_bytes > kMaxSimulatedBytes ||
      options.large_segment_bytes % kMebibyte != 0) {
    return Status::InvalidArgument("large_segment_bytes must be whole MiB, more than 10, got " +
                                   std::to_string(options.large_segment_bytes));
  }
  const auto is_limit = [&](std::int64_t bytes) { return bytes >= options.large_segment_bytes; };
  if (options.max_split_size_bytes != -1 && !is_limit(options.max_split_size_bytes)) {
    return Status::InvalidArgument("max_split_size_bytes must be at least the large segment size, or -1, got " +
                                   std::to_string(options.max_split_size_bytes));
  }
  if (!is_limit(options.max_non_split_rounding_bytes) || options.max_non_split_rounding_bytes > kMaxSimulatedBytes) {
    return Status::InvalidArgument("max_non_split_rounding_bytes must be at least the large segment size, got " +
                                   std::to_string(options.max_non_split_rounding_bytes));
  }
  for (const std::int64_t divisions : options.roundup_power2_divisions) {
    if (divisions < 0 || (divisions & (divisions - 1)) != 0 || divisions > kMebibyte) {
      return Status::InvalidArgument("roundup_power2_divisions must be powers of two up to 2^20, or 0, got " +
                                     std::to_string(divisions));
    }
  }
  return Status::Ok();
}

}  // namespace

Status replay_allocations(const AllocationEvents& events, const AllocatorOptions& options, bool timeline,
                          bool addresses, AllocatorReplay* replay) {
  *replay = {};
  if (const Status status = check(options); !status.ok()) return status;
  allocator::CachingAllocator simulated(options);
  LiveStorages live(events);
  const auto& counts = simulated.counts();
  const AllocatorBytes& now = counts.bytes;
  if (timeline) {
    replay->allocated.reserve(static_cast<std::size_t>(events.count));
    replay->reserved.reserve(static_cast<std::size_t>(events.count));
  }
  if (addresses) replay->address.reserve(static_cast<std::size_t>(events.count));

  for (std::int64_t i = 0; i < events.count; ++i) {
    const std::int64_t storage = events.storage[i], delta = events.delta_bytes[i];
    std::int64_t address = -1;
    if (delta > 0) {
      Block*& block = live[storage];
      if (block != nullptr) return offending(i, named(storage) + " is allocated already");
      if (delta > kMaxSimulatedBytes) return too_large(i, std::to_string(delta) + " bytes for " + named(storage));
      block = simulated.allocate(delta);
      if (block == nullptr) {
        if (options.capacity_bytes < 0) return too_large(i, "what is allocated");
        replay->out_of_memory_event = i;
        break;
      }
      address = static_cast<std::int64_t>(block->address);
    } else if (delta < 0) {
      Block*& block = live[storage];
      if (block == nullptr) return offending(i, named(storage) + " is freed, but is not allocated");
      if (delta != -block->requested) {
        return offending(i, named(storage) + " holds " + std::to_string(block->requested) +
                                " bytes, but the event frees " + std::to_string(delta).substr(1));
      }
      address = static_cast<std::int64_t>(block->address);
      simulated.free(block);
      block = nullptr;
    }

    if (now.allocated > replay->peak.allocated) {
      replay->peak.allocated = now.allocated;
      replay->reserved_at_peak_bytes = now.reserved;
      replay->event_at_peak = i;
    }
    if (now.reserved > replay->peak.reserved) {
      replay->peak.reserved = now.reserved;
      replay->event_at_reserved_peak = i;
    }
    if (now.requested > replay->peak.requested) replay->peak.requested = now.requested;
    if (timeline) {
      replay->allocated.push_back(now.allocated);
      replay->reserved.push_back(now.reserved);
    }
    if (addresses) replay->address.push_back(address);
  }
  replay->final = now;
  replay->num_segments = counts.segments;
  replay->num_releases = counts.releases;
  replay->num_splits = counts.splits;
  replay->num_retries = counts.retries;
  return Status::Ok();
}

}  // namespace fastbudget
