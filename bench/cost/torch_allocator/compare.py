"""The allocator simulation against PyTorch's own allocator, taken from torch's binary and run without a GPU.

The binary's calls to CUDA are answered by a library that only counts bytes, so any Linux machine will do.
Unpack a CUDA build of torch and, for CUDA's headers, nvidia-cuda-runtime and nvidia-cuda-crt:

    pip download --no-deps torch===2.13.0 nvidia-cuda-runtime nvidia-cuda-crt
    for wheel in *.whl; do unzip -q "$wheel" -d unpacked; done
    python bench/cost/torch_allocator/compare.py unpacked --traces 2000
    python bench/cost/torch_allocator/compare.py unpacked --record tests/cost/cases/torch_allocator.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fastbudget.cost import AllocatorConfig, simulate_allocator

HERE = Path(__file__).parent
MIB = 2**20
SETTINGS = (
    "",
    "max_split_size_mb:20",
    "max_split_size_mb:21",
    "max_split_size_mb:128",
    "max_split_size_mb:32,max_non_split_rounding_mb:40",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:2,4:8,16:16,>:4]",
    "expandable_segments:True",
    "expandable_segments:True,max_split_size_mb:64",
    "large_segment_size_mb:33,max_split_size_mb:40",
    "expandable_segments:True,large_segment_size_mb:32,roundup_power2_divisions:8",
)
EDGES = sorted(
    {max(1, m * MIB + d) for m in (0, 1, 2, 10, 11, 12, 20, 21, 22, 32, 33, 40, 52, 64) for d in (-512, -1, 0, 1)}
)
HEADER = ("out_of_memory_event", "peak_requested_bytes", "num_segments", "num_releases", "num_retries")


def random_trace(rng: random.Random, length: int) -> tuple[list[int], list[int]]:
    """Lives of random length, of sizes that are tiny, small, middling, large, repeated or at a threshold."""
    repeated = [rng.randint(1, 64 * MIB) for _ in range(8)]
    draws = {
        "tiny": lambda: rng.randint(1, 4096),
        "small": lambda: rng.randint(1, MIB),
        "middling": lambda: rng.randint(MIB, 10 * MIB),
        "large": lambda: rng.randint(10 * MIB, 200 * MIB),
        "repeated": lambda: rng.choice(repeated),
        "edge": lambda: rng.choice(EDGES),
    }
    kinds = rng.sample(sorted(draws), rng.randint(1, len(draws)))
    most_alive = rng.choice([5, 30, 200])
    storage: list[int] = []
    delta: list[int] = []
    alive: list[tuple[int, int]] = []
    while len(storage) < length:
        if alive and (len(alive) >= most_alive or rng.random() < 0.4):
            number, size = alive.pop(rng.randrange(len(alive)) if rng.random() < 0.7 else -1)
            storage.append(number)
            delta.append(-size)
        else:
            alive.append((len(storage), draws[rng.choice(kinds)]()))
            storage.append(alive[-1][0])
            delta.append(alive[-1][1])
    return storage, delta


def build(unpacked: Path, folder: Path) -> Path:
    """Compile the stand-in for CUDA and the program that replays; return the latter."""
    cuda = next(unpacked.rglob("cuda_runtime_api.h")).parent
    torch_include, torch_lib = unpacked / "torch/include", unpacked / "torch/lib"
    version = folder / "cudart.map"
    version.write_text("libcudart.so.13 { global: *; };")
    stub = folder / "libcudart.so.13"
    subprocess.run(
        ["cc", "-w", "-shared", "-fPIC", f"-I{cuda}", HERE / "cuda_without_device.c", HERE / "cuda_no_ops.c",
         f"-Wl,--version-script={version},-soname,{stub.name}", "-o", stub], check=True,
    )  # fmt: skip
    (folder / "libnvidia-ml.so.1").symlink_to(stub)
    program = folder / "replay"
    subprocess.run(
        ["c++", "-std=c++20", "-O1", "-w", f"-I{torch_include}", f"-I{cuda}", HERE / "replay.cpp",
         f"-L{torch_lib}", "-lc10_cuda", "-lc10", stub,
         f"-Wl,-rpath,{folder}:{torch_lib},--allow-shlib-undefined", "-o", program],
        check=True,
    )  # fmt: skip
    return program


def run_torch(
    program: Path, settings: str, storage: list[int], delta: list[int], capacity: int | None
) -> dict[str, Any]:
    """Return what PyTorch's allocator did, by the names of AllocatorReplay."""
    events, result = program.with_name("events"), program.with_name("result")
    np.array([len(storage), *storage, *delta], dtype=np.int64).tofile(events)
    folder = program.parent
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(folder),
        # Torch's library looks for CUDA beside itself first, and may find a real one there.
        "LD_PRELOAD": str(folder / "libcudart.so.13"),
        "PYTORCH_CUDA_ALLOC_CONF": settings,
    }
    if capacity is not None:
        environment["STUB_CAPACITY_BYTES"] = str(capacity)
    completed = subprocess.run([program, events, result], env=environment, capture_output=True, text=True)
    if completed.returncode != 0:
        raise SystemExit(f"PyTorch's allocator failed:\n{completed.stderr}")
    values = np.fromfile(result, dtype=np.int64)
    found: dict[str, Any] = dict(zip(HEADER, values[: len(HEADER)].tolist(), strict=True))
    if found["out_of_memory_event"] < 0:
        found["out_of_memory_event"] = None
    timeline = values[len(HEADER) :].reshape(-1, 2)
    return {**found, "allocated": timeline[:, 0].tolist(), "reserved": timeline[:, 1].tolist()}


def simulate(settings: str, storage: list[int], delta: list[int], capacity: int | None) -> dict[str, Any]:
    result = simulate_allocator(
        storage, delta, AllocatorConfig.from_env(settings), capacity_bytes=capacity, timeline=True
    )
    assert result.allocated is not None
    assert result.reserved is not None
    found = {name: getattr(result, name) for name in HEADER}
    return {**found, "allocated": result.allocated.tolist(), "reserved": result.reserved.tolist()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("unpacked", type=Path, help="folder with the wheels' content")
    parser.add_argument("--traces", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="write a few short traces with PyTorch's numbers to this file")
    args = parser.parse_args()
    different = num_events = num_out_of_memory = num_retries = 0
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        program = build(args.unpacked.resolve(), Path(folder))
        for i in range(2 * len(SETTINGS) if args.record else args.traces):
            rng = random.Random(args.seed + i)
            settings = SETTINGS[i % len(SETTINGS)] if args.record else rng.choice(SETTINGS)
            storage, delta = random_trace(rng, 120 if args.record else rng.choice([50, 300, 2000]))
            capacity = None
            if i >= len(SETTINGS) if args.record else rng.random() < 0.7:
                # Mostly less than the trace would take, so that cached memory is given back, or runs out.
                wanted = simulate_allocator(storage, delta, AllocatorConfig.from_env(settings)).peak_reserved_bytes
                capacity = max(MIB, int(wanted * rng.uniform(0.7 if args.record else 0.3, 1.05)))
            expected = run_torch(program, settings, storage, delta, capacity)
            num_events += len(expected["allocated"])
            num_out_of_memory += expected["out_of_memory_event"] is not None
            num_retries += expected["num_retries"]
            if simulate(settings, storage, delta, capacity) != expected:
                different += 1
                print(f"trace {args.seed + i} differs: {settings!r}, capacity {capacity}")
            trace = {
                "settings": settings,
                "capacity_bytes": capacity,
                "storage": storage,
                "delta_bytes": delta,
            }
            cases.append({**trace, **expected})
    print(
        f"{len(cases)} traces, {num_events} events, {num_retries} retries, "
        f"{num_out_of_memory} out of memory: {different} differ"
    )
    if args.record:
        version = (args.unpacked / "torch/version.py").read_text().split("__version__ = '")[1].split("'")[0]
        source = f"libc10_cuda.so of torch {version}, run by bench/cost/torch_allocator/compare.py"
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
        args.record.write_text(f'{{"source": {json.dumps(source)},\n"cases": [\n{lines}\n]}}\n')
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
