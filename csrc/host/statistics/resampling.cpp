#include "fastbudget/resampling.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "../vectorized.h"
#include "fastbudget/threads.h"
#include "philox.h"
#include "resample_counts.h"

namespace fastbudget {
namespace {

std::int64_t grain_of(const Rows& rows) {
  return std::max<std::int64_t>(1, 100'000 / std::max<std::int64_t>(1, rows.count));
}

// So many resamples and rows are summed at a time: their counts and a column of the rows stay in the nearest cache.
constexpr int kTogether = 4;
constexpr std::int64_t kTile = 1024;

// Four numbers anywhere in memory, in one register.
typedef double Four __attribute__((vector_size(32), aligned(8), may_alias));
constexpr int kFour = 4;

inline const Four& four(const double* values) { return *reinterpret_cast<const Four*>(values); }

// Adds to sums[r stride] the products of one column of a tile with the counts of resample r. The order of the additions
// never changes; even and odd vectors have sums of their own, so that additions needn't wait for each other.
FASTBUDGET_VECTORIZED
void add_products(const double* values, const double (*counts)[kTile], std::int64_t rows, double* sums,
                  std::int64_t stride) {
  Four even[kTogether] = {}, odd[kTogether] = {};
  std::int64_t i = 0;
  for (; i + 2 * kFour <= rows; i += 2 * kFour) {
    for (int r = 0; r < kTogether; ++r) {
      even[r] += four(values + i) * four(counts[r] + i);
      odd[r] += four(values + i + kFour) * four(counts[r] + i + kFour);
    }
  }
  for (int r = 0; r < kTogether; ++r) {
    const Four sum = even[r] + odd[r];
    double rest = 0;
    for (std::int64_t k = i; k < rows; ++k) rest += values[k] * counts[r][k];
    sums[r * stride] += ((sum[0] + sum[2]) + (sum[1] + sum[3])) + rest;
  }
}

// The same of small whole numbers: exact, and four times as many at once. The sums of a tile stay below 2^31.
FASTBUDGET_VECTORIZED
void add_products(const std::int16_t* values, const std::int16_t (*counts)[kTile], std::int64_t rows, double* sums,
                  std::int64_t stride) {
  for (int r = 0; r < kTogether; ++r) {
    std::int32_t sum = 0;
    for (std::int64_t i = 0; i < rows; ++i) sum += values[i] * counts[r][i];
    sums[r * stride] += sum;
  }
}

FASTBUDGET_VECTORIZED
void convert(const std::uint8_t* counts, std::int64_t size, double* converted) {
  for (std::int64_t i = 0; i < size; ++i) converted[i] = counts[i];
}

FASTBUDGET_VECTORIZED
void convert(const std::uint8_t* counts, std::int64_t size, std::int16_t* converted) {
  for (std::int64_t i = 0; i < size; ++i) converted[i] = counts[i];
}

// Whether int16 holds all values, and int32 their sum over any tile of any resample.
bool are_small_integers(const Rows& rows) {
  const double most = std::min<double>(INT16_MAX, static_cast<double>(INT32_MAX) / static_cast<double>(rows.count));
  return std::all_of(rows.data, rows.data + rows.count * rows.columns, [most](double value) {
    return std::abs(value) <= most && value == static_cast<std::int16_t>(value);
  });
}

// How often each row is drawn, resample by resample.
class Resamples {
 public:
  Resamples(const Rows& rows, std::uint64_t seed) : rows_(rows), seed_(seed) {
    for (std::int64_t s = 0; s < rows.strata; ++s) strata_.emplace_back(rows.starts[s + 1] - rows.starts[s]);
  }

  // Room for the counts of one resample.
  std::size_t room() const { return static_cast<std::size_t>(rows_.count + PoissonCounts::kRows); }

  void draw(std::int64_t resample, std::uint8_t* counts) const {
    const auto stream = static_cast<std::uint64_t>(resample);
    NumberStream bits(seed_, Purpose::kBootstrap, stream), singles(seed_, Purpose::kSingleDraws, stream);
    for (std::int64_t s = 0; s < rows_.strata; ++s) strata_[s].draw(bits, singles, counts + rows_.starts[s]);
  }

 private:
  const Rows& rows_;
  std::uint64_t seed_;
  std::vector<ResampleCounts> strata_;
};

template <typename Value>
std::vector<Value> transposed(const Rows& rows) {
  std::vector<Value> columns(static_cast<std::size_t>(rows.count * rows.columns));
  for (std::int64_t i = 0; i < rows.count; ++i) {
    for (std::int64_t c = 0; c < rows.columns; ++c) {
      columns[c * rows.count + i] = static_cast<Value>(rows.data[i * rows.columns + c]);
    }
  }
  return columns;
}

template <typename Value>
void sums_of(const Rows& rows, std::int64_t first, std::int64_t resamples, std::uint64_t seed, int threads,
             double* sums) {
  const Resamples drawn(rows, seed);
  const std::vector<Value> columns = transposed<Value>(rows);
  const std::int64_t groups = (resamples + kTogether - 1) / kTogether;
  parallel_for(groups, grain_of(rows), threads, [&](int, std::int64_t begin, std::int64_t end) {
    std::vector<std::uint8_t> counts(kTogether * drawn.room());
    Value tile_counts[kTogether][kTile];
    std::vector<double> totals(static_cast<std::size_t>(kTogether * rows.columns));
    for (std::int64_t group = begin; group < end; ++group) {
      const std::int64_t r0 = group * kTogether, size = std::min<std::int64_t>(kTogether, resamples - r0);
      for (std::int64_t r = 0; r < size; ++r) drawn.draw(first + r0 + r, counts.data() + r * drawn.room());
      std::fill(totals.begin(), totals.end(), 0.0);
      for (std::int64_t start = 0; start < rows.count; start += kTile) {
        const std::int64_t tile = std::min(kTile, rows.count - start);
        for (int r = 0; r < kTogether; ++r) convert(counts.data() + r * drawn.room() + start, tile, tile_counts[r]);
        for (std::int64_t c = 0; c < rows.columns; ++c) {
          add_products(columns.data() + c * rows.count + start, tile_counts, tile, totals.data() + c, rows.columns);
        }
      }
      std::copy_n(totals.begin(), size * rows.columns, sums + r0 * rows.columns);
    }
  });
}

}  // namespace

void bootstrap_sums(const Rows& rows, std::int64_t first, std::int64_t resamples, std::uint64_t seed, int threads,
                    double* sums) {
  const auto sum = are_small_integers(rows) ? sums_of<std::int16_t> : sums_of<double>;
  sum(rows, first, resamples, seed, threads, sums);
}

void bootstrap_indices(const Rows& rows, std::int64_t first, std::int64_t resamples, std::uint64_t seed, int threads,
                       std::int64_t* indices) {
  const Resamples drawn(rows, seed);
  parallel_for(resamples, grain_of(rows), threads, [&](int, std::int64_t begin, std::int64_t end) {
    std::vector<std::uint8_t> counts(drawn.room());
    for (std::int64_t r = begin; r < end; ++r) {
      drawn.draw(first + r, counts.data());
      std::int64_t* out = indices + r * rows.count;
      for (std::int64_t i = 0; i < rows.count; ++i) out = std::fill_n(out, counts[i], i);
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
