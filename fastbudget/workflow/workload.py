"""What a configuration names, built and checked before anything is spent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .. import metrics as metrics_room
from ..core.errors import ConfigurationError, InvalidInputError
from ..evaluation import EvaluationRecord, evaluate
from ..training import build_optimizer, call_model, check_has_batches, resolve_loss
from ..training.losses import LOSSES, Loss
from .configuration import RunConfiguration
from .factories import call_factory, import_factory

# Enough batches to notice a data set of one class without reading a huge one.
_CHECKED_BATCHES = 50


@dataclass(frozen=True)
class Workload:
    """Model, data and loss, ready to train.

    ``test`` is None when the data has no third split; then validation both chooses and judges the checkpoint.
    ``test_groups``, int [n], says which test examples belong together.
    """

    configuration: RunConfiguration
    model: torch.nn.Module
    loss: Loss
    train: Iterable[Any]
    validation: Iterable[Any]
    test: Iterable[Any] | None
    test_groups: npt.NDArray[np.int64] | None
    device: torch.device

    @property
    def judged_split(self) -> str:
        """The split the final evaluation is on."""
        return "validation" if self.test is None else "test"

    def build_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Return the configured optimizer for a model."""
        section = self.configuration.optimizer
        return build_optimizer(section.name, model, lr=section.lr, weight_decay=section.weight_decay)

    def evaluate(
        self, model: torch.nn.Module, data: Iterable[Any], groups: npt.NDArray[np.int64] | None = None
    ) -> EvaluationRecord:
        """Score a model in eval mode on one split."""

        def predict(inputs: Any) -> Any:
            moved = torch.utils._pytree.tree_map(
                lambda value: value.to(self.device) if isinstance(value, torch.Tensor) else value, inputs
            )
            outputs = call_model(model, (moved, None))
            return outputs.logits if hasattr(outputs, "logits") else outputs

        return evaluate(predict, data, self.configuration.metrics, groups=groups)


def build_workload(configuration: RunConfiguration, search: Path) -> Workload:
    """Import, build and check what the configuration names.

    Args:
        configuration: Checked already.
        search: Directory of the configuration file; factories may lie beside it.

    Raises:
        ConfigurationError: a factory can't be imported, raises, or returns something else.
        InvalidInputError: the data is empty or holds a single class, or the model has nothing to train.
    """
    torch.manual_seed(configuration.train.seed)
    np.random.seed(configuration.train.seed % 2**32)
    device = _device(configuration.device)
    factory = import_factory(configuration.model, "model", search)
    splits = _splits(call_factory(import_factory(configuration.data, "data", search), configuration.data, "data"))
    model = call_factory(factory, configuration.model, "model")
    if not isinstance(model, torch.nn.Module):
        raise ConfigurationError(
            f"model: {configuration.model!r} must return a torch.nn.Module, got a {type(model).__name__}."
        )
    loss: Loss | str = configuration.loss
    if configuration.loss not in LOSSES and ":" in configuration.loss:
        loss = import_factory(configuration.loss, "loss", search)
    for name in ("train", "validation", "test"):
        if splits[name] is not None:
            check_has_batches(splits[name], name)
    if any(metrics_room.get(name).task == "classification" for name in configuration.metrics):
        _check_classes(splits)
    workload = Workload(
        configuration=configuration,
        model=model.to(device),
        loss=resolve_loss(loss),
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        test_groups=splits["test_groups"],
        device=device,
    )
    workload.build_optimizer(workload.model)
    return workload


def _device(wanted: str) -> torch.device:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("device: 'cuda' was asked for, but torch sees no GPU; `fastbudget env` tells why.")
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)


def _splits(data: Any) -> dict[str, Any]:
    known = ("train", "validation", "test", "test_groups")
    if isinstance(data, list | tuple) and len(data) in (2, 3):
        data = dict(zip(known, data, strict=False))
    if not isinstance(data, Mapping) or not {"train", "validation"} <= set(data) <= set(known):
        given = f"keys {sorted(data)}" if isinstance(data, Mapping) else type(data).__name__
        raise ConfigurationError(
            "data: the factory must return (train, validation), (train, validation, test), or a mapping with the keys "
            f"train, validation and optionally test and test_groups; got {given}."
        )
    return {name: data.get(name) for name in known}


def _classes(loader: Iterable[Any]) -> set[int]:
    seen: set[int] = set()
    for batch in islice(loader, _CHECKED_BATCHES):
        if not isinstance(batch, list | tuple) or len(batch) != 2 or not isinstance(batch[1], torch.Tensor):
            raise InvalidInputError(
                "Classification metrics need batches (inputs, targets) with a tensor of class labels."
            )
        seen.update(batch[1].unique().tolist())
        if len(seen) > 1:
            break
    return seen


def _check_classes(splits: Mapping[str, Any]) -> None:
    state = torch.get_rng_state()
    for name in ("train", "validation", "test"):
        if splits[name] is None:
            continue
        classes = _classes(splits[name])
        if len(classes) < 2:
            raise InvalidInputError(
                f"The {name} split holds a single class ({classes.pop()}): a classifier can neither learn nor be "
                "judged on it. Check how the data was split; sorted data must be shuffled first."
            )
    torch.set_rng_state(state)
