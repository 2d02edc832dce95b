from __future__ import annotations

import json
import os
import signal
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


def test_heartbeats_bill_a_long_phase_as_it_goes(tmp_path: Path, clock: Any) -> None:
    ledger = Ledger(tmp_path, clock=clock, heartbeat_s=1.0)
    ledger.enter("train")
    for _ in range(100):
        clock.advance(0.05)
        ledger.tick()
        # Never more than a heartbeat that a reader of the file doesn't know of.
        assert clock.now - read_ledger(tmp_path).total_billed_s <= 1.05
    assert 3 <= sum(line["event"] == "spend" for line in lines_of(tmp_path)) <= 6
    assert ledger.spent_s() == pytest.approx(5.0)


def test_restarts_add_up_and_a_killed_session_costs_a_heartbeat(tmp_path: Path, clock: Any) -> None:
    for session in range(3):
        ledger = Ledger(tmp_path, clock=clock, heartbeat_s=2.0)
        assert ledger.spent_s() == pytest.approx(session * 10 + max(0, session) * 2.0)
        ledger.enter("train")
        clock.advance(10)
        ledger.enter("idle")  # billed, then the process is gone
        del ledger
    final = Ledger(tmp_path, clock=clock)
    final.close("completed")
    record = read_ledger(tmp_path)
    assert record.billed_s == pytest.approx({"train": 30.0, "restart_loss": 6.0})
    assert record.sessions == 4
    again = Ledger(tmp_path, clock=clock)  # after a clean end nothing was lost
    assert again.spent_s() == pytest.approx(36.0)


def test_a_torn_last_line_is_skipped_and_later_ones_count(tmp_path: Path, clock: Any) -> None:
    ledger = Ledger(tmp_path, clock=clock)
    ledger.enter("train")
    clock.advance(5)
    ledger.close("completed")
    path = tmp_path / LEDGER_FILE
    whole = path.read_bytes()
    last_spend = whole.splitlines(keepends=True)[1]
    for cut in range(1, len(last_spend)):
        path.write_bytes(whole + last_spend[:cut])
        torn = read_ledger(tmp_path)
        # Without its newline alone the line is whole.
        assert (torn.damaged_lines, torn.total_billed_s) == ((0, 10) if cut == len(last_spend) - 1 else (1, 5))
        again = Ledger(tmp_path, clock=clock)
        again.enter("train")
        clock.advance(2)
        again.close("completed")
        assert read_ledger(tmp_path).total_billed_s == pytest.approx(torn.total_billed_s + 2)


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
    path.write_text('{"v": 2, "event": "spend", "joules": 5}\n')
    before = path.read_bytes()
    with pytest.raises(fb.RunDirectoryError, match="version 2"):
        read_ledger(tmp_path)
    with pytest.raises(fb.RunDirectoryError, match="version 2"):
        Ledger(tmp_path, clock=clock)
    assert path.read_bytes() == before


def test_no_ledger_is_an_empty_one(tmp_path: Path) -> None:
    record = read_ledger(tmp_path)
    assert record.total_billed_s == 0 and record.sessions == 0 and record.closed


def test_unbilled_phases_are_kept_apart(tmp_path: Path, clock: Any) -> None:
    ledger = Ledger(tmp_path, clock=clock)
    ledger.add("init", 3.0)
    ledger.add("before", 4.0)
    ledger.close("completed")
    record_unbilled(tmp_path, "export", 1.5)
    record_unbilled(tmp_path, "export", 1.0)
    record = read_ledger(tmp_path)
    assert record.unbilled_s == {"init": 3.0, "export": 2.5}
    assert record.billed_s == {"before": 4.0}
    assert record.closed


def test_every_line_is_one_json_object_of_this_version(tmp_path: Path, clock: Any) -> None:
    ledger = Ledger(tmp_path, num_devices=2, clock=clock)
    ledger.enter("train")
    clock.advance(1)
    ledger.close("sigterm")
    lines = lines_of(tmp_path)
    assert [line["event"] for line in lines] == ["open", "spend", "close"]
    assert all(line["v"] == 1 and line["at"].endswith("Z") for line in lines)
    assert lines[0]["pid"] == os.getpid() and lines[0]["devices"] == 2


def test_what_was_billed_survives_sigkill(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        ledger = Ledger(tmp_path)
        ledger.add("train", 12.5)
        os.write(write_end, b"x")
        signal.pause()
    assert os.read(read_end, 1) == b"x"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(read_end), os.close(write_end)
    record = read_ledger(tmp_path)
    assert record.billed_s == {"train": 12.5} and not record.closed


def test_a_ledger_that_cannot_be_written_stops_the_run(tmp_path: Path, clock: Any) -> None:
    ledger = Ledger(tmp_path, clock=clock)
    ledger._file.close()
    ledger._file = open("/dev/full", "wb")  # noqa: SIM115, PTH123
    ledger.enter("train")
    clock.advance(1)
    with pytest.raises(fb.SaveError, match="ledger"):
        ledger.enter("evaluate")
