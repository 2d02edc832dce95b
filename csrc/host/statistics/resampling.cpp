#include "fastbudget/resampling.h"

#include <algorithm>
#include <cstring>

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

// Four columns in one register.
typedef double FourColumns __attribute__((vector_size(32)));

template <int V>
__attribute__((always_inline)) inline void add_row(const double* values, FourColumns* sums) {
  for (int v = 0; v < V; ++v) {
    FourColumns loaded;
    std::memcpy(&loaded, values + 4 * v, sizeof loaded);  // a load that needs no alignment
    sums[v] += loaded;
  }
}

// Adds 4 V columns of the rows to the sums, which stay in registers meanwhile; every other row has sums of its own, so
// that additions needn't wait for each other.
template <int V>
__attribute__((always_inline)) inline void add_vectors(const double* data, std::int64_t columns,
                                                       const std::int64_t* rows, int count, double* sums) {
  FourColumns even[V] = {}, odd[V] = {};
  int i = 0;
  for (; i + 2 <= count; i += 2) {
    add_row<V>(data + rows[i] * columns, even);
    add_row<V>(data + rows[i + 1] * columns, odd);
  }
  if (i < count) add_row<V>(data + rows[i] * columns, even);
  for (int v = 0; v < V; ++v) even[v] += odd[v];
  add_row<V>(sums, even);
  std::memcpy(sums, even, sizeof even);
}

FASTBUDGET_VECTORIZED
void add_rows(const double* data, std::int64_t columns, const std::int64_t* rows, int count, double* sums) {
  std::int64_t c = 0;
  for (; c + 16 <= columns; c += 16) add_vectors<4>(data + c, columns, rows, count, sums + c);
  for (; c + 4 <= columns; c += 4) add_vectors<1>(data + c, columns, rows, count, sums + c);
  for (; c < columns; ++c) {
    for (int i = 0; i < count; ++i) sums[c] += data[rows[i] * columns + c];
  }
}

// Rows drawn at once from one stratum of `count`.
FASTBUDGET_VECTORIZED
void draw_rows(std::int64_t count, std::uint64_t seed, std::uint64_t stream, std::uint32_t counter,
               std::int64_t* rows) {
  std::uint32_t numbers[kPhiloxNumbers];
  philox_numbers(seed, Purpose::kBootstrap, stream, counter, numbers);
  for (int i = 0; i < kPhiloxNumbers; ++i) rows[i] = row_of(numbers[i], count);
}

// Calls visit(rows, how many) for the rows drawn from one stratum, some at a time.
template <typename Visit>
void visit_draws(std::int64_t count, std::uint64_t seed, std::uint64_t stream, std::uint32_t counter,
                 const Visit& visit) {
  std::int64_t rows[kPhiloxNumbers];
  for (std::int64_t drawn = 0; drawn < count; drawn += kPhiloxNumbers, counter += kPhiloxLanes) {
    draw_rows(count, seed, stream, counter, rows);
    visit(rows, static_cast<int>(std::min<std::int64_t>(kPhiloxNumbers, count - drawn)));
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
          visit_draws(count, seed, stream, counter,
                      [&](const std::int64_t* drawn, int size) { add_rows(data, columns, drawn, size, sum); });
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
        visit_draws(count, seed, static_cast<std::uint64_t>(first + r), counter,
                    [&](const std::int64_t* drawn, int size) {
                      for (int i = 0; i < size; ++i) *out++ = start + drawn[i];
                    });
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
