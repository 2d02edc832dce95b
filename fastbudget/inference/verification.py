"""Is the artifact the model? Compared on real inputs, at several batch sizes, and timed side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..core.errors import InvalidInputError

# float32 against float32 in another summation order: errors grow with depth, measured relative to the output's scale.
_RELATIVE_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Verification:
    """How the artifact compares with the model in eager torch.

    ``max_abs_diff`` and ``max_relative_diff`` (the difference over the output's largest magnitude) are over all inputs
    tried. ``same_predictions`` is the share of positions whose largest output is at the same index. ``latency_ratio``
    is eager torch's time over the artifact's, both on one thread, median of interleaved pairs: above 1 the artifact is
    faster.
    """

    max_abs_diff: float
    max_relative_diff: float
    tolerance: float
    same_predictions: float
    num_examples: int
    batch_sizes: list[int]
    torch_latency_s: float
    artifact_latency_s: float
    latency_ratio: float
    latency_batch_size: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def _outputs(value: Any) -> list[npt.NDArray[Any]]:
    values = value if isinstance(value, list | tuple) else [value]
    for item in values:
        if not hasattr(item, "shape"):
            raise InvalidInputError(
                f"The model must return a tensor or a tuple of tensors, got a {type(item).__name__}; wrap it in a "
                "module that returns its tensors."
            )
    return [np.asarray(item.detach().cpu().numpy() if hasattr(item, "detach") else item) for item in values]


def _compare(expected: Any, actual: Any) -> tuple[float, float, int, int]:
    """Return the largest absolute and relative difference, positions with the same argmax, and positions."""
    largest, relative, same, positions = 0.0, 0.0, 0, 0
    wanted, given = _outputs(expected), _outputs(actual)
    if len(wanted) != len(given):
        raise InvalidInputError(f"The artifact returns {len(given)} outputs where the model returns {len(wanted)}.")
    pairs = list(zip(wanted, given, strict=True))
    for want, got in pairs:
        if want.shape != got.shape:
            raise InvalidInputError(
                f"The artifact returns shape {list(got.shape)} where the model returns {list(want.shape)}."
            )
        finite = np.isfinite(want)
        same_finite = np.array_equal(finite, np.isfinite(got))
        if not same_finite or not np.array_equal(want[~finite], got[~finite], equal_nan=True):
            raise InvalidInputError("The artifact and the model disagree on which outputs are finite.")
        difference = float(np.abs(want[finite].astype(np.float64) - got[finite]).max(initial=0.0))
        scale = float(np.abs(want[finite]).max(initial=0.0))
        largest = max(largest, difference)
        relative = max(relative, difference / scale if scale else difference)
    want, got = pairs[0]
    if want.ndim >= 2:
        same = int((want.argmax(-1) == got.argmax(-1)).sum())
        positions = want[..., 0].size
    return largest, relative, same, positions


def verify(
    model: torch.nn.Module,
    runner: Callable[..., Any],
    batches: Sequence[tuple[torch.Tensor, ...]],
    *,
    pairs: int = 15,
) -> Verification:
    """Compare and time.

    Args:
        model: In eval mode on the CPU.
        runner: The artifact, one thread.
        batches: Inputs of different batch sizes; the last is timed.
        pairs: Interleaved timings.

    Raises:
        InvalidInputError: the difference is beyond the tolerance: the artifact must not be used.
    """
    largest, relative, same, positions, examples = 0.0, 0.0, 0, 0, 0
    with torch.inference_mode():
        for inputs in batches:
            a, r, s, p = _compare(model(*inputs), runner(*inputs))
            largest, relative = max(largest, a), max(relative, r)
            same, positions, examples = same + s, positions + p, examples + len(inputs[0])
        if relative > _RELATIVE_TOLERANCE:
            raise InvalidInputError(
                f"The exported model differs from the original by {relative:.2e} of the output's scale "
                f"(allowed {_RELATIVE_TOLERANCE:.0e}; largest difference {largest:.3g}). Nothing was exported."
            )
        torch_s, artifact_s = _time(lambda: model(*batches[-1]), lambda: runner(*batches[-1]), pairs)
    return Verification(
        max_abs_diff=largest,
        max_relative_diff=relative,
        tolerance=_RELATIVE_TOLERANCE,
        same_predictions=same / positions if positions else 1.0,
        num_examples=examples,
        batch_sizes=[len(inputs[0]) for inputs in batches],
        torch_latency_s=statistics.median(torch_s),
        artifact_latency_s=statistics.median(artifact_s),
        latency_ratio=statistics.median(a / b for a, b in zip(torch_s, artifact_s, strict=True)),
        latency_batch_size=len(batches[-1][0]),
    )


def _time(first: Callable[[], Any], second: Callable[[], Any], pairs: int) -> tuple[list[float], list[float]]:
    """Time two calls in turn, so that a machine that slows down slows both; torch on one thread, as the artifact."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times: tuple[list[float], list[float]] = ([], [])
        for warm in (True, True, *[False] * pairs):
            for call, record in zip((first, second), times, strict=True):
                start = time.perf_counter()
                call()
                if not warm:
                    record.append(time.perf_counter() - start)
        return times
    finally:
        torch.set_num_threads(threads)
