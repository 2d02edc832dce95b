"""How fast a plan is found, and whether it is right: candidates per second, verdicts, optima, published layouts.

    python bench/cost/planner_speed.py            # about two minutes on one core
    python bench/cost/planner_speed.py --quick    # a few seconds
    python bench/cost/planner_speed.py --json

- speed: layouts per second of whole plans, memory and money included (best of --repeats), on the clock and in
  seconds of a core, which a busy machine disturbs less.
- verdicts: layouts drawn at random from the spaces of those plans: what the bound says against the full estimate.
- exhaustive: small spaces in which every layout is estimated and accounted in full; the plan must find the same
  optimum.
- published: layouts that were really used, beside the best of the same devices.

Writes bench/results/planner_speed.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import fastbudget as fb
from fastbudget.cost.planner.search_space import SearchSpace, default_counts, default_space, layouts
from fastbudget.cost.transformer.memory_bound import memory_bound
from fastbudget.cost.transformer.transformer_memory import MARGIN, estimate_transformer_memory
from fastbudget.hardware import cpu_name, find_device, usable_cpus

RESULTS = Path(__file__).parents[1] / "results" / "planner_speed.json"


def job(config: str, seq_len: int, batch: int, tokens: float = 1e12, **others: Any) -> fb.TrainingJob:
    return fb.TrainingJob(config=config, tokens=tokens, seq_len=seq_len, global_batch_size=batch, **others)


PLANS: dict[str, tuple[fb.TrainingJob, dict[str, Any]]] = {
    "gpt2 on 8": (job("gpt2", 1024, 512, 1e10), {"hardware": ["a100-80gb"], "max_devices": 8}),
    "llama-3-8b on 512": (
        job("llama-3-8b", 8192, 1024),
        {"hardware": ["h100-sxm", "a100-80gb"], "max_devices": 512, "deadline_hours": 720.0},
    ),
    "llama-2-70b on 2,048": (job("llama-2-70b", 4096, 1024), {"hardware": ["h100-sxm"], "max_devices": 2048}),
    "mixtral-8x7b on 512": (job("mixtral-8x7b", 4096, 1024), {"hardware": ["h100-sxm"], "max_devices": 512}),
    "llama-3.1-405b on 16,384": (
        job("llama-3.1-405b", 8192, 2048, 15.6e12),
        {"hardware": ["h100-sxm"], "max_devices": 16384, "objective": "time"},
    ),
}
SMALL: dict[str, tuple[fb.TrainingJob, dict[str, Any]]] = {
    "llama-3-8b on 8": (
        job("llama-3-8b", 4096, 64, 1e9),
        {
            "hardware": ["h100-sxm", "a100-40gb"],
            "device_counts": (2, 4, 8),
            "micro_batch_sizes": (1, 2),
            "pipeline_parallels": (1, 2),
            "virtual_pipelines": (1,),
        },
    ),
    "tinyllama on 8, deadline": (
        job("tinyllama-1.1b", 2048, 128, 1e10),
        {
            "hardware": ["rtx-4090", "a100-40gb"],
            "device_counts": (1, 2, 4, 8),
            "micro_batch_sizes": (1, 4, 16),
            "pipeline_parallels": (1, 4),
            "virtual_pipelines": (1, 2),
            "tensor_parallels": (1, 2),
            "deadline_hours": 60.0,
        },
    ),
    "mixtral-8x7b on 16": (
        job("mixtral-8x7b", 4096, 64, 1e9),
        {
            "hardware": ["h100-sxm"],
            "device_counts": (8, 16),
            "micro_batch_sizes": (1,),
            "pipeline_parallels": (1, 2),
            "virtual_pipelines": (1,),
            "objective": "time",
        },
    ),
}
# Llama 3 (arXiv:2407.21783), table 4: 16,384 GPUs, TP 8, PP 16, DP 128, 16M tokens a step. GPT-3 175B and the
# trillion-parameter model of Narayanan et al. 2021 (arXiv:2104.04473), table 1; the latter has no preset here.
PUBLISHED: dict[str, tuple[fb.TrainingJob, dict[str, Any], dict[str, int]]] = {
    "Llama 3 405B, 16,384 H100": (
        job("llama-3.1-405b", 8192, 2048, 15.6e12),
        {"hardware": ["h100-sxm"], "device_counts": (16384,), "framework": "megatron", "objective": "time"},
        {"tensor_parallels": 8, "pipeline_parallels": 16},
    ),
    "GPT-3 175B, 1,024 A100": (
        job("gpt3-175b", 2048, 1536, 300e9),
        {"hardware": ["a100-80gb"], "device_counts": (1024,), "framework": "megatron", "objective": "time"},
        {"tensor_parallels": 8, "pipeline_parallels": 8},
    ),
}


def speed(repeats: int) -> list[dict[str, Any]]:
    rows = []
    for name, (what, keywords) in PLANS.items():
        seconds, cpu_seconds = [], []
        for _ in range(repeats):
            start, cpu_start = time.perf_counter(), time.process_time()
            plan = fb.plan(what, **keywords)
            seconds.append(time.perf_counter() - start)
            cpu_seconds.append(time.process_time() - cpu_start)
        best = min(seconds)
        rows.append(
            {
                "plan": name,
                "layouts": plan.num_layouts,
                "seconds": best,
                "cpu_seconds": min(cpu_seconds),
                "layouts_per_s": plan.num_layouts / best,
                "seconds_per_10_000": 1e4 * best / plan.num_layouts,
                "cpu_seconds_per_10_000": 1e4 * min(cpu_seconds) / plan.num_layouts,
                "fits": plan.fits,
                "best": plan.best and plan.best.summary,
            }
        )
    return rows


def verdicts(samples: int) -> dict[str, Any]:
    """Compare the bound's "can't fit" with the full estimate's "no", and all shown candidates with the public one."""
    draw = random.Random(0)
    wrong = caught = missed = fitting = 0
    ratios = []
    for what, keywords in PLANS.values():
        device = find_device(keywords["hardware"][0])
        space = default_space(SearchSpace(), what, device, "pytorch")
        every = [
            layout
            for count in default_counts(device, keywords["max_devices"])
            for layout in layouts(space, what, device, count, what.precision, "pytorch")
        ]
        for layout in draw.sample(every, min(samples, len(every))):
            bound = memory_bound(what.shape, layout, device)
            found = estimate_transformer_memory(what.shape, layout, device)
            ratios.append(bound / found.device_bytes)
            wrong += bound > found.device_bytes
            says_no = bound > device.memory_bytes
            fitting += found.fits != "no"
            caught += says_no and found.fits == "no"
            missed += not says_no and found.fits == "no"
    ratios.sort()
    return {
        "samples": len(ratios),
        "bound_above_estimate": wrong,
        "fitting": fitting,
        "no_by_bound": caught,
        "no_by_full_estimate_only": missed,
        "agreement": 1 - missed / len(ratios),
        "median_ratio": ratios[len(ratios) // 2],
        "p10_ratio": ratios[len(ratios) // 10],
        "shown": shown(),
    }


def shown() -> dict[str, int]:
    same = total = 0
    for what, keywords in PLANS.values():
        for candidate in fb.plan(what, **keywords).candidates:
            full = estimate(what, candidate.layout, candidate.device.key)
            total += 1
            same += full.memory.fits == candidate.memory.fits and full.step_time_s == candidate.step_time.seconds
    return {"candidates": total, "same_as_public_estimate": same}


LAYOUT_FIELDS = (
    "seq_len", "global_batch_size", "micro_batch_size", "num_devices", "tensor_parallel", "pipeline_parallel",
    "virtual_pipeline", "context_parallel", "expert_parallel", "sharding", "recompute", "precision", "optimizer",
    "framework",
)  # fmt: skip


def estimate(what: fb.TrainingJob, layout: Any, hardware: str) -> fb.TransformerEstimate:
    return fb.estimate_transformer(
        what.config, hardware=hardware, **{name: getattr(layout, name) for name in LAYOUT_FIELDS}
    )


def exhaustive() -> list[dict[str, Any]]:
    """Estimate every layout of small spaces in full, and compare the optimum with the plan's."""
    rows = []
    for name, (what, keywords) in SMALL.items():
        plan = fb.plan(what, **keywords)
        limit = keywords.get("deadline_hours", float("inf"))
        axes = {"device_counts", "hardware", "deadline_hours", "objective"}
        space = SearchSpace(**{key: value for key, value in keywords.items() if key not in axes})
        best, count = float("inf"), 0
        for device in map(find_device, keywords["hardware"]):
            whole = default_space(space, what, device, "pytorch")
            for devices in keywords["device_counts"]:
                for layout in layouts(whole, what, device, devices, what.precision, "pytorch"):
                    count += 1
                    full = estimate(what, layout, device.key)
                    where = {key: getattr(layout, key) for key in LAYOUT_FIELDS[2:11]}
                    cost = fb.job_cost(what, hardware=device, **where)
                    if full.memory.device_bytes * (1 + MARGIN) > device.memory_bytes or cost.wall_hours.high > limit:
                        continue
                    value = cost.usd if plan.objective == "cost" else cost.wall_hours
                    assert value is not None
                    best = min(best, value.mid)
        found = plan.best
        value = (
            None
            if found is None or found.fits != "yes"
            else found.cost_usd
            if plan.objective == "cost"
            else found.wall_hours
        )
        rows.append(
            {
                "space": name,
                "layouts": count,
                "optimum": best,
                "plan": None if value is None else value.mid,
                "same": value is not None and abs(value.mid / best - 1) < 1e-6,
            }
        )
    return rows


def published() -> list[dict[str, Any]]:
    rows = []
    for name, (what, keywords, used) in PUBLISHED.items():
        free = fb.plan(what, **keywords)
        fixed = fb.plan(what, **keywords, **{key: (value,) for key, value in used.items()})
        assert free.best is not None and fixed.best is not None
        rows.append(
            {
                "run": name,
                "best": free.best.summary,
                "best_hours": free.best.wall_hours.mid,
                "published": fixed.best.summary,
                "published_hours": fixed.best.wall_hours.mid,
                "slower_by": fixed.best.wall_hours.mid / free.best.wall_hours.mid - 1,
            }
        )
    return rows


def llama_7b() -> dict[str, Any]:
    """LLaMA-7B took 82,432 A100-80GB hours for 1T tokens of 4M-token batches (arXiv:2302.13971, table 15)."""
    plan = fb.plan(job("llama-7b", 2048, 2048), hardware=["a100-80gb"], max_devices=256, deadline_hours=24 * 60)
    assert plan.best is not None
    hours = plan.best.gpu_hours
    return {
        "best": plan.best.summary,
        "gpu_hours": hours.to_json(),
        "published": 82432,
        "inside": hours.low <= 82432 <= hours.high,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--samples", type=int, default=400, help="layouts per plan for the verdicts")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    quick = arguments.quick
    document = {
        "benchmark": "planner",
        "machine": {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "load": os.getloadavg()[0]},
        "speed": speed(1 if quick else arguments.repeats),
        "verdicts": verdicts(20 if quick else arguments.samples),
        "exhaustive": exhaustive(),
        "published": published(),
        "llama_7b": llama_7b(),
    }
    if not quick:
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    if arguments.json:
        print(json.dumps(document, indent=1))
        return
    for row in document["speed"]:
        print(
            f"{row['plan']:26} {row['layouts']:7,} layouts in {row['seconds']:5.2f} s: {row['layouts_per_s']:8,.0f}/s, "
            f"10,000 in {row['seconds_per_10_000']:.2f} s ({row['cpu_seconds_per_10_000']:.2f} s of a core); "
            f"{row['best']}"
        )
    found = document["verdicts"]
    print(
        f"verdicts: {found['samples']} layouts, bound above the estimate {found['bound_above_estimate']}, agreement "
        f"{found['agreement']:.1%}, bound/estimate median {found['median_ratio']:.3f}, p10 {found['p10_ratio']:.3f}; "
        f"shown candidates like the public estimate: {found['shown']['same_as_public_estimate']} of "
        f"{found['shown']['candidates']}"
    )
    for row in document["exhaustive"]:
        print(
            f"{row['space']:26} {row['layouts']:5,} layouts: optimum {row['optimum']:.6g}, plan {row['plan']:.6g}, "
            f"same {row['same']}"
        )
    for row in document["published"]:
        print(f"{row['run']}: {row['published']} is {row['slower_by']:.1%} slower than {row['best']}")
    print("LLaMA-7B:", document["llama_7b"])


if __name__ == "__main__":
    main()
