"""Which packages are here, found without importing them."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from .machine import cpu_features, cpu_name, usable_cpus

_PACKAGES = ("torch", "numpy", "onnx", "onnxscript", "xxhash", "transformers", "ray", "lightning")
_TENSORRT = ("tensorrt", "tensorrt_rtx")
_ONNXRUNTIME = ("onnxruntime", "onnxruntime-gpu")


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Versions by distribution name (None: not installed) and the machine."""

    python: str
    platform: str
    cpu: str
    cpu_features: list[str]
    usable_cpus: int
    packages: dict[str, str | None]
    tensorrt: dict[str, str | None]
    onnxruntime: dict[str, str | None]
    onnxruntime_problem: str | None
    nvidia_driver: str | None


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _tensorrt_version(package: str) -> str | None:
    # The wheel that carries the module bears other names too (tensorrt-cu13), so look for the module as well.
    found = _version(package)
    if found is None and importlib.util.find_spec(package) is not None:
        return "unknown version"
    return found


def _onnxruntime_problem(found: dict[str, str | None]) -> str | None:
    installed = [name for name, number in found.items() if number]
    if len(installed) == 2:
        return (
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other's files. Uninstall both, "
            "then install one: onnxruntime-gpu where there is an NVIDIA GPU, else onnxruntime."
        )
    if not installed:
        return "onnxruntime is not installed: exports can't be checked. `pip install onnxruntime`."
    return None


def _nvidia_driver() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.split("\n")[0].strip() or None


def describe_environment() -> Environment:
    """Return what is installed. Imports none of it."""
    onnxruntime = {name: _version(name) for name in _ONNXRUNTIME}
    return Environment(
        python=".".join(map(str, sys.version_info[:3])),
        platform=platform.platform(),
        cpu=cpu_name(),
        cpu_features=cpu_features(),
        usable_cpus=usable_cpus(),
        packages={name: _version(name) for name in _PACKAGES},
        tensorrt={name: _tensorrt_version(name) for name in _TENSORRT},
        onnxruntime=onnxruntime,
        onnxruntime_problem=_onnxruntime_problem(onnxruntime),
        nvidia_driver=_nvidia_driver(),
    )
