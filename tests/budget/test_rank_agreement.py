"""Two processes over gloo: they stop at the same step, agree seldom, and one that dies doesn't hang the other."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import fastbudget as fb
from fastbudget.budget import read_ledger

FORK = multiprocessing.get_context("fork")  # torch is imported already


def rank_main(rank: int, port: int, run_dir: Path, how: str, channel: Any) -> None:
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, timeout=timedelta(seconds=20)
    )
    collectives, taken = 0, 0
    all_reduce = dist.all_reduce

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal collectives
        collectives += 1
        return all_reduce(*args, **options)

    dist.all_reduce = counted
    budget = fb.Budget(wall_hours=3 / 3600 if how == "budget" else 1)
    try:
        with fb.BudgetGuard(budget, run_dir=run_dir) as guard:
            assert guard.num_devices == 2
            guard.evaluate(lambda: time.sleep(0.05))
            path = guard.checkpoint({"x": torch.zeros(2)}, {"loss": 1.0})
            channel.send("ready")
            for _ in guard.steps(range(300) if how == "data" else iter(int, 1)):
                time.sleep(0.003 if how == "data" else 0.002 * (1 + rank))  # one rank is slower
                taken += 1
        channel.send({"taken": taken, "reason": guard.stop_reason, "collectives": collectives, "saved": path.name})
    except Exception as error:
        channel.send({"error": type(error).__name__})
    os._exit(0)  # a group with a dead member can't be destroyed


def start(run_dir: Path, how: str) -> list[tuple[Any, Any]]:
    """Return each rank's process and channel once both are about to take steps."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(2):
        ours, theirs = FORK.Pipe()
        process = FORK.Process(target=rank_main, args=(rank, port, run_dir, how, theirs))
        process.start()
        ranks.append((process, ours))
    for _, channel in ranks:
        assert channel.poll(60) and channel.recv() == "ready"
    return ranks


def result(rank: tuple[Any, Any]) -> dict[str, Any]:
    process, channel = rank
    assert channel.poll(60)
    found = channel.recv()
    process.join()
    return found


def test_all_ranks_stop_at_the_same_step_inside_the_budget(tmp_path: Path) -> None:
    first, second = map(result, start(tmp_path, "budget"))
    assert first["reason"] == second["reason"] == "budget"
    assert first["taken"] == second["taken"] > 50
    assert first["collectives"] == second["collectives"]
    record = read_ledger(tmp_path)
    assert record.sessions == 1 and record.session_records[0].devices == 2 and record.last_reason == "budget"
    assert 2.0 < record.total_billed_s <= 3.25 and record.device_hours == pytest.approx(record.total_billed_s / 1800)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [first["saved"]] == [second["saved"]]


def test_far_from_the_end_they_agree_seldom(tmp_path: Path) -> None:
    first, second = map(result, start(tmp_path, "data"))
    assert first["taken"] == second["taken"] == 300 and first["reason"] is None
    assert first["collectives"] <= 10


@pytest.mark.parametrize("signaled", [0, 1])
def test_a_signal_to_one_rank_stops_all_at_the_same_step(tmp_path: Path, signaled: int) -> None:
    ranks = start(tmp_path, "budget")
    time.sleep(0.3)
    os.kill(ranks[signaled][0].pid, signal.SIGTERM)
    first, second = map(result, ranks)
    assert first["reason"] == second["reason"] == "sigterm" and first["taken"] == second["taken"]


def test_a_dead_rank_fails_the_other_within_the_groups_timeout(tmp_path: Path) -> None:
    ranks = start(tmp_path, "budget")
    time.sleep(0.3)
    ranks[1][0].kill()
    begun = time.monotonic()
    survivor = result(ranks[0])
    ranks[1][0].join()
    assert "error" in survivor and time.monotonic() - begun < 25
    assert read_ledger(tmp_path).last_reason == f"error: {survivor['error']}"
