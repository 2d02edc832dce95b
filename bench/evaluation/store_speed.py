"""The evaluation store: seconds and bytes per example, beside one row per example in SQLite.

    python bench/evaluation/store_speed.py [--quick] [--json FILE]

Both layouts commit batch by batch with the same journal mode and hold a hash, a score and a margin per example. Pairs
are interleaved; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import platform
import sqlite3
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

import fastbudget as fb
from fastbudget.hardware import cpu_name, usable_cpus
from fastbudget.store import hash_examples

BATCH = 256


def in_chunks(path, hashes, scores, margins):
    """Write, then read everything back sorted by hash; returns both times."""
    with fb.EvaluationStore(path) as store:
        start = time.perf_counter()
        for at in range(0, len(hashes), BATCH):
            part = slice(at, at + BATCH)
            store.add("model", hashes[part], {"accuracy": scores[part], "margin": margins[part]})
        wrote = time.perf_counter()
        found = store.values("model", "accuracy")
        read = time.perf_counter()
        assert (found.values[found.find(hashes)] == scores).all()
    return wrote - start, read - wrote


def in_rows(path, hashes, scores, margins):
    """The same with one row per example and its primary key."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")
    connection.execute(
        "CREATE TABLE score (model TEXT, hash BLOB, accuracy REAL, margin REAL, PRIMARY KEY (model, hash))"
    )
    start = time.perf_counter()
    for at in range(0, len(hashes), BATCH):
        part = slice(at, at + BATCH)
        rows = [("model", key.tobytes(), s, m) for key, s, m in
                zip(hashes[part], scores[part].tolist(), margins[part].tolist(), strict=True)]  # fmt: skip
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO score VALUES (?, ?, ?, ?)", rows)
        connection.execute("COMMIT")
    wrote = time.perf_counter()
    found = connection.execute("SELECT hash, accuracy FROM score WHERE model = 'model' ORDER BY hash").fetchall()
    np.frombuffer(b"".join(row[0] for row in found), np.uint8).reshape(-1, 16), np.array([row[1] for row in found])
    read = time.perf_counter()
    connection.close()
    return wrote - start, read - wrote


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100,000 examples, 3 pairs")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    count, pairs = (100_000, 3) if options.quick else (1_000_000, 5)
    generator = np.random.default_rng(0)
    hashes = generator.integers(0, 256, (count, 16), dtype=np.uint8)
    scores = (generator.random(count) < 0.9).astype(np.float64)
    margins = generator.random(count).astype(np.float32)
    measured = {"chunks": [], "rows": []}
    for _ in range(pairs):
        for name, layout in (("chunks", in_chunks), ("rows", in_rows)):
            with tempfile.TemporaryDirectory() as directory:
                path = Path(directory) / "store.db"
                times = layout(path, hashes, scores, margins)
                measured[name].append((*times, path.stat().st_size))
    rows = {
        name: {
            "write_us_per_example": statistics.median(run[0] for run in runs) / count * 1e6,
            "read_us_per_example": statistics.median(run[1] for run in runs) / count * 1e6,
            "bytes_per_example": statistics.median(run[2] for run in runs) / count,
        }
        for name, runs in measured.items()
    }
    together = list(zip(measured["rows"], measured["chunks"], strict=True))
    ratios = {
        what: statistics.median(row[index] / chunk[index] for row, chunk in together)
        for index, what in enumerate(("write", "read", "bytes"))
    }
    images = generator.random((2000, 3, 64, 64), np.float32)
    start = time.perf_counter()
    hash_examples((image, 1) for image in images)
    hashing = images.nbytes / (time.perf_counter() - start) / 1e9
    for name, row in rows.items():
        print(f"{name:7} write {row['write_us_per_example']:.2f} us, read {row['read_us_per_example']:.2f} us, "
              f"{row['bytes_per_example']:.1f} bytes per example")  # fmt: skip
    print("rows / chunks:", {what: round(ratio, 1) for what, ratio in ratios.items()}, f"hashing {hashing:.1f} GB/s")
    if options.json:
        document = {
            "benchmark": "evaluation store",
            "examples": count,
            "batch": BATCH,
            "machine": {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "system": platform.system()},
            "versions": {name: version(name) for name in ("fastbudget", "numpy")} | {"sqlite": sqlite3.sqlite_version},
            "layouts": rows,
            "rows_over_chunks": ratios,
            "hashing_gb_per_s": hashing,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
