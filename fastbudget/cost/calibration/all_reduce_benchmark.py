"""Latency and bandwidth of an all-reduce between this machine's devices, measured in processes of their own.

Run as a module it is one of those processes: ``python -m fastbudget.cost.calibration.all_reduce_benchmark RENDEZVOUS
RANK RANKS BACKEND``; the first one prints the result.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

_ELEMENTS = (1, 2**22)
_REPEATS = 9


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """What an all-reduce takes.

    Attributes:
        latency_s: of one element.
        bytes_per_s: bus bandwidth of 16 MiB, 2·(n-1)/n·bytes/seconds.
        ranks: processes, one for each device.
    """

    latency_s: float
    bytes_per_s: float
    ranks: int


def measure_all_reduce(device: str, ranks: int, *, timeout_s: float) -> AllReduce | None:
    """Return what an all-reduce over ``ranks`` devices takes; None if the processes fail or need too long.

    Args:
        device: ``"cpu"`` (gloo) or ``"cuda"`` (NCCL).
        ranks: processes to start.
        timeout_s: after which they are ended.
    """
    backend = "gloo" if device == "cpu" else "nccl"
    with tempfile.TemporaryDirectory() as directory:
        rendezvous = str(Path(directory) / "rendezvous")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_search_path()), "OMP_NUM_THREADS": "1"}
        processes = [
            subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, rendezvous, str(rank), str(ranks), backend],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
            for rank in range(ranks)
        ]
        try:
            answer, _ = processes[0].communicate(timeout=timeout_s)
            return AllReduce(**json.loads(answer))
        except (subprocess.TimeoutExpired, ValueError, TypeError):
            return None
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def _search_path() -> list[str]:
    """Return where this process finds its modules, without other copies of this package such as an unbuilt source."""
    package, *_ = __name__.split(".")
    mine = Path(__file__).parents[__name__.count(".")]
    return [entry for entry in sys.path if entry and (Path(entry) == mine or not (Path(entry) / package).is_dir())]


def _take_part(rendezvous: str, rank: int, ranks: int, backend: str) -> None:
    import torch
    import torch.distributed as dist

    device = torch.device("cpu") if backend == "gloo" else torch.device("cuda", rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend, init_method=f"file://{rendezvous}", rank=rank, world_size=ranks, timeout=timedelta(seconds=60)
    )
    seconds = []
    for elements in _ELEMENTS:
        tensor = torch.ones(elements, device=device)
        samples = []
        for _ in range(_REPEATS + 2):
            began = time.perf_counter()
            dist.all_reduce(tensor)
            if device.type == "cuda":
                torch.cuda.synchronize()
            samples.append(time.perf_counter() - began)
        seconds.append(statistics.median(samples[2:]))
    dist.destroy_process_group()
    if rank == 0:
        latency, whole = seconds
        moved = 2 * (ranks - 1) / ranks * 4 * _ELEMENTS[1]
        print(json.dumps({"latency_s": latency, "bytes_per_s": moved / max(whole - latency, 1e-9), "ranks": ranks}))


if __name__ == "__main__":
    _take_part(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
