"""Events per second of the allocator simulation, for traces of several shapes.

Run: python bench/cost/allocator_speed.py [--events N] [--repeats N] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import numpy.typing as npt

from fastbudget.cost import AllocatorConfig, simulate_allocator

Trace = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
MIB = 2**20


def training_steps(num_events: int) -> Trace:
    """Layers allocate activations, free temporaries at once, and give everything back in reverse order."""
    rng = np.random.default_rng(0)
    storage, delta, number = [], [], 0
    layers = rng.integers(64 * 1024, 64 * MIB, size=200)
    while len(storage) < num_events:
        kept = []
        for size in map(int, layers):
            for bytes_, is_kept in ((size, True), (size // 2, False), (4096, True)):
                storage.append(number)
                delta.append(bytes_)
                if is_kept:
                    kept.append((number, bytes_))
                else:
                    storage.append(number)
                    delta.append(-bytes_)
                number += 1
        for number_kept, bytes_ in reversed(kept):
            storage.append(number_kept)
            delta.append(-bytes_)
    return np.array(storage[:num_events]), np.array(delta[:num_events])


def random_lives(num_events: int, *, num_alive: int, smallest: int, largest: int) -> Trace:
    """A steady number of storages alive: frees a random one, then allocates one of log-uniform size."""
    rng = np.random.default_rng(1)
    sizes = np.exp(rng.uniform(np.log(smallest), np.log(largest), size=num_events)).astype(np.int64)
    draws = rng.random(num_events)
    storage, delta = [], []
    alive: list[tuple[int, int]] = []
    for number in range(num_events):
        if len(alive) >= num_alive:
            i = int(draws[number] * len(alive))
            alive[i], alive[-1] = alive[-1], alive[i]
            freed, size = alive.pop()
            storage.append(freed)
            delta.append(-size)
        else:
            alive.append((number, int(sizes[number])))
            storage.append(number)
            delta.append(int(sizes[number]))
    return np.array(storage), np.array(delta)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    n = args.events
    traces = {
        "training steps": training_steps(n),
        "small tensors, 1000 alive": random_lives(n, num_alive=1000, smallest=16, largest=MIB),
        "large tensors, 1000 alive": random_lives(n, num_alive=1000, smallest=MIB, largest=256 * MIB),
        "all sizes, 100 000 alive": random_lives(n, num_alive=min(100_000, n // 4), smallest=16, largest=64 * MIB),
    }
    configs = {
        "default": AllocatorConfig(),
        "expandable": AllocatorConfig(expandable_segments=True),
        "max_split 128 MiB": AllocatorConfig(max_split_size_mb=128),
    }
    rates: dict[str, dict[str, float]] = {}
    for trace_name, (storage, delta) in traces.items():
        for config_name, config in configs.items():
            seconds = []
            for _ in range(args.repeats):
                start = time.perf_counter()
                simulate_allocator(storage, delta, config)
                seconds.append(time.perf_counter() - start)
            rate = n / statistics.median(seconds)
            rates.setdefault(trace_name, {})[config_name] = rate
            if not args.json:
                print(f"{trace_name:28} {config_name:18} {rate / 1e6:6.2f} million events/s")
    if args.json:
        print(json.dumps({"events": n, "events_per_s": rates}, indent=2))


if __name__ == "__main__":
    main()
