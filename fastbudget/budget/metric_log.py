"""Numbers per step as JSON lines, at the price of a list append; they are written out a few times a second."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any


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
            record: dict[str, float | None] = {"step": step}
            for name, value in values.items():
                number = float(value)
                record[name] = number if math.isfinite(number) else None
            lines.append(json.dumps(record))
        self._records.clear()
        self._file.write("\n".join(lines) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Write the rest."""
        self.flush()
        self._file.close()
