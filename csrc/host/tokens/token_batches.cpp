#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "fastbudget/tokens.h"

namespace fastbudget {
namespace {

// Counts forks on the way from the first process to this one. What a thread of another generation locked stays locked,
// so nothing made in an older generation may be waited for.
std::atomic<int> fork_generation{0};

int current_generation() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1); });
  (void)registered;
  return fork_generation.load();
}

// Memory of batches that were dropped, kept for the next ones: fresh pages would cost more than filling them.
class BatchMemory : public std::enable_shared_from_this<BatchMemory> {
 public:
  BatchMemory(std::int64_t batch_size, std::int64_t seq_len, std::size_t most_kept)
      : tokens_(static_cast<std::size_t>(batch_size * seq_len)), most_kept_(most_kept) {}
  ~BatchMemory() {
    for (std::int64_t* memory : free_) std::free(memory);
  }

  std::shared_ptr<TokenBatch> take() {
    std::int64_t* memory = nullptr;
    {
      std::lock_guard<std::mutex> hold(mutex_);
      if (!free_.empty()) {
        memory = free_.back();
        free_.pop_back();
      }
    }
    if (!memory) memory = static_cast<std::int64_t*>(std::aligned_alloc(64, (2 * tokens_ * 8 + 63) / 64 * 64));
    if (!memory) throw std::bad_alloc();
    return {new TokenBatch{memory, memory + tokens_}, [pool = shared_from_this()](TokenBatch* batch) {
              pool->give_back(batch->inputs);
              delete batch;
            }};
  }

 private:
  void give_back(std::int64_t* memory) {
    if (generation_ == current_generation()) {
      std::lock_guard<std::mutex> hold(mutex_);
      if (free_.size() < most_kept_) return free_.push_back(memory);
    }
    std::free(memory);
  }

  const std::size_t tokens_, most_kept_;
  const int generation_ = current_generation();
  std::mutex mutex_;
  std::vector<std::int64_t*> free_;
};

Status read_batch(const TokenFile& file, const TokenBatchPlan& plan, std::int64_t number, const TokenBatch& batch) {
  const std::int64_t global = plan.batch_size * plan.world_size, per_epoch = plan.windows / global;
  const IndexPermutation order(plan.windows, plan.seed, number / per_epoch);
  const std::int64_t first = number % per_epoch * global + plan.rank * plan.batch_size;
  for (std::int64_t row = 0; row < plan.batch_size; ++row) {
    const std::int64_t window = static_cast<std::int64_t>(order(first + row)), at = row * plan.seq_len;
    Status status = file.read_window(window * plan.seq_len, plan.seq_len, batch.inputs + at, batch.targets + at);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

}  // namespace

// The thread that reads ahead, and the queue between it and the caller.
class TokenBatchReader::Prefetcher {
 public:
  Prefetcher(std::shared_ptr<const TokenFile> file, const TokenBatchPlan& plan, std::int64_t start, int depth)
      : file_(std::move(file)),
        plan_(plan),
        depth_(static_cast<std::size_t>(depth)),
        memory_(std::make_shared<BatchMemory>(plan.batch_size, plan.seq_len, depth_ + 2)) {
    if (depth) thread_ = std::thread([this, start] { work(start); });
  }

  ~Prefetcher() {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  bool usable() const { return generation_ == current_generation(); }

  Status next(std::int64_t number, std::shared_ptr<TokenBatch>* batch) {
    if (!depth_) {
      *batch = memory_->take();
      return read_batch(*file_, plan_, number, **batch);
    }
    std::unique_lock<std::mutex> hold(mutex_);
    changed_.wait(hold, [&] { return !ready_.empty(); });
    if (!ready_.front().second.ok()) return ready_.front().second;
    *batch = std::move(ready_.front().first);
    ready_.pop_front();
    hold.unlock();
    changed_.notify_all();
    return Status::Ok();
  }

 private:
  void work(std::int64_t number) {
    for (;; ++number) {
      Status status;
      std::shared_ptr<TokenBatch> batch;
      try {
        batch = memory_->take();
        status = read_batch(*file_, plan_, number, *batch);
      } catch (const std::bad_alloc&) {
        status = Status::Unavailable("there is no memory for another batch of tokens");
      }
      const bool failed = !status.ok();
      std::unique_lock<std::mutex> hold(mutex_);
      changed_.wait(hold, [&] { return stop_ || ready_.size() < depth_; });
      if (stop_) return;
      ready_.emplace_back(std::move(batch), std::move(status));
      hold.unlock();
      changed_.notify_all();
      if (failed) return;
    }
  }

  const std::shared_ptr<const TokenFile> file_;
  const TokenBatchPlan plan_;
  const std::size_t depth_;
  const int generation_ = current_generation();
  const std::shared_ptr<BatchMemory> memory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::shared_ptr<TokenBatch>, Status>> ready_;
  bool stop_ = false;
  std::thread thread_;
};

TokenBatchReader::TokenBatchReader(std::shared_ptr<const TokenFile> file, const TokenBatchPlan& plan,
                                   std::int64_t start, int prefetch)
    : file_(std::move(file)), plan_(plan), prefetch_(prefetch), next_(start) {}

TokenBatchReader::~TokenBatchReader() {
  if (prefetcher_ && prefetcher_->usable()) delete prefetcher_;  // else its thread and locks belong to the parent
}

Status TokenBatchReader::next(std::shared_ptr<TokenBatch>* batch) {
  if (!prefetcher_ || !prefetcher_->usable()) prefetcher_ = new Prefetcher(file_, plan_, next_, prefetch_);
  Status status = prefetcher_->next(next_, batch);
  if (status.ok()) ++next_;
  return status;
}

}  // namespace fastbudget
