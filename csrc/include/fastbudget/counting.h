// Counting of predicted against reference class labels: the base of accuracy, precision, recall and F1.
#pragma once

#include <cstdint>
#include <vector>

#include "fastbudget/status.h"

namespace fastbudget {

enum class LabelType { kUint8, kInt32, kInt64 };

// A 1-D array of class labels. stride counts elements, and may be negative or zero.
struct Labels {
  const void* data;
  LabelType type;
  std::int64_t stride;
};

// Per class, each of length C: examples that are the class in both, in the predictions, in the references.
struct ClassCounts {
  std::vector<std::int64_t> both, predicted, reference;
};

// Counts n pairs. num_classes > 0: labels must be in [0, num_classes). num_classes == 0: C becomes the largest label
// + 1. OutOfRange names the first offending index and label.
Status count_classes(const Labels& predicted, const Labels& reference, std::int64_t n, std::int64_t num_classes,
                     int threads, ClassCounts* counts);

// Adds n pairs to confusion [C, C], row = reference, column = predicted, contiguous. On OutOfRange nothing was added.
Status add_confusion(const Labels& predicted, const Labels& reference, std::int64_t n, std::int64_t num_classes,
                     int threads, std::int64_t* confusion);

// The smallest and largest label; n must be positive.
void label_range(const Labels& labels, std::int64_t n, int threads, std::int64_t* smallest, std::int64_t* largest);

}  // namespace fastbudget
