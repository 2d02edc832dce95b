"""Predicted against measured peak memory on the CPU, for many architectures and training settings.

    python bench/cost/memory_accuracy.py                      # the whole table, about 20 minutes on one core
    python bench/cost/memory_accuracy.py --only gpt2 bert     # some architectures
    python bench/cost/memory_accuracy.py --docs docs/accuracy.md

Each architecture runs in a process of its own: 24 settings, each traced and then run for real under
``torch.profiler``. Writes bench/results/memory_accuracy.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "memory_accuracy.json"
PROMISE = 0.005
MARK_BEGIN, MARK_END = "<!-- memory_accuracy.py: begin -->", "<!-- memory_accuracy.py: end -->"

OPTIMIZERS = ("adamw-foreach", "adamw-for-loop", "sgd-momentum")
PRECISIONS = ("fp32", "bf16-mixed")
RECOMPUTE = (False, True)
ACCUMULATION = (1, 2)


def optimizer_named(name):
    import torch

    return {
        "adamw-foreach": partial(torch.optim.AdamW, foreach=True),
        "adamw-for-loop": partial(torch.optim.AdamW, foreach=False),
        "sgd-momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    }[name]


def run_case(architecture, optimizer, precision, recompute, accumulation):
    """Trace and measure one setting; returns a row of the table."""
    from fastbudget.cost.trace.measured_memory import measure_step
    from fastbudget.cost.trace.tracing import trace_step

    settings = {
        "optimizer": optimizer_named(optimizer),
        "precision": precision,
        "recompute": "full" if recompute else "none",
        "grad_accumulation": accumulation,
    }
    began = time.perf_counter()
    trace = trace_step(architecture.factory, architecture.inputs, **settings)
    traced = time.perf_counter()
    measured = measure_step(architecture.factory, architecture.inputs, **settings)
    return {
        "optimizer": optimizer,
        "precision": precision,
        "recompute": recompute,
        "grad_accumulation": accumulation,
        "predicted_bytes": trace.log.peak_bytes,
        "measured_bytes": measured,
        "error": trace.log.peak_bytes / measured - 1,
        "trace_s": round(traced - began, 2),
    }


def run_architecture(name):
    """Print one JSON row a line for every setting of an architecture."""
    warnings.filterwarnings("ignore")
    import torch
    import transformers

    sys.path.insert(0, str(HERE))
    from transformer_models import architecture

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    model = architecture(name)
    for setting in itertools.product(OPTIMIZERS, PRECISIONS, RECOMPUTE, ACCUMULATION):
        print(json.dumps({"architecture": name, **run_case(model, *setting)}), flush=True)


def summarize(rows):
    """Return one line of the table for every architecture: name, errors, the worst setting."""
    lines = []
    for name, group in itertools.groupby(sorted(rows, key=lambda r: r["architecture"]), lambda r: r["architecture"]):
        cases = list(group)
        errors = [abs(case["error"]) for case in cases]
        worst = max(cases, key=lambda case: abs(case["error"]))
        setting = (
            f"{worst['optimizer']}, {worst['precision']}, recompute {'on' if worst['recompute'] else 'off'}, "
            f"accumulation {worst['grad_accumulation']}"
        )
        sizes = [case["measured_bytes"] / 2**20 for case in cases]
        lines.append(
            f"| {name} | {len(cases)} | {min(sizes):.1f}–{max(sizes):.1f} | "
            f"{statistics.median(errors):.4%} | "
            f"{max(errors):.4%} | {setting} |"
        )
    return lines


def markdown(rows, machine):
    errors = [abs(row["error"]) for row in rows]
    within = sum(error <= PROMISE for error in errors)
    head = (
        f"{within} of {len(rows)} cases within {PROMISE:.1%}; median error {statistics.median(errors):.4%}, "
        f"largest {max(errors):.4%}. Made by `bench/cost/memory_accuracy.py` with torch {machine['torch']}, "
        f"transformers {machine['transformers']}, {machine['threads']} thread, on {machine['processor']}.\n\n"
        "| architecture | cases | measured peak, MiB | median error | largest error | worst setting |\n"
        "|---|---:|---:|---:|---:|---|\n"
    )
    return head + "\n".join(summarize(rows)) + "\n"


def run_child(name):
    """Run an architecture in a process of its own: no memory of another one's run is about."""
    return subprocess.run(
        [sys.executable, __file__, "--child", name],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def machine_description():
    import torch
    import transformers

    model = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": model[0] if model else platform.processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": 1,
    }


def write_docs(path, table):
    text = path.read_text() if path.exists() else "# Accuracy of the estimates\n\n## Peak memory on the CPU\n\n"
    if MARK_BEGIN in text:
        before, rest = text.split(MARK_BEGIN, 1)
        text = before + MARK_BEGIN + "\n" + table + MARK_END + rest.split(MARK_END, 1)[1]
    else:
        text = f"{text}{MARK_BEGIN}\n{table}{MARK_END}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", nargs="*", metavar="ARCHITECTURE")
    parser.add_argument("--jobs", type=int, default=1, help="architectures to run at the same time")
    parser.add_argument("--docs", type=Path, help="put the table into this Markdown file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_architecture(options.child)
        return 0
    sys.path.insert(0, str(HERE))
    from transformer_models import NAMES

    rows, failures = [], []
    names = options.only or NAMES
    with ThreadPoolExecutor(options.jobs) as pool:
        for name, child in zip(names, pool.map(run_child, names), strict=True):
            new = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]
            rows += new
            largest = max((abs(row["error"]) for row in new), default=float("nan"))
            print(f"{name:14s} {len(new):3d} cases, largest error {largest:.4%}", flush=True)
            if child.returncode:
                failures.append(name)
                print(child.stderr[-1500:], file=sys.stderr)
    machine = machine_description()
    if not options.only:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps({"machine": machine, "failures": failures, "rows": rows}, indent=1) + "\n")
    table = markdown(rows, machine)
    if options.docs:
        write_docs(options.docs, table)
    print(table)
    return 1 if failures or any(abs(row["error"]) > PROMISE for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
