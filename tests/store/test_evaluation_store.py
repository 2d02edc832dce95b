"""The store keeps what was evaluated, finds it by content alone, and survives what happens to files and processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastbudget as fb
from fastbudget.store import EvaluationStore, hash_examples, merge_shards
from fastbudget.store.database import APPLICATION_ID, MIGRATIONS

CASES = json.loads((Path(__file__).parent / "cases" / "merging.json").read_text())["cases"]


def some(count: int, start: int = 0) -> Any:
    return hash_examples(range(start, start + count))


@pytest.fixture
def store(tmp_path: Path) -> EvaluationStore:
    return EvaluationStore(tmp_path / "evals.db")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_merging_shards(case: dict[str, Any]) -> None:
    shards = [(shard["ids"], shard["values"]) for shard in case["shards"]]
    if "error" in case:
        with pytest.raises(fb.InvalidInputError, match=case["error"]):
            merge_shards(shards)
        return
    ids, values = merge_shards(shards)
    assert {str(identity): value for identity, value in zip(ids, values, strict=True)} == case["merged"]


def test_merging_rows_and_rounding() -> None:
    a, b = np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([[1.0, 1e-9], [0.25, 0.75]])
    ids, values = merge_shards([([1, 2], a), ([2, 3], b)], tolerance=1e-6)
    assert ids == [1, 2, 3] and values.tolist() == [[0.5, 0.5], [1.0, 0.0], [0.25, 0.75]]
    with pytest.raises(fb.InvalidInputError, match="different values"):
        merge_shards([([1, 2], a), ([2, 3], b)])


@pytest.mark.parametrize(
    "values",
    [
        np.array([0.0, 1.0, 1.0]),
        np.array([0.1, 1 / 3, -0.0]),
        np.array([np.nan, np.inf, 1e300]),
        np.array([-1.0, 255.0, 256.0]),
        np.arange(6, dtype=np.float32).reshape(3, 2),
        np.array([1, 2, 3], np.int64),
        np.array([True, False, True]),
        ["text", "中文 \ud800", ""],
        [{"a": [1, None]}, [], "x"],
        [[1, 2], [3, 4], [5, 6]],
    ],
)
def test_values_come_back_exactly(store: EvaluationStore, values: Any) -> None:
    hashes = some(3)
    store.add("m", hashes, {"column": values})
    found = EvaluationStore(store.path).values("m", "column")
    back = found.values[found.find(hashes)]
    if isinstance(values, np.ndarray):
        assert back.dtype == values.dtype and back.tobytes() == values.tobytes()
    else:
        assert list(back) == values


def test_only_the_exact_key_hits(store: EvaluationStore) -> None:
    store.add("m", some(10), {"accuracy|version:1": np.ones(10)}, preprocessing="p")
    assert len(store.values("m", "accuracy|version:1", preprocessing="p")) == 10
    for model, column, preprocessing in [
        ("other weights", "accuracy|version:1", "p"),
        ("m", "accuracy|version:2", "p"),
        ("m", "accuracy|version:1", ""),
    ]:
        assert len(store.values(model, column, preprocessing=preprocessing)) == 0
    found = store.values("m", "accuracy|version:1", preprocessing="p").find(some(1000))
    assert (found[:10] >= 0).all() and (found[10:] == -1).all()  # ten known ones are not the set
    assert store.columns("m", preprocessing="p") == {"accuracy|version:1": 10}


def test_an_example_with_two_values_is_an_error_and_can_be_forgotten(store: EvaluationStore) -> None:
    store.add("m", some(5), {"a": np.zeros(5)})
    store.add("m", some(5, start=4), {"a": np.array([1e-9, 1, 1, 1, 1])})  # the same but for rounding
    assert len(store.values("m", "a")) == 9
    store.add("m", some(1), {"a": np.ones(1)})
    with pytest.raises(fb.InvalidInputError, match=r"different values, 0\.0 and 1\.0"):
        store.values("m", "a")
    assert store.forget("m") == 3 and len(store.values("m", "a")) == 0


def test_hashes_that_share_their_first_half_are_told_apart(store: EvaluationStore) -> None:
    hashes = np.zeros((5, 16), np.uint8)
    hashes[:, 15] = [3, 1, 4, 0, 2]
    store.add("m", hashes, {"a": np.arange(5.0)})
    found = store.values("m", "a")
    assert found.values[found.find(hashes)].tolist() == [0, 1, 2, 3, 4]
    absent = np.zeros((2, 16), np.uint8)
    absent[:, 15] = [5, 255]
    assert found.find(absent).tolist() == [-1, -1] and len(found.find(absent[:0])) == 0


def test_columns_must_fit(store: EvaluationStore) -> None:
    with pytest.raises(fb.InvalidInputError, match="3 values for 2 examples"):
        store.add("m", some(2), {"a": [1, 2, 3]})
    with pytest.raises(fb.InvalidInputError, match="JSON"):
        store.add("m", some(1), {"a": [object()]})
    assert store.columns("m") == {}


def test_another_files_examples_are_merged(store: EvaluationStore, tmp_path: Path) -> None:
    store.add("m", some(6), {"a": np.arange(6.0)})
    with EvaluationStore(tmp_path / "rank1.db") as other:
        other.add("m", some(6, start=4), {"a": np.arange(4.0, 10.0), "text": list("efghij")})
    store.merge_from(tmp_path / "rank1.db")
    found = store.values("m", "a")
    assert len(found) == 10 and found.values[found.find(some(10))].tolist() == list(range(10))
    assert len(store.values("m", "text")) == 6


def write_part(path: Path, part: int) -> None:
    with EvaluationStore(path) as store:
        for start in range(0, 200, 10):
            store.add(f"m{part % 2}", some(10, start=1000 * part + start), {"a": np.full(10, float(part))})


def test_many_processes_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "evals.db"  # not made yet: they race for that too
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_part, args=(path, part)) for part in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    with EvaluationStore(path) as store:
        for model, parts in (("m0", (0, 2)), ("m1", (1, 3))):
            found = store.values(model, "a")
            assert len(found) == 400
            for part in parts:
                assert (found.values[found.find(some(200, start=1000 * part))] == part).all()


def add_forever(path: Path) -> None:
    store = EvaluationStore(path)
    for start in range(0, 10**9, 100):
        store.add("m", some(100, start), {"a": np.arange(start, start + 100.0)})


def test_a_killed_writer_loses_at_most_its_last_batch(tmp_path: Path) -> None:
    path = tmp_path / "evals.db"
    EvaluationStore(path).close()
    writer = multiprocessing.get_context("fork").Process(target=add_forever, args=(path,))
    writer.start()
    time.sleep(0.5)
    os.kill(writer.pid or 0, signal.SIGKILL)
    writer.join(10)
    found = EvaluationStore(path).values("m", "a")
    assert len(found) >= 100 and len(found) % 100 == 0
    assert found.values[found.find(some(len(found)))].tolist() == list(range(len(found)))


def test_it_can_be_sent_to_another_process_and_used_after_a_fork(store: EvaluationStore) -> None:
    store.add("m", some(1), {"a": [1.0]})
    assert len(pickle.loads(pickle.dumps(store)).values("m", "a")) == 1
    child = multiprocessing.get_context("fork").Process(target=store.add, args=("m", some(1, 1), {"a": [2.0]}))
    child.start()
    child.join(30)
    assert child.exitcode == 0 and len(store.values("m", "a")) == 2


def test_foreign_and_damaged_files_are_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but longer than a header")
    foreign = tmp_path / "photos.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE photo (id INTEGER)")
    connection.close()
    newer = tmp_path / "newer.db"
    EvaluationStore(newer).close()
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    for path, message in (
        (text, "isn't an SQLite file"),
        (foreign, "another program"),
        (newer, "schema version 99"),
        (tmp_path, "is a directory"),
        (tmp_path / "nowhere" / "evals.db", "no directory"),
    ):
        before = path.read_bytes() if path.is_file() else None
        with pytest.raises(fb.EvaluationStoreError, match=message):
            EvaluationStore(path)
        assert (path.read_bytes() if path.is_file() else None) == before


def test_a_file_cut_off_or_changed_is_told(tmp_path: Path) -> None:
    path = tmp_path / "evals.db"
    with EvaluationStore(path) as store:
        for start in range(0, 20_000, 1000):
            store.add("m", some(1000, start), {"a": np.random.default_rng(start).random(1000)})
    content = path.read_bytes()
    cut = tmp_path / "cut.db"
    cut.write_bytes(content[: len(content) // 2])
    with pytest.raises(fb.EvaluationStoreError, match="damaged"):
        EvaluationStore(cut).values("m", "a")
    changed = bytearray(content)
    changed[content.index(np.random.default_rng(7000).random(1000)[5:7].tobytes())] ^= 1  # SQLite doesn't notice
    path.write_bytes(changed)
    with pytest.raises(fb.EvaluationStoreError, match="checksum"):
        EvaluationStore(path).values("m", "a")


def test_an_older_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "evals.db"
    connection = sqlite3.connect(path)
    connection.executescript(MIGRATIONS[0])
    connection.executescript(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1")
    connection.execute("INSERT INTO data_set VALUES ('d', 0, x'')")
    connection.execute("INSERT INTO record VALUES (7, '2026', 'old', 'm', '', 'd', 0, NULL, '{\"x\": 1}')")
    connection.commit()
    connection.close()
    with EvaluationStore(path) as store:
        record = store.record(7)
        assert record.name == "old" and record.document == {"x": 1} and record.status == "draft"
        assert store.sign_off(7, "reviewed", by="Ada").status == "reviewed"


def test_records_and_their_sign_offs(store: EvaluationStore) -> None:
    whole = store.save_record({"accuracy": 0.9}, model_hash="m", data=some(10), name="base")
    part = store.save_record({"accuracy": 0.8}, model_hash="n", data=some(10), scored=some(4))
    assert [record.id for record in store.records()] == [whole, part]
    assert [record.id for record in store.records(name="base")] == [whole]
    first, second = store.record(whole), store.record(part)
    assert (first.num_examples, second.num_examples, second.population_size) == (10, 4, 10)
    assert first.data_hash == second.data_hash and first.status == "draft"
    assert len(store.scored_examples(whole)) == 10 and np.array_equal(store.scored_examples(part), some(4))
    with pytest.raises(fb.InvalidInputError, match="the order is draft, reviewed, approved"):
        store.sign_off(whole, "approved", by="Ada")
    store.sign_off(whole, "reviewed", by="Ada", note="numbers checked")
    approved = store.sign_off(whole, "approved", by="Grace")
    assert approved.status == "approved"
    assert [(entry.status, entry.by, entry.note) for entry in approved.sign_offs] == [
        ("reviewed", "Ada", "numbers checked"),
        ("approved", "Grace", ""),
    ]
    assert store.sign_off(whole, "draft", by="Grace", note="withdrawn").status == "draft"
    assert store.record(part).status == "draft"
    for status, by, message in (("aproved", "Ada", "Did you mean 'approved'"), ("reviewed", " ", "who signs")):
        with pytest.raises(fb.InvalidInputError, match=message):
            store.sign_off(part, status, by=by)
    with pytest.raises(fb.InvalidInputError, match="holds no record 99"):
        store.record(99)
    with pytest.raises(fb.InvalidInputError, match="holds no record 99"):
        store.scored_examples(99)


def test_a_store_that_cannot_be_written_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a b#1.db"
    hashes = hash_examples(range(3))
    with EvaluationStore(path) as store:
        store.add("m", hashes, {"accuracy": np.ones(3)})
    monkeypatch.setattr("fastbudget.store.database.os.access", lambda *_: False)  # root may write anything
    with EvaluationStore(path) as archived:
        assert len(archived.values("m", "accuracy")) == 3
        with pytest.raises(fb.EvaluationStoreError, match="can't be written"):
            archived.add("m", hashes, {"accuracy": np.ones(3)})
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
