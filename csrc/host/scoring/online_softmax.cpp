#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "../vectorized.h"
#include "fastbudget/scoring.h"
#include "fastbudget/threads.h"

// All functions that pass vectors by value are inlined: no ABI is involved.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace fastbudget {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr int kLanes = 16;
constexpr std::int64_t kRowsAtATime = 16;

// Generic vectors: the compiler lowers them to what each clone's instruction set has.
typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef std::int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef std::uint16_t Shorts __attribute__((vector_size(2 * kLanes)));

struct Float32 {
  using Element = float;
  static inline __attribute__((always_inline)) Floats load(const float* from) {
    Floats values;
    std::memcpy(&values, from, sizeof(values));
    return values;
  }
  static inline __attribute__((always_inline)) void store(float* to, Floats values) {
    std::memcpy(to, &values, sizeof(values));
  }
  static float widen(float value) { return value; }
  static float narrow(float value) { return value; }
};

struct BFloat16 {
  using Element = std::uint16_t;
  static inline __attribute__((always_inline)) Floats load(const std::uint16_t* from) {
    Shorts halves;
    std::memcpy(&halves, from, sizeof(halves));
    return reinterpret_cast<Floats>(__builtin_convertvector(halves, Ints) << 16);
  }
  static inline __attribute__((always_inline)) void store(std::uint16_t* to, Floats values) {
    const Ints bits = reinterpret_cast<Ints>(values);
    const Ints rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest even
    const Ints kept = values != values ? Ints{} + 0x7fc0 : rounded;
    const Shorts halves = __builtin_convertvector(kept, Shorts);
    std::memcpy(to, &halves, sizeof(halves));
  }
  static float widen(std::uint16_t half) {
    const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  static std::uint16_t narrow(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (value != value) return 0x7fc0;
    return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
};

// exp(x) for x <= 0 to about 1e-7 relative; below -87 it gives exp(-87). NaN stays NaN.
// Cody-Waite reduction by ln 2 in two parts, Taylor's polynomial on [-ln2/2, ln2/2].
inline __attribute__((always_inline)) Floats exp_of(Floats x) {
  const Floats zero = {};
  x = x < zero - 87.0f ? zero - 87.0f : x;
  const float shifter = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Floats shifted = x * 1.44269504f + shifter;
  const Floats power = shifted - shifter;
  const Floats rest = (x - power * 0.693359375f) - power * -2.12194440e-4f;
  Floats value = zero + 1.0f / 5040;
  value = value * rest + 1.0f / 720;
  value = value * rest + 1.0f / 120;
  value = value * rest + 1.0f / 24;
  value = value * rest + 1.0f / 6;
  value = value * rest + 0.5f;
  value = value * rest + 1.0f;
  value = value * rest + 1.0f;
  const Ints exponent = (reinterpret_cast<Ints>(shifted) - 0x4b400000 + 127) << 23;
  return value * reinterpret_cast<Floats>(exponent);
}

inline __attribute__((always_inline)) float largest_of(Floats values) {
  float best = values[0];
  for (int lane = 1; lane < kLanes; ++lane) best = values[lane] > best ? values[lane] : best;
  return best;
}

// NaN is passed over: the sum will tell.
template <typename Type>
inline __attribute__((always_inline)) float largest(const typename Type::Element* logits, std::int64_t count) {
  Floats best = Floats{} - std::numeric_limits<float>::infinity();
  std::int64_t at = 0;
  for (; at + kLanes <= count; at += kLanes) {
    const Floats values = Type::load(logits + at);
    best = values > best ? values : best;
  }
  float result = largest_of(best);
  for (; at < count; ++at) result = Type::widen(logits[at]) > result ? Type::widen(logits[at]) : result;
  return result;
}

template <typename Type>
inline __attribute__((always_inline)) double sum_of_exp(const typename Type::Element* logits, std::int64_t count,
                                                        float peak) {
  Floats sums = {};
  std::int64_t at = 0;
  for (; at + kLanes <= count; at += kLanes) sums += exp_of(Type::load(logits + at) - peak);
  double total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += sums[lane];
  for (; at < count; ++at) total += std::exp(static_cast<double>(Type::widen(logits[at])) - peak);
  return total;
}

template <typename Type>
inline __attribute__((always_inline)) void update_row(const typename Type::Element* logits, std::int64_t columns,
                                                      std::int64_t target, RowScore& score) {
  const std::int64_t before = std::clamp<std::int64_t>(target, 0, columns);
  const std::int64_t after = std::clamp<std::int64_t>(target + 1, 0, columns);
  const double best_before = largest<Type>(logits, before);
  const double best_after = largest<Type>(logits + after, columns - after);
  double peak = std::max({score.peak, best_before, best_after});
  score.best_before = std::max(score.best_before, best_before);
  score.best_after = std::max(score.best_after, best_after);
  if (before < after) {
    score.target = Type::widen(logits[target]);
    peak = std::max(peak, score.target);
  }
  if (peak == kMinusInfinity) {  // exp(-inf - -inf) would be NaN; a NaN logit still has to show
    for (std::int64_t at = 0; at < columns; ++at)
      if (std::isnan(Type::widen(logits[at]))) score.sum = std::numeric_limits<double>::quiet_NaN();
    return;
  }
  if (peak > score.peak) score.sum *= std::exp(score.peak - peak);
  score.peak = peak;
  score.sum += sum_of_exp<Type>(logits, columns, static_cast<float>(peak));
}

template <typename Type>
inline __attribute__((always_inline)) void gradient_row(typename Type::Element* logits, std::int64_t columns,
                                                        std::int64_t target, double logsumexp, double probability,
                                                        double target_gradient, double softcap) {
  const float shift = static_cast<float>(logsumexp), scale = static_cast<float>(probability);
  const float inverse = softcap > 0 ? static_cast<float>(1 / softcap) : 0.0f;
  const bool has_target = target >= 0 && target < columns;
  const float target_logit = has_target ? Type::widen(logits[target]) : 0.0f;
  std::int64_t at = 0;
  for (; at + kLanes <= columns; at += kLanes) {
    const Floats values = Type::load(logits + at);
    const Floats bounded = values * inverse;
    Type::store(logits + at, exp_of(values - shift) * scale * (1.0f - bounded * bounded));
  }
  for (; at < columns; ++at) {
    const float value = Type::widen(logits[at]), bounded = value * inverse;
    logits[at] = Type::narrow(std::exp(value - shift) * scale * (1.0f - bounded * bounded));
  }
  if (has_target) {  // added before rounding: 1 - p is small for a sure target
    const float bounded = target_logit * inverse;
    const double both = probability * std::exp(static_cast<double>(target_logit) - logsumexp) + target_gradient;
    logits[target] = Type::narrow(static_cast<float>(both * (1.0 - static_cast<double>(bounded) * bounded)));
  }
}

FASTBUDGET_VECTORIZED void update_float32(const float* logits, std::int64_t columns, std::int64_t target,
                                          RowScore& score) {
  update_row<Float32>(logits, columns, target, score);
}

FASTBUDGET_VECTORIZED void update_bfloat16(const std::uint16_t* logits, std::int64_t columns, std::int64_t target,
                                           RowScore& score) {
  update_row<BFloat16>(logits, columns, target, score);
}

// The slow, obvious way, in float64.
void update_float64(const double* logits, std::int64_t columns, std::int64_t target, RowScore& score) {
  for (std::int64_t at = 0; at < columns; ++at) {
    const double value = logits[at];
    if (at < target) score.best_before = std::max(score.best_before, value);
    if (at > target) score.best_after = std::max(score.best_after, value);
    if (at == target) score.target = value;
    if (value > score.peak) {
      score.sum *= std::exp(score.peak - value);
      score.peak = value;
    }
    if (value != kMinusInfinity) score.sum += std::exp(value - score.peak);
  }
}

FASTBUDGET_VECTORIZED void gradient_float32(float* logits, std::int64_t columns, std::int64_t target, double logsumexp,
                                            double probability, double target_gradient, double softcap) {
  gradient_row<Float32>(logits, columns, target, logsumexp, probability, target_gradient, softcap);
}

FASTBUDGET_VECTORIZED void gradient_bfloat16(std::uint16_t* logits, std::int64_t columns, std::int64_t target,
                                             double logsumexp, double probability, double target_gradient,
                                             double softcap) {
  gradient_row<BFloat16>(logits, columns, target, logsumexp, probability, target_gradient, softcap);
}

void gradient_float64(double* logits, std::int64_t columns, std::int64_t target, double logsumexp, double probability,
                      double target_gradient, double softcap) {
  for (std::int64_t at = 0; at < columns; ++at) {
    const double bounded = softcap > 0 ? logits[at] / softcap : 0.0;
    const double both = probability * std::exp(logits[at] - logsumexp) + (at == target ? target_gradient : 0.0);
    logits[at] = both * (1.0 - bounded * bounded);
  }
}

}  // namespace

void update_row_scores(const LogitBlock& block, const std::int64_t* targets, RowScore* scores, int threads) {
  parallel_for(block.rows, kRowsAtATime, threads, [&](int, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t offset = row * block.row_stride, target = targets[row] - block.first_column;
      switch (block.type) {
        case LogitType::kFloat32:
          update_float32(static_cast<const float*>(block.logits) + offset, block.columns, target, scores[row]);
          break;
        case LogitType::kBFloat16:
          update_bfloat16(static_cast<const std::uint16_t*>(block.logits) + offset, block.columns, target, scores[row]);
          break;
        case LogitType::kFloat64:
          update_float64(static_cast<const double*>(block.logits) + offset, block.columns, target, scores[row]);
          break;
      }
    }
  });
}

void logit_gradients(const LogitBlock& block, const std::int64_t* targets, const double* logsumexp,
                     const double* probability, const double* target, double softcap, int threads) {
  parallel_for(block.rows, kRowsAtATime, threads, [&](int, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t offset = row * block.row_stride, column = targets[row] - block.first_column;
      switch (block.type) {
        case LogitType::kFloat32:
          gradient_float32(static_cast<float*>(block.logits) + offset, block.columns, column, logsumexp[row],
                           probability[row], target[row], softcap);
          break;
        case LogitType::kBFloat16:
          gradient_bfloat16(static_cast<std::uint16_t*>(block.logits) + offset, block.columns, column, logsumexp[row],
                            probability[row], target[row], softcap);
          break;
        case LogitType::kFloat64:
          gradient_float64(static_cast<double*>(block.logits) + offset, block.columns, column, logsumexp[row],
                           probability[row], target[row], softcap);
          break;
      }
    }
  });
}

}  // namespace fastbudget
