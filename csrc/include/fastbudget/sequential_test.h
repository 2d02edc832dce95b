// A sequential test of a finite population's total, by betting on units drawn without replacement.
#pragma once

#include <cstdint>
#include <vector>

namespace fastbudget {

// The order in which units are drawn: one after another, each with probability weight / weights of those left.
// Sorting exponential(1) / weight draws so (P. S. Efraimidis, P. G. Spirakis, "Weighted random sampling with a
// reservoir", Information Processing Letters 97, 2006). Depends on weights and seed only.
std::vector<std::int64_t> draw_order(const double* weights, std::int64_t count, std::uint64_t seed);

// The units in draw order, with what is known of each before it is evaluated.
struct Population {
  std::vector<double> weight;     // > 0
  std::vector<double> low, high;  // bounds of each unit's value
  std::vector<double> expected;   // a guess of each unit's value, for less variance; 0 where nothing is guessed
};

// Shares of the first wealth, each bet for good at its own fraction of the largest stake that can't ruin.
struct Bets {
  std::vector<double> fraction;  // in (0, 1)
  std::vector<double> share;     // sums to 1
};

// Why this is valid. Let T be the population's total, S_t the sum of the first t units, W_t the weight of those left
// and x the unit drawn next, whose weight is w. With z = x W_t / w, E[z | past] = T - S_t, whatever the weights are:
// each unit j left has probability w_j / W_t (Horvitz and Thompson 1952, one draw). Under the null T <= T0 that is at
// most mu = T0 - S_t. As z >= -M for M = W_t max(-low / weight), the factor
//     1 - f + f (z + M) / (mu + M),   0 < f < 1,
// is never negative and has a mean of at most 1 under the null: the product of factors is a supermartingale, as is any
// mixture of such products, and by Ville's inequality (1939) it ever reaches 1 / a with a probability of at most a.
// A control variate keeps the mean of z: with guesses r, their sum R_t over the units left, and any b that depends on
// the past only, z = (x - b r) W_t / w + b R_t. M is then W_t max((b r - low) / weight) - b R_t, and b is the
// regression of the values so far on their guesses. I. Waudby-Smith, A. Ramdas, "Estimating means of bounded random
// variables by betting", JRSS-B 86 (2024); I. Waudby-Smith, P. B. Stark, A. Ramdas, "RiLACS: risk limiting audits via
// confidence sequences", E-Vote-ID 2021. Each factor falls as T0 rises, so the nulls that are rejected form a half-line
// and the confidence bound is its end. Where even the bounds of the units left can't bring the total down to T0, the
// null is impossible: certainty.
class SequentialTest {
 public:
  enum class Side { kAbove, kBelow };  // rejects T <= T0, rejects T >= T0

  // Margins are totals, margin_low <= margin_high. Rejects where wealth reaches `threshold`.
  SequentialTest(Population population, Bets bets, double threshold, double margin_low, double margin_high);

  // Takes the values of the next `count` units in draw order.
  void consume(const double* values, std::int64_t count);

  std::int64_t consumed() const { return static_cast<std::int64_t>(values_.size()); }
  double total() const { return total_; }
  // What the total can still become.
  double least_total() const { return total_ + low_left_; }
  double greatest_total() const { return total_ + high_left_; }

  // The largest wealth so far against T <= margin_high and against T >= margin_low; infinite when certain.
  double wealth_above() const { return above_high_.greatest; }
  double wealth_below() const { return below_low_.greatest; }

  // +1: above margin_high, -1: below margin_low, 0: between them; decided_after() is 0 while undecided.
  int decision() const { return decision_; }
  std::int64_t decided_after() const { return decided_after_; }

  // The end of the half-line of rejected nulls, which is itself rejected. Costs up to 25 passes over all values.
  double bound(Side side);

 private:
  struct Wealth {
    Wealth(const Bets& bets, Side side, double null_total) : side(side), null_total(null_total), parts(bets.share) {}
    Side side;
    double null_total;
    std::vector<double> parts;
    double greatest = 1;
  };

  // What is the same for all nulls when a unit is drawn.
  struct Draw {
    double z;                      // estimate of the total of the units left
    double total;                  // S before the draw
    double reach_low, reach_high;  // z is in [-reach_low, reach_high], M of either side
  };

  // The greatest z can be above b R_t (side kBelow: below), over W_t, for b on a grid from 0 to 1. Convex in b, so that
  // straight lines between the points lie above.
  struct Envelope {
    std::vector<double> points;
    double at(double b) const;
  };

  Envelope envelope_of(const std::vector<double>& bound, double sign) const;
  void bet(const Draw& draw, Wealth& wealth) const;
  void check_certainty(double total, double low_left, double high_left, Wealth& wealth) const;
  bool rejects(Side side, double null_total) const;
  Draw draw_of(std::size_t index, double value, double total, double expected_left, double control) const;
  void decide();

  Population population_;
  Bets bets_;
  double threshold_, margin_low_, margin_high_, tolerance_;
  std::vector<double> weight_left_;  // of the units from each position on
  Envelope low_envelope_, high_envelope_;
  double low_sum_ = 0, high_sum_ = 0, expected_sum_ = 0;
  std::vector<double> values_, controls_;  // of the units drawn, and b at each
  double control_ = 0, products_ = 0, squares_ = 0, expected_left_ = 0;
  double total_ = 0, low_left_ = 0, high_left_ = 0;
  Wealth above_high_, below_low_;  // better, worse
  Wealth above_low_, below_high_;  // together: between the margins
  int decision_ = 0;
  std::int64_t decided_after_ = 0;
  double rejected_above_, rejected_below_;  // the bounds found last: once rejected, a null stays so
};

}  // namespace fastbudget
