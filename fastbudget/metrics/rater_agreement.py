"""Agreement of people who rate the same items: Cohen's and Fleiss' kappa, Krippendorff's alpha."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError, one_of

Level = Literal["nominal", "ordinal", "interval"]


def cohen_kappa(first: Any, second: Any) -> float:
    """Agreement of two raters beyond chance.

    Source: J. Cohen, Educational and Psychological Measurement 20 (1960), 37-46.

    Args:
        first: One rating (a number or text) per item.
        second: As many, of the other rater.

    Raises:
        InvalidInputError: different lengths, no item, or both raters always gave one and the same rating.
    """
    a, b = list(first), list(second)
    if len(a) != len(b) or not a:
        raise InvalidInputError(f"cohen_kappa needs two ratings of each of some items, got {len(a)} and {len(b)}.")
    table = _counts([list(pair) for pair in zip(a, b, strict=True)])
    observed = float(np.mean([x == y for x, y in zip(a, b, strict=True)]))
    categories = sorted({*a, *b}, key=str)
    chance = sum(a.count(category) * b.count(category) for category in categories) / len(a) ** 2
    return _beyond_chance(observed, chance, table)


def fleiss_kappa(ratings: Any) -> float:
    """Agreement of any number of raters beyond chance; every item has equally many ratings.

    Source: J. L. Fleiss, "Measuring nominal scale agreement among many raters", Psychological Bulletin 76 (1971).

    Args:
        ratings: [items][raters] of numbers or texts; raters may differ from item to item.

    Raises:
        InvalidInputError: items with different numbers of ratings, fewer than two, or one rating everywhere.
    """
    rows = [list(row) for row in ratings]
    if not rows or len({len(row) for row in rows}) != 1 or len(rows[0]) < 2:
        raise InvalidInputError(
            "fleiss_kappa needs the same number of ratings, two or more, for every item; krippendorff_alpha takes gaps."
        )
    counts = _counts(rows)
    raters = len(rows[0])
    observed = float(((counts**2).sum(1) - raters).mean() / (raters * (raters - 1)))
    chance = float(np.square(counts.sum(0) / counts.sum()).sum())
    return _beyond_chance(observed, chance, counts)


def krippendorff_alpha(ratings: Any, level: Level = "nominal") -> float:
    """Agreement of any number of raters who may have left out items: 1 - observed over expected disagreement.

    Source: K. Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011).

    Args:
        ratings: [items][raters] of numbers (texts for nominal ones); None or NaN: not rated.
        level: How ratings differ: ``"nominal"``, ``"ordinal"`` or ``"interval"``.

    Raises:
        InvalidInputError: no item with two ratings, or one rating everywhere.
    """
    if level not in get_args(Level):
        raise InvalidInputError(f"level must be one of {one_of(get_args(Level))}, got {level!r}.")
    rows = [[rating for rating in row if rating is not None and rating == rating] for row in ratings]
    rows = [row for row in rows if len(row) >= 2]
    if not rows:
        raise InvalidInputError("krippendorff_alpha needs an item with two ratings or more.")
    categories = sorted({rating for row in rows for rating in row}, key=str if level == "nominal" else None)
    counts = _counts(rows, categories)
    totals = counts.sum(0)
    distance = _distances(categories, totals, level)
    pairs = np.einsum("uc,uk,u->ck", counts, counts, 1 / (counts.sum(1) - 1))
    pairs -= np.diag((counts / (counts.sum(1) - 1)[:, None]).sum(0))
    expected = (np.outer(totals, totals) * distance).sum() / (totals.sum() - 1)
    if expected == 0:
        raise InvalidInputError("Agreement is undefined: every rating is the same.")
    return float(1 - (pairs * distance).sum() / expected)


def _distances(categories: list[Any], totals: npt.NDArray[Any], level: Level) -> npt.NDArray[np.float64]:
    n = len(categories)
    if level == "nominal":
        return 1.0 - np.eye(n)
    if level == "interval":
        values = np.array(categories, np.float64)
        return np.asarray(np.square(values[:, None] - values[None]))
    between = np.cumsum(totals) - totals / 2  # ordinal: ratings that lie between, the ends half
    return np.asarray(np.square(between[:, None] - between[None]))


def _counts(rows: list[list[Any]], categories: list[Any] | None = None) -> npt.NDArray[np.float64]:
    known = categories or sorted({rating for row in rows for rating in row}, key=str)
    return np.array([[row.count(category) for category in known] for row in rows], np.float64)


def _beyond_chance(observed: float, chance: float, counts: npt.NDArray[np.float64]) -> float:
    if counts.shape[1] < 2:
        raise InvalidInputError("Agreement is undefined: every rating is the same.")
    return (observed - chance) / (1 - chance)
