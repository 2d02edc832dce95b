#include "resample_counts.h"

#include <algorithm>
#include <cmath>

#include "../vectorized.h"

namespace fastbudget {
namespace {

constexpr int kThresholds = PoissonCounts::kThresholds;
constexpr double kCells = 65536;
constexpr int kCounts = 40;  // Poisson counts from here on are rarer than 1e-47
// The expected total is below the rows by so many standard deviations: one in 160 totals is too large.
constexpr double kDeviationsBelow = 2.5;

double rate_for(std::int64_t rows) {
  return std::max(0.0, 1 - kDeviationsBelow / std::sqrt(static_cast<double>(rows)));
}

// Writes how many thresholds each number reaches; returns their sum, and the greatest in `most`.
FASTBUDGET_VECTORIZED
int count_reached(const std::int16_t* thresholds, const std::int16_t* numbers, std::uint8_t* counts, int& most) {
  std::int16_t total = 0, greatest = 0;
  for (int i = 0; i < PoissonCounts::kRows; ++i) {
    std::int16_t count = 0;
    for (int t = 0; t < kThresholds; ++t) count += numbers[i] >= thresholds[t];
    counts[i] = static_cast<std::uint8_t>(count);
    total += count;
    greatest = std::max(greatest, count);
  }
  most = greatest;
  return total;
}

}  // namespace

PoissonCounts::PoissonCounts(double rate) {
  double probability = std::exp(-rate), below = 0;
  for (int count = 0; count < kCounts; ++count) {
    const double cells = probability * kCells, whole = count < kThresholds ? std::floor(cells) : 0;
    below += whole;
    // Numbers are signed: the first cell is -2^15.
    if (count < kThresholds) thresholds_[count] = static_cast<std::int16_t>(below - kCells / 2);
    shares_left_.push_back(cells - whole);
    probability *= rate / (count + 1);
  }
  const double left = kCells - below;
  for (double& share : shares_left_) share /= left;
}

int PoissonCounts::draw(NumberStream& bits, NumberStream& singles, std::uint8_t* counts) const {
  int most = 0;
  int total = count_reached(thresholds_, reinterpret_cast<const std::int16_t*>(bits.block()), counts, most);
  if (most < kThresholds) return total;
  for (int i = 0; i < kRows; ++i) {
    if (counts[i] != kThresholds) continue;
    counts[i] = in_cells_left(singles.uniform());
    total += counts[i] - kThresholds;
  }
  return total;
}

std::uint8_t PoissonCounts::in_cells_left(double uniform) const {
  int count = 0;
  for (; count + 1 < kCounts && uniform >= shares_left_[count]; ++count) uniform -= shares_left_[count];
  return static_cast<std::uint8_t>(count);
}

ResampleCounts::ResampleCounts(std::int64_t rows) : rows_(rows), poisson_(rate_for(rows)) {}

void ResampleCounts::draw(NumberStream& bits, NumberStream& singles, std::uint8_t* counts) const {
  std::int64_t total = 0;
  if (rate_for(rows_) > 0) {
    do {
      total = 0;
      for (std::int64_t i = 0; i < rows_; i += PoissonCounts::kRows) total += poisson_.draw(bits, singles, counts + i);
      // The last block goes beyond the rows.
      for (std::int64_t i = rows_; i % PoissonCounts::kRows != 0; ++i) total -= counts[i];
    } while (total > rows_);
  } else {
    std::fill(counts, counts + rows_, std::uint8_t{0});
  }
  for (; total < rows_; ++total) ++counts[singles.below(static_cast<std::uint32_t>(rows_))];
}

}  // namespace fastbudget
