"""Embedded workloads: a configuration file and its factories each, no download needed."""

from pathlib import Path

from ...core.errors import InvalidInputError, did_you_mean, one_of

_DIRECTORY = Path(__file__).parent


def workload_names() -> list[str]:
    """Return the embedded workloads' names."""
    return sorted(path.stem for path in _DIRECTORY.glob("*.yaml"))


def workload_path(name: str) -> Path:
    """Return an embedded workload's configuration file; raises InvalidInputError for an unknown name."""
    if name not in workload_names():
        raise InvalidInputError(
            f"Unknown workload {name!r}.{did_you_mean(name, workload_names())} Known: {one_of(workload_names())}; "
            "or give the path of a .yaml file."
        )
    return _DIRECTORY / f"{name}.yaml"
