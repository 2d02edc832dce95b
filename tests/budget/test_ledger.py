from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

import fastbudget as fb
from fastbudget.budget import LEDGER_FILE, Ledger, read_ledger, record_unbilled


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / LEDGER_FILE).read_text().splitlines()]


def test_phases_sum_to_the_time_that_passed(tmp_path: Path, clock: Any) -> None:
    ledger = Ledger(tmp_path, num_devices=4, clock=clock)
    for phase, seconds in (("train", 10.0), ("evaluate", 2.5), ("checkpoint", 0.25), ("train", 7.0)):
        ledger.enter(phase)
        clock.advance(seconds)
    assert ledger.spent_s() == pytest.approx(19.75)
    ledger.close("completed")
    record = read_ledger(tmp_path)
    assert record.billed_s == pytest.approx({"train": 17.0, "evaluate": 2.5, "checkpoint": 0.25})
    assert record.total_billed_s == pytest.approx(clock.now)
    assert record.device_hours == pytest.approx(4 * 19.75 / 3600)
    assert record.closed and record.last_reason == "completed" and record.sessions == 1 and record.damaged_lines == 0


def test_heartbeats_tell_a_reader_of_a_long_phase(tmp_path: Path, clock: Any) -> None:
    ledger = Ledger(tmp_path, clock=clock, tick_s=1.0)
    ledger.enter("train")
    for _ in range(20):
        clock.advance(1)
        ledger.tick()
        assert read_ledger(tmp_path).total_billed_s == pytest.approx(clock.now)
    assert [line["event"] for line in lines_of(tmp_path)] == ["open"], "a heartbeat made the ledger longer"
    assert ledger.spent_s() == pytest.approx(20.0)


def test_restarts_add_up_and_lost_work_is_billed_as_such(tmp_path: Path, clock: Any) -> None:
    for session in range(3):
        ledger = Ledger(tmp_path, clock=clock, tick_s=2.0)
        assert ledger.spent_s() == pytest.approx(session * (13 + 2))
        ledger.enter("train")
        clock.advance(10)
        ledger.saved()
        clock.advance(3)
        ledger.enter("evaluate")
        ledger.tick()  # heard of, then machine and watchdog are gone
        fcntl.flock(ledger._ledger_fd, fcntl.LOCK_UN)
    final = Ledger(tmp_path, clock=clock)
    final.close("completed")
    record = read_ledger(tmp_path)
    # Three seconds since the last save and the tick that nobody heard of, three times; nothing is billed twice.
    assert record.billed_s == pytest.approx({"train": 30.0, "restart_loss": 15.0})
    assert [session.reason for session in record.session_records] == ["machine lost"] * 3 + ["completed"]
    again = Ledger(tmp_path, clock=clock)  # after a clean end nothing was lost
    assert again.spent_s() == pytest.approx(45.0)
    assert read_ledger(tmp_path).session_records[0].lost_s == {"train": 3.0}


@pytest.mark.parametrize(("reason", "lost"), [("completed", 0), ("sigterm", 0), ("error: ValueError", 5)])
def test_only_an_end_without_a_save_loses_work(tmp_path: Path, clock: Any, reason: str, lost: float) -> None:
    ledger = Ledger(tmp_path, clock=clock)
    ledger.enter("train")
    clock.advance(4)
    ledger.saved()
    clock.advance(5)
    ledger.close(reason)
    assert read_ledger(tmp_path).billed_s == pytest.approx({"train": 9}), "nothing is lost before a restart loses it"
    Ledger(tmp_path, clock=clock).close("completed")
    assert read_ledger(tmp_path).billed_s.get("restart_loss", 0) == pytest.approx(lost)
    assert read_ledger(tmp_path).total_billed_s == pytest.approx(9)


def test_a_torn_last_line_is_skipped_and_later_ones_count(tmp_path: Path, clock: Any) -> None:
    ledger = Ledger(tmp_path, clock=clock)
    ledger.enter("train")
    clock.advance(5)
    ledger.close("completed")
    path = tmp_path / LEDGER_FILE
    whole = path.read_bytes()
    close = whole.splitlines(keepends=True)[-1]
    for cut in range(1, len(close)):
        path.write_bytes(whole[: -len(close)] + close[:cut])
        torn = read_ledger(tmp_path)
        # Without its newline alone the line is whole.
        assert (torn.damaged_lines, torn.closed) == ((0, True) if cut == len(close) - 1 else (1, False))
        again = Ledger(tmp_path, clock=clock)
        again.enter("train")
        clock.advance(1)
        again.close("completed")
        after = read_ledger(tmp_path)
        assert after.damaged_lines == torn.damaged_lines and after.session_records[1].billed_s == {"train": 1.0}


@pytest.mark.parametrize(
    "junk", ["1", "null", "[]", '"v"', "{}", '{"v": 1}', '{"v": 1, "event": "spend"}', "\x00\x00", "ü"]
)
def test_junk_lines_are_counted_not_fatal(tmp_path: Path, clock: Any, junk: str) -> None:
    ledger = Ledger(tmp_path, clock=clock)
    ledger.enter("train")
    clock.advance(5)
    ledger.close("completed")
    with (tmp_path / LEDGER_FILE).open("a") as file:
        file.write(junk + "\n")
    record = read_ledger(tmp_path)
    assert record.total_billed_s == pytest.approx(5) and record.damaged_lines == 1


def test_bytes_that_are_no_text_are_not_fatal(tmp_path: Path, clock: Any) -> None:
    Ledger(tmp_path, clock=clock).close("completed")
    with (tmp_path / LEDGER_FILE).open("ab") as file:
        file.write(b"\xff\xfe{half\n")
    assert read_ledger(tmp_path).damaged_lines == 1


def test_a_newer_version_is_refused_and_left_alone(tmp_path: Path, clock: Any) -> None:
    path = tmp_path / LEDGER_FILE
    path.write_text('{"v": 3, "event": "spend", "joules": 5}\n')
    before = path.read_bytes()
    with pytest.raises(fb.RunDirectoryError, match="version 3"):
        read_ledger(tmp_path)
    with pytest.raises(fb.RunDirectoryError, match="version 3"):
        Ledger(tmp_path, clock=clock)
    assert path.read_bytes() == before


def test_no_ledger_is_an_empty_one(tmp_path: Path) -> None:
    record = read_ledger(tmp_path)
    assert record.total_billed_s == 0 and record.sessions == 0 and record.closed


def test_unbilled_phases_are_kept_apart(tmp_path: Path, clock: Any) -> None:
    record_unbilled(tmp_path, "init", 3.0)
    Ledger(tmp_path, clock=clock, before_s=4.0).close("completed")
    record_unbilled(tmp_path, "export", 1.5)
    record_unbilled(tmp_path, "export", 1.0)
    record = read_ledger(tmp_path)
    assert record.unbilled_s == {"init": 3.0, "export": 2.5}
    assert record.billed_s == {"init": 4.0}
    assert record.closed


def test_every_line_is_one_json_object_of_this_version(tmp_path: Path, clock: Any) -> None:
    ledger = Ledger(tmp_path, num_devices=2, clock=clock)
    ledger.enter("train")
    clock.advance(1)
    ledger.close("sigterm")
    lines = lines_of(tmp_path)
    assert [line["event"] for line in lines] == ["open", "close"]
    assert all(line["v"] == 2 and line["at"].endswith("Z") for line in lines)
    assert lines[0]["pid"] == os.getpid() and lines[0]["devices"] == 2


def test_a_ledger_of_the_first_version_goes_on(tmp_path: Path, clock: Any) -> None:
    old = [
        {"event": "spend", "phase": "init", "seconds": 2.0, "devices": 1, "billed": False},
        {"event": "open", "pid": 1, "devices": 2, "heartbeat_s": 1.0},
        {"event": "spend", "phase": "before", "seconds": 3.0, "devices": 2, "billed": True},
        {"event": "spend", "phase": "train", "seconds": 5.0, "devices": 2, "billed": True},
        {"event": "measured", "phase": "evaluate", "seconds": 0.5},
        {"event": "close", "reason": "sigint"},
        {"event": "open", "pid": 1, "devices": 2, "heartbeat_s": 1.0},
        {"event": "spend", "phase": "train", "seconds": 7.0, "devices": 2, "billed": True},
    ]
    lines = [json.dumps({"v": 1, "at": "2026-01-01T00:00:00.000Z", **line}) for line in old]
    (tmp_path / LEDGER_FILE).write_text("\n".join(lines) + "\n")
    record = read_ledger(tmp_path)
    assert record.billed_s == {"before": 3.0, "train": 12.0} and record.unbilled_s == {"init": 2.0}
    assert record.measured_s == {"evaluate": [0.5]} and not record.closed and record.sessions == 2
    assert record.device_hours == pytest.approx(2 * 15 / 3600)
    ledger = Ledger(tmp_path, clock=clock)
    assert ledger.spent_s() == pytest.approx(16.0), "the second session's last heartbeat was unrecorded"
    ledger.close("completed")
    assert read_ledger(tmp_path).billed_s == {"before": 3.0, "train": 12.0, "restart_loss": 1.0}


def test_a_directory_is_for_one_process_at_a_time(tmp_path: Path, clock: Any) -> None:
    ledger = Ledger(tmp_path, clock=clock)
    with pytest.raises(fb.RunDirectoryError, match=f"in use by process {os.getpid()}"):
        Ledger(tmp_path, clock=clock)
    ledger.close("completed")
    Ledger(tmp_path, clock=clock).close("completed")


def test_a_ledger_that_cannot_be_written_stops_the_run(tmp_path: Path, clock: Any) -> None:
    ledger = Ledger(tmp_path, clock=clock)
    os.close(ledger._ledger_fd)
    ledger._ledger_fd = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(fb.SaveError, match="ledger"):
        ledger.saved()
    (tmp_path / "file").touch()
    with pytest.raises(fb.SaveError, match="ledger"):
        Ledger(tmp_path / "file", clock=clock)
    with pytest.raises(fb.InvalidInputError, match="tick_s"):
        Ledger(tmp_path, clock=clock, tick_s=0)
