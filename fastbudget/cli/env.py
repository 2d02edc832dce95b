"""`fastbudget env`: what is installed here and what it can do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from .outcomes import print_json, reported

HELP = "Tell how fastbudget was built and what this machine offers: versions, GPUs, CPU features."
EPILOG = "Example: fastbudget env --json"


def _driver_needed(runtime: str | None) -> str | None:
    """Return the oldest NVIDIA driver for a CUDA runtime that is linked statically.

    Source: NVIDIA CUDA Toolkit release notes, table "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor
    Version Compatibility": 13.x needs 580, 12.x needs 525, 11.x needs 450.
    """
    major = runtime.split(".")[0] if runtime else None
    return {"13": "580", "12": "525", "11": "450"}.get(major or "")


def environment() -> dict[str, Any]:
    """Return everything `fastbudget env` reports."""
    from importlib.metadata import version

    from ..hardware import describe_environment
    from ..ops import report_build

    build = report_build()
    return {
        "fastbudget": version("fastbudget"),
        "native": {**asdict(build), "driver_needed": _driver_needed(build.cuda_runtime_version)},
        **asdict(describe_environment()),
    }


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    native = found["native"]
    if native["compiled_with_cuda"]:
        built = f"with CUDA {native['cuda_runtime_version']} for {', '.join(native['cuda_architectures'])}"
        built += f"; needs NVIDIA driver {native['driver_needed'] or '?'} or newer"
    else:
        built = "CPU only: nvcc was not found when it was compiled"
    gpus = [
        f"{d['name']} (sm_{d['capability'][0]}{d['capability'][1]}, {d['memory_bytes'] / 2**30:.0f} GiB)"
        for d in native["devices"]
    ]
    versions = {**found["packages"], **found["onnxruntime"], **found["tensorrt"]}
    return [
        ("fastbudget", found["fastbudget"]),
        ("compiled module", built),
        ("GPUs", ", ".join(gpus) or f"none ({native['problem']})"),
        ("NVIDIA driver", found["nvidia_driver"] or "none"),
        ("Python", found["python"]),
        ("CPU", f"{found['cpu']}, {found['usable_cpus']} usable, {' '.join(found['cpu_features'])}"),
        *((name, number or "not installed") for name, number in versions.items()),
    ]


def env_command(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Print the environment."""
    with reported(json):
        found = environment()
        if json:
            print_json(found)
            return
        for label, text in _rows(found):
            typer.echo(f"{label:18} {text}")
        if found["onnxruntime_problem"]:
            typer.echo(found["onnxruntime_problem"], err=True)
