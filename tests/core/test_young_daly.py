"""The checkpoint interval against the waste it is meant to minimize."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import fastbudget as fb


def expected_waste(interval_s: float, stall_s: float, mtbf_s: float) -> float:
    """Share of time lost with exponential failures (Daly 2006, eq. 13, restart time 0)."""
    cycle_s = mtbf_s * math.expm1((interval_s + stall_s) / mtbf_s)
    return 1 - interval_s / cycle_s


@pytest.mark.parametrize(("stall_s", "mtbf_s"), [(0.5, 3600.0), (5.0, 86_400.0), (30.0, 1800.0), (60.0, 30_000.0)])
def test_no_other_interval_wastes_noticeably_less(stall_s: float, mtbf_s: float) -> None:
    chosen = fb.checkpoint_interval(stall_s, mtbf_s)
    assert chosen == pytest.approx(math.sqrt(2 * stall_s * mtbf_s))
    waste = expected_waste(chosen, stall_s, mtbf_s)
    best = min(expected_waste(chosen * factor, stall_s, mtbf_s) for factor in np.geomspace(0.1, 10, 401))
    assert waste <= 1.01 * best
    assert waste < 0.7 * min(expected_waste(chosen * factor, stall_s, mtbf_s) for factor in (0.2, 5.0))


def test_extremes() -> None:
    assert fb.checkpoint_interval(0.0, 100.0) == 0.0
    assert fb.checkpoint_interval(1000.0, 100.0) == 100.0


@pytest.mark.parametrize("arguments", [(-1.0, 10.0), (1.0, 0.0), (1.0, math.inf), (math.nan, 10.0), (1.0, math.nan)])
def test_impossible_values_are_refused(arguments: Any) -> None:
    with pytest.raises(fb.InvalidInputError, match="_s must be"):
        fb.checkpoint_interval(*arguments)
