// Replays events through PyTorch's own CUDA allocator. Usage: replay EVENTS RESULT, files of int64.
// EVENTS: n, storage [n], delta_bytes [n]. RESULT: the header below, then allocated and reserved after each event.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/PeerToPeerAccess.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <unordered_map>
#include <vector>

namespace allocator = c10::cuda::CUDACachingAllocator;

static std::vector<std::int64_t> read(const char* path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::vector<std::int64_t> values(static_cast<std::size_t>(file.tellg()) / sizeof(std::int64_t));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(std::int64_t)));
  return values;
}

int main(int, char** arguments) {
  const std::vector<std::int64_t> events = read(arguments[1]);
  const std::int64_t n = events.at(0);
  c10::cuda::device_count();
  c10::cuda::detail::init_p2p_access_cache(1);
  allocator::init(1);

  std::unordered_map<std::int64_t, void*> live;
  std::vector<std::int64_t> timeline;
  std::int64_t out_of_memory_event = -1;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t storage = events[1 + i], delta = events[1 + n + i];
    try {
      if (delta > 0) live[storage] = allocator::raw_alloc(static_cast<std::size_t>(delta));
      if (delta < 0) allocator::raw_delete(live[storage]);
    } catch (const c10::OutOfMemoryError&) {
      out_of_memory_event = i;
      break;
    }
    const auto stats = allocator::getDeviceStats(0);
    timeline.push_back(stats.allocated_bytes[0].current);
    timeline.push_back(stats.reserved_bytes[0].current);
  }
  const auto stats = allocator::getDeviceStats(0);
  const std::int64_t header[] = {out_of_memory_event, stats.requested_bytes[0].peak, stats.num_device_alloc,
                                 stats.num_device_free, stats.num_alloc_retries};
  std::ofstream result(arguments[2], std::ios::binary);
  result.write(reinterpret_cast<const char*>(header), sizeof header);
  result.write(reinterpret_cast<const char*>(timeline.data()),
               static_cast<std::streamsize>(timeline.size() * sizeof(std::int64_t)));
  result.close();
  _exit(result ? 0 : 1);  // destructors would look for a driver
}
