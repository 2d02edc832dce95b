"""Write fitted constants into the package's data file, with where they come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date
from importlib.resources import files
from pathlib import Path

from published_runs import PublishedRun
from runtime_fit import scalar_names

from fastbudget.cost.runtime.device_peaks import generation_of
from fastbudget.cost.runtime.runtime_constants import RuntimeConstants
from fastbudget.cost.runtime.software import read_software

_INTERVAL = ("log_low", "log_high", "waiting_width", "expert_width")
# A generation or a family with fewer rows counts as not seen.
_FEWEST_ROWS = 3


def write_constants(constants: RuntimeConstants, runs: Sequence[PublishedRun]) -> None:
    """Replace ``runtime_constants.toml``."""
    scalars = {name: getattr(constants, name) for name in scalar_names()}
    sources = Counter(run.publisher for run in runs)
    lines = [
        "# Constants of the step-time model. Written by bench/cost/fit_runtime.py: change that, not this.",
        "",
        "[provenance]",
        f'date = "{date.today().isoformat()}"',
        'script = "bench/cost/fit_runtime.py"',
        f"rows = {len(runs)}",
        "[provenance.rows_by_publisher]",
        *(f'"{name}" = {count}' for name, count in sorted(sources.items())),
        "",
        "[constants]",
        *(f"{name} = {_number(value)}" for name, value in scalars.items() if name not in _INTERVAL),
        "",
        "# Log speed of products against the average of all generations.",
        "[generation_shift]",
        *(f'"{name}" = {_number(value)}' for name, value in constants.generation_shift.items()),
        "",
        "# Log speed of products against the average of all software.",
        "[software_shift]",
        *(f'"{name}" = {_number(value)}' for name, value in constants.software_shift.items()),
        "",
        "# The 80% interval: see fastbudget/cost/runtime/step_interval.py.",
        "[interval]",
        *(f"{name} = {_number(scalars[name])}" for name in _INTERVAL),
        "",
        "# Outside of these an estimate extrapolates, and says so.",
        "[calibrated_range]",
        *_ranges(runs),
    ]
    path = Path(str(files("fastbudget.cost.runtime").joinpath("runtime_constants.toml")))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _ranges(runs: Sequence[PublishedRun]) -> list[str]:
    def seen(values: Sequence[str | None]) -> str:
        counts = Counter(value for value in values if value is not None)
        return str(sorted(name for name, count in counts.items() if count >= _FEWEST_ROWS)).replace("'", '"')

    def span(values: Sequence[int]) -> str:
        return f"[{min(values)}, {max(values)}]"

    narrow = [run for run in runs if run.layout.precision in ("fp8-mixed", "fp4-mixed")]
    return [
        f"generations = {seen([generation_of(run.device) for run in runs])}",
        f"narrow_generations = {seen([generation_of(run.device) for run in narrow])}",
        f"software = {seen([read_software(run.software).family for run in runs])}",
        f"precisions = {seen([run.layout.precision for run in runs])}",
        f"optimizers = {seen([run.layout.optimizer for run in runs])}",
        f"num_params = {span([run.shape.num_params for run in runs])}",
        f"hidden = {span([run.shape.hidden for run in runs])}",
        f"seq_len = {span([run.layout.seq_len for run in runs])}",
        f"num_devices = {span([run.layout.num_devices for run in runs])}",
    ]


def _number(value: float) -> str:
    return f"{float(value):.4g}"
