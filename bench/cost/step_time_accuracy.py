"""Predicted against measured step times of real models on this machine's CPU.

    python bench/cost/step_time_accuracy.py                     # one thread and all, about 20 minutes on two cores
    python bench/cost/step_time_accuracy.py --threads 1 --only gpt2 lstm
    python bench/cost/step_time_accuracy.py --calibration calibration.json --threads 1
    python bench/cost/step_time_accuracy.py --docs docs/estimate.md   # write the last run's table there, run nothing

Calibrates (again if the machine was busy), then measures every workload of ``step_time_models.py`` in processes of
their own, all of them once, then all of them again, so that a disturbance hits few of them twice; a workload's time is
the median of the faster half of its steps. With one thread the clock is the thread's CPU time, which other processes
don't enter. The naive baseline is FLOPs over the rate of the largest measured matrix product. Writes
bench/results/step_time_accuracy.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "step_time_accuracy.json"
SECONDS = 1.0
# A calibration that says that the machine was busy is repeated.
CALIBRATIONS, QUIET = 3, 0.15
MARK_BEGIN, MARK_END = "<!-- step_time_accuracy.py: begin -->", "<!-- step_time_accuracy.py: end -->"
PROMISE = {"median_abs_error": 0.20, "coverage": 0.75}


def workload_named(name):
    sys.path.insert(0, str(HERE))
    from step_time_models import workloads

    return {workload.name: workload for workload in workloads()}[name]


def measure(name, threads):
    """Run steps of a workload for real; print their seconds."""
    warnings.filterwarnings("ignore")
    import torch

    from fastbudget.cost.calibration.timing import HostTimer, Samples
    from fastbudget.cost.trace.traced_optimizers import make_optimizer
    from fastbudget.cost.trace.training_step import autocast, call_model, run_training_step

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    workload = workload_named(name)
    model, inputs = workload.build(), workload.inputs()
    model.train(workload.mode == "train")
    optimizer = make_optimizer(workload.optimizer, model.parameters(), foreach=None)

    def step():
        if workload.mode == "train":
            run_training_step(model, [inputs], optimizer, workload.loss, precision=workload.precision)
        else:
            with torch.no_grad(), autocast(workload.precision):
                call_model(model, inputs)

    for _ in range(3):
        step()
    timer, samples, began = HostTimer(), Samples(), time.perf_counter()
    while time.perf_counter() - began < SECONDS or len(samples.seconds) < 9:
        samples.seconds.append(timer.seconds(step, 1))
    print(json.dumps({"seconds": samples.undisturbed_s, "spread": samples.spread, "steps": len(samples.seconds)}))


def in_process(*arguments):
    command = [sys.executable, __file__, *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {answer.stderr}")
    return answer.stdout


def calibrated(threads, path):
    """Calibrate in a process of its own."""
    import torch

    import fastbudget as fb

    torch.set_num_threads(threads)
    fb.calibrate(device="cpu").write(path)


def predict(workload, calibration):
    """Return the estimate beside the naive one."""
    import fastbudget as fb

    found = fb.estimate(
        workload.build,
        workload.inputs,
        optimizer=workload.optimizer,
        precision=workload.precision,
        mode=workload.mode,
        loss=workload.loss,
        hardware="cpu",
        calibration=calibration,
    )
    kind = "bf16" if workload.precision.startswith("bf16") else "fp32"
    return {
        "predicted": found.step_time_s.to_json(),
        "parts": found.time_parts,
        "naive": found.step_flops / calibration.matrix_flops_per_s.get(kind, calibration.matrix_flops_per_s["fp32"]),
    }


def half_width_for(rows, coverage=0.8):
    """Return the half width of the log interval that covers so many rows, other families' rows deciding for each."""
    families = sorted({row["family"] for row in rows})
    widths = []
    for family in families:
        others = sorted(abs(row["log_error"]) for row in rows if row["family"] != family)
        widths.append(others[min(len(others) - 1, math.ceil(coverage * (len(others) + 1)) - 1)] if others else math.nan)
    covered = [
        abs(row["log_error"]) <= width
        for family, width in zip(families, widths, strict=True)
        for row in rows
        if row["family"] == family
    ]
    return {"half_width": statistics.median(widths), "held_out_coverage": sum(covered) / len(covered)}


def summarize(rows):
    errors = sorted(abs(math.expm1(row["log_error"])) for row in rows)
    naive = sorted(abs(row["naive"] / row["measured"] - 1) for row in rows)
    p90 = math.ceil(0.9 * len(rows)) - 1
    return {
        "count": len(rows),
        "median_abs_error": statistics.median(errors),
        "p90_abs_error": errors[p90],
        "coverage": sum(row["covered"] for row in rows) / len(rows),
        "naive_median_abs_error": statistics.median(naive),
        "naive_p90_abs_error": naive[p90],
        **half_width_for(rows),
    }


def markdown(document):
    """Return the results as a table for the guide."""
    machine = document["machine"]
    lines = [
        f"Against real steps on {machine['usable_cpus']} cores of an {machine['cpu']} with torch {machine['torch']} "
        "(`bench/cost/step_time_accuracy.py`: MLPs, convolutional networks, transformers, LSTMs, embedding tables; "
        "training and inference; the naive estimate divides FLOPs by the rate of a large matrix product):",
        "",
        "| | steps | median error | 90th percentile | inside the 80% interval | naive median | naive 90th |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, one in document["summary"].items():
        cells = (
            f"{one['median_abs_error']:.1%}",
            f"{one['p90_abs_error']:.0%}",
            f"{one['coverage']:.0%}",
            f"{one['naive_median_abs_error']:.0%}",
            f"{one['naive_p90_abs_error']:.0%}",
        )
        lines.append(f"| {name} | {one['count']} | {' | '.join(cells)} |")
    worst = sorted(document["rows"], key=lambda row: -abs(row["log_error"]))[:3]
    named = ", ".join(f"{row['workload']} with {row['threads']} ({math.expm1(row['log_error']):+.0%})" for row in worst)
    lines += ["", f"Worst, with threads: {named}."]
    return "\n".join(lines)


def write_docs(path):
    text = path.read_text()
    before, _, rest = text.partition(MARK_BEGIN)
    _, _, after = rest.partition(MARK_END)
    table = markdown(json.loads(RESULTS.read_text()))
    path.write_text(f"{before}{MARK_BEGIN}\n{table}\n{MARK_END}{after}")


def run(threads, only, given, passes):
    """Return a row for each workload with so many threads."""
    import torch

    sys.path.insert(0, str(HERE))
    from step_time_models import workloads

    from fastbudget.cost.runtime.calibration import Calibration

    torch.set_num_threads(threads)
    path = Path(given) if given else RESULTS.with_name(f"calibration_{threads}_threads.json")
    for _ in range(0 if given else CALIBRATIONS):
        in_process("--calibrate", str(threads), str(path))
        if Calibration.read(path).spread <= QUIET:
            break
    calibration = Calibration.read(path)
    if not given:
        path.unlink()
    chosen = [one for one in workloads() if not only or any(one.name.startswith(word) for word in only)]
    taken = {one.name: [] for one in chosen}
    for _ in range(passes):
        for one in chosen:
            taken[one.name].append(json.loads(in_process("--measure", one.name, str(threads))))
    rows = []
    for one in chosen:
        best = min(taken[one.name], key=lambda sample: sample["seconds"])
        found = predict(one, calibration)
        measured, predicted = best["seconds"], found["predicted"]
        row = {
            "workload": one.name,
            "family": one.name.split(" ")[0].rstrip(","),
            "threads": threads,
            "measured": measured,
            "again": max(sample["seconds"] for sample in taken[one.name]) / measured,
            **found,
            "log_error": math.log(predicted["mid"] / measured),
            "covered": predicted["low"] <= measured <= predicted["high"],
        }
        rows.append(row)
        print(
            f"{threads} thread(s)  {one.name:36} measured {measured * 1e3:8.2f} ms  predicted "
            f"{predicted['mid'] * 1e3:8.2f} ms {math.expm1(row['log_error']):+6.0%}  naive "
            f"{found['naive'] / measured - 1:+6.0%}{'' if row['covered'] else '  outside'}",
            flush=True,
        )
    return rows, calibration


def main():
    if sys.argv[1:2] == ["--measure"]:
        return measure(sys.argv[2], int(sys.argv[3]))
    if sys.argv[1:2] == ["--calibrate"]:
        return calibrated(int(sys.argv[2]), sys.argv[3])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, len(os.sched_getaffinity(0))}))
    parser.add_argument("--only", nargs="+", default=[], help="beginnings of workloads' names")
    parser.add_argument("--calibration", help="a file of `fastbudget calibrate`, with one --threads")
    parser.add_argument("--passes", type=int, default=2, help="times that each workload is measured")
    parser.add_argument("--docs", type=Path, help="write the table of the last whole run into this file, and end")
    parser.add_argument("--out", type=Path, help="where results go; by default only a whole run is kept")
    options = parser.parse_args()
    if options.docs:
        write_docs(options.docs)
        return 0
    warnings.filterwarnings("ignore")
    import torch

    from fastbudget.hardware import cpu_name, usable_cpus

    rows, spreads = [], {}
    for threads in options.threads:
        found, calibration = run(threads, options.only, options.calibration, options.passes)
        rows += found
        spreads[str(threads)] = {"spread": calibration.spread, "notes": list(calibration.notes)}
    if not options.only and RESULTS.exists():  # other thread counts' rows stay
        kept = json.loads(RESULTS.read_text())
        rows += [row for row in kept["rows"] if row["threads"] not in options.threads]
        spreads = {**kept["machine"]["calibration"], **spreads}
    rows.sort(key=lambda row: row["threads"])
    summary = {"all": summarize(rows)}
    for threads in sorted({row["threads"] for row in rows}):
        name = "1 thread" if threads == 1 else f"{threads} threads"
        summary[name] = summarize([row for row in rows if row["threads"] == threads])
    print(json.dumps(summary, indent=2))
    machine = {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "torch": torch.__version__, "calibration": spreads}
    if options.out or not options.only:
        document = {"benchmark": "step time accuracy", "machine": machine, "summary": summary, "rows": rows}
        (options.out or RESULTS).write_text(json.dumps(document, indent=1) + "\n")
    every = summary["all"]
    good = every["median_abs_error"] <= PROMISE["median_abs_error"] and every["coverage"] >= PROMISE["coverage"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
