"""A run's quality checklist as a section of the HTML report."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

CHECKLIST_FILE = "checklist.json"

_WORDS = {"pass": "passes", "fail": "FAILS", "not done": "not done"}


def checklist_section(path: Path) -> str | None:
    """Return the section, or None if the run has no checklist; a damaged one is said to be so."""
    try:
        document = json.loads(path.read_bytes())
        rows = "".join(_row(item) for item in document["items"])
        phase, passed = str(document["phase"]), document["passed"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"<p class=missing>{path.name} could not be read: {type(error).__name__}.</p>"
    verdict = "Every item passes." if passed else "Not every item passes."
    head = "".join(f"<th scope=col>{name}</th>" for name in ("Question", "Status", "Evidence"))
    return f"<p>Phase {escape(phase)}. {verdict}</p><div class=scroll><table><tr>{head}</tr>{rows}</table></div>"


def _row(item: dict[str, Any]) -> str:
    status = _WORDS.get(item["status"], item["status"])
    return (
        f"<tr><th scope=row>{escape(item['question'])}</th><td>{escape(status)}</td>"
        f"<td>{escape(item['evidence'])}</td></tr>"
    )
