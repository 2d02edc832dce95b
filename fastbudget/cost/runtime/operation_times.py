"""What single operations took on one machine, and what others will take by comparison."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

# Products of sizes within about this many doublings of each other run at similar rates.
_LIKENESS_DOUBLINGS = 1.0
# Keeps the slopes of the local fit small where the neighbors don't tell them.
_SLOPE_PENALTY = 0.3

# What an operation that was not measured is like: the same kind of loop over memory, or of product.
_ALIKE = {
    "_scaled_mm": "mm", "_grouped_mm": "bmm", "baddbmm": "bmm",
    "_scaled_dot_product_efficient_attention": "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention_backward": "_scaled_dot_product_flash_attention_backward",
    "log": "exp", "expm1": "exp", "log1p": "exp", "erf": "exp", "sin": "cos", "softplus": "gelu", "mish": "gelu",
    "elu": "exp", "softplus_backward": "gelu_backward", "elu_backward": "silu_backward", "sigmoid_": "sigmoid",
    "native_group_norm": "native_layer_norm", "native_group_norm_backward": "native_layer_norm_backward",
    "_fused_rms_norm": "native_layer_norm", "_fused_rms_norm_backward": "native_layer_norm_backward",
    "max": "sum", "amax": "sum", "argmax": "sum", "all": "sum", "any": "sum", "var_mean": "sum", "cumsum": "sum",
    "linalg_vector_norm": "sum", "var": "sum", "avg_pool2d": "max_pool2d_with_indices",
    "avg_pool2d_backward": "max_pool2d_with_indices_backward",
    "batch_norm_inference": "add",
    "stack": "cat", "index": "clone", "gather": "clone", "index_select": "clone", "constant_pad_nd": "clone",
    "slice_backward": "clone", "select_backward": "clone", "repeat": "clone", "roll": "clone", "flip": "clone",
    "embedding_bag": "embedding", "_embedding_bag": "embedding", "relu_": "mul_", "sub_": "add_", "div_": "mul_",
    "clamp_": "mul_", "hardtanh_": "mul_", "masked_fill_": "mul_", "sqrt_": "mul_", "lerp_": "addcmul_",
    "zero_": "fill_", "zeros": "zeros_like", "ones": "zeros_like", "ones_like": "zeros_like", "full": "zeros_like",
    "new_zeros": "zeros_like", "full_like": "zeros_like", "arange": "zeros_like", "bernoulli": "bernoulli_",
    "rand_like": "bernoulli_", "rrelu_with_noise": "bernoulli_",
}  # fmt: skip
_PLAIN_PRODUCT, _PLAIN_PASS = "mm", "mul"


@dataclass(frozen=True, kw_only=True)
class OperationTimes:
    """Seconds of single operations, without what the host needs to call them.

    Keys are an operation and the data type of its first output: ``"mm float32"``.

    Attributes:
        products: rows of ``[batch, m, n, k, seconds]``: matrix products and what is made of them.
        passes: rows of ``[moved bytes, seconds]``: operations that go over memory once, the smallest first.
        host_s: seconds that the host needs from one operation to the next, by phase: ``"forward"``, ``"backward"``,
            ``"optimizer"``, ``"evaluate"``.
        fresh_byte_s: seconds to get a byte of memory from the operating system and touch it, on a CPU.
    """

    products: dict[str, list[list[float]]] = field(default_factory=dict)
    passes: dict[str, list[list[float]]] = field(default_factory=dict)
    host_s: dict[str, float] = field(default_factory=dict)
    fresh_byte_s: float = 0.0

    def __post_init__(self) -> None:
        for name, tables, width in (("products", self.products, 5), ("passes", self.passes, 2)):
            for key, rows in tables.items():
                if not rows or any(len(row) != width or not all(0 < x < math.inf for x in row) for row in rows):
                    raise InvalidInputError(
                        f"A calibration's {name}[{key!r}] must hold rows of {width} positive numbers. "
                        "Measure again with `fastbudget calibrate`."
                    )

    def measures(self, operation: str, dtype: str) -> bool:
        """Whether the operation itself was measured in that type."""
        key = f"{operation} {dtype}"
        return key in self.products or key in self.passes

    def product_seconds(self, operation: str, dtype: str, shape: Sequence[float]) -> float | None:
        """Return the seconds of an operation made of ``batch`` products [m, k] x [k, n]; None: nothing is like it.

        Seconds per multiply-add of the measured shapes are fitted by a line in the logarithms of the sizes, to which
        near shapes contribute most; the result stays within what they took.
        """
        fit = self._fit_of(operation, dtype)
        return None if fit is None else fit.seconds(shape)

    def pass_seconds(self, operation: str, dtype: str, moved_bytes: float) -> float | None:
        """Return the seconds of an operation that goes over so many bytes; None: nothing is like it."""
        for key in self._keys(operation, dtype, _PLAIN_PASS):
            curve = self._curves.get(key)
            if curve is not None:
                return _on_curve(*curve, moved_bytes)
        return None

    def fastest_product(self, dtype: str) -> float | None:
        """Return the most FLOP/s that any measured forward product reached in a type; None: none was measured."""
        rates = [
            2.0 * math.prod(row[:4]) / row[4]
            for key, rows in self.products.items()
            if key.endswith(f" {dtype}") and "backward" not in key
            for row in rows
        ]
        return max(rates, default=None)

    def scaled(self, *, products: dict[str, float], passes: float, host: float) -> OperationTimes:
        """Return the times of another machine that is like this one.

        Args:
            products: factor on the seconds of products by data type; others take float32's.
            passes: factor on the seconds of passes over memory.
            host: factor on the seconds of the host.
        """

        def stretched(tables: dict[str, list[list[float]]], factor: Callable[[str], float]) -> Any:
            return {
                key: [[*row[:-1], row[-1] * factor(key.split(" ")[1])] for row in rows] for key, rows in tables.items()
            }

        return OperationTimes(
            products=stretched(self.products, lambda dtype: products.get(dtype, products["float32"])),
            passes=stretched(self.passes, lambda dtype: passes),
            host_s={part: seconds * host for part, seconds in self.host_s.items()},
            fresh_byte_s=self.fresh_byte_s,
        )

    @cached_property
    def _curves(self) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
        made = {}
        for key, rows in self.passes.items():
            table = np.log(np.array(sorted(rows), dtype=np.float64))
            made[key] = (table[:, 0], table[:, 1])
        return made

    @cached_property
    def _fits(self) -> dict[str, _ProductFit]:
        return {key: _ProductFit(np.array(rows, dtype=np.float64)) for key, rows in self.products.items()}

    def _fit_of(self, operation: str, dtype: str) -> _ProductFit | None:
        for key in self._keys(operation, dtype, _PLAIN_PRODUCT):
            if key in self._fits:
                return self._fits[key]
        return None

    def _keys(self, operation: str, dtype: str, plain: str) -> list[str]:
        """The nearest of what may have been measured first; the type matters less than the operation."""
        names = [operation, _ALIKE.get(operation, ""), plain]
        return [f"{name} {kind}" for name in names for kind in (dtype, "float32")]


class _ProductFit:
    """Seconds per multiply-add over the sizes of a product, from scattered measurements."""

    def __init__(self, rows: NDArray[np.float64]) -> None:
        self._sizes = np.log2(rows[:, :4])
        self._rates = np.log(rows[:, 4]) - np.log(rows[:, :4]).sum(axis=1)

    def seconds(self, shape: Sequence[float]) -> float:
        sizes = np.log2(np.maximum(np.array(shape, dtype=np.float64), 1.0))
        away = self._sizes - sizes
        away[:, 0] /= 2  # how many products matters less than how large they are
        distances = (away**2).sum(axis=1)
        weights = np.exp(-(distances - distances.min()) / (2 * _LIKENESS_DOUBLINGS**2))
        design = np.concatenate([np.ones((len(away), 1)), away], axis=1)
        penalty = _SLOPE_PENALTY * np.eye(5)
        penalty[0, 0] = 1e-9
        weighted = design * weights[:, None]
        solution = np.linalg.solve(design.T @ weighted + penalty, weighted.T @ self._rates)
        near = self._rates[weights > 0.05]
        rate = float(np.clip(solution[0], near.min(), near.max()))
        return math.exp(rate + float(sizes.sum()) * math.log(2.0))


def _on_curve(log_bytes: NDArray[np.float64], log_seconds: NDArray[np.float64], moved_bytes: float) -> float:
    """Interpolate between the logarithms; below and above what was measured, time goes with the bytes."""
    size = math.log(max(moved_bytes, 1.0))
    nearest = float(np.clip(size, log_bytes[0], log_bytes[-1]))
    return math.exp(float(np.interp(nearest, log_bytes, log_seconds)) + size - nearest)
