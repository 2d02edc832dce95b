"""Blocks chosen for recompute: the peak predicted against the one measured on the CPU, and the computation added.

    python bench/training/recompute.py [--only gpt2 vit] [--json bench/results/recompute.json]

For each model the step's peak without recompute and with every block recomputed is traced; limits between the two
(25%, 50%, 75% of the way, and all of it) are given to the search, and two steps with the blocks it chose are run for
real under `torch.profiler`, which counts every allocation. Each model runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch

from fastbudget.cost import find_blocks, measure_step, smallest_recompute, trace_step
from fastbudget.hardware import cpu_name

HERE = Path(__file__).parent
SHARES = (0.25, 0.5, 0.75, 1.0)
NAMES = ("gpt2", "llama", "bert", "vit", "resnet", "t5")


def rows_of(name: str) -> list[dict]:
    sys.path.insert(0, str(HERE.parent / "cost"))
    from transformer_models import architecture

    model = architecture(name)
    built = model.factory()
    blocks = tuple(find_blocks(built))

    def traced(names):
        return trace_step(model.factory, model.inputs, recompute=names)

    highest, lowest = traced(()).log.peak_bytes, traced(blocks).log.peak_bytes
    rows = []
    for share in SHARES:
        limit = int(highest - share * (highest - lowest))
        began = time.perf_counter()
        choice = smallest_recompute(traced, blocks, limit_bytes=limit)
        seconds = time.perf_counter() - began
        measured = measure_step(model.factory, model.inputs, recompute=choice.blocks)
        rows.append(
            {
                "model": name,
                "blocks": len(blocks),
                "recomputed": len(choice.blocks),
                "limit_bytes": limit,
                "peak_without_bytes": highest,
                "predicted_bytes": choice.peak_bytes,
                "measured_bytes": measured,
                "error": choice.peak_bytes / measured - 1,
                "measured_within_limit": measured <= limit,
                "extra_flops": choice.extra_flops,
                "extra_flops_share": choice.extra_flops / choice.step_flops_without,
                "search_s": round(seconds, 1),
            }
        )
    return rows


def largest_error(rows: list[dict]) -> float:
    return max((abs(row["error"]) for row in rows), default=float("nan"))


def write(path: Path, rows: list[dict], failures: list[str]) -> None:
    machine = {"processor": cpu_name(), "torch": torch.__version__, "threads": 1}
    document = {"machine": machine, "failures": failures, "largest_error": largest_error(rows), "rows": rows}
    path.write_text(json.dumps(document, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", nargs="*", default=NAMES)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        warnings.filterwarnings("ignore")
        torch.set_num_threads(1)
        print(json.dumps(rows_of(options.child)))
        return 0
    rows, failures = [], []
    for name in options.only:
        command = [sys.executable, __file__, "--child", name]
        child = subprocess.run(command, capture_output=True, text=True, check=False)
        if child.returncode:
            failures.append(name)
            print(f"{name}: failed\n{child.stderr[-800:]}", file=sys.stderr)
            continue
        for row in json.loads(child.stdout.splitlines()[-1]):
            rows.append(row)
            print(
                f"{row['model']:8s} {row['recomputed']:2d} of {row['blocks']:2d} blocks, peak "
                f"{row['predicted_bytes'] / 2**20:7.2f} MiB predicted, {row['measured_bytes'] / 2**20:7.2f} measured "
                f"({row['error']:+.3%}), {row['peak_without_bytes'] / 2**20:7.2f} without; "
                f"FLOPs +{row['extra_flops_share']:.1%}; search {row['search_s']} s",
                flush=True,
            )
        if options.json:  # after each model: the search traces many steps
            write(options.json, rows, failures)
    worst = largest_error(rows)
    print(f"largest error {worst:.4%} over {len(rows)} choices")
    return 1 if failures or worst > 0.005 else 0


if __name__ == "__main__":
    sys.exit(main())
