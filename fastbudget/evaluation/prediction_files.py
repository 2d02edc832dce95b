"""Files of predictions that were made elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import DataFileError, InvalidInputError, did_you_mean, one_of
from .harness_samples import harness_rows, is_harness_log
from .table_files import FileFormat, Row, format_of, read_rows

_IDS = ("id", "example_id", "doc_id", "sample_id", "uid", "guid", "idx", "index")
_PREDICTIONS = ("prediction", "predictions", "pred", "predicted", "output", "response", "generated", "hypothesis")
_REFERENCES = ("reference", "references", "label", "labels", "target", "targets", "truth", "gold", "expected", "answer")
_SCORES = ("score", "correct", "is_correct", "exact_match", "acc")


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predictions by example.

    Attributes:
        ids: One per example, each once; row numbers as text if the file has no ids (``ids_are_rows``).
        predictions: [n] numbers or texts, or float [n, C] class scores; None if the file holds scores only.
        references: [n] likewise; None if the file has none.
        scores: float64 [n] by name: scores per example that the file holds already, such as ``acc`` of
            lm-evaluation-harness. NaN where the file says so.
        content: [n] hashes of what was asked, if the file tells; equal ids with other hashes are other data.
        num_duplicates: Rows left out because they repeat another.
        sources: The files.
    """

    ids: list[str]
    predictions: npt.NDArray[Any] | list[Any] | None
    references: npt.NDArray[Any] | list[Any] | None
    scores: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    content: list[str] | None = None
    ids_are_rows: bool = False
    num_duplicates: int = 0
    sources: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


def read_predictions(
    path: str | Path | Sequence[str | Path],
    *,
    format: FileFormat | None = None,
    id: str | None = None,
    prediction: str | None = None,
    reference: str | None = None,
    scores: Sequence[str] | None = None,
    filter: str | None = None,
) -> Predictions:
    """Read predictions from CSV, TSV, JSON, JSON lines or Parquet, gzipped or not, or lm-evaluation-harness logs.

    Args:
        path: A file, or several that hold shards of one evaluation, which are merged by id.
        format: ``"csv"``, ``"tsv"``, ``"json"``, ``"jsonl"`` or ``"parquet"``; None: by the name's ending.
        id: Column of the ids; None: ``id``, ``example_id``, …, or else the row number.
        prediction: Column of predictions; None: ``prediction``, ``pred``, ``output``, ….
        reference: Column of references; None: ``reference``, ``label``, ``target``, …, or else there are none.
        scores: Columns of scores per example; None: ``score``, ``correct``, … where there are any; (): none, and a
            file of references alone will do.
        filter: Of an lm-evaluation-harness log that has several (``strict-match``, …).

    Raises:
        InvalidInputError: no rows, a column that isn't there, missing values, equal ids with different values.
        DataFileError: a file can't be read, with the line.
    """
    paths = [Path(path)] if isinstance(path, str | Path) else [Path(part) for part in path]
    if not paths:
        raise InvalidInputError("path must name at least one file.")
    rows: list[Row] = []
    columns: _Columns | None = None
    for part in paths:
        read = read_rows(part, format or format_of(part))
        if not read:
            continue
        if is_harness_log(read) and not (id or prediction or reference):
            read, metrics = harness_rows(part, read, filter)
            found = _Columns(id="id", prediction="prediction", reference="reference", scores=tuple(metrics))
        else:
            if filter is not None:
                raise InvalidInputError(f"filter= is for logs of lm-evaluation-harness, which {part} isn't.")
            found = _find_columns(part, read[0], id, prediction, reference, scores)
        if columns is not None and found != columns:
            raise InvalidInputError(f"{part} has other columns than {paths[0]}: {found} against {columns}.")
        columns = found
        _check_complete(part, read, found)
        rows += read
    if columns is None:
        raise InvalidInputError(f"{', '.join(map(str, paths))}: there is no example.")
    if columns.id is None and len(paths) > 1:
        raise InvalidInputError("Several files are merged by id, and these have no column of ids; give id=.")
    ids = [str(row[columns.id]) for row in rows] if columns.id else [str(number) for number in range(len(rows))]
    kept = _merge(ids, rows, columns)
    kept_rows = [rows[index] for index in kept]
    predictions, references = _arrays(kept_rows, columns)
    return Predictions(
        ids=[ids[index] for index in kept],
        predictions=predictions,
        references=references,
        scores={name: _scores(kept_rows, name) for name in columns.scores},
        content=_content(kept_rows),
        ids_are_rows=columns.id is None,
        num_duplicates=len(rows) - len(kept),
        sources=tuple(map(str, paths)),
    )


@dataclass(frozen=True, kw_only=True)
class _Columns:
    id: str | None
    prediction: str | None
    reference: str | None
    scores: tuple[str, ...]


def _find_columns(
    path: Path,
    row: Mapping[str, Any],
    id: str | None,
    prediction: str | None,
    reference: str | None,
    scores: Sequence[str] | None,
) -> _Columns:
    for argument, name in (("id", id), ("prediction", prediction), ("reference", reference)):
        _check_column(path, row, argument, name)
    for name in scores or ():
        _check_column(path, row, "scores", name)
    by_lower = {name.lower(): name for name in row}

    def first(known: Sequence[str]) -> str | None:
        return next((by_lower[name] for name in known if name in by_lower), None)

    found = _Columns(
        id=id or first(_IDS),
        prediction=prediction or first(_PREDICTIONS),
        reference=reference or first(_REFERENCES),
        scores=tuple(scores) if scores is not None else tuple(name for name in row if name.lower() in _SCORES),
    )
    only_references = scores is not None and found.reference is not None
    if found.prediction is None and not found.scores and not only_references:
        raise InvalidInputError(
            f"{path} has no column of predictions or scores that is known by name; its columns are {one_of(row)}. "
            "Give prediction= or scores=."
        )
    return found


def _check_column(path: Path, row: Mapping[str, Any], argument: str, name: str | None) -> None:
    if name is not None and name not in row:
        raise InvalidInputError(
            f"{path} has no column {name!r} ({argument}=).{did_you_mean(name, row)} Its columns are {one_of(row)}."
        )


def _check_complete(path: Path, rows: Sequence[Row], columns: _Columns) -> None:
    """Raise where a row lacks a value: an example that wasn't answered must not fall out of the average silently."""
    optional = {"prediction", "reference"} if columns.scores else set()
    for name in (columns.id, columns.prediction, columns.reference, *columns.scores):
        if name is None or (name in optional and all(row.get(name) is None for row in rows)):
            continue
        missing = [number for number, row in enumerate(rows, 1) if row.get(name) is None]
        if missing and name not in optional:
            raise DataFileError(
                f"{path}: {len(missing)} of {len(rows)} rows have no {name!r}, the first is row {missing[0]}. Fill "
                "them in (a missing answer counts as wrong, so write one that is), or leave these rows out knowingly."
            )


def _merge(ids: Sequence[str], rows: Sequence[Row], columns: _Columns) -> list[int]:
    """Return the indices of the rows to keep: each id once."""
    names = [name for name in (columns.prediction, columns.reference, *columns.scores, "content") if name]
    seen: dict[str, int] = {}
    for index, key in enumerate(ids):
        first = seen.setdefault(key, index)
        if first == index:
            continue
        for name in names:
            a, b = rows[first].get(name), rows[index].get(name)
            if not _same(a, b):
                raise InvalidInputError(
                    f"The id {key!r} occurs twice with different values of {name!r}: {a!r} (row {first + 1}) and "
                    f"{b!r} (row {index + 1}). Each example must be answered once."
                )
    return list(seen.values())


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b):
        return True
    return bool(a == b)


def _scores(rows: Sequence[Row], name: str) -> npt.NDArray[np.float64]:
    words = {"true": 1.0, "false": 0.0}
    try:
        return np.array([words.get(str(row[name]).lower(), row[name]) for row in rows], np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"The scores in {name!r} must be numbers or true and false: {error}.") from error


def _content(rows: Sequence[Row]) -> list[str] | None:
    hashes = [row.get("content") for row in rows]
    return [str(value) for value in hashes] if all(isinstance(value, str) for value in hashes) else None


def _arrays(rows: Sequence[Row], columns: _Columns) -> tuple[Any, Any]:
    predictions = _values(rows, columns.prediction)
    references = _values(rows, columns.reference)
    # CSV reads a column of digits as numbers; where the other one holds names, these are names too.
    for mine, other in ((predictions, references), (references, predictions)):
        if mine is not None and other is not None and _all_text(other):
            mine[:] = [value if not isinstance(value, int | float) else str(value) for value in mine]
    return _packed(predictions, "predictions"), _packed(references, "references")


def _values(rows: Sequence[Row], name: str | None) -> list[Any] | None:
    if name is None or all(row.get(name) is None for row in rows):
        return None
    return [row[name] for row in rows]


def _all_text(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _packed(values: list[Any] | None, name: str) -> npt.NDArray[Any] | list[Any] | None:
    """Return numbers, and rows of equally many of them, as an array; texts and lists of texts as they are."""
    if values is None or _all_text(values):
        return values
    if all(isinstance(value, int | float) for value in values):
        return np.array(values)
    if all(isinstance(value, list) for value in values):
        if any(isinstance(entry, str) for value in values for entry in value):
            return values  # several references per example
        if len({len(value) for value in values}) == 1:
            return np.array(values, np.float64)
        return values
    kinds = one_of(sorted({type(value).__name__ for value in values}))
    raise InvalidInputError(f"The {name} must be of one kind, got {kinds}.")
