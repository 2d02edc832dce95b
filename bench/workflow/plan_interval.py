"""Does the plan's 80% interval hold what short digits runs then spend?

    python bench/workflow/plan_interval.py [--runs 10] [--json FILE]

Each run plans, trains 400 steps and evaluates, in this process. Prints planned and spent seconds of each and the
share inside the interval; `ratio` is spent / predicted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import fastbudget as fb
from fastbudget.hardware import cpu_name, usable_cpus

WORK = """\
model: fastbudget.workflow.workloads.digits:build_model
data: fastbudget.workflow.workloads.digits:build_data
optimizer: {lr: 0.003}
train: {max_steps: 400, evaluate_every: 100}
budget: {gpu_hours: 0.1}
metrics: [accuracy]
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory) / "work.yaml"
        work.write_text(WORK)
        for index in range(options.runs):
            record = fb.run(work, run_dir=Path(directory) / str(index), export_model=False)
            interval = record.plan["predicted_device_hours_interval"]
            spent = record.train["spent_device_hours"]
            row = {name: value * 3600 for name, value in interval.items()} | {"spent": spent * 3600}
            row |= {"inside": interval["low"] <= spent <= interval["high"], "ratio": spent / interval["mid"]}
            rows.append(row)
            print("{low:6.2f} {mid:6.2f} {high:6.2f} s predicted, {spent:6.2f} s spent, inside: {inside}".format(**row))
    covered = statistics.mean(row["inside"] for row in rows)
    ratio = statistics.median(row["ratio"] for row in rows)
    print(f"{covered:.0%} of {len(rows)} runs inside the 80% interval; spent / predicted {ratio:.2f} at the median")
    if options.json:
        machine = {"cpu": cpu_name(), "usable_cpus": usable_cpus()}
        document = {"benchmark": "plan interval", "machine": machine, "covered": covered, "median_ratio": ratio}
        options.json.write_text(json.dumps(document | {"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
