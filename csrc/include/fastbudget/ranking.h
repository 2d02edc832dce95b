// What follows from the order of scores: ranks, areas under curves. Scores must not be NaN.
#pragma once

#include <cstdint>

namespace fastbudget {

// Ranks 1…n of values [n]; equal values share the mean of their ranks.
void average_ranks(const double* values, std::int64_t n, double* ranks);

// Area under the ROC curve of scores [n] and labels [n] (0 or not 0); ties count half. NaN unless both labels occur.
double roc_area(const double* scores, const std::uint8_t* labels, std::int64_t n, int threads);

// Average precision: the sum over thresholds of precision times the recall gained, ties taken together. NaN without a
// positive.
double average_precision(const double* scores, const std::uint8_t* labels, std::int64_t n, int threads);

}  // namespace fastbudget
