"""How often and how thoroughly to evaluate while a model is trained."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import InvalidInputError
from ..metrics import Metric
from ..store import EvaluationStore
from .evaluation_log import CadenceDecision
from .evaluator import evaluate, resolve_metrics
from .example_data import HashedData
from .incumbent import Incumbent
from .model_identity import identify_model
from .recorded import read_record
from .records import EvaluationRecord
from .tiers import Tier, resolve_tier


class Cadence:
    """Evaluates a model in training as often and as thoroughly as it is worth, and no more than its share of the time.

    Called with the model, it evaluates, or doesn't, and returns numbers by metric: a ready ``evaluate=`` for
    `fb.Trainer`, and for a loop of your own::

        cadence = Cadence(lambda model: lambda x: model(x).argmax(1), validation, metric="accuracy")
        for epoch in range(20):
            train(model)
            metrics = cadence(model)              # {"accuracy": nan} if it was left out
        metrics = cadence.at_end(model)           # never left out: `fb.Trainer` calls it by itself
        record = cadence.final(best_model)        # everything, for the checkpoint that is kept, or all `contenders`

    - ``quick`` at each call; ``standard`` at each ``standard_every``-th, and whenever the sequential paired test
      against the best checkpoint so far says on the quick sample that something changed; all examples in `final`.
      The samples are nested and kept in the store, so that a thorough one pays only for what the quick one left out.
    - Evaluation may take ``max_share`` of the time, the final one included: an evaluation that would bring it above,
      were training to end then, is made smaller or left out. There is no least number of evaluations. Beyond the share
      go only the first one, from which the costs are learned, and `final`; the log says when they do.
    - Weights that were evaluated before aren't evaluated again.

    The value of the ranking metric is that of the best checkpoint so far plus the difference from it on the examples
    that both were scored on: on a sample that says far more than the mean alone.

    Args:
        predict_with: ``predict_with(model) -> predict`` for `fb.evaluate`.
        data: Examples by index.
        metrics: Names, or metrics.
        metric: The one that ranks checkpoints: a mean of bounded values per example; None: the first.
        quick: Tier, or its name.
        standard: Tier, or its name.
        standard_every: Calls.
        max_share: Of the time, in (0, 1]: 0.25 is training : evaluation = 3 : 1.
        expected_train_s: Seconds that training will take, if known: evaluations are then spread over it. None: each one
            must fit as if training ended after it, so that the early ones of a short run are left out.
        safety_critical: True forbids any decision from a sample: every call evaluates everything, whatever it costs.
        alpha: Error probability of each verdict of the sequential test.
        store: File for results per example; None: a temporary one.
        clock: Seconds, for tests.
        options: More keywords for `fb.evaluate`, such as ``batch_size``.

    Raises:
        InvalidInputError: a share, number or metric that isn't one.
    """

    def __init__(
        self,
        predict_with: Callable[[Any], Callable[[Any], Any]],
        data: Any,
        metrics: Sequence[str | Metric[Any]] = ("accuracy",),
        *,
        metric: str | None = None,
        quick: str | Tier = "quick",
        standard: str | Tier = "standard",
        standard_every: int = 5,
        max_share: float = 0.25,
        expected_train_s: float | None = None,
        safety_critical: bool = False,
        alpha: float = 0.05,
        store: EvaluationStore | str | Path | None = None,
        clock: Callable[[], float] = time.perf_counter,
        **options: Any,
    ) -> None:
        if not 0 < max_share <= 1:
            raise InvalidInputError(f"max_share must be above 0 and at most 1, got {max_share}.")
        if expected_train_s is not None and not expected_train_s > 0:
            raise InvalidInputError(f"expected_train_s must be above 0 seconds, got {expected_train_s}.")
        if standard_every < 1:
            raise InvalidInputError(f"standard_every must be at least 1 call, got {standard_every}.")
        if not 0 < alpha < 1:
            raise InvalidInputError(f"alpha must be between 0 and 1, got {alpha}.")
        self._metrics = resolve_metrics(metrics)
        self.metric = metric or next(iter(self._metrics))
        if self.metric not in self._metrics:
            raise InvalidInputError(f"metric {self.metric!r} must be among the metrics {sorted(self._metrics)}.")
        self._tiers = {"quick": resolve_tier(quick), "standard": resolve_tier(standard), "full": resolve_tier("full")}
        self._predict_with, self._options = predict_with, options
        self.standard_every, self.max_share, self.safety_critical = standard_every, max_share, safety_critical
        self.expected_train_s = expected_train_s
        self.log: list[CadenceDecision] = []
        self.history: list[EvaluationRecord] = []
        self.train_s = self.evaluation_s = 0.0
        self._scratch = tempfile.TemporaryDirectory(prefix="fastbudget-") if store is None else None
        path = Path(self._scratch.name) / "evaluations.db" if self._scratch is not None else store
        self._store = path if isinstance(path, EvaluationStore) else EvaluationStore(path)  # type: ignore[arg-type]
        self._clock = clock
        self._seconds_per_example: float | None = None
        begun = clock()
        self._data = data if isinstance(data, HashedData) else HashedData(data)
        self.evaluation_s += clock() - begun
        ranking = self._metrics[self.metric]
        seed = self._tiers["quick"].seed
        if any(tier.seed != seed for tier in self._tiers.values() if not tier.takes_all):
            raise InvalidInputError("quick and standard must have the same seed: their samples are nested.")
        if any(tier.stratified for tier in self._tiers.values()):
            raise InvalidInputError(
                "quick and standard must not be stratified: the sequential test needs plain samples."
            )
        self._incumbent = Incumbent(self.metric, ranking, self._data.content_hashes, seed=seed, alpha=alpha)
        self._calls = 0
        self._evaluated: dict[str, EvaluationRecord] = {}
        # Call, value and record by the content of the weights, the latest of each.
        self._measured: dict[str | None, tuple[int, float, EvaluationRecord]] = {}
        self._left_at = clock()

    def __call__(self, model: Any) -> dict[str, float]:
        """Evaluate as far as it is due and allowed; numbers by metric, all NaN if it was left out."""
        record = self.step(model)
        if record is None:
            return dict.fromkeys(self._metrics, math.nan)
        return self._numbers(record)

    def at_end(self, model: Any) -> dict[str, float]:
        """Like a call, but never left out: for the last checkpoint, which might be the best."""
        record = self.step(model, last=True)
        assert record is not None
        return self._numbers(record)

    def _numbers(self, record: EvaluationRecord) -> dict[str, float]:
        values = {name: value.value for name, value in record.values.items()}
        decision = self.log[-1]
        return values if decision.value is None else values | {self.metric: decision.value}

    def step(self, model: Any, *, last: bool = False) -> EvaluationRecord | None:
        """Like a call, but returns the record, or None if it was left out. The log says why.

        Args:
            model: To evaluate.
            last: Whether training ends here: then it is at least a quick one.
        """
        self._enter()
        self._calls += 1
        key = identify_model(model, model, wanted=True)
        assert key is not None
        if key in self._evaluated:
            return self._note("reused", "the weights were evaluated before", self._evaluated[key], None, 0)
        action, reason = self._due()
        if action != "full":
            action, reason = self._affordable(action, reason)
        if action == "skipped" and last:
            action, reason = "quick", f"the last checkpoint might be the best; {reason}"
        if action == "skipped":
            self._note(action, reason, None, None, 0)
            return None
        record = self._evaluate(model, action)
        predicted = record.num_examples - record.num_cached
        verdict = self._incumbent.verdict(record)
        if action == "quick" and verdict in ("better", "worse"):
            wanted, why = self._affordable("standard", f"the quick sample says {verdict} than the best so far")
            if wanted == "standard":
                record = self._evaluate(model, "standard")
                predicted += record.num_examples - record.num_cached
                action, reason, verdict = "standard", why, self._incumbent.verdict(record)
            else:
                reason += f"; {why}"
        self._evaluated[key] = record
        return self._note(action, reason, record, verdict, predicted)

    def final(self, model: Any) -> EvaluationRecord:
        """Evaluate everything: for the end of training and for the checkpoint that is kept."""
        self._enter()
        self._calls += 1
        reason = "the final evaluation takes everything"
        cost_s = self._cost_s("full")
        if cost_s is not None and self._share_after(cost_s) > self.max_share:
            reason += f", though it brings evaluation to {self._share_after(cost_s):.0%} of the time"
        record = self._evaluate(model, "full")
        verdict = self._incumbent.verdict(record)
        self._note("full", reason, record, verdict, record.num_examples - record.num_cached)
        return record

    @property
    def share(self) -> float:
        """Evaluation's share of the time so far."""
        return self.evaluation_s / max(self.train_s + self.evaluation_s, 1e-12)

    @property
    def best(self) -> EvaluationRecord | None:
        """The record of the best checkpoint so far: one that the test called better, or that nothing beat."""
        return self._incumbent.record

    def contenders(self) -> tuple[int, ...]:
        """Return the numbers of the calls whose checkpoints may be the best, those of greatest value first.

        All that were evaluated but those that the sequential test calls worse than the one of greatest value. With
        `final` for each of them the choice is that of full evaluations throughout, but for the errors of these tests.
        """
        if not self._measured:
            return ()
        sign = -1.0 if self._metrics[self.metric].higher_is_better else 1.0
        ranked = sorted(self._measured.values(), key=lambda measured: (sign * measured[1], measured[0]))
        leader = ranked[0][2]
        return tuple(number for number, _, record in ranked if self._incumbent.verdict(record, leader) != "worse")

    def report(self) -> dict[str, Any]:
        """Return what was done and what it cost, as plain data."""
        actions = [decision.action for decision in self.log]
        ratio = self.train_s / self.evaluation_s if self.evaluation_s else None
        return {
            "train_s": self.train_s,
            "evaluation_s": self.evaluation_s,
            "share": self.share,
            "max_share": self.max_share,
            "train_to_evaluation": ratio,
            "safety_critical": self.safety_critical,
            "counts": {action: actions.count(action) for action in dict.fromkeys(actions)},
            "num_predicted": sum(decision.num_predicted for decision in self.log),
            "decisions": [decision.to_json() for decision in self.log],
        }

    def state_dict(self) -> dict[str, Any]:
        """Return times, counts and the records' numbers in the store, for a resumed run with the same store."""
        best = self._incumbent.record
        measured = [] if self._scratch is not None else list(self._measured.items())
        return {
            "calls": self._calls,
            "train_s": self.train_s,
            "evaluation_s": self.evaluation_s,
            "seconds_per_example": self._seconds_per_example,
            "best": None if best is None or self._scratch is not None else best.store_id,
            # Weights, call, value and record of each checkpoint evaluated: the contenders.
            "measured": [[key, call, value, record.store_id] for key, (call, value, record) in measured],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; the time since then doesn't count as training."""
        self._calls = int(state["calls"])
        self.train_s, self.evaluation_s = float(state["train_s"]), float(state["evaluation_s"])
        self._seconds_per_example = state["seconds_per_example"]
        if state["best"] is not None:
            self._incumbent.record = read_record(self._store, state["best"])
        for key, call, value, store_id in state.get("measured", ()):
            record = read_record(self._store, store_id)
            self._measured[key] = int(call), float(value), record
            self._evaluated[key] = record
        self._left_at = self._clock()

    def _enter(self) -> None:
        """Count the time since the last call as training."""
        self._entered_at = self._clock()
        self.train_s += self._entered_at - self._left_at

    def _due(self) -> tuple[str, str]:
        if self.safety_critical:
            return "full", "safety-critical: no decision from a sample"
        if self._seconds_per_example is None:
            return "quick", "the first evaluation: its cost is learned from it"
        if self._calls % self.standard_every == 0:
            return "standard", f"every {self.standard_every} calls"
        return "quick", "every call"

    def _affordable(self, action: str, reason: str) -> tuple[str, str]:
        """Return the action, or a smaller one that keeps the share, with the reason."""
        order = ("standard", "quick")
        for smaller in order[order.index(action) :]:
            cost_s = self._cost_s(smaller)
            if cost_s is None:
                return smaller, reason
            if self._fits(cost_s):
                return smaller, reason if smaller == action else f"{reason}, but a {action} one breaks the share"
        return "skipped", f"{reason}, but with it and the final one evaluation would go beyond {self.max_share:.0%}"

    def _fits(self, cost_s: float) -> bool:
        """Whether an evaluation keeps the share, the final one included, at an even pace over the training expected."""
        if self.max_share == 1:
            return True
        spent_s = self.evaluation_s + self._clock() - self._entered_at + cost_s
        per_train_s = self.max_share / (1 - self.max_share)
        train_s = max(self.expected_train_s or 0.0, self.train_s)
        allowed_s = per_train_s * train_s - (self._cost_s("full") or 0.0)
        return spent_s <= allowed_s * self.train_s / train_s if train_s > 0 else False

    def _share_after(self, seconds: float) -> float:
        spent = self.evaluation_s + self._clock() - self._entered_at + seconds
        return spent / (spent + self.train_s)

    def _cost_s(self, tier: str) -> float | None:
        if self._seconds_per_example is None:
            return None
        return self._seconds_per_example * self._tiers[tier].sample_size(len(self._data))

    def _evaluate(self, model: Any, tier: str) -> EvaluationRecord:
        begun = self._clock()
        record = evaluate(
            self._predict_with(model),
            self._data,
            self._metrics,
            self._tiers[tier],
            store=self._store,
            model_key=model,
            **self._options,
        )
        fresh = record.num_examples - record.num_cached
        if fresh:
            self._seconds_per_example = (self._clock() - begun) / fresh
        self.history.append(record)
        return record

    def _note(
        self, action: str, reason: str, record: EvaluationRecord | None, verdict: str | None, num_predicted: int
    ) -> EvaluationRecord | None:
        value = None
        if record is not None:
            value = self._incumbent.paired_value(record)
            first_call = self._measured.get(record.model_hash, (self._calls,))[0]
            self._measured[record.model_hash] = first_call, value, record
            self._incumbent.offer(record, verdict)
        now = self._clock()
        seconds = now - self._entered_at
        self.evaluation_s += seconds
        self._left_at = now
        self.log.append(
            CadenceDecision(
                number=self._calls,
                action=action,
                reason=reason,
                verdict=verdict,
                value=value,
                num_examples=0 if record is None else record.num_examples,
                num_predicted=num_predicted,
                seconds=seconds,
                train_s=self.train_s,
                evaluation_s=self.evaluation_s,
            )
        )
        return record
