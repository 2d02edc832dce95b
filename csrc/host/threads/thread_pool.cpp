#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "fastbudget/threads.h"

namespace fastbudget {
namespace {

constexpr int kMostThreads = 256;

// One parallel_for call. Whoever helps takes a slot, then pieces until none is left.
struct Job {
  Job(std::int64_t count, std::int64_t grain, int slots, const Piece& body)
      : count(count), grain(grain), slots(slots), body(body) {}

  void help() {
    const int slot = next_slot.fetch_add(1);
    if (slot >= slots) return;
    for (;;) {
      const std::int64_t begin = next.fetch_add(grain);
      if (begin >= count) return;
      try {
        body(slot, begin, std::min(count, begin + grain));
      } catch (...) {
        std::lock_guard<std::mutex> hold(mutex);
        if (!error) error = std::current_exception();
        next.store(count);
      }
    }
  }

  const std::int64_t count, grain;
  const int slots;
  const Piece& body;
  std::atomic<std::int64_t> next{0};
  std::atomic<int> next_slot{0};
  int helpers = 0;  // workers inside help(); guarded by the pool's mutex
  std::mutex mutex;
  std::exception_ptr error;
};

class ThreadPool {
 public:
  void run(Job& job) {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      while (static_cast<int>(workers_) < job.slots - 1) {
        std::thread([this] { work(); }).detach();
        ++workers_;
      }
      for (int i = 1; i < job.slots; ++i) queue_.push_back(&job);
    }
    wake_.notify_all();
    job.help();
    std::unique_lock<std::mutex> hold(mutex_);
    queue_.erase(std::remove(queue_.begin(), queue_.end(), &job), queue_.end());
    done_.wait(hold, [&] { return job.helpers == 0; });
  }

 private:
  void work() {
    std::unique_lock<std::mutex> hold(mutex_);
    for (;;) {
      wake_.wait(hold, [&] { return !queue_.empty(); });
      Job* job = queue_.front();
      queue_.pop_front();
      ++job->helpers;
      hold.unlock();
      job->help();
      hold.lock();
      if (--job->helpers == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<Job*> queue_;
  int workers_ = 0;
};

// Never destroyed: workers may outlive static destructors. A forked child has no workers, so it starts a new pool.
std::atomic<ThreadPool*> pool{nullptr};

ThreadPool& the_pool() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { pool.store(nullptr); });
  (void)registered;
  ThreadPool* current = pool.load();
  if (!current) {
    auto fresh = std::make_unique<ThreadPool>();
    if (pool.compare_exchange_strong(current, fresh.get())) current = fresh.release();
  }
  return *current;
}

}  // namespace

int default_threads() {
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    const int wanted = std::atoi(text);
    if (wanted > 0) return std::min(wanted, kMostThreads);
  }
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return std::clamp(CPU_COUNT(&allowed), 1, kMostThreads);
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMostThreads);
}

int max_slots(std::int64_t count, std::int64_t grain, int threads) {
  const std::int64_t pieces = count <= 0 ? 0 : (count + grain - 1) / grain;
  const int wanted = threads > 0 ? std::min(threads, kMostThreads) : default_threads();
  return static_cast<int>(std::clamp<std::int64_t>(pieces, 1, wanted));
}

void parallel_for(std::int64_t count, std::int64_t grain, int threads, const Piece& body) {
  if (count <= 0) return;
  const int slots = max_slots(count, grain, threads);
  Job job(count, grain, slots, body);
  if (slots == 1) {
    job.help();
  } else {
    the_pool().run(job);
  }
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace fastbudget
