"""What a device needs for one operation: by comparison with measured ones, or from its fitted rates."""

from __future__ import annotations

from typing import Protocol

from ...hardware.devices import Device
from ..runtime.calibration import Calibration
from ..runtime.operation_times import OperationTimes
from ..runtime.rates import Rates, achievable_rates, attention_seconds, gemm_seconds, memory_seconds
from .operation_timing import Operation

# Where a calibration has nothing like an operation: an old core's rates.
_SLOW_BYTES_PER_S, _SLOW_FLOPS_PER_S = 5e9, 1e10
_PRECISION_OF = {"float32": "fp32", "float64": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class OperationRates(Protocol):
    """Tells device seconds of operations, and host seconds between them."""

    def seconds(self, operation: Operation) -> float:
        """Return the seconds that the device computes."""
        ...

    def host_seconds(self, part: str) -> float:
        """Return the seconds from one operation of a part to the next, where the host is the slower one."""
        ...


class MeasuredRates:
    """Operations by comparison with those that a calibration measured."""

    def __init__(self, times: OperationTimes, *, training: bool) -> None:
        self._times = times
        self._training = training

    def seconds(self, operation: Operation) -> float:
        """Return what a measured operation like it takes."""
        name, dtype = operation.name, operation.dtype
        if all(operation.product):
            found = self._times.product_seconds(name, dtype, operation.product)
        else:
            found = self._times.pass_seconds(name, dtype, operation.moved_bytes)
        if found is None:  # a measurement that its time limit cut short
            return max(operation.moved_bytes / _SLOW_BYTES_PER_S, operation.flops / _SLOW_FLOPS_PER_S)
        return found

    def measures(self, name: str, dtype: str) -> bool:
        """Whether the operation was measured, in this type or in float32."""
        return self._times.measures(name, dtype) or self._times.measures(name, "float32")

    def host_seconds(self, part: str) -> float:
        """Return the seconds between operations of a tiny model."""
        if not self._training:
            part = "evaluate"
        return self._times.host_s.get("forward" if part == "recompute" else part, 0.0)


class FittedRates:
    """Operations from the constants that were fitted on published runs: a roofline over achievable rates."""

    def __init__(self, device: Device, calibration: Calibration | None) -> None:
        self._device = device
        self._calibration = calibration
        self._by_precision: dict[str, Rates] = {}

    def of(self, precision: str) -> Rates:
        """Return the device's rates in a precision."""
        if precision not in self._by_precision:
            self._by_precision[precision] = achievable_rates(self._device, precision, calibration=self._calibration)
        return self._by_precision[precision]

    def seconds(self, operation: Operation) -> float:
        """Return the longer of arithmetic and memory."""
        rates = self.of(_PRECISION_OF.get(operation.dtype, "fp32"))
        moved = memory_seconds(operation.moved_bytes, rates)
        batch, m, n, k = operation.product
        if not batch:
            return moved
        if "attention" in operation.name:
            passes = 2.0 * rates.constants.attention_backward if operation.name.endswith("backward") else 1.0
            return max(passes * attention_seconds(batch * m, n, 1, k, k, rates), moved)
        products = max(operation.flops / (2.0 * batch * m * n * k), 1.0)
        if operation.name.startswith("mkldnn_rnn"):  # one position of the sequence after the other
            return max(products * batch * gemm_seconds(m, n, k, rates), moved)
        return max(products * gemm_seconds(batch * m, n, k, rates), moved)

    @property
    def name(self) -> str:
        """The device's name."""
        return self._device.name

    def assumed(self, precision: str) -> tuple[str, ...]:
        """Return words for each figure of the device that no datasheet gave."""
        return self.of(precision).assumed

    def host_seconds(self, part: str) -> float:
        """Return the seconds from one launch to the next."""
        return self.of("fp32").launch_s
