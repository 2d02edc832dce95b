"""Results per example, kept by content, so that nothing is evaluated twice."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import xxhash

from ..core.clock import SystemClock, utc_text
from ..core.errors import EvaluationStoreError, InvalidInputError, did_you_mean, one_of
from .columns import Values, as_values, pack, unpack
from .content_hash import HASH_BYTES, Hashes, hash_data
from .database import open_database, reported, transaction
from .example_values import ExampleValues, unique_examples
from .stored_records import STATUSES, SignOff, StoredRecord


class EvaluationStore:
    """One SQLite file (WAL) of values per example and of records, safe for several writers.

    A value belongs to a model's content, an example's content, a preprocessing fingerprint and a column: a metric's
    signature, ``"prediction"`` or ``"margin"``. Changed weights, data or options are another key and never found.

    Args:
        path: The file; made if it isn't there. Keep it on a local disk: WAL doesn't work over NFS.
        tolerance: How far two values of one example may lie apart (relative above 1) before they contradict.

    Raises:
        EvaluationStoreError: the file is damaged, of another program or a newer version, or locked.
    """

    def __init__(self, path: str | os.PathLike[str], *, tolerance: float = 1e-6) -> None:
        self.path = Path(path)
        self.tolerance = tolerance
        self._lock = threading.Lock()
        self._connection = open_database(self.path)
        self._process = os.getpid()

    def __enter__(self) -> EvaluationStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.path, self.tolerance)  # another process opens the file itself

    def close(self) -> None:
        """Close the file. What was added is in it already."""
        self._connection.close()

    def _open(self) -> sqlite3.Connection:
        if self._process != os.getpid():  # a forked child must not use its parent's connection
            self._connection, self._process = open_database(self.path), os.getpid()
            self._lock = threading.Lock()
        return self._connection

    # Values per example ------------------------------------------------------------------------------------------

    def add(self, model_hash: str, hashes: Hashes, columns: Mapping[str, Any], *, preprocessing: str = "") -> None:
        """Commit values of a batch of examples; they survive whatever happens to the process next.

        Args:
            model_hash: From `hash_model`.
            hashes: uint8 [n, 16], from `hash_examples`.
            columns: Name to values [n, …]: numbers, text, or JSON values.
            preprocessing: Fingerprint of what is done to the examples before the model sees them.

        Raises:
            InvalidInputError: a column isn't as long as the hashes, or can't be stored.
        """
        content = np.ascontiguousarray(hashes).tobytes()
        packed = []
        for name, given in columns.items():
            values = as_values(given)
            if len(values) != len(hashes):
                raise InvalidInputError(f"Column {name!r} has {len(values)} values for {len(hashes)} examples.")
            encoding, data = pack(values)
            packed.append((name, encoding, data, _checksum(content, encoding, data)))
        if len(hashes) == 0 or not packed:
            return
        with self._lock, reported(self.path):
            connection = self._open()
            with transaction(connection):
                chunk = connection.execute(
                    "INSERT INTO chunk (key_id, num_examples, hashes, written_at) VALUES (?, ?, ?, ?)",
                    (self._key(connection, model_hash, preprocessing), len(hashes), content, _now()),
                ).lastrowid
                connection.executemany(
                    "INSERT INTO chunk_column VALUES (?, ?, ?, ?, ?)", [(chunk, *column) for column in packed]
                )

    def values(self, model_hash: str, column: str, *, preprocessing: str = "") -> ExampleValues:
        """Return what is known of a column for a model, each example once.

        Raises:
            InvalidInputError: an example has two values that contradict each other.
            EvaluationStoreError: a chunk is damaged.
        """
        with self._lock, reported(self.path):
            rows = (
                self._open()
                .execute(
                    "SELECT hashes, encoding, content, checksum FROM chunk JOIN chunk_column ON chunk_id = chunk.id "
                    "JOIN model_key ON key_id = model_key.id WHERE model = ? AND preprocessing = ? AND name = ? "
                    "ORDER BY chunk.id",
                    (model_hash, preprocessing, column),
                )
                .fetchall()
            )
        for hashes, encoding, content, checksum in rows:
            if _checksum(hashes, encoding, content) != checksum:
                raise EvaluationStoreError(
                    f"{self.path} is damaged: a chunk of {column!r} doesn't match its checksum. Nothing was changed; "
                    "restore a copy, or evaluate into a new store."
                )
        found = [unpack(encoding, content) for _, encoding, content, _ in rows]
        if not found:
            return ExampleValues(hashes=np.zeros((0, HASH_BYTES), np.uint8), values=np.zeros(0))
        hashes = np.frombuffer(b"".join(row[0] for row in rows), np.uint8).reshape(-1, HASH_BYTES)
        what = f"{self.path}, column {column!r} of model {model_hash}"
        try:
            return unique_examples(hashes, _joined(found), what=what, tolerance=self.tolerance)
        except InvalidInputError as error:
            raise InvalidInputError(
                f"{error} Once that is mended, EvaluationStore({str(self.path)!r}).forget({model_hash!r}"
                f"{f', preprocessing={preprocessing!r}' if preprocessing else ''}) makes room for new results."
            ) from None

    def columns(self, model_hash: str, *, preprocessing: str = "") -> dict[str, int]:
        """Return the columns known for a model and how many values each has; an example written twice counts twice."""
        with self._lock, reported(self.path):
            rows = self._open().execute(
                "SELECT name, sum(num_examples) FROM chunk JOIN chunk_column ON chunk_id = chunk.id JOIN model_key "
                "ON key_id = model_key.id WHERE model = ? AND preprocessing = ? GROUP BY name ORDER BY name",
                (model_hash, preprocessing),
            )
            return dict(rows.fetchall())

    def forget(self, model_hash: str, *, preprocessing: str = "") -> int:
        """Delete a model's values per example, such as contradicting ones; returns how many chunks there were."""
        of_key = "(SELECT id FROM model_key WHERE model = ? AND preprocessing = ?)"
        key = (model_hash, preprocessing)
        with self._lock, reported(self.path):
            connection = self._open()
            with transaction(connection):
                connection.execute(
                    f"DELETE FROM chunk_column WHERE chunk_id IN (SELECT id FROM chunk WHERE key_id IN {of_key})", key
                )
                return connection.execute(f"DELETE FROM chunk WHERE key_id IN {of_key}", key).rowcount

    def merge_from(self, other: str | os.PathLike[str]) -> None:
        """Copy another store's values per example, such as a rank's own file; examples in both count once."""
        source = EvaluationStore(other)
        with source, reported(source.path):
            rows = source._connection.execute(
                "SELECT chunk.id, model, preprocessing, hashes FROM chunk JOIN model_key ON key_id = model_key.id "
                "ORDER BY chunk.id"
            ).fetchall()
            for chunk, model_hash, preprocessing, content in rows:
                columns = source._connection.execute(
                    "SELECT name, encoding, content FROM chunk_column WHERE chunk_id = ?", (chunk,)
                )
                hashes = np.frombuffer(content, np.uint8).reshape(-1, HASH_BYTES)
                unpacked = {name: unpack(encoding, packed) for name, encoding, packed in columns}
                self.add(model_hash, hashes, unpacked, preprocessing=preprocessing)

    @staticmethod
    def _key(connection: sqlite3.Connection, model_hash: str, preprocessing: str) -> int:
        key = (model_hash, preprocessing)
        connection.execute("INSERT OR IGNORE INTO model_key (model, preprocessing) VALUES (?, ?)", key)
        return int(
            connection.execute("SELECT id FROM model_key WHERE model = ? AND preprocessing = ?", key).fetchone()[0]
        )

    # Records -----------------------------------------------------------------------------------------------------

    def save_record(
        self,
        document: Mapping[str, Any],
        *,
        model_hash: str,
        data: Hashes,
        scored: Hashes | None = None,
        name: str = "",
        preprocessing: str = "",
    ) -> int:
        """Record an evaluation, as a draft; returns its id.

        Args:
            document: JSON: values, intervals, seconds. Values that are NaN or infinite are kept as such.
            model_hash: From `hash_model`.
            data: uint8 [N, 16], the content of the whole data set, repeated examples repeated.
            scored: uint8 [n, 16], what was scored of it; None: all.
            name: What people call the model.
            preprocessing: Fingerprint.
        """
        data_hash, text = hash_data(data), json.dumps(document)
        with self._lock, reported(self.path):
            connection = self._open()
            with transaction(connection):
                connection.execute(
                    "INSERT OR IGNORE INTO data_set VALUES (?, ?, ?)",
                    (data_hash, len(data), np.ascontiguousarray(data).tobytes()),
                )
                row = (_now(), name, model_hash, preprocessing, data_hash)
                part = None if scored is None else np.ascontiguousarray(scored).tobytes()
                inserted = connection.execute(
                    "INSERT INTO record (created_at, name, model, preprocessing, data_hash, num_examples, hashes, "
                    "document) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (*row, len(data if scored is None else scored), part, text),
                )
                return int(inserted.lastrowid or 0)

    def records(self, *, name: str | None = None, model_hash: str | None = None) -> list[StoredRecord]:
        """Return the records, oldest first; of one name or model if given."""
        with self._lock, reported(self.path):
            connection = self._open()
            rows = connection.execute(
                "SELECT record.id, name, created_at, model, preprocessing, data_hash, record.num_examples, "
                "data_set.num_examples, document FROM record JOIN data_set ON data_hash = data_set.hash "
                "WHERE (? IS NULL OR name = ?) AND (? IS NULL OR model = ?) ORDER BY record.id",
                (name, name, model_hash, model_hash),
            ).fetchall()
            history: dict[int, list[SignOff]] = {}
            for record_id, status, by, signed_at, note in connection.execute(
                "SELECT record_id, status, by, signed_at, note FROM sign_off ORDER BY id"
            ):
                history.setdefault(record_id, []).append(SignOff(status=status, by=by, signed_at=signed_at, note=note))
        return [
            StoredRecord(
                id=row[0],
                name=row[1],
                created_at=row[2],
                model_hash=row[3],
                preprocessing=row[4],
                data_hash=row[5],
                num_examples=row[6],
                population_size=row[7],
                document=json.loads(row[8]),
                sign_offs=tuple(history.get(row[0], ())),
            )
            for row in rows
        ]

    def record(self, record_id: int) -> StoredRecord:
        """Return one record.

        Raises:
            InvalidInputError: there is none of this id.
        """
        found = [record for record in self.records() if record.id == record_id]
        if not found:
            raise InvalidInputError(
                f"{self.path} holds no record {record_id}; `fastbudget store ls {self.path}` lists them."
            )
        return found[0]

    def scored_examples(self, record_id: int) -> Hashes:
        """Return the examples that a record scored, uint8 [n, 16], repeated ones repeated."""
        with self._lock, reported(self.path):
            row = self._open().execute(
                "SELECT coalesce(record.hashes, data_set.hashes) FROM record JOIN data_set ON data_hash = hash "
                "WHERE record.id = ?",
                (record_id,),
            )
            content = row.fetchone()
        if content is None:
            self.record(record_id)  # raises
            raise AssertionError("unreachable")
        return np.frombuffer(content[0], np.uint8).reshape(-1, HASH_BYTES)

    def sign_off(self, record_id: int, status: str, *, by: str, note: str = "") -> StoredRecord:
        """Move a record from draft to reviewed, from reviewed to approved, or from either back to draft.

        The history is kept: who, when, and the note.

        Raises:
            InvalidInputError: an unknown status, a step that skips one, or nobody's name.
        """
        if status not in STATUSES:
            raise InvalidInputError(
                f"status must be one of {one_of(STATUSES)}, got {status!r}.{did_you_mean(status, STATUSES)}"
            )
        if not by.strip():
            raise InvalidInputError("A sign-off needs the name of who signs: by='…'.")
        current = self.record(record_id).status
        if status != STATUSES[0] and STATUSES.index(status) != STATUSES.index(current) + 1:
            raise InvalidInputError(
                f"Record {record_id} is {current!r} and can't become {status!r}: "
                "the order is draft, reviewed, approved."
            )
        with self._lock, reported(self.path):
            connection = self._open()
            with transaction(connection):
                connection.execute(
                    "INSERT INTO sign_off (record_id, status, by, signed_at, note) VALUES (?, ?, ?, ?, ?)",
                    (record_id, status, by, _now(), note),
                )
        return self.record(record_id)


def _reopened(path: Path, tolerance: float) -> EvaluationStore:
    return EvaluationStore(path, tolerance=tolerance)


def _joined(parts: list[Values]) -> Values:
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) == 1 and not any(part.dtype == object for part in parts):
        return np.concatenate(parts)
    joined = np.empty(sum(map(len, parts)), object)
    position = 0
    for part in parts:
        for item in part:
            joined[position] = item
            position += 1
    return joined


def _checksum(hashes: bytes, encoding: str, content: bytes) -> str:
    state = xxhash.xxh3_64(hashes)
    state.update(encoding.encode())
    state.update(content)
    return state.hexdigest()


def _now() -> str:
    return utc_text(SystemClock().wall())
