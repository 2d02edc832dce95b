"""How far predictions are from published figures of real runs.

Run: python bench/cost/scoreboard.py --runs CSV [--memory CSV] [--json | --markdown] [--rows]

The CSVs have the columns of published_runs.csv and published_memory.csv. Errors are fractions of the published
figure. In the headline figures of time every publisher weighs the same; "by row" every row does.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from memory_scores import print_memory, print_memory_rows, score_memory
from published_runs import read_runs
from run_scores import predict_publicly, rows_of, score_runs, summary
from run_tables import markdown_table, print_run_rows, print_runs


def score_time(*paths: Path, leave_one_publisher_out: bool) -> dict[str, Any]:
    """Return the scoreboard of tables of runs."""
    runs, not_modeled = read_runs(*paths)
    predict = predict_publicly
    if leave_one_publisher_out:
        from held_out_publishers import predictor  # fits the model once per publisher

        predict = predictor(runs)
    scored = score_runs(runs, not_modeled, predict)
    return {
        "rows": len(scored) + not_modeled.total(),
        **summary(scored),
        "leave_one_publisher_out": leave_one_publisher_out,
        "not_modeled": dict(not_modeled.most_common()),
        "scored": rows_of(scored),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, nargs="+", metavar="CSV", help="published training runs")
    parser.add_argument("--memory", type=Path, help="CSV of published memory figures")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/accuracy.md")
    parser.add_argument("--rows", action="store_true", help="also print every row scored")
    parser.add_argument(
        "--leave-one-publisher-out", action="store_true", help="predict each publisher by a model fitted on the others"
    )
    options = parser.parse_args()
    if options.runs is None and options.memory is None:
        parser.error("give --runs CSV, --memory CSV or both")
    if options.markdown and options.runs is None:
        parser.error("--markdown needs --runs CSV")
    results = {}
    if options.runs is not None:
        results["runs"] = score_time(*options.runs, leave_one_publisher_out=options.leave_one_publisher_out)
    if options.memory is not None:
        results["memory"] = score_memory(options.memory)
    if options.json:
        if not options.rows:
            for result in results.values():
                del result["scored"]
        print(json.dumps(results, indent=1))
        return
    if options.markdown:
        print(markdown_table(results["runs"]))
        return
    if "runs" in results:
        print_runs(results["runs"])
        if options.rows:
            print_run_rows(results["runs"]["scored"])
    if "memory" in results:
        print_memory(results["memory"])
        if options.rows:
            print_memory_rows(results["memory"]["scored"])


if __name__ == "__main__":
    main()
