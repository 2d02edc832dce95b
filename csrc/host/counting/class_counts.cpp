#include <atomic>
#include <vector>

#include "fastbudget/threads.h"
#include "label_views.h"

namespace fastbudget {
namespace {

using counting::kGrain;
using counting::View;

// Up to this many classes every (predicted, reference) cell is counted: one increment a pair, table in the L1 cache.
constexpr std::int64_t kCellClasses = 64;
// First guess of a table size when the number of classes isn't known; untouched rows cost nothing but their zeroing.
constexpr std::int64_t kGuess = 4096;
// A stray label (an id, say) must not cost gigabytes: tables take about 60 bytes a class.
constexpr std::int64_t kMostClasses = std::int64_t{1} << 24;
// Below this many pairs per class, private tables for each thread would cost more than the counting.
constexpr std::int64_t kPairsPerClass = 8;

// Counts one piece into `cells` [kCellClasses, kCellClasses]. Returns false at a label >= limit.
// Two tables, for even and odd pairs, so that equal neighbors don't wait for each other's store.
template <typename P, typename R>
bool count_cells(P p, R r, std::int64_t begin, std::int64_t end, std::uint64_t limit, std::uint32_t* cells) {
  std::uint32_t* odd = cells + kCellClasses * kCellClasses;
  std::uint64_t outside = 0;
  std::int64_t i = begin;
  for (; i + 1 < end; i += 2) {
    if (i % 1024 == 0 && outside) return false;  // a wrong guess of the table size ends early
    const std::uint64_t p0 = p[i], r0 = r[i], p1 = p[i + 1], r1 = r[i + 1];
    outside |= (p0 >= limit) | (r0 >= limit) | (p1 >= limit) | (r1 >= limit);
    // Masked, not branched on: a label outside spoils a table that is thrown away.
    ++cells[(r0 % kCellClasses) * kCellClasses + p0 % kCellClasses];
    ++odd[(r1 % kCellClasses) * kCellClasses + p1 % kCellClasses];
  }
  if (i < end) {
    outside |= (p[i] >= limit) | (r[i] >= limit);
    ++cells[(r[i] % kCellClasses) * kCellClasses + p[i] % kCellClasses];
  }
  return !outside;
}

// Counts one piece into misses and hits (both by predicted class) and reference, [C] each and in this order in
// `tables`. Returns false at a label >= limit.
template <typename P, typename R>
bool count_margins(P p, R r, std::int64_t begin, std::int64_t end, std::uint64_t limit, std::uint32_t* tables) {
  std::uint32_t* reference = tables + 2 * limit;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::uint64_t a = p[i], b = r[i];
    if (a >= limit || b >= limit) return false;
    ++tables[a + limit * (a == b)];  // an index, not a branch: whether a prediction hits can't be predicted
    ++reference[b];
  }
  return true;
}

void resize(ClassCounts* counts, std::int64_t classes) {
  counts->both.assign(classes, 0);
  counts->predicted.assign(classes, 0);
  counts->reference.assign(classes, 0);
}

// One attempt with tables for `limit` classes; false if a label was outside.
bool try_count(const Labels& predicted, const Labels& reference, std::int64_t n, std::int64_t limit, int threads,
               ClassCounts* counts) {
  const bool by_cell = limit <= kCellClasses;
  const int slots = !by_cell && n / kPairsPerClass < limit ? 1 : max_slots(n, kGrain, threads);
  // 32-bit tables halve the cache footprint; a slot's share stays below 2^32 pairs by draining in between.
  const std::int64_t table = by_cell ? 2 * kCellClasses * kCellClasses : 3 * limit;
  std::vector<std::uint32_t> scratch(static_cast<std::size_t>(slots * table), 0);
  constexpr std::int64_t kDrain = std::int64_t{1} << 31;
  resize(counts, limit);

  const auto drain = [&] {
    for (int slot = 0; slot < slots; ++slot) {
      std::uint32_t* mine = scratch.data() + slot * table;
      if (by_cell) {
        for (std::int64_t b = 0; b < limit; ++b) {
          for (std::int64_t a = 0; a < limit; ++a) {
            const std::int64_t cell = b * kCellClasses + a;
            const std::int64_t count = std::int64_t{mine[cell]} + mine[kCellClasses * kCellClasses + cell];
            counts->reference[b] += count;
            counts->predicted[a] += count;
            if (a == b) counts->both[a] += count;
          }
        }
      } else {
        for (std::int64_t c = 0; c < limit; ++c) {
          counts->both[c] += mine[limit + c];
          counts->predicted[c] += std::int64_t{mine[c]} + mine[limit + c];
          counts->reference[c] += mine[2 * limit + c];
        }
      }
    }
    std::fill(scratch.begin(), scratch.end(), 0);
  };

  return counting::with_views(predicted, reference, [&](auto p, auto r) {
    std::atomic<bool> inside{true};
    for (std::int64_t from = 0; from < n; from += kDrain) {
      parallel_for(std::min(kDrain, n - from), kGrain, slots, [&](int slot, std::int64_t begin, std::int64_t end) {
        if (!inside.load(std::memory_order_relaxed)) return;
        std::uint32_t* mine = scratch.data() + slot * table;
        const auto bound = static_cast<std::uint64_t>(limit);
        const bool ok = by_cell ? count_cells(p, r, from + begin, from + end, bound, mine)
                                : count_margins(p, r, from + begin, from + end, bound, mine);
        if (!ok) inside.store(false, std::memory_order_relaxed);
      });
      if (!inside.load()) return false;
      drain();
    }
    return true;
  });
}

// Drops classes that no label reached, so that C is the largest label + 1.
void trim(ClassCounts* counts) {
  std::size_t classes = counts->both.size();
  while (classes > 0 && counts->predicted[classes - 1] == 0 && counts->reference[classes - 1] == 0) --classes;
  counts->both.resize(classes);
  counts->predicted.resize(classes);
  counts->reference.resize(classes);
}

}  // namespace

Status count_classes(const Labels& predicted, const Labels& reference, std::int64_t n, std::int64_t num_classes,
                     int threads, ClassCounts* counts) {
  if (n < 0 || num_classes < 0) return Status::InvalidArgument("n and num_classes must not be negative");
  if (num_classes > 0) {
    if (try_count(predicted, reference, n, num_classes, threads, counts)) return Status::Ok();
    return counting::find_out_of_range(predicted, reference, n, static_cast<std::uint64_t>(num_classes));
  }
  if (n == 0) {
    resize(counts, 0);
    return Status::Ok();
  }
  for (const std::int64_t guess : {kCellClasses, kGuess}) {
    if (try_count(predicted, reference, n, guess, threads, counts)) {
      trim(counts);
      return Status::Ok();
    }
  }
  std::int64_t low_p, high_p, low_r, high_r;
  label_range(predicted, n, threads, &low_p, &high_p);
  label_range(reference, n, threads, &low_r, &high_r);
  if (std::min(low_p, low_r) < 0) return counting::find_out_of_range(predicted, reference, n, std::uint64_t{1} << 63);
  const std::int64_t largest = std::max(high_p, high_r);
  if (largest >= kMostClasses) {
    return Status::InvalidArgument("the largest label is " + std::to_string(largest) +
                                   "; labels must be class indices below " + std::to_string(kMostClasses) + " (2^24)");
  }
  try_count(predicted, reference, n, largest + 1, threads, counts);
  return Status::Ok();
}

}  // namespace fastbudget
