"""Records in the store, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import InvalidInputError
from ..metrics import MetricValue
from ..store import EvaluationStore, StoredRecord
from ..store.content_hash import Hashes
from .records import EvaluationRecord, ExampleScores
from .scoring import MARGIN


def save_record(store: EvaluationStore, record: EvaluationRecord, data_hashes: Hashes, name: str) -> int:
    """Write a record, a draft, and return its number."""
    assert record.examples is not None and record.model_hash is not None
    document = record.to_json() | {"metrics": list(record.values), "signatures": record.examples.signatures}
    return store.save_record(
        document,
        model_hash=record.model_hash,
        data=data_hashes,
        scored=None if record.num_examples == len(data_hashes) else record.examples.hashes,
        name=name,
        preprocessing=record.preprocessing,
    )


def read_record(store: EvaluationStore, record_id: int) -> EvaluationRecord:
    """Return a record from the store, results per example included.

    Raises:
        InvalidInputError: there is none of this number, or its results per example were forgotten.
    """
    stored = store.record(record_id)
    document = stored.document
    fields = {name: document[name] for name in EvaluationRecord.__dataclass_fields__ if name in document}
    values = {name: MetricValue(**document[name]) for name in document["metrics"]}
    facts = {"values": values, "store_id": record_id, "examples": _examples(store, stored)}
    return EvaluationRecord(**(fields | facts))


def _examples(store: EvaluationStore, stored: StoredRecord) -> ExampleScores:
    hashes = store.scored_examples(stored.id)
    signatures: dict[str, str] = stored.document["signatures"]

    def column(name: str) -> Any:
        values = store.values(stored.model_hash, name, preprocessing=stored.preprocessing)
        found = values.find(hashes)
        return values.values[found] if len(found) and (found >= 0).all() else None

    scores = {name: column(signature) for name, signature in signatures.items()}
    kept = {name: np.asarray(values, np.float64) for name, values in scores.items() if values is not None}
    if not kept and len(hashes) and not store.columns(stored.model_hash, preprocessing=stored.preprocessing):
        raise InvalidInputError(
            f"{store.path}: the results per example of record {stored.id} are gone; evaluate the model again."
        )
    return ExampleScores(hashes=hashes, scores=kept, signatures=signatures, margins=column(MARGIN))
