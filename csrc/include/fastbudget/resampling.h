// Resampling of sums: the bootstrap and sign flips. Resample r is the same for any number of threads and any range of
// resamples asked for: its random numbers are the stream r of a counter-based generator.
#pragma once

#include <cstdint>

namespace fastbudget {

// Rows float64 [n, columns], sorted by stratum; stratum s holds rows [starts[s], starts[s + 1]), starts[strata] = n.
struct Rows {
  const double* data;
  std::int64_t count, columns;
  const std::int64_t* starts;
  std::int64_t strata;
};

// sums[r - first, c]: column sums of resample r in [first, first + resamples): of each stratum as many rows as it has,
// drawn with replacement, all equally likely. count < 2^31.
void bootstrap_sums(const Rows& rows, std::int64_t first, std::int64_t resamples, std::uint64_t seed, int threads,
                    double* sums);

// The rows that bootstrap_sums adds up, in ascending order: indices [resamples, count].
void bootstrap_indices(const Rows& rows, std::int64_t first, std::int64_t resamples, std::uint64_t seed, int threads,
                       std::int64_t* indices);

// sums[r - first, c]: column sums over the rows that a fair coin picks in round r. Strata are not used.
void picked_sums(const Rows& rows, std::int64_t first, std::int64_t rounds, std::uint64_t seed, int threads,
                 double* sums);

}  // namespace fastbudget
