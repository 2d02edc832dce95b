// Reading training data: a shuffled order that needs no memory, files of tokens, and batches read ahead.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "fastbudget/status.h"

namespace fastbudget {

// A pseudorandom permutation of [0, size) that computes any element by itself: no array, the same on every machine.
//
// An alternating Feistel network over the n = max(10, ceil(log2 size)) bits of an index, split into a low half of
// floor(n / 2) bits and a high half: even rounds do high ^= F(low, key), odd rounds low ^= F(high, key), eight in all,
// each masked to its half. Each round can be undone, so this permutes [0, 2^n); results outside [0, size) are put in
// again until one lies inside (cycle walking, Black and Rogaway 2002), under two turns on average for large sizes.
// F(v, k) = upper 32 bits of mix((v + k) * 0x9E3779B97F4A7C15), mix(z) = (z ^ z >> 32) * 0xD6E8FEB86659FD93;
// the keys are SplitMix64 outputs 1 to 8 from the state splitmix64(seed) ^ splitmix64(~epoch).
// A shuffle, not a secret: statistically uniform, no cryptographic strength.
class IndexPermutation {
 public:
  static constexpr int kRounds = 8;

  // size must be in [1, 2^62].
  IndexPermutation(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch);

  std::uint64_t size() const { return size_; }
  std::uint64_t operator()(std::uint64_t index) const {
    do index = scramble(index);
    while (index >= size_);
    return index;
  }

 private:
  static std::uint64_t round_value(std::uint64_t half, std::uint64_t key) {
    std::uint64_t z = (half + key) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 32) * 0xD6E8FEB86659FD93u;
    return z >> 32;
  }

  std::uint64_t scramble(std::uint64_t index) const {
    std::uint64_t low = index & low_mask_, high = index >> low_bits_;
    for (int round = 0; round < kRounds; round += 2) {
      high ^= round_value(low, keys_[round]) & high_mask_;
      low ^= round_value(high, keys_[round + 1]) & low_mask_;
    }
    return high << low_bits_ | low;
  }

  std::uint64_t size_, low_mask_, high_mask_;
  int low_bits_;
  std::array<std::uint64_t, kRounds> keys_;
};

// out[i] = permutation(begin + i) for i in [0, count).
void permute_range(const IndexPermutation& permutation, std::int64_t begin, std::int64_t count, int threads,
                   std::int64_t* out);

enum class TokenType { kInt8, kUint8, kInt16, kUint16, kInt32, kUint32, kInt64, kUint64 };

// A file of token ids in the machine's byte order after a header of `offset` bytes. Read with pread, not mapped: a
// mapped file that shrinks kills the process with SIGBUS, here it becomes an error. One object may serve many threads.
class TokenFile {
 public:
  // vocab_size > 0: every token read must be in [0, vocab_size).
  static Status open(const std::string& path, TokenType type, std::int64_t offset, std::int64_t vocab_size,
                     std::shared_ptr<TokenFile>* file);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  // Reads tokens [first, first + length] and writes inputs = the first `length`, targets = the last `length`.
  Status read_window(std::int64_t first, std::int64_t length, std::int64_t* inputs, std::int64_t* targets) const;

  // Reads count tokens and checks them against the vocabulary; OutOfRange names the first offending one.
  Status check(std::int64_t count, int threads) const;

 private:
  TokenFile(std::string path, TokenType type, std::int64_t offset, std::int64_t vocab_size, int descriptor);
  Status read(std::int64_t first, std::int64_t count, char* out) const;
  Status check_range(const char* tokens, std::int64_t first, std::int64_t count) const;

  const std::string path_;
  const TokenType type_;
  const std::int64_t offset_, vocab_size_;
  const int descriptor_;
};

// Which windows a stream of batches reads. Window w holds tokens [w * seq_len, (w + 1) * seq_len]; the last is the
// first of the next window, needed as a target. Epoch e visits the windows in the order IndexPermutation(windows, seed,
// e). Global batch k of an epoch is the next batch_size * world_size of them; each rank has batch_size consecutive
// ones. What doesn't fill a global batch is left out of that epoch.
struct TokenBatchPlan {
  std::int64_t seq_len, windows, batch_size, rank, world_size;
  std::uint64_t seed;
};

struct TokenBatch {
  std::int64_t* inputs;   // [batch_size, seq_len]
  std::int64_t* targets;  // [batch_size, seq_len]
};

// Batches start, start + 1, … of a plan, counted over epochs without end. A thread reads `prefetch` batches ahead; 0
// reads in the caller. Safe to use in a child after fork(), where a new thread takes over. One caller at a time.
class TokenBatchReader {
 public:
  TokenBatchReader(std::shared_ptr<const TokenFile> file, const TokenBatchPlan& plan, std::int64_t start, int prefetch);
  ~TokenBatchReader();

  // The next batch. Its memory is used again once the pointer is dropped. After an error, fails the same way again.
  Status next(std::shared_ptr<TokenBatch>* batch);

 private:
  class Prefetcher;

  const std::shared_ptr<const TokenFile> file_;
  const TokenBatchPlan plan_;
  const int prefetch_;
  std::int64_t next_;
  Prefetcher* prefetcher_ = nullptr;
};

}  // namespace fastbudget
