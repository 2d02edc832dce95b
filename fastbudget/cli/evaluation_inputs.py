"""What `fastbudget eval` and `compare` are given: files, records, and functions by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import InvalidInputError

if TYPE_CHECKING:
    from ..evaluation import Predictions
    from ..store import StoredRecord


@dataclass(frozen=True)
class Columns:
    """Names of a predictions file's columns; None: found by their usual names."""

    id: str | None = None
    prediction: str | None = None
    reference: str | None = None

    def read(self, path: Path, references: Path | None = None) -> Predictions:
        """Read a file of predictions, and another of their references if there is one."""
        from ..evaluation import read_predictions, with_references

        if references is None:
            return read_predictions(path, id=self.id, prediction=self.prediction, reference=self.reference)
        said = read_predictions(path, id=self.id, prediction=self.prediction)
        return with_references(said, read_predictions(references, id=self.id, reference=self.reference, scores=()))


def is_function(source: str) -> bool:
    """Whether a source is ``module:name`` and neither a file nor a record."""
    return ":" in source and not Path(source).exists() and record_of(source) is None


def record_of(source: str) -> tuple[Path, int] | None:
    """Return store and number of ``evals.db:3``, or None."""
    path, _, number = source.rpartition(":")
    return (Path(path), int(number)) if number.isdigit() and Path(path).is_file() else None


def existing_file(source: str) -> Path:
    """Return the path of a predictions file.

    Raises:
        InvalidInputError: there is none.
    """
    path = Path(source)
    if not path.is_file():
        raise InvalidInputError(
            f"{source!r} is neither a predictions file, nor a record such as evals.db:3, nor module:predict."
        )
    return path


def load_predict(reference: str) -> Any:
    """Return the function ``predict(batch_inputs)``, or the module, that ``module:predict`` names."""
    from ..workflow import import_object

    found = import_object(reference, "predict", Path.cwd())
    if not callable(found):
        raise InvalidInputError(f"{reference!r} is a {type(found).__name__}, not a function predict(batch_inputs).")
    return found


def load_data(reference: str | None) -> Any:
    """Return the data set that ``module:data`` names: the object itself, or what a function without arguments returns.

    Raises:
        InvalidInputError: none was given.
    """
    from ..workflow import call_factory, import_object

    if reference is None:
        raise InvalidInputError("module:predict needs --data module:data, the examples to predict.")
    found = import_object(reference, "data", Path.cwd())
    return call_factory(found, reference, "data") if callable(found) and not hasattr(found, "__len__") else found


def parse_thresholds(given: list[str]) -> dict[str, float]:
    """Return ``accuracy=0.9`` as a mapping."""
    found = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise InvalidInputError(f"--threshold must be METRIC=NUMBER, such as accuracy=0.9, got {text!r}.") from None
    return found


def read_store_record(path: Path, number: int) -> tuple[StoredRecord, Any]:
    """Return a record as the store has it, and as `evaluate` made it."""
    from ..evaluation import read_record
    from ..store import EvaluationStore

    with EvaluationStore(path) as store:
        return store.record(number), read_record(store, number)
