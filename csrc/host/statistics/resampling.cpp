#include "fastbudget/resampling.h"

#include <algorithm>

#include "fastbudget/threads.h"
#include "philox.h"

namespace fastbudget {
namespace {

constexpr int kSums = 8;  // partial sums of one column: independent additions, in an order that never changes

std::int64_t grain_of(const Rows& rows) {
  return std::max<std::int64_t>(1, 100'000 / std::max<std::int64_t>(1, rows.count));
}

inline std::int64_t row_of(std::uint32_t number, std::int64_t count) {
  return static_cast<std::int64_t>((std::uint64_t{number} * static_cast<std::uint64_t>(count)) >> 32);
}

// One column, one stratum. `counter` is where its numbers begin in the stream.
FASTBUDGET_VECTORIZED
double sum_of_draws(const double* values, std::int64_t count, std::uint64_t seed, std::uint64_t stream,
                    std::uint32_t counter) {
  double sums[kSums] = {};
  std::uint32_t numbers[kPhiloxNumbers];
  std::int64_t drawn = 0;
  for (; drawn + kPhiloxNumbers <= count; drawn += kPhiloxNumbers, counter += kPhiloxLanes) {
    philox_numbers(seed, Purpose::kBootstrap, stream, counter, numbers);
    for (int i = 0; i < kPhiloxNumbers; i += kSums) {
      for (int k = 0; k < kSums; ++k) sums[k] += values[row_of(numbers[i + k], count)];
    }
  }
  if (drawn < count) {
    philox_numbers(seed, Purpose::kBootstrap, stream, counter, numbers);
    for (int i = 0; drawn < count; ++i, ++drawn) sums[i % kSums] += values[row_of(numbers[i], count)];
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// Calls visit(row) for each row drawn from one stratum.
template <typename Visit>
void draw_rows(std::int64_t count, std::uint64_t seed, std::uint64_t stream, std::uint32_t counter,
               const Visit& visit) {
  std::uint32_t numbers[kPhiloxNumbers];
  for (std::int64_t drawn = 0; drawn < count; counter += kPhiloxLanes) {
    philox_numbers(seed, Purpose::kBootstrap, stream, counter, numbers);
    for (int i = 0; i < kPhiloxNumbers && drawn < count; ++i, ++drawn) visit(row_of(numbers[i], count));
  }
}

// The counters of a stratum begin where those of the strata before it end.
std::uint32_t counters_used(std::int64_t count) {
  return static_cast<std::uint32_t>((count + kPhiloxNumbers - 1) / kPhiloxNumbers * kPhiloxLanes);
}

}  // namespace

void bootstrap_sums(const Rows& rows, std::int64_t first, std::int64_t resamples, std::uint64_t seed, int threads,
                    double* sums) {
  const std::int64_t columns = rows.columns;
  parallel_for(resamples, grain_of(rows), threads, [&](int, std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      double* sum = sums + r * columns;
      std::fill(sum, sum + columns, 0.0);
      const auto stream = static_cast<std::uint64_t>(first + r);
      std::uint32_t counter = 0;
      for (std::int64_t s = 0; s < rows.strata; ++s) {
        const std::int64_t count = rows.starts[s + 1] - rows.starts[s];
        const double* data = rows.data + rows.starts[s] * columns;
        if (columns == 1) {
          sum[0] += sum_of_draws(data, count, seed, stream, counter);
        } else {
          draw_rows(count, seed, stream, counter, [&](std::int64_t row) {
            const double* values = data + row * columns;
            for (std::int64_t c = 0; c < columns; ++c) sum[c] += values[c];
          });
        }
        counter += counters_used(count);
      }
    }
  });
}

void bootstrap_indices(const Rows& rows, std::int64_t first, std::int64_t resamples, std::uint64_t seed, int threads,
                       std::int64_t* indices) {
  parallel_for(resamples, grain_of(rows), threads, [&](int, std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      std::int64_t* out = indices + r * rows.count;
      std::uint32_t counter = 0;
      for (std::int64_t s = 0; s < rows.strata; ++s) {
        const std::int64_t start = rows.starts[s], count = rows.starts[s + 1] - start;
        draw_rows(count, seed, static_cast<std::uint64_t>(first + r), counter,
                  [&](std::int64_t row) { *out++ = start + row; });
        counter += counters_used(count);
      }
    }
  });
}

void picked_sums(const Rows& rows, std::int64_t first, std::int64_t rounds, std::uint64_t seed, int threads,
                 double* sums) {
  constexpr std::int64_t kBits = 32 * kPhiloxNumbers;
  const std::int64_t columns = rows.columns;
  parallel_for(rounds, grain_of(rows), threads, [&](int, std::int64_t begin, std::int64_t end) {
    std::uint32_t numbers[kPhiloxNumbers];
    for (std::int64_t r = begin; r < end; ++r) {
      double* sum = sums + r * columns;
      std::fill(sum, sum + columns, 0.0);
      std::uint32_t counter = 0;
      for (std::int64_t row = 0; row < rows.count; ++row) {
        const std::int64_t bit = row % kBits;
        if (bit == 0) {
          philox_numbers(seed, Purpose::kPicking, static_cast<std::uint64_t>(first + r), counter, numbers);
          counter += kPhiloxLanes;
        }
        const double picked = static_cast<double>(numbers[bit / 32] >> (bit % 32) & 1u);
        const double* values = rows.data + row * columns;
        for (std::int64_t c = 0; c < columns; ++c) sum[c] += picked * values[c];
      }
    }
  });
}

}  // namespace fastbudget
