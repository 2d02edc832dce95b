"""Sample logs of lm-evaluation-harness (``samples_<task>_<date>.jsonl``, written with ``--log_samples``).

One line per document and filter: ``doc_id``, ``doc``, ``target``, ``arguments``, ``resps``, ``filtered_resps``,
``filter``, ``metrics`` (names) and one key per metric; hashes of document, prompt and target. Older versions lack
``filter``, ``metrics`` or the hashes. Responses and targets are written as text, numbers too (``sanitize_list`` in
lm_eval/loggers/evaluation_tracker.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.errors import DataFileError, InvalidInputError, did_you_mean, one_of
from .table_files import Row

_NO_METRIC = {
    "doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "doc_hash", "prompt_hash",
    "target_hash",
}  # fmt: skip


def is_harness_log(rows: Sequence[Row]) -> bool:
    """Whether rows are such a log."""
    return bool(rows) and {"doc_id", "filtered_resps"} <= rows[0].keys()


def harness_rows(path: Path, rows: Sequence[Row], chosen: str | None) -> tuple[list[Row], list[str]]:
    """Turn a log into rows of ``id``, ``prediction``, ``reference``, ``content`` and one score per metric.

    Args:
        path: For messages.
        rows: Of the file.
        chosen: The filter; None: the only one there is.

    Returns:
        The rows, and the names of the metrics that have a score per example (those of a corpus have none).
    """
    filters = list(dict.fromkeys(row.get("filter", "none") for row in rows))
    if chosen is None and len(filters) > 1:
        raise InvalidInputError(
            f"{path} holds answers by {len(filters)} filters: give filter= one of {one_of(filters)}."
        )
    if chosen is not None and chosen not in filters:
        raise InvalidInputError(
            f"{path} has no filter {chosen!r}.{did_you_mean(chosen, filters)} It holds: {one_of(filters)}."
        )
    kept = [row for row in rows if row.get("filter", "none") == (chosen or filters[0])]
    metrics = _metric_names(kept)
    return [_row(path, row, metrics) for row in kept], metrics


def _metric_names(rows: Sequence[Row]) -> list[str]:
    first = rows[0]
    names = first.get("metrics")
    if not isinstance(names, list):
        names = [name for name in first if name not in _NO_METRIC]
    # A corpus metric logs what it aggregates, such as (reference, prediction), which is no score.
    return [name for name in names if isinstance(first.get(name), int | float)]


def _row(path: Path, row: Row, metrics: list[str]) -> Row:
    missing = [name for name in ("doc_id", *metrics) if name not in row]
    if missing:
        raise DataFileError(f"{path}: document {row.get('doc_id')} lacks {one_of(missing)}.")
    prediction, reference = _answer(row)
    hashes = [str(row[name]) for name in ("doc_hash", "prompt_hash", "target_hash") if name in row]
    return {
        "id": row["doc_id"],
        "prediction": prediction,
        "reference": reference,
        "content": "-".join(hashes) or None,
    } | {name: row[name] for name in metrics}


def _answer(row: Row) -> tuple[Any, Any]:
    """Return prediction and reference: generated text and target, or the likeliest choice's index and the right one."""
    responses, target = row["filtered_resps"], row.get("target")
    if not isinstance(responses, list):
        return None, target
    if len(responses) == 1 and isinstance(responses[0], str):
        return responses[0], target
    likelihoods = [_likelihood(response) for response in responses]
    right = _as_index(target)
    if len(likelihoods) < 2 or None in likelihoods or right is None or not 0 <= right < len(likelihoods):
        return None, None  # a likelihood alone is no prediction; the scores say what it was worth
    numbers = [value for value in likelihoods if value is not None]
    return max(range(len(numbers)), key=numbers.__getitem__), right


def _likelihood(response: Any) -> float | None:
    """The log-likelihood in a pair of it and whether the answer was the greedy one."""
    if not isinstance(response, list) or len(response) != 2:
        return None
    try:
        return float(response[0])
    except (TypeError, ValueError):
        return None


def _as_index(target: Any) -> int | None:
    if isinstance(target, bool):
        return None
    try:
        return int(target)
    except (TypeError, ValueError):
        return None
