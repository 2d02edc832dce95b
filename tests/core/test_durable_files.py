from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastbudget.core import durable_files
from fastbudget.core.durable_files import write_durably, write_json


def test_content_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_durably(path, b"old")
    write_durably(path, b"new and longer")
    assert path.read_bytes() == b"new and longer"
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


def test_a_failed_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    write_durably(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable_files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


def test_json_refuses_not_a_number_and_writes_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_json(path, {"a": [1, 2.5, None, "ü"]})
    assert json.loads(path.read_text()) == {"a": [1, 2.5, None, "ü"]}
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": [1, 2.5, None, "ü"]}
