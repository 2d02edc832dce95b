"""Blinded sheets for human raters, and what their ratings say."""

from __future__ import annotations

import csv
import html
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.durable_files import write_durably
from ..core.errors import InvalidInputError
from ..stats import wilson_interval

_FIELDS = ("item", "input", "output", "rating", "comment")


@dataclass(frozen=True, kw_only=True)
class Rating:
    """One rater's rating of one system's output on one input."""

    rater: str
    system: str
    index: int
    rating: float


@dataclass(frozen=True, kw_only=True)
class Preference:
    """How often one system was rated above another on the same input by the same rater.

    ``share`` is wins among the comparisons that were no ties, with Wilson's interval, or None if all were ties. The
    interval takes comparisons for independent: several raters of one input make it too narrow.
    """

    wins: int
    losses: int
    ties: int
    share: float | None
    low: float | None
    high: float | None
    confidence: float


def write_rating_sheet(
    path: str | Path,
    inputs: Sequence[str],
    outputs: Mapping[str, Sequence[str]],
    *,
    sample: int | None = None,
    seed: int = 0,
) -> Path:
    """Write a sheet that doesn't tell whose output is whose, and beside it the key that does.

    Args:
        path: ``.csv``, or ``.html`` for a page that raters fill in and download as CSV.
        inputs: What the systems were given.
        outputs: System to its outputs, one per input.
        sample: So many inputs, drawn at random; None: all.
        seed: Of the drawing and shuffling.

    Returns:
        The key's path, ``<path>.key.json``: keep it from the raters.

    Raises:
        InvalidInputError: numbers of outputs that don't match, another ending, or a sample larger than the inputs.
    """
    path = Path(path)
    texts = list(inputs)
    if path.suffix not in (".csv", ".html"):
        raise InvalidInputError(f"path must end in .csv or .html, got {path.name!r}.")
    if not texts or not outputs:
        raise InvalidInputError("A rating sheet needs at least one input and one system.")
    for system, given in outputs.items():
        if len(given) != len(texts):
            raise InvalidInputError(f"outputs[{system!r}] has {len(given)} entries for {len(texts)} inputs.")
    if sample is not None and not 1 <= sample <= len(texts):
        raise InvalidInputError(f"sample must be between 1 and the {len(texts)} inputs, got {sample}.")
    generator = random.Random(seed)
    chosen = sorted(generator.sample(range(len(texts)), sample or len(texts)))
    rows = [(index, system) for index in chosen for system in outputs]
    generator.shuffle(rows)
    items = [
        {"item": f"{number:05}", "input": texts[index], "output": outputs[system][index], "rating": "", "comment": ""}
        for number, (index, system) in enumerate(rows, 1)
    ]
    key = {item["item"]: {"system": system, "index": index} for item, (index, system) in zip(items, rows, strict=True)}
    key_path = path.with_name(path.name + ".key.json")
    write_durably(key_path, json.dumps({"version": 1, "seed": seed, "items": key}, indent=1).encode())
    write_durably(path, (_as_csv(items) if path.suffix == ".csv" else _as_html(items)).encode())
    return key_path


def read_ratings(sheets: Mapping[str, str | Path], key: str | Path) -> list[Rating]:
    """Return the ratings of filled sheets; rows without a rating are left out.

    Args:
        sheets: Rater to the CSV file that came back.
        key: From `write_rating_sheet`.

    Raises:
        InvalidInputError: a rating that is no number, an item that is not the key's or comes twice; with file and row.
    """
    known = json.loads(Path(key).read_text())["items"]
    ratings = []
    for rater, sheet in sheets.items():
        seen = set()
        with Path(sheet).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if not {"item", "rating"} <= set(reader.fieldnames or ()):
                raise InvalidInputError(f"{sheet} needs the columns item and rating, got {reader.fieldnames}.")
            for row in reader:
                place = f"{sheet}, line {reader.line_num}"
                item, text = (row["item"] or "").strip().zfill(5), (row["rating"] or "").strip()
                if item not in known or item in seen:
                    problem = "comes twice" if item in seen else "is not in the key"
                    raise InvalidInputError(f"{place}: item {item!r} {problem}.")
                seen.add(item)
                if text:
                    ratings.append(Rating(rater=rater, rating=_number(text, place), **known[item]))
    return ratings


def rating_table(ratings: Sequence[Rating]) -> list[list[float | None]]:
    """Return [items][raters] with None for what wasn't rated, as `krippendorff_alpha` takes it."""
    raters = sorted({rating.rater for rating in ratings})
    table: dict[tuple[int, str], dict[str, float]] = {}
    for rating in ratings:
        table.setdefault((rating.index, rating.system), {})[rating.rater] = rating.rating
    return [[row.get(rater) for rater in raters] for _, row in sorted(table.items())]


def paired_preference(ratings: Sequence[Rating], first: str, second: str, confidence: float = 0.95) -> Preference:
    """Compare two systems where the same rater rated both on the same input; higher ratings are better.

    Raises:
        InvalidInputError: no rater rated both on any input.
    """
    given = {(rating.rater, rating.index, rating.system): rating.rating for rating in ratings}
    both = [
        (value, given[rater, index, second])
        for (rater, index, system), value in given.items()
        if system == first and (rater, index, second) in given
    ]
    if not both:
        raise InvalidInputError(f"No rater rated both {first!r} and {second!r} on one input.")
    wins, losses = sum(a > b for a, b in both), sum(a < b for a, b in both)
    decided = wins + losses
    low, high = wilson_interval(wins, decided, confidence) if decided else (None, None)
    return Preference(
        wins=wins,
        losses=losses,
        ties=len(both) - decided,
        share=wins / decided if decided else None,
        low=low,
        high=high,
        confidence=confidence,
    )


def _number(text: str, place: str) -> float:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        raise InvalidInputError(f"{place}: the rating {text!r} is no number.") from None


def _as_csv(items: list[dict[str, Any]]) -> str:
    from io import StringIO

    text = StringIO()
    writer = csv.DictWriter(text, _FIELDS)
    writer.writeheader()
    # A spreadsheet would run what begins like a formula.
    writer.writerows(
        {name: f"'{v}" if v[:1] in ("=", "+", "@", "-") else v for name, v in item.items()} for item in items
    )
    return text.getvalue()


_PAGE = """<!doctype html><meta charset="utf-8"><title>Rating sheet</title>
<style>body{font:16px sans-serif;max-width:60em;margin:auto}article{border-top:1px solid #999;padding:1em 0}
pre{white-space:pre-wrap;font:inherit;background:#f4f4f4;padding:.5em}</style>
<h1>Rating sheet</h1><p>Rate every output, then download the ratings and send the file back.</p>
%s
<p><button id="save">Download ratings</button></p>
<script>
document.getElementById("save").onclick = () => {
  const quote = (text) => '"' + text.replace(/"/g, '""') + '"';
  const rows = [...document.querySelectorAll("article")].map((article) =>
    [article.id, article.querySelector("input").value, article.querySelector("textarea").value].map(quote).join(","));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(["item,rating,comment\\n" + rows.join("\\n") + "\\n"], {type: "text/csv"}));
  link.download = "ratings.csv";
  link.click();
};
</script>
"""


def _as_html(items: list[dict[str, Any]]) -> str:
    articles = [
        f'<article id="{item["item"]}"><h2>{item["item"]}</h2><h3>Input</h3><pre>{html.escape(item["input"])}</pre>'
        f"<h3>Output</h3><pre>{html.escape(item['output'])}</pre>"
        '<label>Rating <input type="number" step="any"></label> <label>Comment <textarea></textarea></label></article>'
        for item in items
    ]
    return _PAGE.replace("%s", "\n".join(articles))
