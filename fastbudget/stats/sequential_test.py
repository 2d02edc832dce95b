"""The sequential paired test: evaluate until the decision of the full evaluation is certain enough."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError, one_of
from ._native import SequentialTest
from .sequential_inputs import (
    checked_margins,
    draw_weights,
    expected_changes,
    fingerprint_of,
    score_bounds,
    sums_by,
    two_values,
)
from .validation import FloatArray, IntArray, check_alpha, group_vector, real_vector

Decision = Literal["undecided", "better", "worse", "equal"]

# The wealth is divided between bets for good: small ones win where changes are many and nearly balanced, large ones
# where nearly all changes go one way. The shares favor the middle, where decisions cost hundreds to thousands of
# examples; weighted draws find changes in examples whose stakes are small, which asks for larger bets.
# bench/evaluation/sequential_cost.py measures both.
BET_FRACTIONS = (0.04, 0.1, 0.18, 0.28, 0.4, 0.55, 0.75, 0.95)
BET_SHARES = tuple(share / 15 for share in (1, 2, 3, 3, 2, 2, 1, 1))
WEIGHTED_BET_SHARES = tuple(share / 15 for share in (0.5, 1, 1.5, 2, 2, 2, 3, 3))

_STATE_VERSION = 1


class SequentialPairedTest:
    """Tells whether a candidate is better or worse than a baseline on a finite data set, from few examples.

    D is the mean over all N examples of score - baseline. The decision is ``"better"`` when D > margin_high,
    ``"worse"`` when D < margin_low, ``"equal"`` when D lies between them (or is exactly both). Whenever you look and
    whenever you stop, the decision is wrong with a probability of at most ``alpha``, over the random draw of examples;
    at n = N it is the full evaluation's. Exact for every data set whose scores lie in the given range: nothing is
    assumed of distributions, of independence between examples, or of the quality of ``flip_probability``.

    Draw, evaluate, update::

        test = SequentialPairedTest(len(data), baseline=baseline_scores)
        while test.decision == "undecided":
            indices = test.next_batch(50)
            test.update(indices, scores_of(candidate, indices))

    Betting martingales (Waudby-Smith and Ramdas 2024) on draws without replacement (RiLACS: Waudby-Smith, Stark and
    Ramdas 2021), weighted by the inverse draw probability; the proof is in csrc/include/fastbudget/sequential_test.h.

    Args:
        num_examples: N.
        baseline: float [N], the baseline's score of each example. None: a one-sample test of the mean of the values.
        flip_probability: float [N] in [0, 1], how likely each score is to change. Examples are drawn in proportion to
            its square root, and what it predicts is subtracted as far as it proves true, so a good guess saves
            examples; a wrong one costs examples, never validity.
        margin_low: D below it is worse.
        margin_high: D above it is better. Both -δ: a non-inferiority gate, as `non_inferiority` makes it.
        alpha: The largest probability of a wrong decision.
        value_range: Bounds of what is averaged: of score - baseline, or of the values when there is no baseline.
        seed: Of the draw. Tests with the same N, seed, weights and clusters draw the same examples.
        clusters: int or str [N], equal for examples that depend on each other (questions on one passage); whole
            clusters are drawn.
        score_range: Bounds of one score, which make bets tighter: a score of 1 can only fall. None: (0, 1) when all
            baseline scores lie in it and so does value_range in (-1, 1), else no bounds but value_range.
        proxy: float [N], a cheap guess of the candidate's score of each example (an int8 copy's, say); draws then only
            correct its mean. See `proxy_audit`.
        weight_floor: In (0, 1]: the least weight of an example in the draw, relative to the mean before the floor.
        two_sided: False: with equal margins, each of the two answers has a probability of at most alpha of being
            wrong, where both can't be; ``interval()`` then has the confidence 1 - 2 alpha.
        nan_policy: ``"error"`` refuses NaN scores; ``"wrong"`` counts each as the worst score and in `num_nan`.

    Raises:
        InvalidInputError: an argument is out of its range or of another length.
    """

    def __init__(
        self,
        num_examples: int,
        baseline: npt.ArrayLike | None = None,
        flip_probability: npt.ArrayLike | None = None,
        margin_low: float = 0.0,
        margin_high: float = 0.0,
        alpha: float = 0.05,
        value_range: tuple[float, float] = (-1.0, 1.0),
        seed: int = 0,
        *,
        clusters: npt.ArrayLike | None = None,
        score_range: tuple[float, float] | None = None,
        proxy: npt.ArrayLike | None = None,
        weight_floor: float = 0.85,
        two_sided: bool = True,
        nan_policy: Literal["error", "wrong"] = "error",
    ) -> None:
        if int(num_examples) != num_examples or num_examples < 1:
            raise InvalidInputError(f"num_examples must be a whole number of at least 1, got {num_examples!r}.")
        self.num_examples = count = int(num_examples)
        self.alpha = check_alpha(alpha)
        if not two_sided and (margin_low != margin_high or alpha >= 0.5):
            raise InvalidInputError(
                "two_sided=False needs equal margins and alpha below 0.5, "
                f"got {margin_low!r}, {margin_high!r} and alpha={alpha!r}."
            )
        self.two_sided = two_sided
        self.margin_low, self.margin_high = checked_margins(margin_low, margin_high)
        self.seed = int(seed)
        if not 0 < weight_floor <= 1:
            raise InvalidInputError(f"weight_floor must be in (0, 1], got {weight_floor!r}.")
        if nan_policy not in ("error", "wrong"):
            raise InvalidInputError(f"nan_policy must be one of {one_of(('error', 'wrong'))}, got {nan_policy!r}.")
        self.nan_policy = nan_policy
        if proxy is not None and baseline is None:
            raise InvalidInputError("proxy needs a baseline; without one, give the proxy's scores as the baseline.")

        base = None if baseline is None else real_vector(baseline, "baseline", count)
        guess = None if proxy is None else real_vector(proxy, "proxy", count)
        weights = draw_weights(flip_probability, count, weight_floor)
        self._baseline_sum = 0.0 if base is None else math.fsum(base)
        # Draws estimate the mean of value - reference; what is known of all examples is added.
        reference = guess if guess is not None else base
        self._reference = np.zeros(count) if reference is None else reference
        self._known_sum = 0.0 if reference is None else math.fsum(reference) - self._baseline_sum
        self._score_low, self._score_high, self._least_score = score_bounds(base, value_range, score_range)

        self._example_order = np.arange(count)
        self._unit_ends: IntArray | None = None  # None: each example is a unit of its own
        low, high = self._score_low - self._reference, self._score_high - self._reference
        expected = expected_changes(flip_probability, low, high)
        if clusters is not None:
            unit = group_vector(clusters, "clusters", count)
            weights, low, high, expected = (sums_by(unit, part) for part in (weights, low, high, expected))
        self._test = SequentialTest(
            weights=weights,
            low=low,
            high=high,
            expected=expected,
            seed=self.seed % 2**64,
            bet_fractions=BET_FRACTIONS,
            bet_shares=BET_SHARES if flip_probability is None else WEIGHTED_BET_SHARES,
            threshold=(2 if two_sided else 1) / alpha,
            margin_low=count * self.margin_low - self._known_sum,
            margin_high=count * self.margin_high - self._known_sum,
        )
        order = self._test.order()
        if clusters is None:
            self._example_order = order
        else:
            place = np.empty(len(order), np.int64)
            place[order] = np.arange(len(order))
            self._example_order = np.argsort(place[unit], kind="stable")
            self._unit_ends = np.cumsum(np.bincount(unit)[order])
        self._is_weighted = bool(weights.min() != weights.max())
        self._weights_in_order = weights[order]
        self._place = np.empty(count, np.int64)
        self._place[self._example_order] = np.arange(count)
        self._values = np.zeros(count)
        self._received = np.zeros(count, bool)
        self._drawn = self._known = self._evaluated = 0
        self._num_nan = 0
        self._fingerprint = fingerprint_of(base, guess, weights, self._unit_ends, low, high)

    def next_batch(self, k: int) -> IntArray:
        """Return the indices of the examples to evaluate next: int64 [k], fewer at the end, none after the last.

        Whole clusters: as many as it takes to reach k. May be called again before results are there.
        """
        if int(k) != k or k < 1:
            raise InvalidInputError(f"next_batch needs a whole number of at least 1, got {k!r}.")
        begin, end = self._drawn, min(self._drawn + int(k), self.num_examples)
        if self._unit_ends is not None and begin < end:
            end = int(self._unit_ends[np.searchsorted(self._unit_ends, end)])
        self._drawn = end
        batch = self._example_order[begin:end]
        # After resuming, some of these have results already.
        batch = batch[~self._received[batch]]
        return self.next_batch(k) if len(batch) == 0 and begin < end else batch

    def update(self, indices: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Take results: the candidate's scores of the examples ``indices``, int [n] and float [n].

        With a baseline these are scores, not differences: the baseline's are subtracted here. Results may come in any
        order and any portions; they count in the order of the draw, once all drawn before are there. The same result
        twice counts once.

        Raises:
            InvalidInputError: an index was never drawn, a value is NaN (see ``nan_policy``) or out of range, or an
                example has two different values. Nothing of the call is taken then.
        """
        where, scores = self._checked(indices, values)
        if len(where) == 0:
            return
        seen = self._received[where]
        if seen.any() and (self._values[where[seen]] != scores[seen]).any():
            raise two_values(where[seen], self._values[where[seen]], scores[seen])
        self._values[where] = scores
        if (self._values[where] != scores).any():  # twice in this call, with different values
            raise two_values(where, self._values[where], scores)
        self._received[where] = True
        self._consume()

    @property
    def decision(self) -> Decision:
        """``"undecided"``, ``"better"``, ``"worse"`` or ``"equal"``. Once decided it stays; at n = N it is exact."""
        if self._evaluated == self.num_examples:
            difference = self._full_difference()
            return "better" if difference > self.margin_high else "worse" if difference < self.margin_low else "equal"
        # Certain: whatever the examples left bring, and whatever was decided before.
        if math.isinf(self._test.wealth_above):
            return "better"
        if math.isinf(self._test.wealth_below):
            return "worse"
        if self._test.decided_after == 0:
            return "undecided"
        return {1: "better", -1: "worse", 0: "equal"}[self._test.decision]  # type: ignore[return-value]

    @property
    def num_evaluated(self) -> int:
        """Examples that the decision rests on: those in draw order up to the first whose result is missing."""
        return self._evaluated

    @property
    def num_drawn(self) -> int:
        """Examples handed out by `next_batch` so far."""
        return self._drawn

    @property
    def num_nan(self) -> int:
        """Scores that were NaN and counted as wrong."""
        return self._num_nan

    @property
    def confidence(self) -> float:
        """Of `interval`."""
        return 1 - (self.alpha if self.two_sided else 2 * self.alpha)

    @property
    def p_value(self) -> float:
        """Anytime-valid p-value: small when D is not between the margins (one-sided: when D > margin_high).

        Valid at whatever moment it is read (Ville's inequality); ``p_value <= alpha`` is the decision better or worse
        (one-sided: better). 0 once certain.
        """
        return min(1.0, 2 * min(self.p_better, self.p_worse)) if self.two_sided else self.p_better

    @property
    def p_better(self) -> float:
        """Anytime-valid p-value against D <= margin_high; `p_better` and `p_worse` can be corrected by `holm`."""
        return self._p_value("better", self._test.wealth_above)

    @property
    def p_worse(self) -> float:
        """Anytime-valid p-value against D >= margin_low."""
        return self._p_value("worse", self._test.wealth_below)

    def interval(self) -> tuple[float, float]:
        """Return bounds (low, high) of D that hold at every moment together, with probability `confidence`.

        They are the same bets against every other null, so they never contradict the decision: better is low >=
        margin_high. (D, D) at n = N. Costs some milliseconds per 10,000 examples evaluated.
        """
        if self._evaluated == self.num_examples:
            difference = self._full_difference()
            return difference, difference
        least, greatest = self._test.least_total, self._test.greatest_total
        low = min(max(self._test.lower_bound(), least), greatest)
        high = max(min(self._test.upper_bound(), greatest), low)
        return (low + self._known_sum) / self.num_examples, (high + self._known_sum) / self.num_examples

    @property
    def estimate(self) -> float | None:
        """Unbiased estimate of D; None before the first result.

        Drawn uniformly it is the mean so far; weighted, Des Raj's estimator (JASA 51, 1956): the mean over draws of
        the total so far plus the new value over its probability.
        """
        if self._evaluated == 0:
            return None
        if self._evaluated == self.num_examples:
            return self._full_difference()
        values = self._unit_values(0, self._test.consumed)
        if self._is_weighted:
            weights = self._weights_in_order
            left = np.cumsum(weights[::-1])[::-1][: len(values)]
            before = np.cumsum(values) - values
            total = float(np.mean(before + values * left / weights[: len(values)]))
        else:
            total = float(values.mean()) * len(self._weights_in_order)
        return (total + self._known_sum) / self.num_examples

    def state_dict(self) -> dict[str, Any]:
        """Return the results so far and what they belong to: numbers, strings and two numpy arrays."""
        drawn = self._example_order[: self._drawn]
        indices = drawn[self._received[drawn]]
        return {
            "version": _STATE_VERSION,
            "fingerprint": self._fingerprint,
            "settings": self._settings(),
            "drawn": self._drawn,
            "num_nan": self._num_nan,
            "indices": indices,
            "values": self._values[indices],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict` in a test made with the same arguments, which has no results yet.

        Examples that were drawn but have no result yet are given out again by `next_batch`, after those before them.

        Raises:
            InvalidInputError: the state is of a test with other arguments or data, or this test has results.
        """
        if state.get("version") != _STATE_VERSION:
            raise InvalidInputError(f"The state must have version {_STATE_VERSION}, got {state.get('version')!r}.")
        if self._received.any():
            raise InvalidInputError("This test has results already: load the state into a new one.")
        if state["settings"] != self._settings() or state["fingerprint"] != self._fingerprint:
            raise InvalidInputError(
                "The state belongs to a test with other arguments or other data (baseline, flip_probability, "
                f"clusters, proxy): {state['settings']} there, {self._settings()} here."
            )
        self._drawn = int(state["drawn"])
        self.update(state["indices"], state["values"])
        self._num_nan = int(state["num_nan"])
        # Results of later draws are kept; the first one missing is drawn again, with all after it.
        self._drawn = self._known

    def _p_value(self, rejecting: Decision, wealth: float) -> float:
        if self._evaluated == self.num_examples:
            return 0.0 if self.decision == rejecting else 1.0
        return min(1.0, 1 / wealth)

    def _settings(self) -> dict[str, Any]:
        return {
            "num_examples": self.num_examples,
            "margin_low": self.margin_low,
            "margin_high": self.margin_high,
            "alpha": self.alpha,
            "seed": self.seed,
            "two_sided": self.two_sided,
        }

    def _full_difference(self) -> float:
        return (math.fsum(self._values) - self._baseline_sum) / self.num_examples

    def _checked(self, indices: npt.ArrayLike, values: npt.ArrayLike) -> tuple[IntArray, FloatArray]:
        where = np.atleast_1d(np.asarray(indices))
        scores = np.atleast_1d(np.array(values, np.float64))
        if where.ndim != 1 or where.shape != scores.shape:
            raise InvalidInputError(
                f"update needs as many values as indices, one-dimensional, got {scores.shape} and {where.shape}."
            )
        if len(where) == 0:
            return where.astype(np.int64), scores
        if where.dtype.kind not in "iu":
            raise InvalidInputError(f"indices must be whole numbers, got {where.dtype}.")
        where = where.astype(np.int64, copy=False)
        outside = (where < 0) | (where >= self.num_examples)
        if outside.any():
            raise InvalidInputError(f"indices must be in [0, {self.num_examples}), got {where[outside][0]}.")
        early = self._place[where] >= self._drawn
        if early.any():
            raise InvalidInputError(
                f"Example {where[early][0]} was not drawn: the test holds only for examples from next_batch."
            )
        missing = np.isnan(scores)
        if missing.any():
            if self.nan_policy == "error":
                raise InvalidInputError(
                    f"The score of example {where[missing][0]} is NaN ({missing.sum()} in this call). Mend it, or "
                    'count such scores as wrong with nan_policy="wrong".'
                )
            scores[missing] = self._least_score[where[missing]] if self._least_score.ndim else self._least_score
            self._num_nan += int((missing & ~self._received[where]).sum())
        low, high = self._score_low, self._score_high
        if low.ndim:
            low, high = low[where], high[where]
        bad = (scores < low - 1e-9) | (scores > high + 1e-9)
        if bad.any():
            first = int(bad.argmax())
            raise InvalidInputError(
                f"The score of example {where[first]} must be in [{np.ravel(low)[first if low.ndim else 0]:g}, "
                f"{np.ravel(high)[first if high.ndim else 0]:g}], got {scores[first]:g}. With a baseline, update takes "
                "scores, not differences; other scales need value_range and score_range."
            )
        return where, scores

    def _consume(self) -> None:
        """Hand all units to the test whose members, and those of all units drawn before, have results."""
        window = 256
        while self._known < self._drawn:
            end = min(self._known + window, self._drawn)
            there = self._received[self._example_order[self._known : end]]
            if not there.all():
                self._known += int(there.argmin())
                break
            self._known = end
            window *= 4
        done = self._known if self._unit_ends is None else int(np.searchsorted(self._unit_ends, self._known, "right"))
        before = self._test.consumed
        if done > before:
            self._test.consume(self._unit_values(before, done))
            self._evaluated = done if self._unit_ends is None else int(self._unit_ends[done - 1])

    def _unit_values(self, begin: int, end: int) -> FloatArray:
        """Return value - reference summed over each of the units [begin, end) in draw order."""
        if self._unit_ends is None:
            where = self._example_order[begin:end]
            return self._values[where] - self._reference[where]
        first = int(self._unit_ends[begin - 1]) if begin else 0
        ends = self._unit_ends[begin:end]
        where = self._example_order[first : ends[-1]]
        starts = np.concatenate([[0], ends[:-1] - first])
        return np.add.reduceat(self._values[where] - self._reference[where], starts)
