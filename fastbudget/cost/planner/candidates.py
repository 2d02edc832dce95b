"""One way to train a job: devices, layout, and what it takes and costs."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any

from ...core.interval import Interval
from ...hardware.devices import Device
from ..job.job_accounting import JobCost
from ..runtime.step_time import StepTime
from ..runtime.topology import topology_of
from ..transformer.training_layout import TrainingLayout
from ..transformer.transformer_memory import TransformerMemory
from .accelerate_files import write_accelerate
from .deepspeed_files import write_deepspeed
from .torchrun_command import torchrun_command, write_torchrun

_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to train a job.

    Attributes:
        device: the accelerator.
        layout: devices, parallelism, batch, recompute and precision.
        step_time: of one step.
        cost: of the whole job, its buffer included.
        memory: peak memory per rank.
        risks: in words, what fits in the middle of the estimate but not at its upper end; empty: ``fits`` is
            ``"yes"``.
        rank: 0 on the Pareto front of cost and hours, 1 on the front without those, and so on; those with a risk
            come after all without, those with two after those.
    """

    device: Device
    layout: TrainingLayout
    step_time: StepTime
    cost: JobCost
    memory: TransformerMemory
    risks: tuple[str, ...] = ()
    rank: int = 0

    @property
    def fits(self) -> str:
        """``"yes"``: memory with its margin, and the 80% interval's upper end within all limits; else ``"at risk"``."""
        return "at risk" if self.risks else "yes"

    @property
    def num_devices(self) -> int:
        """Devices."""
        return self.layout.num_devices

    @property
    def wall_hours(self) -> Interval:
        """Hours from start to end."""
        return self.cost.wall_hours

    @property
    def gpu_hours(self) -> Interval:
        """Device-hours that are paid for."""
        return self.cost.gpu_hours

    @property
    def cost_usd(self) -> Interval | None:
        """Money; None where no price is known."""
        return self.cost.usd

    @property
    def summary(self) -> str:
        """Devices and layout in a few words."""
        return f"{self.num_devices:,} x {self.device.key} ({layout_words(self.layout)})"

    def torchrun(self, script: str = "train.py") -> str:
        """Return a shell command that starts ``script`` on every device, the layout in ``FASTBUDGET_LAYOUT``."""
        return torchrun_command(self.layout, script, devices_per_node=self._node)

    def to_torchrun(self, path: str | PathLike[str], script: str = "train.py") -> None:
        """Write :meth:`torchrun` as an executable shell file."""
        write_torchrun(path, self.layout, script, devices_per_node=self._node)

    def to_accelerate(self, path: str | PathLike[str]) -> tuple[str, ...]:
        """Write accelerate's configuration; return what the training script has to set itself.

        Raises:
            InvalidInputError: accelerate's file can't say the layout.
        """
        return write_accelerate(path, self.layout, devices_per_node=self._node)

    def to_deepspeed(self, path: str | PathLike[str]) -> tuple[str, ...]:
        """Write DeepSpeed's JSON configuration; return what the training script has to set itself.

        Raises:
            InvalidInputError: DeepSpeed's file can't say the layout.
        """
        notes = write_deepspeed(path, self.layout)
        if self.layout.framework == "deepspeed":
            return notes
        return (*notes, f"memory was estimated for {self.layout.framework}: plan with framework='deepspeed'")

    def to_json(self) -> dict[str, Any]:
        """Return what the plan's JSON holds of it."""
        cost = self.cost

        def interval(value: Interval | None) -> dict[str, float] | None:
            return None if value is None else value.to_json()

        return {
            "summary": self.summary,
            "hardware": self.device.key,
            "num_devices": self.num_devices,
            "layout_words": layout_words(self.layout),
            "layout": {name: getattr(self.layout, name) for name in _LAYOUT_SHOWN},
            "fits": self.fits,
            "risks": list(self.risks),
            "rank": self.rank,
            "usd": interval(cost.usd),
            "gpu_hours": interval(cost.gpu_hours),
            "wall_hours": interval(cost.wall_hours),
            "kwh": interval(cost.kwh),
            "co2e_kg": interval(cost.co2e_kg),
            "lines_s": {name: line.to_json() for name, line in cost.lines.items()},
            "num_steps": cost.num_steps,
            "step_time_s": self.step_time.seconds.to_json(),
            "time_parts": self.step_time.parts,
            "mfu": self.step_time.mfu.to_json(),
            "extrapolating": list(self.step_time.extrapolating),
            "usd_per_device_hour": None if cost.price is None else cost.price.usd_per_device_hour,
            "memory": {
                "device_bytes": self.memory.device_bytes,
                "capacity_bytes": self.memory.capacity_bytes,
                "fits": self.memory.fits,
            },
        }

    @property
    def _node(self) -> int:
        return topology_of(self.device).devices_per_node


_LAYOUT_SHOWN = (
    "seq_len",
    "global_batch_size",
    "micro_batch_size",
    "tensor_parallel",
    "pipeline_parallel",
    "virtual_pipeline",
    "context_parallel",
    "expert_parallel",
    "sharding",
    "recompute",
    "precision",
    "optimizer",
    "framework",
)


def layout_words(layout: TrainingLayout) -> str:
    """Return what is special about a layout, in the field's abbreviations."""
    words = []
    if layout.data_parallel > 1:
        words.append(f"DP {layout.data_parallel}")
    for short, name in (("TP", "tensor"), ("PP", "pipeline"), ("CP", "context"), ("EP", "expert")):
        size = getattr(layout, f"{name}_parallel")
        if size > 1:
            chunks = f"x{layout.virtual_pipeline}" if short == "PP" and layout.virtual_pipeline > 1 else ""
            words.append(f"{short} {size}{chunks}")
    if layout.sharding != "none":
        words.append(layout.sharding)
    words.append(f"micro-batch {layout.micro_batch_size}")
    if layout.recompute != "none":
        words.append(f"{layout.recompute} recompute")
    return ", ".join([*words, layout.precision])


def memory_words(memory: TransformerMemory) -> str:
    """Return peak and capacity in GiB."""
    return f"{memory.device_bytes / _GIB:.1f} of {memory.capacity_bytes / _GIB:.1f} GiB"
