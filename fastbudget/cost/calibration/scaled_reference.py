"""A guess at a CPU that nobody calibrated: a reference CPU's operations, scaled by a moment's measurement."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import as_file, files

import torch

from ..runtime.calibration import Calibration
from ..runtime.operation_times import OperationTimes
from .step_overhead import measure_host_seconds
from .timing import HostTimer, measure_in_turns

# Made by `fastbudget calibrate` with one thread on an AMD EPYC (Zen 5) with AVX-512; figures rounded.
_REFERENCE = "reference_cpu.json"
_SIDE = 512
_ELEMENTS = 2**20
_SECONDS = 0.3
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@cache
def guessed_calibration(threads: int) -> Calibration:
    """Return the guess for this process's CPU; measured once for each thread count, in about 0.3 s."""
    with as_file(files(__package__).joinpath(_REFERENCE)) as path:
        reference = Calibration.read(path)
    assert reference.operations is not None
    measured = _moment()
    return replace(
        reference,
        threads=threads,
        operations=_scaled(reference.operations, measured),
        notes=("Scaled from a reference CPU.",),
    )


@dataclass(frozen=True, kw_only=True)
class _Probe:
    name: str
    call: Callable[[], torch.Tensor]


def _moment() -> dict[str, float]:
    """Seconds of a matrix product by type, of an addition, and of the host between operations."""
    first, second = torch.ones(_ELEMENTS), torch.ones(_ELEMENTS)
    probes = [_Probe(name="add", call=lambda: first + second)]
    for name, dtype in _DTYPES.items():
        left, right = (torch.ones(_SIDE, _SIDE, dtype=dtype) for _ in range(2))
        probes.append(_Probe(name=name, call=partial(torch.mm, left, right)))
    with torch.no_grad():
        for probe in probes:
            probe.call()
        taken = measure_in_turns(probes, HostTimer(), until=time.perf_counter() + _SECONDS, most_rounds=9)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        host = measure_host_seconds(torch.device("cpu"), until=time.perf_counter() + _SECONDS / 3, most_steps=12)
    return {**{probe.name: samples.undisturbed_s for probe, samples in taken}, "host": host["forward"]}


def _scaled(reference: OperationTimes, measured: dict[str, float]) -> OperationTimes:
    def ratio(name: str, expected: float | None) -> float:
        return measured[name] / expected if name in measured and expected else 1.0

    side = (1, _SIDE, _SIDE, _SIDE)
    products = {name: ratio(name, reference.product_seconds("mm", name, side)) for name in _DTYPES}
    return reference.scaled(
        products=products,
        passes=ratio("add", reference.pass_seconds("add", "float32", 12 * _ELEMENTS)),
        host=ratio("host", reference.host_s.get("forward")),
    )
