// How often a resample holds each row: multinomial counts, made without drawing row by row.
//
// Independent Poisson counts are, given their total, the multinomial counts of so many draws. So each row is given a
// Poisson count of a rate a little below one, and the draws still missing are made one by one; too large a total is
// thrown away. That is exact, and unlike row numbers at random, counts let the data be read in order.
#pragma once

#include <cstdint>
#include <vector>

#include "number_stream.h"

namespace fastbudget {

// Poisson counts of 16 random bits each. A count below kThresholds has as many whole cells of 2^-16 as its probability
// holds; in the few cells left, more bits decide.
class PoissonCounts {
 public:
  static constexpr int kRows = 2 * kPhiloxNumbers;  // counts made at a time
  static constexpr int kThresholds = 8;

  explicit PoissonCounts(double rate);  // of at most 1

  // Writes the next kRows counts and returns their sum.
  int draw(NumberStream& bits, NumberStream& singles, std::uint8_t* counts) const;

 private:
  std::uint8_t in_cells_left(double uniform) const;

  std::int16_t thresholds_[kThresholds];  // a number's count is how many it reaches; all: it lies in a cell left
  std::vector<double> shares_left_;       // of the cells left, by count
};

class ResampleCounts {
 public:
  explicit ResampleCounts(std::int64_t rows);

  // Writes counts[rows] whose sum is `rows`; up to PoissonCounts::kRows - 1 bytes after them are overwritten.
  void draw(NumberStream& bits, NumberStream& singles, std::uint8_t* counts) const;

 private:
  std::int64_t rows_;
  PoissonCounts poisson_;
};

}  // namespace fastbudget
