"""What a run was made with: configuration, code, packages, data, seed and machine; one JSON line per session."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ..core.clock import utc_text
from ..hardware import describe_environment
from .fingerprints import data_fingerprint

PROVENANCE_FILE = "provenance.jsonl"
_VERSION = 1
_GIT_S = 10.0

# What may change from session to session without a word.
_FREE = (
    "started_at",
    "command",
    "machine.host",
    *(f"configuration.{name}" for name in ("budget", "run_dir", "max_steps", "max_epochs", "sinks", "stages")),
)
_MOST_NAMED = 10


def describe_session(
    configuration: Mapping[str, Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer, train_data: Any
) -> dict[str, Any]:
    """Return what a session is made with, as plain data.

    Args:
        configuration: The trainer's arguments; see `plain`.
        model: Counted.
        optimizer: Its class and defaults are noted.
        train_data: Fingerprinted; see `data_fingerprint`.
    """
    environment = _environment()
    try:
        data = data_fingerprint(train_data)
    except Exception as error:  # the user's data set may raise anything; training then says so better
        data = {"kind": type(train_data).__name__, "hash": None, "method": None, "error": repr(error)}
    parameters = list(model.parameters())
    return {
        "v": _VERSION,
        "started_at": utc_text(time.time()),
        "command": sys.argv,
        "configuration": plain(configuration),
        "model": {
            "class": _name(type(model)),
            "num_params": sum(parameter.numel() for parameter in parameters),
            "num_trainable_params": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        },
        "optimizer": {"class": _name(type(optimizer)), "defaults": plain(optimizer.defaults)},
        "data": data,
        "git": _git_revision(_code_directory()),
        "packages": environment["packages"],
        "python": environment["python"],
        "machine": {
            "host": platform.node(),
            "device": str(next(model.parameters()).device),
            "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
            **{name: environment[name] for name in ("platform", "cpu", "usable_cpus", "nvidia_driver")},
        },
    }


def append_session(run_dir: Path, session: dict[str, Any]) -> None:
    """Append a session to the run's; warns of what differs from the last one's."""
    path = run_dir / PROVENANCE_FILE
    last = _last_session(path)
    with path.open("a") as file:
        file.write(json.dumps(session) + "\n")
    changes = _differences(last, session) if last is not None else []
    if changes:
        more = f", and {len(changes) - _MOST_NAMED} more" if len(changes) > _MOST_NAMED else ""
        warnings.warn(
            f"This session is not made as the last one of {run_dir}: {'; '.join(changes[:_MOST_NAMED])}{more}. "
            f"{PROVENANCE_FILE} holds both.",
            RuntimeWarning,
            stacklevel=2,
        )


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: options by field, functions and objects by name."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else repr(value)
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, Path | torch.dtype | torch.device):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return _name(value if hasattr(value, "__qualname__") else type(value))


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _last_session(path: Path) -> dict[str, Any] | None:
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        try:
            found = json.loads(line)
        except ValueError:
            continue  # cut off by a crash
        if isinstance(found, dict):
            return found
    return None


def _differences(last: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    before, after = dict(_flat(last)), dict(_flat(now))
    names = [name for name in {**before, **after} if not name.startswith(_FREE)]
    return [
        f"{name} was {before.get(name)!r} and is {after.get(name)!r}"
        for name in names
        if before.get(name) != after.get(name)
    ]


def _flat(value: Any, name: str = "") -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        return [(name, value)]
    return [pair for key, inner in value.items() for pair in _flat(inner, f"{name}.{key}" if name else key)]


@cache
def _environment() -> dict[str, Any]:
    found = describe_environment()
    packages = dict(found.packages)
    for name in ("fastbudget", "accelerate", "torchvision", "datasets", "safetensors"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    return {
        "packages": {name: number for name, number in packages.items() if number is not None},
        "python": found.python,
        "platform": found.platform,
        "cpu": found.cpu,
        "usable_cpus": found.usable_cpus,
        "nvidia_driver": found.nvidia_driver,
    }


def _code_directory() -> Path:
    """Return where the program lies; the working directory of an interactive one."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(main).resolve().parent if main else Path.cwd()


@cache  # the code that runs was read when the process started
def _git_revision(directory: Path) -> dict[str, Any] | None:
    """Return the commit that a directory is at and whether tracked files differ from it; None outside of git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(directory), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=True).stdout.strip()

    try:
        revision = git("rev-parse", "HEAD")
        return {"revision": revision, "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None
