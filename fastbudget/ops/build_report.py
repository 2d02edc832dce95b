"""How the compiled module was built, and what the CUDA driver says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ._native import native


@dataclass(frozen=True, kw_only=True)
class BuildReport:
    """The compiled module and the CUDA it can reach.

    ``*_version`` are CUDA versions as text (``"13.0"``), None where there is none. ``problem`` says why ``devices``
    is empty.
    """

    compiled_with_cuda: bool
    cuda_architectures: list[str]
    cuda_runtime_version: str | None
    cuda_driver_version: str | None
    problem: str | None
    native_threads: int
    devices: list[dict[str, Any]] = field(default_factory=list)


def _version(number: int) -> str | None:
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def report_build() -> BuildReport:
    """Ask the compiled module; creates no CUDA context."""
    module = native()
    raw = module.report_cuda()
    return BuildReport(
        compiled_with_cuda=raw["compiled"],
        cuda_architectures=raw["architectures"].split(),
        cuda_runtime_version=_version(raw["runtime_version"]),
        cuda_driver_version=_version(raw["driver_version"]),
        problem=raw["problem"] or None,
        native_threads=module.default_threads(),
        devices=raw["devices"],
    )
