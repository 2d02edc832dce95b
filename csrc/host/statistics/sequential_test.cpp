#include "fastbudget/sequential_test.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace fastbudget {
namespace {

// Wealth beyond this says nothing more; stopping there keeps the products finite.
constexpr double kEnoughWealth = 1e200;
// Parts of wealth below this are given up, which can only make the test more careful; denormal numbers are slow.
constexpr double kLeastPart = 1e-280;
// Bisection ends at this share of the range of totals.
constexpr double kBoundPrecision = 1e-7;
constexpr int kEnvelopeSteps = 16;
// The regression on the guesses begins with this many draws that say 0.
constexpr double kPriorDraws = 30;

}  // namespace

SequentialTest::SequentialTest(Population population, Bets bets, double threshold, double margin_low,
                               double margin_high)
    : population_(std::move(population)),
      bets_(std::move(bets)),
      threshold_(threshold),
      margin_low_(margin_low),
      margin_high_(margin_high),
      above_high_(bets_, Side::kAbove, margin_high),
      below_low_(bets_, Side::kBelow, margin_low),
      above_low_(bets_, Side::kAbove, margin_low),
      below_high_(bets_, Side::kBelow, margin_high) {
  const std::size_t count = population_.weight.size();
  weight_left_.resize(count);
  double left = 0, squares = 0;
  for (std::size_t i = count; i-- > 0;) {
    left += population_.weight[i];
    weight_left_[i] = left;
    low_sum_ += population_.low[i];
    high_sum_ += population_.high[i];
    expected_sum_ += population_.expected[i];
    squares += population_.expected[i] * population_.expected[i] / population_.weight[i];
  }
  low_envelope_ = envelope_of(population_.low, -1);
  high_envelope_ = envelope_of(population_.high, 1);
  low_left_ = low_sum_;
  high_left_ = high_sum_;
  expected_left_ = expected_sum_;
  rejected_above_ = low_sum_;
  rejected_below_ = high_sum_;
  squares_ = kPriorDraws * squares / left;
  tolerance_ = 1e-12 * (high_sum_ - low_sum_) + 1e-300;
  values_.reserve(count);
  controls_.reserve(count);
}

SequentialTest::Envelope SequentialTest::envelope_of(const std::vector<double>& bound, double sign) const {
  Envelope envelope;
  for (int step = 0; step <= kEnvelopeSteps; ++step) {
    const double b = static_cast<double>(step) / kEnvelopeSteps;
    double greatest = 0;
    for (std::size_t i = 0; i < bound.size(); ++i) {
      greatest = std::max(greatest, sign * (bound[i] - b * population_.expected[i]) / population_.weight[i]);
    }
    envelope.points.push_back(greatest);
  }
  return envelope;
}

double SequentialTest::Envelope::at(double b) const {
  const double place = b * kEnvelopeSteps;
  const int step = std::min(static_cast<int>(place), kEnvelopeSteps - 1);
  return points[step] + (place - step) * (points[step + 1] - points[step]);
}

SequentialTest::Draw SequentialTest::draw_of(std::size_t index, double value, double total, double expected_left,
                                             double control) const {
  const double weight_left = weight_left_[index];
  const double known = control * expected_left;
  const double surprise = value - control * population_.expected[index];
  return {surprise * weight_left / population_.weight[index] + known, total,
          weight_left * low_envelope_.at(control) - known, weight_left * high_envelope_.at(control) + known};
}

void SequentialTest::check_certainty(double total, double low_left, double high_left, Wealth& wealth) const {
  const bool impossible = wealth.side == Side::kAbove ? total + low_left > wealth.null_total + tolerance_
                                                      : total + high_left < wealth.null_total - tolerance_;
  if (impossible) wealth.greatest = std::numeric_limits<double>::infinity();
}

void SequentialTest::bet(const Draw& draw, Wealth& wealth) const {
  if (wealth.greatest >= kEnoughWealth) return;
  // The test of T >= T0 is that of -T <= -T0 on the negated values.
  const bool above = wealth.side == Side::kAbove;
  const double z = above ? draw.z : -draw.z;
  const double mu = above ? wealth.null_total - draw.total : draw.total - wealth.null_total;
  const double reach = above ? draw.reach_low : draw.reach_high;
  if (mu + reach <= tolerance_) return;  // nothing can be staked; certainty will tell
  const double ratio = (z + reach) / (mu + reach);
  const std::size_t count = wealth.parts.size();
  double* parts = wealth.parts.data();
  const double* fraction = bets_.fraction.data();
  double sum = 0;
  for (std::size_t k = 0; k < count; ++k) {
    double part = parts[k] * (1 - fraction[k] + fraction[k] * ratio);
    part = part < kLeastPart ? 0 : part;
    parts[k] = part;
    sum += part;
  }
  wealth.greatest = std::max(wealth.greatest, sum);
}

void SequentialTest::decide() {
  if (decided_after_ > 0) return;
  const bool above = above_high_.greatest >= threshold_, below = below_low_.greatest >= threshold_;
  const bool between = margin_low_ < margin_high_ && above_low_.greatest >= threshold_ &&
                       below_high_.greatest >= threshold_ && !above && !below;
  if (!above && !below && !between) return;
  decision_ = above ? 1 : below ? -1 : 0;
  decided_after_ = consumed();
}

void SequentialTest::consume(const double* values, std::int64_t count) {
  const bool zone = margin_low_ < margin_high_;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::size_t>(consumed());
    const Draw draw = draw_of(index, values[i], total_, expected_left_, control_);
    values_.push_back(values[i]);
    controls_.push_back(control_);
    total_ += values[i];
    low_left_ -= population_.low[index];
    high_left_ -= population_.high[index];
    const double expected = population_.expected[index];
    if (expected != 0) {
      const double weight = population_.weight[index];
      expected_left_ -= expected;
      products_ += values[i] * expected / (weight * weight);
      squares_ += expected * expected / (weight * weight);
      control_ = std::clamp(products_ / squares_, 0.0, 1.0);
    }
    for (Wealth* wealth : {&above_high_, &below_low_, &above_low_, &below_high_}) {
      if (!zone && (wealth == &above_low_ || wealth == &below_high_)) continue;
      bet(draw, *wealth);
      check_certainty(total_, low_left_, high_left_, *wealth);
    }
    decide();
  }
}

bool SequentialTest::rejects(Side side, double null_total) const {
  Wealth wealth(bets_, side, null_total);
  double total = 0, low_left = low_sum_, high_left = high_sum_, expected_left = expected_sum_;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    bet(draw_of(i, values_[i], total, expected_left, controls_[i]), wealth);
    total += values_[i];
    low_left -= population_.low[i];
    high_left -= population_.high[i];
    expected_left -= population_.expected[i];
    check_certainty(total, low_left, high_left, wealth);
    if (wealth.greatest >= threshold_) return true;
  }
  return false;
}

double SequentialTest::bound(Side side) {
  const bool above = side == Side::kAbove;
  double& rejected = above ? rejected_above_ : rejected_below_;
  double kept = above ? high_sum_ : low_sum_;
  // The bound agrees with the decision to the last bit.
  if (above && wealth_above() >= threshold_) rejected = std::max(rejected, margin_high_);
  if (!above && wealth_below() >= threshold_) rejected = std::min(rejected, margin_low_);
  if (rejects(side, kept)) return rejected = kept;
  const double precision = kBoundPrecision * (high_sum_ - low_sum_);
  while (std::abs(kept - rejected) > precision) {
    const double middle = 0.5 * (kept + rejected);
    (rejects(side, middle) ? rejected : kept) = middle;
  }
  return rejected;
}

}  // namespace fastbudget
