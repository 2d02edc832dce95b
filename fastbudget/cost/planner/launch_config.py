"""What a launcher's configuration file says about a layout, and what it leaves to the training script."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import ConfigurationError, InvalidInputError
from ..transformer.training_layout import TrainingLayout

_LAYOUT_FIELDS = (
    "num_devices",
    "tensor_parallel",
    "pipeline_parallel",
    "context_parallel",
    "sharding",
    "offload",
    "precision",
    "recompute",
    "framework",
    "micro_batch_size",
    "global_batch_size",
)


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """A layout as far as a file tells it. None: the file doesn't say, the training script does.

    Attributes:
        framework: what trains, as in :class:`TrainingLayout`.
        num_devices: all devices.
        num_nodes: machines.
        tensor_parallel: devices that share each layer.
        pipeline_parallel: stages.
        context_parallel: devices that share a sequence.
        sharding: ``"none"``, ``"zero1"``, ``"zero2"`` or ``"zero3"``.
        offload: ``"none"``, ``"optimizer"`` or ``"all"``.
        precision: ``"fp32"``, ``"bf16-mixed"``, ``"fp16-mixed"`` or ``"fp8-mixed"``.
        recompute: ``"none"``, ``"selective"`` or ``"full"``.
        micro_batch_size: sequences of one forward pass on one data-parallel rank.
        grad_accumulation: micro-batches of an optimizer step.
        global_batch_size: sequences of an optimizer step.
        notes: what was left out, and what a value of ``"auto"`` means.
    """

    framework: str
    num_devices: int | None = None
    num_nodes: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    context_parallel: int = 1
    sharding: str = "none"
    offload: str = "none"
    precision: str | None = None
    recompute: str | None = None
    micro_batch_size: int | None = None
    grad_accumulation: int | None = None
    global_batch_size: int | None = None
    notes: tuple[str, ...] = ()

    def arguments(self) -> dict[str, Any]:
        """Return what is known as keywords of :func:`fastbudget.estimate_transformer`."""
        known = {name: getattr(self, name) for name in _LAYOUT_FIELDS}
        return {name: value for name, value in known.items() if value is not None}

    def layout(self, **others: Any) -> TrainingLayout:
        """Return the layout.

        Args:
            **others: Fields of :class:`TrainingLayout` that the file doesn't give, ``seq_len`` always.

        Raises:
            InvalidInputError: a field is missing, or contradicts the file.
        """
        values = self.arguments()
        for name, value in others.items():
            if values.get(name, value) != value:
                raise InvalidInputError(f"{name} is {value!r}, but the file says {values[name]!r}.")
        values |= others
        self._fill_batch(values)
        for name in ("seq_len", "num_devices", "micro_batch_size", "global_batch_size"):
            if name not in values:
                raise InvalidInputError(f"The file doesn't give {name}: pass {name}=.")
        return TrainingLayout(**values)

    def _fill_batch(self, values: dict[str, Any]) -> None:
        """Compute the one of the batch sizes that the other and the accumulation determine."""
        steps, devices = self.grad_accumulation, values.get("num_devices")
        if steps is None or devices is None:
            return
        ranks = devices // (self.tensor_parallel * self.pipeline_parallel * self.context_parallel)
        if "micro_batch_size" in values:
            values.setdefault("global_batch_size", values["micro_batch_size"] * steps * ranks)
        elif "global_batch_size" in values and values["global_batch_size"] % (steps * ranks) == 0:
            values["micro_batch_size"] = values["global_batch_size"] // (steps * ranks)


def read_json_or_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that a file holds."""
    import json

    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} can't be read: {getattr(error, 'strerror', None) or error}.") from None
    try:
        values = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path} is not {'JSON' if path.suffix == '.json' else 'YAML'}: {error}") from None
    if not isinstance(values, dict):
        raise ConfigurationError(f"{path} must hold one mapping, got {type(values).__name__}.")
    return values


def whole_number(value: Any, key: str, source: object) -> int:
    """Return a count of at least 1 from a file.

    Raises:
        ConfigurationError: it is none.
    """
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{source}: {key} must be a whole number of at least 1, got {value!r}.")
    return value


def is_true(value: Any) -> bool:
    """Return a flag that files write as a boolean or a word."""
    return value is True or str(value).strip().lower() in ("true", "yes", "1")
