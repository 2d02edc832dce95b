"""What a checkpoint costs: the stall of an asynchronous save, the whole save, the hashes.

    python bench/reliability/save_speed.py [--megabytes 200 1000] [--pairs 9] [--directory DIR] [--json FILE]

Stall: `save_async` beside a copy of the same tensors into memory that is there already. Whole save: `save`, hashes and
fsyncs included, beside `torch.save` and fsync of the same state, and beside torch.distributed.checkpoint. Ratios are
medians of interleaved pairs, torch on one thread; that of the calling thread's CPU time is the least disturbed. How a
Python-heavy training loop fares while a save runs in a thread (as `save_async` does) and in a forked process, each
beside the same loop alone. Hashes: google-crc32c too where it is installed. Exits with 1 above a promised ceiling,
after one retry.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import logging
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
import xxhash

import fastbudget as fb
from fastbudget.hardware import cpu_name, usable_cpus

STALL_CEILING = 1.2
SAVE_CEILING = 1.3
HASH_FLOOR_GB_S = 2.0


def state_of(megabytes):
    """Return a model of many layers with Adam's moments, as large as asked for."""
    width = 1024
    layers = max(1, round(megabytes * 1e6 / (3 * 4 * (width * width + 2 * width))))
    generator = torch.Generator().manual_seed(0)

    def tensors():
        sizes = {"weight": (width, width), "bias": (width,), "norm": (width,)}
        return {
            f"{i}.{name}": torch.randn(size, generator=generator) for i in range(layers) for name, size in sizes.items()
        }

    model, first, second = tensors(), tensors(), tensors()
    moments = zip(first.values(), second.values(), strict=True)
    optimizer = {
        index: {"step": torch.tensor(1.0), "exp_avg": m, "exp_avg_sq": v} for index, (m, v) in enumerate(moments)
    }
    return {"model": model, "optimizer": {"state": optimizer, "param_groups": [{"lr": 1e-3}]}, "step": 1}


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [tensor for part in inner for tensor in tensors_in(part)]
    return []


def seconds(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def fsync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def median_ratio(ours, theirs):
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def stall(state, directory, pairs):
    tensors = tensors_in(state)
    copies = [torch.zeros_like(tensor) for tensor in tensors]
    store = fb.CheckpointStore(directory / "stall", keep_last=1)
    store.save_async(0, state).wait()  # takes the memory
    ours, copy, ours_cpu, copy_cpu = [], [], [], []
    for step in range(1, pairs + 1):
        # Each after a rest, and by turns first: a busy machine favors who has just slept.
        measured = [
            (copy, copy_cpu, lambda: [there.copy_(tensor) for there, tensor in zip(copies, tensors, strict=True)]),
            (ours, ours_cpu, lambda step=step: store.save_async(step, state)),
        ]
        for times, cpu_times, call in measured[:: 1 if step % 2 else -1]:
            time.sleep(0.05)
            begin = time.thread_time()
            times.append(seconds(call))
            cpu_times.append(time.thread_time() - begin)
            store.wait()
            os.sync()
    shutil.rmtree(store.directory)
    return {
        "ratio": median_ratio(ours, copy),
        "cpu_time_ratio": median_ratio(ours_cpu, copy_cpu),
        "save_async_s": statistics.median(ours),
        "copy_s": statistics.median(copy),
    }


def whole_save(state, directory, pairs):
    def ours(place):
        fb.CheckpointStore(place).save(1, state)

    def torch_save(place):
        place.mkdir()
        torch.save(state, place / "state.pt")
        fsync(place / "state.pt")
        fsync(place)

    def distributed(place):
        dcp.save(state, checkpoint_id=place, no_dist=True)
        for path in (*place.iterdir(), place):
            fsync(path)

    times = {"fastbudget": [], "torch.save + fsync": [], "DCP + fsync": []}
    for _ in range(pairs):
        for name, save in zip(times, (ours, torch_save, distributed), strict=True):
            place = directory / "whole"
            os.sync()
            times[name].append(seconds(lambda save=save, place=place: save(place)))
            shutil.rmtree(place)
    mine = times["fastbudget"]
    peers = [name for name in times if name != "fastbudget"]
    return {f"ratio to {name}": median_ratio(mine, times[name]) for name in peers} | {
        "seconds": {name: statistics.median(values) for name, values in times.items()}
    }


def loop_beside(state, directory, how):
    """Return the loop's step times while saves run (none, thread or process), and the seconds of a save."""
    store = fb.CheckpointStore(directory / how, keep_last=1, keep_best=0)
    small = torch.randn(16, 16)
    steps, saves = [], []
    if how == "thread":
        store.save_async(0, state).wait()
    for number in range(1, 6):
        begin = time.perf_counter()
        child = handle = None
        if how == "thread":
            handle = store.save_async(number, state)
        elif how == "process":
            child = os.fork()
            if child == 0:
                store.save(number, state)
                os._exit(0)
        while True:
            step_begin = time.perf_counter()
            total = 0
            for i in range(2000):  # what holds the interpreter lock in a training loop
                total += i & 3
            (small @ small).sum().item()
            steps.append(time.perf_counter() - step_begin)
            ended = time.perf_counter() - begin > 0.5
            if handle is not None:
                ended = handle.done
            elif child is not None:
                ended = os.waitpid(child, os.WNOHANG)[0] == child
            if ended:
                break
        saves.append(time.perf_counter() - begin)
    shutil.rmtree(store.directory)
    return steps, saves


def writers(state, directory, rounds):
    found = {how: ([], []) for how in ("alone", "thread", "process")}
    for _ in range(rounds):
        for how, (steps, saves) in found.items():
            more_steps, more_saves = loop_beside(state, directory, how)
            steps.append(more_steps)
            saves.extend(more_saves)
    result = {}
    for how, (steps, saves) in found.items():
        means = [statistics.mean(values) for values in steps]
        alone = [statistics.mean(values) for values in found["alone"][0]]
        result[how] = {
            "mean_step_ratio_to_alone": median_ratio(means, alone),
            "p99_step_s": statistics.median(statistics.quantiles(values, n=100)[-1] for values in steps),
            "save_s": statistics.median(saves) if how != "alone" else None,
        }
    return result


def hashes(repeats):
    content = os.urandom(1 << 20) * 256
    functions = {
        "xxh3_128": lambda: xxhash.xxh3_128_digest(content),
        "sha256": lambda: hashlib.sha256(content).digest(),
    }
    if importlib.util.find_spec("google_crc32c"):
        crc32c = importlib.import_module("google_crc32c")
        functions["crc32c"] = lambda: crc32c.value(content)
    times = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            times[name].append(seconds(function))
    return {name: len(content) / 1e9 / statistics.median(values) for name, values in times.items()}


def measure(megabytes, directory, pairs):
    state = state_of(megabytes)
    row = {"megabytes": sum(tensor.nbytes for tensor in tensors_in(state)) / 1e6, "tensors": len(tensors_in(state))}
    for attempt in range(2):
        row |= {"stall": stall(state, directory, pairs), "whole_save": whole_save(state, directory, pairs)}
        kept = row["stall"]["ratio"] <= STALL_CEILING
        if attempt or (kept and row["whole_save"]["ratio to torch.save + fsync"] <= SAVE_CEILING):
            return row
    raise AssertionError


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[200, 1000])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default: the temporary directory")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=options.directory) as place:
        rows = []
        for megabytes in options.megabytes:
            row = measure(megabytes, Path(place), options.pairs)
            rows.append(row)
            print(
                f"{row['megabytes']:6.0f} MB: stall {row['stall']['ratio']:.2f}x a memory copy, "
                f"{row['stall']['cpu_time_ratio']:.2f}x in CPU time ({row['stall']['save_async_s']:.3f} s); whole save "
                + ", ".join(f"{v:.2f}x {k[9:]}" for k, v in row["whole_save"].items() if k.startswith("ratio"))
                + f" ({row['whole_save']['seconds']['fastbudget']:.3f} s)",
                flush=True,
            )
        writer = writers(state_of(options.megabytes[0]), Path(place), 5)
    for how, found in writer.items():
        slower, p99_ms = found["mean_step_ratio_to_alone"], found["p99_step_s"] * 1e3
        saving = f", save {found['save_s']:.3f} s" if found["save_s"] else ""
        print(f"loop {how:8} mean step {slower:.2f}x alone, p99 {p99_ms:.2f} ms{saving}")
    speed = hashes(9)
    print("hashes, one core: " + ", ".join(f"{name} {value:.1f} GB/s" for name, value in speed.items()))
    if options.json:
        machine = {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "system": platform.system(), "load_at_start": load}
        packages = ("fastbudget", "torch", "xxhash")
        document = {
            "benchmark": "cost of a checkpoint",
            "machine": machine,
            "versions": {name: version(name) for name in packages},
            "rows": rows,
            "loop beside a writer": writer,
            "hash_gb_per_s": speed,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    broken = [f"stall at {row['megabytes']:.0f} MB" for row in rows if row["stall"]["ratio"] > STALL_CEILING]
    broken += [
        f"whole save at {row['megabytes']:.0f} MB"
        for row in rows
        if row["whole_save"]["ratio to torch.save + fsync"] > SAVE_CEILING
    ]
    broken += ["hash"] * (speed["xxh3_128"] < HASH_FLOOR_GB_S)
    if broken:
        sys.exit(f"not kept: {', '.join(broken)}")


if __name__ == "__main__":
    main()
