"""Evaluation results per example, kept by content in one SQLite file."""

from .content_hash import hash_data, hash_example, hash_examples, hash_model
from .evaluation_store import EvaluationStore
from .example_values import ExampleValues, merge_shards
from .stored_records import SignOff, StoredRecord

__all__ = [
    "EvaluationStore",
    "ExampleValues",
    "SignOff",
    "StoredRecord",
    "hash_data",
    "hash_example",
    "hash_examples",
    "hash_model",
    "merge_shards",
]
