#include <atomic>
#include <vector>

#include "fastbudget/threads.h"
#include "label_views.h"

namespace fastbudget {
namespace {

// Below this many pairs per cell, private tables for each thread would cost more than the counting.
constexpr std::int64_t kPairsPerCell = 4;

}  // namespace

Status add_confusion(const Labels& predicted, const Labels& reference, std::int64_t n, std::int64_t num_classes,
                     int threads, std::int64_t* confusion) {
  if (n < 0 || num_classes < 0) return Status::InvalidArgument("n and num_classes must not be negative");
  const auto limit = static_cast<std::uint64_t>(num_classes);
  return counting::with_views(predicted, reference, [&](auto p, auto r) -> Status {
    // Checked before anything is added, so that an error leaves the matrix as it was.
    std::atomic<bool> inside{true};
    parallel_for(n, counting::kGrain, threads, [&](int, std::int64_t begin, std::int64_t end) {
      bool outside = false;
      for (std::int64_t i = begin; i < end; ++i) outside |= (p[i] >= limit) | (r[i] >= limit);
      if (outside) inside.store(false, std::memory_order_relaxed);
    });
    if (!inside.load()) return counting::find_out_of_range(predicted, reference, n, limit);

    const std::int64_t cells = num_classes * num_classes;
    const int slots = n / kPairsPerCell < cells ? 1 : max_slots(n, counting::kGrain, threads);
    std::vector<std::int64_t> scratch(static_cast<std::size_t>((slots - 1) * cells), 0);
    parallel_for(n, counting::kGrain, slots, [&](int slot, std::int64_t begin, std::int64_t end) {
      std::int64_t* mine = slot == 0 ? confusion : scratch.data() + (slot - 1) * cells;
      for (std::int64_t i = begin; i < end; ++i) ++mine[r[i] * limit + p[i]];
    });
    for (int slot = 1; slot < slots; ++slot) {
      for (std::int64_t cell = 0; cell < cells; ++cell) confusion[cell] += scratch[(slot - 1) * cells + cell];
    }
    return Status::Ok();
  });
}

}  // namespace fastbudget
