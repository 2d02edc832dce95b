"""The store's file: opened with care, and brought up to date."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from ..core.errors import EvaluationStoreError

APPLICATION_ID = 0x46424556  # "FBEV", in the file's header
BUSY_S = 60.0  # how long a writer waits for the others

# What brings a file from version i to i + 1, each in one transaction. Never change one that was released: append.
MIGRATIONS = (
    # A chunk is what one batch committed: the examples' hashes once, a column of values per metric. One row per chunk,
    # not per example: several times smaller and faster (bench/evaluation/store_speed.py).
    """
    CREATE TABLE model_key (
        id INTEGER PRIMARY KEY, model TEXT NOT NULL, preprocessing TEXT NOT NULL, UNIQUE (model, preprocessing));
    CREATE TABLE chunk (
        id INTEGER PRIMARY KEY, key_id INTEGER NOT NULL REFERENCES model_key, num_examples INTEGER NOT NULL,
        hashes BLOB NOT NULL, written_at TEXT NOT NULL);
    CREATE INDEX chunk_of_key ON chunk (key_id);
    CREATE TABLE chunk_column (
        chunk_id INTEGER NOT NULL REFERENCES chunk, name TEXT NOT NULL, encoding TEXT NOT NULL, content BLOB NOT NULL,
        checksum TEXT NOT NULL, UNIQUE (chunk_id, name));
    CREATE TABLE data_set (hash TEXT PRIMARY KEY, num_examples INTEGER NOT NULL, hashes BLOB NOT NULL);
    CREATE TABLE record (
        id INTEGER PRIMARY KEY, created_at TEXT NOT NULL, name TEXT NOT NULL, model TEXT NOT NULL,
        preprocessing TEXT NOT NULL, data_hash TEXT NOT NULL REFERENCES data_set (hash), num_examples INTEGER NOT NULL,
        hashes BLOB, document TEXT NOT NULL);
    """,
    """
    CREATE TABLE sign_off (
        id INTEGER PRIMARY KEY, record_id INTEGER NOT NULL REFERENCES record, status TEXT NOT NULL, by TEXT NOT NULL,
        signed_at TEXT NOT NULL, note TEXT NOT NULL);
    CREATE INDEX sign_off_of_record ON sign_off (record_id);
    """,
)


def open_database(path: Path) -> sqlite3.Connection:
    """Open or create a store's file.

    Raises:
        EvaluationStoreError: it isn't a store, is damaged, or was written by a newer version. It stays as it was.
    """
    if path.is_dir():
        raise EvaluationStoreError(f"{path} is a directory; give the path of a file, such as {path / 'evals.db'}.")
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except FileNotFoundError:
        start = b""
    except OSError as error:
        raise EvaluationStoreError(f"{path} can't be read: {error.strerror}.") from error
    if start and start != b"SQLite format 3\0":
        raise EvaluationStoreError(
            f"{path} is not an evaluation store: it isn't an SQLite file. It was left as it is; give another path."
        )
    if not start and not path.parent.is_dir():
        raise EvaluationStoreError(f"{path} can't be made: there is no directory {path.parent}.")
    with reported(path):
        writable = not start or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
        connection = sqlite3.connect(
            path if writable else _read_only(path),
            timeout=BUSY_S,
            isolation_level=None,
            check_same_thread=False,
            uri=not writable,
        )
        try:
            _prepare(connection, path, writable=writable)
        except BaseException:
            connection.close()
            raise
    return connection


def _read_only(path: Path) -> str:
    """Return the address of a file in an archive, say, where SQLite can't make the files that WAL needs beside it."""
    written_elsewhere = path.with_name(f"{path.name}-wal").exists()
    return f"{path.resolve().as_uri()}?mode=ro{'' if written_elsewhere else '&immutable=1'}"


def _prepare(connection: sqlite3.Connection, path: Path, *, writable: bool) -> None:
    _check_owner(connection, path)
    if not writable:
        if _version(connection) < len(MIGRATIONS):
            raise EvaluationStoreError(
                f"{path} has the older schema version {_version(connection)} and can't be brought up to date: it or "
                "its directory can't be written. Copy it to where it can."
            )
        return
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")  # with WAL: whole after any crash
    connection.execute("PRAGMA foreign_keys = ON")
    if _version(connection) < len(MIGRATIONS):
        with transaction(connection):  # the version is read again: another process may have been first
            for number in range(_version(connection), len(MIGRATIONS)):
                for statement in MIGRATIONS[number].split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {number + 1}")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _check_owner(connection: sqlite3.Connection, path: Path) -> None:
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    has_tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] > 0
    if owner != APPLICATION_ID and (owner != 0 or has_tables):
        raise EvaluationStoreError(
            f"{path} is an SQLite file of another program, not an evaluation store. It was left as it is; "
            "give another path."
        )
    if _version(connection) > len(MIGRATIONS):
        raise EvaluationStoreError(
            f"{path} has schema version {_version(connection)}; this fastbudget knows up to {len(MIGRATIONS)}. "
            "Upgrade fastbudget to read it."
        )


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Write all or nothing, waiting for other writers."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextlib.contextmanager
def reported(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours."""
    try:
        yield
    except sqlite3.OperationalError as error:
        reason = str(error)
        if "readonly" in reason:
            reason = "it or its directory can't be written; copy it to where it can, or give another path"
        if "locked" in reason:
            reason = f"other processes kept it locked for {BUSY_S:.0f} s"
        raise EvaluationStoreError(f"{path}: the evaluation store can't be used: {reason}.") from error
    except sqlite3.DatabaseError as error:
        raise EvaluationStoreError(
            f"{path} is damaged: {error}. Nothing of it was changed: keep a copy, and save what can be read with "
            f"`sqlite3 {path} .recover`."
        ) from error
