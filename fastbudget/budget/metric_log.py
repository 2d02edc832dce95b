"""Numbers per step as JSON lines, at the price of a list append; they are written out a few times a second."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any


@functools.cache
def _quoted(name: str) -> str:
    return json.dumps(name)


class MetricLog:
    """Appends records to a file. Values may be anything that float() takes; a tensor on a GPU is read when written.

    Args:
        path: Made when missing.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        self._records: list[tuple[int, dict[str, Any]]] = []
        self.add = self._records.append

    def flush(self) -> None:
        """Write what was added since. JSON has no NaN: a value that isn't finite is null."""
        if not self._records:
            return
        lines = []
        for step, values in self._records:
            numbers = [
                # The shortest text of a finite float is a JSON number.
                f", {_quoted(name)}: {number!r}"
                if math.isfinite(number := float(value))
                else f", {_quoted(name)}: null"
                for name, value in values.items()
            ]
            lines.append(f'{{"step": {step}{"".join(numbers)}}}')
        self._records.clear()
        self._file.write("\n".join(lines) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Write the rest."""
        self.flush()
        self._file.close()
