// Softmax statistics of logits that arrive a block of columns at a time, so that no whole row is ever kept.
#pragma once

#include <cstdint>

#include "fastbudget/status.h"

namespace fastbudget {

enum class LogitType { kFloat32 = 0, kBFloat16 = 1, kFloat64 = 2 };

// What one row has shown so far. Start from {-inf, 0, NaN, -inf, -inf}.
struct RowScore {
  double peak;         // largest logit
  double sum;          // of exp(logit - peak)
  double target;       // the target's logit; NaN until its column came
  double best_before;  // largest logit of the columns below the target
  double best_after;   // and above it
};

// A block of logits [rows, columns]: column c is token first_column + c. Rows lie row_stride elements apart.
struct LogitBlock {
  void* logits;
  LogitType type;
  std::int64_t rows, columns, row_stride, first_column;
};

// Takes a block into the scores of its rows. targets: [rows] token ids, each in or out of the block. Columns must come
// once each, in any order. A NaN logit makes `sum` NaN.
void update_row_scores(const LogitBlock& block, const std::int64_t* targets, RowScore* scores, int threads);

// Replaces logits by the gradient with respect to them: probability * exp(logit - logsumexp), plus target at the
// target's column; times 1 - (logit / softcap)^2 if softcap > 0 (the logits are softcap * tanh(. / softcap)).
// logsumexp, probability, target: float64 [rows].
void logit_gradients(const LogitBlock& block, const std::int64_t* targets, const double* logsumexp,
                     const double* probability, const double* target, double softcap, int threads);

}  // namespace fastbudget
