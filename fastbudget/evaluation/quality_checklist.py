"""What must hold before a result is relied on, with the evidence for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from ..core.durable_files import write_json
from ..core.errors import InvalidInputError, did_you_mean, one_of
from .alerts import Alert
from .evaluation_cadence import Cadence
from .preprocessing import ConsistencyReport
from .records import EvaluationRecord
from .suites import SuiteRecord
from .verdict import Verdict

Status = Literal["pass", "fail", "not done"]

CHECKLIST_FILE = "checklist.json"
_FORMAT, _VERSION = "fastbudget-checklist", 1

QUESTIONS = {
    "interval": "Is the ranking metric's interval narrow enough for this phase?",
    "alerts": "Is the result free of signs that something is broken?",
    "share": "Did evaluation stay within its share of the time?",
    "content": "Are the weights and the data known by their content?",
    "preprocessing": "Do training and evaluation prepare inputs alike?",
    "baseline": "Was it compared with a baseline, and isn't it worse?",
    "complete": "Was every example of the data set evaluated?",
    "slices": "Were the important tasks or groups evaluated one by one?",
    "approved": "Is the baseline's record approved?",
    "untouched": "Is the data untouched by training and by the choice of the checkpoint?",
    "errors_read": "Did a person read a sample of the errors?",
}


@dataclass(frozen=True, kw_only=True)
class CheckItem:
    """One question of a checklist: its status, and what that rests on."""

    name: str
    question: str
    status: Status
    evidence: str


@dataclass(frozen=True, kw_only=True)
class QualityChecklist:
    """The questions of a phase, answered as far as there is evidence."""

    phase: str
    items: tuple[CheckItem, ...]

    @property
    def passed(self) -> bool:
        """Whether every item passes."""
        return all(item.status == "pass" for item in self.items)

    def __getitem__(self, name: str) -> CheckItem:
        for item in self.items:
            if item.name == name:
                return item
        names = [item.name for item in self.items]
        raise InvalidInputError(
            f"The checklist has no item {name!r}.{did_you_mean(name, names)} It has {one_of(names)}."
        )

    def answered(self, name: str, status: Status, evidence: str) -> QualityChecklist:
        """Return the checklist with one item answered by a person.

        Args:
            name: Of the item.
            status: ``"pass"``, ``"fail"`` or ``"not done"``.
            evidence: Who looked at what, and what was found; needed, for an answer without it is none.
        """
        if status not in get_args(Status):
            raise InvalidInputError(f"status must be one of {one_of(get_args(Status))}, got {status!r}.")
        if not evidence.strip():
            raise InvalidInputError("evidence must say what the answer rests on.")
        changed = replace(self[name], status=status, evidence=evidence)
        return replace(self, items=tuple(changed if item.name == name else item for item in self.items))

    def to_json(self) -> dict[str, Any]:
        """Return the checklist as plain data."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "phase": self.phase,
            "passed": self.passed,
            "items": [asdict(item) for item in self.items],
        }

    def write(self, run_dir: str | Path) -> Path:
        """Write ``checklist.json`` into a run directory, where the report finds it."""
        path = Path(run_dir) / CHECKLIST_FILE
        write_json(path, self.to_json())
        return path


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a checklist is filled in from; what is None is not done.

    Attributes:
        record: The evaluation to rely on.
        metric: The one that ranks.
        alerts: From `find_alerts`; an empty list says that it was looked.
        cadence: Of the training.
        preprocessing: From `compare_preprocessing`.
        verdict: From `fb.compare`.
        suite: From `evaluate_suite`.
        baseline_status: Sign-off of the baseline's record, such as ``"approved"``.
    """

    record: EvaluationRecord | None = None
    metric: str | None = None
    alerts: Sequence[Alert] | None = None
    cadence: Cadence | None = None
    preprocessing: ConsistencyReport | None = None
    verdict: Verdict | None = None
    suite: SuiteRecord | None = None
    baseline_status: str | None = None


def fill_in(
    phase: str, names: Sequence[str], evidence: Evidence, *, largest_half_width: float | None
) -> QualityChecklist:
    """Answer the named questions as far as the evidence goes."""
    answers = _answers(evidence, largest_half_width)
    items = []
    for name in names:
        found = answers.get(name)
        status: Status = "not done" if found is None else "pass" if found[0] else "fail"
        text = "nothing was given that answers it" if found is None else found[1]
        items.append(CheckItem(name=name, question=QUESTIONS[name], status=status, evidence=text))
    return QualityChecklist(phase=phase, items=tuple(items))


def _answers(evidence: Evidence, largest_half_width: float | None) -> Mapping[str, tuple[bool, str]]:
    found: dict[str, tuple[bool, str]] = {}
    if evidence.record is not None:
        found |= _record_answers(evidence.record, evidence.metric, largest_half_width)
    if evidence.alerts is not None:
        texts = "; ".join(alert.message for alert in evidence.alerts)
        found["alerts"] = not evidence.alerts, texts or "none was found"
    if evidence.cadence is not None:
        share, most = evidence.cadence.share, evidence.cadence.max_share
        found["share"] = share <= most, f"{share:.1%} of the time, at most {most:.0%} was allowed"
    if evidence.preprocessing is not None:
        report = evidence.preprocessing
        found["preprocessing"] = report.consistent, "; ".join(report.problems) or "no difference that matters"
    if evidence.verdict is not None:
        verdict = evidence.verdict
        found["baseline"] = (
            verdict.passed is True,
            f"{verdict.decision} in {verdict.metric} by {verdict.difference.low:.4f} to {verdict.difference.high:.4f}, "
            f"{verdict.num_examples:,} of {verdict.population_size:,} examples, error at most {verdict.alpha:g}",
        )
    if evidence.suite is not None:
        names, failed = ", ".join(evidence.suite.tasks), ", ".join(evidence.suite.failed)
        found["slices"] = not failed, f"without a result: {failed}" if failed else f"evaluated: {names}"
    if evidence.baseline_status is not None:
        found["approved"] = evidence.baseline_status == "approved", f"its status is {evidence.baseline_status}"
    return found


def _record_answers(
    record: EvaluationRecord, metric: str | None, largest_half_width: float | None
) -> dict[str, tuple[bool, str]]:
    name = metric or next(iter(record.values))
    value = record.values[name]
    half = (value.high - value.low) / 2
    of = f" of {record.population_size:,}" if record.population_size is not None else ""
    hashes = {"weights": record.model_hash, "data": record.data_hash}
    unknown = [what for what, known in hashes.items() if known is None]
    found = {
        "complete": (
            record.population_size == record.num_examples,
            f"{record.num_examples:,}{of} examples",
        ),
        "content": (
            not unknown,
            f"no hash of the {' and the '.join(unknown)}"
            if unknown
            else f"weights {str(record.model_hash)[:12]}…, data {str(record.data_hash)[:12]}…",
        ),
    }
    if largest_half_width is not None:
        found["interval"] = (
            half <= largest_half_width,
            f"{name} {value.value:.4f}, {value.low:.4f} to {value.high:.4f}: ±{half:.4f}, at most "
            f"±{largest_half_width:g} is wanted",
        )
    return found
