"""Write the scoreboard of time into bench/results/scoreboard_runs.json and the tables of docs/accuracy.md.

Over the given tables and published_full_runs.csv together: each publisher predicted by a model fitted on the others,
which is how a new source would do, and the shipped constants on the rows they were fitted on. What the shipped
constants give on published_full_runs.csv alone is what tests hold.

Run: python bench/cost/scoreboard_results.py --runs published_runs.csv [--docs docs/accuracy.md]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from run_tables import markdown_table
from scoreboard import score_time

HERE = Path(__file__).parent
FULL_RUNS = HERE / "published_full_runs.csv"
RESULTS = HERE.parent / "results" / "scoreboard_runs.json"
TITLES = {
    "leave_one_publisher_out": "Each publisher predicted by a model fitted on the others",
    "runs": "The shipped constants, on the rows they were fitted on",
}
MARK_BEGIN, MARK_END = "<!-- scoreboard_results.py: begin -->", "<!-- scoreboard_results.py: end -->"


def machine_description() -> dict[str, Any]:
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": names[0] if names else platform.processor(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def documented(results: dict[str, Any]) -> str:
    parts = []
    for name, title in TITLES.items():
        if name in results:
            parts.append(f"**{title}**, {results[name]['count']} figures:\n\n{markdown_table(results[name])}\n")
    return "\n".join(parts)


def write_docs(path: Path, table: str) -> None:
    before, rest = path.read_text().split(MARK_BEGIN, 1)
    path.write_text(f"{before}{MARK_BEGIN}\n{table}{MARK_END}{rest.split(MARK_END, 1)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, nargs="+", required=True, metavar="CSV", help="published training runs")
    parser.add_argument(
        "--held-out", type=Path, help="what scoreboard.py --leave-one-publisher-out --json printed; else it's run"
    )
    parser.add_argument("--docs", type=Path, help="put the tables into this Markdown file")
    options = parser.parse_args()
    results: dict[str, Any] = {
        "full_runs": score_time(FULL_RUNS, leave_one_publisher_out=False),
        "runs": score_time(*options.runs, FULL_RUNS, leave_one_publisher_out=False),
        "leave_one_publisher_out": json.loads(options.held_out.read_text())["runs"]
        if options.held_out
        else score_time(*options.runs, FULL_RUNS, leave_one_publisher_out=True),
    }
    for result in results.values():
        result.pop("scored", None)
    RESULTS.write_text(json.dumps({"machine": machine_description(), **results}, indent=1) + "\n")
    table = documented(results)
    if options.docs:
        write_docs(options.docs, table)
    print(table)


if __name__ == "__main__":
    main()
