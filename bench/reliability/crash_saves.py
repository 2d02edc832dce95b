"""What is left after a SIGKILL at any moment of saving, a full disk, damage and an unwritable directory?

    python bench/reliability/crash_saves.py [--kills 2000] [--peer-kills 200] [--damages 2000] [--json FILE]

Children forked from one warmed process save in a loop and are killed at random moments; then the newest state is
loaded as a restart would. Every tensor of a state holds its step, so that a mixture is noticed. Peers, in the same
run: `torch.save` over the same file, and torch.distributed.checkpoint into the same directory. Outcomes:

    good         the newest durable state, whole
    lost         a whole state, but older than one that was reported durable
    unloadable   nothing can be loaded
    partial      loaded without an error, but mixed or changed

Exits with 1 when fastbudget has any but good ones. The full disk is a tmpfs, which needs root.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import fastbudget as fb
from fastbudget.hardware import cpu_name, usable_cpus

ELEMENTS = 250_000
OUTCOMES = ("good", "lost", "unloadable", "partial")


def state_of(step, elements=ELEMENTS):
    return {
        "model": {f"layer{i}": torch.full((elements,), float(step)) for i in range(4)},
        "optimizer": {i: {"exp_avg": torch.full((elements,), float(step))} for i in range(4)},
        "step": step,
    }


def step_in(state):
    """Return the step of a whole state; None for a mixture."""
    tensors = [*state["model"].values(), *(slot["exp_avg"] for slot in state["optimizer"].values())]
    whole = len(tensors) == 8 and all(bool((tensor == state["step"]).all()) for tensor in tensors)
    return state["step"] if whole else None


class FastbudgetSaves:
    name = "fastbudget save"

    def __init__(self, place):
        self.store = fb.CheckpointStore(place, keep_last=1, keep_best=0)
        self.place = place

    def save(self, step, state):
        self.store.save(step, state)

    def load(self):
        return fb.CheckpointStore(self.place).load(require=("model", "optimizer", "step")).state

    def files(self):
        return list(self.store.paths()[-1].iterdir())

    def in_flight(self):
        return any(path.name.endswith(".partial") for path in self.place.iterdir())


class FastbudgetAsync(FastbudgetSaves):
    name = "fastbudget save_async"

    def save(self, step, state):
        self.store.save_async(step, state).wait()


class TorchSave:
    name = "torch.save in place"

    def __init__(self, place):
        place.mkdir()
        self.file = place / "state.pt"

    def save(self, step, state):
        torch.save(state, self.file)

    def load(self):
        return torch.load(self.file, weights_only=True)

    def files(self):
        return [self.file]


class DistributedCheckpoint:
    name = "DCP, same directory"

    def __init__(self, place):
        self.place = place

    def save(self, step, state):
        dcp.save({**state, "step": torch.tensor(step)}, checkpoint_id=self.place, no_dist=True)

    def load(self):
        metadata = dcp.FileSystemReader(self.place).read_metadata()
        elements = metadata.state_dict_metadata["model.layer0"].size[0]
        state = {**state_of(-1, elements), "step": torch.tensor(-1)}
        dcp.load(state, checkpoint_id=self.place, no_dist=True)
        return {**state, "step": int(state["step"])}

    def files(self):
        return sorted(self.place.iterdir())


CONTESTANTS = (FastbudgetSaves, FastbudgetAsync, TorchSave, DistributedCheckpoint)


def outcome(contestant, durable):
    try:
        found = step_in(contestant.load())
    except (Exception, CheckpointException):  # the latter is a BaseException
        return "unloadable"
    if found is None:
        return "partial"
    return "good" if found >= durable else "lost"


def killed_while_saving(kind, kills, directory, generator):
    """Kill a child per round; the states go on from round to round."""
    place = directory / "kills"
    contestant = kind(place)
    contestant.save(0, state_of(0))
    begin = time.perf_counter()
    contestant.save(1, state_of(1))
    one_save_s = time.perf_counter() - begin
    durable, counts, in_flight = 1, Counter(), 0
    for _ in range(kills):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.setsid()
            for step in range(durable + 1, durable + 1000):
                contestant.save(step, state_of(step))
                os.write(write_end, step.to_bytes(8, "big"))
            os._exit(1)
        os.close(write_end)
        time.sleep(generator.uniform(0.0, 3 * one_save_s))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, "the child failed by itself"
        try:
            os.killpg(child, 0)
            counts["orphan"] += 1
        except ProcessLookupError:
            pass
        told = b""
        while part := os.read(read_end, 4096):
            told += part
        os.close(read_end)
        durable = max(durable, int.from_bytes(told[-8:], "big"))
        in_flight += hasattr(contestant, "in_flight") and contestant.in_flight()
        found = outcome(contestant, durable)
        counts[found] += 1
        if found == "good":
            durable = contestant.load()["step"]
        else:  # start over, so that one loss is counted once
            shutil.rmtree(place)
            contestant = kind(place)
            durable += 1
            contestant.save(durable, state_of(durable))
    shutil.rmtree(place)
    return dict(counts) | ({"a save was under way": in_flight} if issubclass(kind, FastbudgetSaves) else {})


def truncate(file, content, generator):
    file.write_bytes(content[: generator.randrange(len(content))])


def flip(file, content, generator):
    changed = bytearray(content)
    changed[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    file.write_bytes(changed)


def remove(file, content, generator):
    file.unlink()


def damaged(kind, damages, directory, generator):
    """Damage one file of the newest checkpoint per round. Peers have one checkpoint, fastbudget the one before too."""
    place = directory / "damage"
    contestant = kind(place)
    ours = isinstance(contestant, FastbudgetSaves)
    if ours:
        contestant.store.keep_last = 2
    for step in (1, 2):
        contestant.save(step, state_of(step, 2000))
    result = {}
    for damage in (truncate, flip, remove):
        counts = Counter()
        for _ in range(damages // 3):
            file = generator.choice(contestant.files())
            content = file.read_bytes()
            damage(file, content, generator)
            counts[outcome(contestant, 1)] += 1
            file.write_bytes(content)
        result[damage.__name__] = dict(counts)
    shutil.rmtree(place)
    return result


def full_disk(kind, rounds, directory, generator):
    """Save a larger state than before on a disk with little room, then load."""
    disk = directory / "disk"
    disk.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", str(disk).encode(), b"tmpfs", 0, b"size=40m") != 0:
        return None
    try:
        contestant = kind(disk / "store")
        counts, refused = Counter(), 0
        for step in range(1, 2 * rounds, 2):
            contestant.save(step, state_of(step))
            room = os.statvfs(disk)
            filler = disk / "filler"
            filler.write_bytes(bytes(max(0, room.f_bavail * room.f_frsize - generator.randrange(14_000_000))))
            durable = step
            try:
                contestant.save(step + 1, state_of(step + 1, ELEMENTS * 3 // 2))
                durable = step + 1
            except (Exception, CheckpointException):
                refused += 1
            counts[outcome(contestant, durable)] += 1
            filler.unlink()
            if outcome(contestant, durable) != "good":
                shutil.rmtree(disk / "store")
                contestant = kind(disk / "store")
        return dict(counts) | {"said so": refused}
    finally:
        libc.umount2(str(disk).encode(), 2)


def unwritable(directory):
    """Return whether a save into a directory that may not be written says so, with the state before intact."""
    place = directory / "unwritable"
    store = fb.CheckpointStore(place)
    store.save(1, state_of(1, 100))
    for path in (directory, place, *place.rglob("*")):
        path.chmod(0o555 if path == place else 0o755)
    child = os.fork()
    if child == 0:
        if os.getuid() == 0:
            os.setgid(65534), os.setuid(65534)
        try:
            store.save(2, state_of(2, 100))
        except fb.SaveError:
            os._exit(0)
        os._exit(1)
    said_so = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    place.chmod(0o755)
    return said_so and step_in(fb.CheckpointStore(place).load().state) == 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=2000, help="half while in save, half while in save_async")
    parser.add_argument("--peer-kills", type=int, default=200, help="of each peer")
    parser.add_argument("--damages", type=int, default=2000)
    parser.add_argument("--directory", type=Path, help="on the disk to test; default: the temporary directory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    generator = random.Random(options.seed)
    rows = {}
    with tempfile.TemporaryDirectory(dir=options.directory) as temporary:
        place = Path(temporary)
        for kind in CONTESTANTS:
            ours = issubclass(kind, FastbudgetSaves)
            kills = options.kills // 2 if ours else options.peer_kills
            row = {"SIGKILL": killed_while_saving(kind, kills, place, generator)}
            if kind is not FastbudgetAsync:  # the files are the same
                row |= damaged(kind, options.damages, place, generator)
                row["full disk"] = full_disk(kind, 60, place, generator)
                shutil.rmtree(place / "disk")
            rows[kind.name] = row
            for what, counts in row.items():
                print(f"{kind.name:22} {what:10} {counts}", flush=True)
        said_so = unwritable(place)
        print(f"an unwritable directory: {'said so' if said_so else 'NOT NOTICED'}")
    if options.json:
        machine = {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "system": platform.system()}
        document = {
            "benchmark": "crashes while saving",
            "machine": machine,
            "versions": {name: version(name) for name in ("fastbudget", "torch")},
            "seed": options.seed,
            "rows": rows,
            "unwritable directory is said": said_so,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    bad = [
        f"{name}, {what}: {outcomes[result]} {result}"
        for name, row in rows.items()
        if name.startswith("fastbudget")
        for what, outcomes in row.items()
        if outcomes
        for result in ("lost", "unloadable", "partial", "orphan")
        if outcomes.get(result)
    ]
    if bad or not said_so:
        sys.exit(f"not kept: {bad or 'unwritable directory'}")


if __name__ == "__main__":
    main()
