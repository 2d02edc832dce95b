// One small thread pool for all native CPU code. Not OpenMP: torch brings its own libgomp.
#pragma once

#include <cstdint>
#include <functional>

namespace fastbudget {

// OMP_NUM_THREADS if set to a positive number, else the CPUs this process may run on.
int default_threads();

// Calls body(slot, begin, end) over consecutive pieces of [0, count), each at most `grain` long.
// slot is in [0, max_slots(...)): pieces with the same slot never run at the same time, so a slot may own scratch
// memory. threads <= 0 means default_threads(). Runs inline when one piece or one thread is enough.
// Safe to call from several threads, and in a child after fork().
using Piece = std::function<void(int slot, std::int64_t begin, std::int64_t end)>;
void parallel_for(std::int64_t count, std::int64_t grain, int threads, const Piece& body);

// The number of slots parallel_for uses for the same arguments.
int max_slots(std::int64_t count, std::int64_t grain, int threads);

}  // namespace fastbudget
