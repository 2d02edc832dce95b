"""``fb.calibrate``: what this machine achieves, measured inside a time limit."""

from __future__ import annotations

import datetime
import os
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...core.errors import InvalidInputError
from ...hardware import cpu_name, describe_environment, find_device, usable_cpus
from ..runtime.calibration import Calibration
from ..runtime.operation_times import OperationTimes
from .all_reduce_benchmark import AllReduce, measure_all_reduce
from .operation_benchmarks import OperationBenchmark, operation_benchmarks
from .step_overhead import measure_host_seconds
from .tensor_pool import TensorPool
from .timing import CudaTimer, HostTimer, measure_in_turns

DEFAULT_SECONDS = 60.0
SHORTEST_SECONDS = 1.0
# Below this only a few sizes of each operation are measured.
_THOROUGH_SECONDS = 12.0
# The all-reduce starts processes that import torch.
_ALL_REDUCE_SECONDS = 25.0
_MOST_ROUNDS = 9
# More than what malloc ever keeps: 32 MiB on 64-bit Linux.
_FRESH_BYTES = 40 << 20
_SLOT_BYTES, _SLOT_BYTES_QUICK = 48 << 20, 8 << 20
# A machine is called busy beyond this spread of repeats, or this load per usable CPU before the start.
_BUSY_SPREAD = 0.15
_BUSY_LOAD = 0.4
_LEAST_SECONDS = 1e-8
_PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def calibrate(*, device: str | None = None, seconds: float = DEFAULT_SECONDS) -> Calibration:
    """Measure what this machine achieves: products, attention, memory, calls, optimizer and all-reduce.

    Operations are measured in turns, each several times; the result holds the median of the faster half of each. On
    the CPU torch's current thread count is kept. The result names no host, path or serial number: share it.

    Args:
        device: ``"cpu"`` or ``"cuda"`` (the current one); None: the GPU if there is one.
        seconds: time limit, at least 1. Usually about 20 s are enough for everything; under 12 s fewer sizes are
            measured, and no all-reduce.

    Raises:
        InvalidInputError: no such device here, or too short a limit for this machine.
    """
    if not (isinstance(seconds, (int, float)) and seconds >= SHORTEST_SECONDS):
        raise InvalidInputError(f"seconds must be a number of at least {SHORTEST_SECONDS:g}, got {seconds!r}.")
    where = _device(device)
    torch.optim.SGD([torch.zeros(1)])  # a process's first optimizer imports torch._dynamo: that is no measurement
    began = time.perf_counter()
    until = began + 0.93 * seconds
    load = _load()
    notes: list[str] = []
    if load > _BUSY_LOAD:
        notes.append(f"Other processes kept {load:.0%} of the CPUs busy before the start: rates may be too low.")
    thorough = seconds >= _THOROUGH_SECONDS
    with torch.random.fork_rng(devices=[] if where.index is None else [where.index]), torch.no_grad():
        torch.manual_seed(0)
        pool = TensorPool(where, _SLOT_BYTES if thorough else _SLOT_BYTES_QUICK)
        benchmarks = operation_benchmarks(pool, _dtypes(where), quick=not thorough)
        fresh_byte_s = _fresh_byte_seconds(3 if thorough else 1) if where.type == "cpu" else 0.0
        timer = HostTimer(fresh_byte_s * resource.getpagesize()) if where.type == "cpu" else CudaTimer(where)
        call_s = timer.seconds(_smallest_call(pool), 200)
        with torch.enable_grad():
            host_s = measure_host_seconds(where, until=time.perf_counter() + 0.05 * seconds)
        reduced = None
        if seconds >= _ALL_REDUCE_SECONDS:
            reduced = _all_reduce(where, timeout_s=0.3 * seconds)
        taken = measure_in_turns(benchmarks, timer, until=until, most_rounds=_MOST_ROUNDS, between=pool.release)
    if not any(benchmark.operation == "mm" for benchmark, _ in taken):
        raise InvalidInputError(
            f"seconds={seconds:g} was too short to measure a single matrix product: the machine is slow or busy. "
            "Give it more, or wait until it is idle."
        )
    spread = statistics.median(samples.spread for _, samples in taken)
    if spread > _BUSY_SPREAD:
        notes.append(f"Repeats differ by {spread:.0%}: the machine was busy or throttled; intervals are wider.")
    if load > _BUSY_LOAD and where.type == "cpu" and torch.get_num_threads() > 1:
        # Threads wait for the one that was interrupted: repeats may agree and be slow by a multiple.
        spread = max(spread, load)
    if len(taken[-1][1].seconds) == 1:
        notes.append(f"The time limit let {len(taken)} benchmarks run, not all of them twice; give it more seconds.")
    measured = [
        _Measured(benchmark=benchmark, seconds=max(samples.undisturbed_s - call_s, _LEAST_SECONDS))
        for benchmark, samples in taken
    ]
    return _calibration(where, measured, host_s, fresh_byte_s, reduced, spread, notes)


@dataclass(frozen=True, kw_only=True)
class _Measured:
    benchmark: OperationBenchmark
    seconds: float


def _device(device: str | None) -> torch.device:
    if device not in (None, "cpu", "cuda"):
        raise InvalidInputError(f"device must be 'cpu' or 'cuda', got {device!r}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise InvalidInputError("device is 'cuda', but torch sees no GPU here. Use 'cpu', or a CUDA build of torch.")
    if device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _load() -> float:
    """Return the share of the CPUs that other processes kept busy before the start, at most 1."""
    return min(os.getloadavg()[0] / usable_cpus(), 1.0)


def _dtypes(where: torch.device) -> list[torch.dtype]:
    if where.type == "cpu":
        return [torch.float32, torch.bfloat16]
    newer = torch.cuda.get_device_capability(where) >= (8, 0)
    return [torch.float32, torch.bfloat16, torch.float16] if newer else [torch.float32, torch.float16]


def _smallest_call(pool: TensorPool) -> Callable[[], None]:
    x, y = torch.ones(1, device=pool.device), torch.ones(1, device=pool.device)
    return lambda: pool.keep(torch.ops.aten.mul.Tensor(x, y))


def _fresh_byte_seconds(repeats: int) -> float:
    """Seconds that a byte costs the first time it is written: a page fault for every page."""
    timer = HostTimer()
    tensor = torch.empty(_FRESH_BYTES, dtype=torch.uint8)

    def write_fresh() -> None:
        torch.empty(_FRESH_BYTES, dtype=torch.uint8).fill_(1)

    tensor.fill_(1)
    fresh = min(timer.seconds(write_fresh, 1) for _ in range(repeats))
    again = min(timer.seconds(lambda: tensor.fill_(1), 1) for _ in range(repeats))
    return max(fresh - again, 0.0) / _FRESH_BYTES


def _all_reduce(where: torch.device, *, timeout_s: float) -> AllReduce | None:
    ranks = 2 if where.type == "cpu" else torch.cuda.device_count()
    if ranks < 2 or not torch.distributed.is_available():
        return None
    return measure_all_reduce(where.type, ranks, timeout_s=timeout_s)


def _calibration(
    where: torch.device,
    measured: list[_Measured],
    host_s: dict[str, float],
    fresh_byte_s: float,
    reduced: AllReduce | None,
    spread: float,
    notes: list[str],
) -> Calibration:
    products: dict[str, list[list[float]]] = {}
    passes: dict[str, list[list[float]]] = {}
    for one in measured:
        benchmark = one.benchmark
        key = f"{benchmark.operation} {benchmark.dtype}"
        if benchmark.product is not None:
            products.setdefault(key, []).append([*map(float, benchmark.product), one.seconds])
        else:
            passes.setdefault(key, []).append([float(benchmark.moved_bytes), one.seconds])
    on_cpu = where.type == "cpu"
    return Calibration(
        device="cpu" if on_cpu else _gpu_key(where),
        processor=cpu_name() if on_cpu else torch.cuda.get_device_name(where),
        driver=None if on_cpu else describe_environment().nvidia_driver,
        threads=torch.get_num_threads(),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        software=f"torch {torch.__version__}" + ("" if on_cpu else f", CUDA {torch.version.cuda}"),
        matrix_flops_per_s={
            precision: rate
            for dtype, precision in _PRECISIONS.items()
            if (rate := _largest_rate(products, "mm", dtype, factor=2.0)) is not None
        },
        attention_flops_per_s=_attention_rate(products),
        memory_bytes_per_s=_largest_bandwidth(passes),
        launch_s=host_s.get("forward"),
        all_reduce_latency_s=None if reduced is None else reduced.latency_s,
        all_reduce_bytes_per_s=None if reduced is None else reduced.bytes_per_s,
        operations=OperationTimes(products=products, passes=passes, host_s=host_s, fresh_byte_s=fresh_byte_s),
        spread=spread,
        notes=tuple(notes),
    )


def _gpu_key(where: torch.device) -> str:
    name = torch.cuda.get_device_name(where)
    try:
        return find_device(name).key
    except InvalidInputError:
        return name


def _largest_rate(
    products: dict[str, list[list[float]]], operation: str, dtype: torch.dtype, *, factor: float
) -> float | None:
    """Floating-point operations per second of the largest measured shape, ``factor`` for each multiply-add."""
    rows = products.get(f"{operation} {str(dtype).removeprefix('torch.')}")
    if not rows:
        return None
    batch, m, n, k, seconds = max(rows, key=lambda row: row[0] * row[1] * row[2] * row[3])
    return factor * batch * m * n * k / seconds


def _attention_rate(products: dict[str, list[list[float]]]) -> float | None:
    """Of the forward pass: two products, queries with keys and scores with values."""
    for operation in ("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu"):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            rate = _largest_rate(products, operation, dtype, factor=4.0)
            if rate is not None:
                return rate
    return None


def _largest_bandwidth(passes: dict[str, list[list[float]]]) -> float | None:
    rows = passes.get("add float32")
    if not rows:
        return None
    moved, seconds = max(rows)
    return moved / seconds
