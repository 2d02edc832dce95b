from __future__ import annotations

import time

import pytest

import fastbudget as fb
from fastbudget.core import errors, units
from fastbudget.core.clock import SystemClock, utc_text
from fastbudget.core.registry import Registry


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (1000, "1 k"), (1_234_567, "1.23 M"), (-2.5e9, "-2.5 G"), (999_999, "1 M"), (0.5, "0.5")],
)
def test_counts_have_decimal_prefixes(value: float, text: str) -> None:
    assert units.format_count(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (2**31, "2.00 GiB")])
def test_bytes_have_binary_prefixes(value: float, text: str) -> None:
    assert units.format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2e-6, "2 µs"), (0.0042, "4.2 ms"), (1.5, "1.5 s"), (60, "1 min 0 s"), (4000, "1 h 6 min 40 s"),
        (-0.0042, "-4.2 ms"), (3600 * 2000, "2,000 h 0 min 0 s"),
    ],
)  # fmt: skip
def test_durations(value: float, text: str) -> None:
    assert units.format_seconds(value) == text


def test_an_interval_is_ordered_and_scales() -> None:
    interval = fb.Interval(1, 2, 4)
    assert interval.scaled(3) == fb.Interval(3, 6, 12)
    assert interval + interval == fb.Interval(2, 4, 8)
    for wrong in ((2, 1, 3), (1, 4, 3), (1, float("nan"), 3)):
        with pytest.raises(fb.InvalidInputError):
            fb.Interval(*wrong)


def test_a_registry_suggests_and_refuses_a_taken_name() -> None:
    registry: Registry[int] = Registry("animal")
    registry.add("tiger", 1)
    registry.add("lion", 2)
    assert registry.get("tiger") == 1 and list(registry) == ["tiger", "lion"] and "lion" in registry
    with pytest.raises(fb.InvalidInputError, match=r"Unknown animal 'tigre'\. Did you mean 'tiger'\?"):
        registry.get("tigre")
    with pytest.raises(fb.InvalidInputError, match="registered already"):
        registry.add("lion", 3)
    assert registry.get("lion") == 2
    assert errors.did_you_mean("zebra", registry) == ""


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (fb.InvalidInputError, ValueError), (fb.ConfigurationError, ValueError), (fb.BudgetTooSmallError, ValueError),
        (fb.RunDirectoryError, RuntimeError), (fb.SaveError, OSError), (fb.NonFiniteLossError, ArithmeticError),
        (fb.MissingExtraError, ImportError),
    ],
)  # fmt: skip
def test_errors_are_also_what_users_expect(error: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(error, fb.FastbudgetError)
    assert issubclass(error, builtin)


def test_the_system_clock_agrees_with_the_machine() -> None:
    clock = SystemClock()
    first = clock.monotonic()
    assert clock.monotonic() >= first
    assert abs(clock.wall() - time.time()) < 1
    assert utc_text(0) == "1970-01-01T00:00:00.000Z"
    assert utc_text(1.9999) == "1970-01-01T00:00:01.999Z"
