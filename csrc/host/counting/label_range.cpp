#include <atomic>
#include <limits>
#include <mutex>

#include "fastbudget/threads.h"
#include "label_views.h"

namespace fastbudget {

void label_range(const Labels& labels, std::int64_t n, int threads, std::int64_t* smallest, std::int64_t* largest) {
  std::int64_t low = std::numeric_limits<std::int64_t>::max(), high = std::numeric_limits<std::int64_t>::min();
  std::mutex mutex;
  counting::with_view(labels, [&](auto view) {
    parallel_for(n, counting::kGrain, threads, [&](int, std::int64_t begin, std::int64_t end) {
      std::int64_t least = static_cast<std::int64_t>(view[begin]), most = least;
      for (std::int64_t i = begin; i < end; ++i) {
        const auto label = static_cast<std::int64_t>(view[i]);
        least = std::min(least, label);
        most = std::max(most, label);
      }
      std::lock_guard<std::mutex> hold(mutex);
      low = std::min(low, least);
      high = std::max(high, most);
    });
  });
  *smallest = low;
  *largest = high;
}

namespace counting {

Status find_out_of_range(const Labels& predicted, const Labels& reference, std::int64_t n, std::uint64_t num_classes) {
  return with_views(predicted, reference, [&](auto p, auto r) {
    for (std::int64_t i = 0; i < n; ++i) {
      for (const bool is_prediction : {true, false}) {
        const std::uint64_t label = is_prediction ? p[i] : r[i];
        if (label < num_classes) continue;
        return Status::OutOfRange(std::string(is_prediction ? "predictions" : "references") + "[" + std::to_string(i) +
                                  "] is " + std::to_string(static_cast<std::int64_t>(label)));
      }
    }
    return Status::Ok();
  });
}

}  // namespace counting
}  // namespace fastbudget
