"""What a machine was measured to do, in a file that others can use."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any

from ...core.errors import InvalidInputError
from .operation_times import OperationTimes

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Measured rates of one machine. They take the place of the constants fitted on published runs.

    Attributes:
        device: the accelerator's key in the table, or ``"cpu"``.
        date: when it was measured, ``YYYY-MM-DD``.
        software: what measured it (``"torch 2.13.0, CUDA 13.0"``).
        matrix_flops_per_s: rate of a large matrix product by precision (``"bf16"``, ``"fp16"``, ``"fp32"``,
            ``"fp8"``); None and absent: not measured.
        attention_flops_per_s: rate of fused causal attention at long sequences, causal FLOPs counted once.
        memory_bytes_per_s: bytes read and written per second by a large elementwise operation.
        launch_s: seconds from one small operation to the next.
        all_reduce_latency_s: seconds of an all-reduce of nothing, over the machine's devices.
        all_reduce_bytes_per_s: bus bandwidth of a large one, 2·(n-1)/n·bytes/seconds.
        processor: what the vendor calls the device.
        driver: the accelerator's driver; None on a CPU.
        threads: torch's threads on the CPU.
        operations: seconds of single operations, which time traced modules; None: not measured.
        spread: standard deviation of the log of repeated measurements: how quiet the machine was.
        notes: what to know, such as that the machine was busy.
    """

    device: str
    date: str
    software: str
    matrix_flops_per_s: dict[str, float] = field(default_factory=dict)
    attention_flops_per_s: float | None = None
    memory_bytes_per_s: float | None = None
    launch_s: float | None = None
    all_reduce_latency_s: float | None = None
    all_reduce_bytes_per_s: float | None = None
    processor: str | None = None
    driver: str | None = None
    threads: int | None = None
    operations: OperationTimes | None = None
    spread: float = 0.0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rates = {f"matrix_flops_per_s[{name!r}]": rate for name, rate in self.matrix_flops_per_s.items()}
        for name in ("attention_flops_per_s", "memory_bytes_per_s", "launch_s", "all_reduce_bytes_per_s"):
            rates[name] = getattr(self, name)
        for name, value in rates.items():
            if value is not None and not 0 < value < float("inf"):
                raise InvalidInputError(f"A calibration's {name} must be positive and finite, got {value!r}.")

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`write` writes."""
        return {"version": VERSION, **asdict(self)}

    def write(self, path: str | PathLike[str]) -> None:
        """Write it as JSON."""
        Path(path).write_text(json.dumps(self.to_json()) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Calibration:
        """Read what :meth:`write` wrote.

        Raises:
            InvalidInputError: there is no such file, or it is not a calibration of this version.
        """
        try:
            content: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise InvalidInputError(
                f"{path} is not a readable calibration ({error}). Write one with `fastbudget calibrate --out FILE`."
            ) from error
        if not isinstance(content, dict) or content.get("version") != VERSION:
            raise InvalidInputError(
                f"{path} is not a calibration of version {VERSION}. Measure again with `fastbudget calibrate`."
            )
        known = {one.name for one in fields(cls)}
        values = {name: value for name, value in content.items() if name in known}
        values["notes"] = tuple(values.get("notes", ()))
        try:
            if values.get("operations") is not None:
                values["operations"] = OperationTimes(**values["operations"])
            return cls(**values)
        except (TypeError, AttributeError) as error:
            raise InvalidInputError(f"{path} is not a complete calibration: {error}.") from error


def read_calibration(calibration: Calibration | str | PathLike[str] | None) -> Calibration | None:
    """Return a calibration given as itself or as the path of its file."""
    if calibration is None or isinstance(calibration, Calibration):
        return calibration
    return Calibration.read(calibration)
