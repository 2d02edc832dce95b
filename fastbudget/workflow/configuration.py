"""The main job's configuration file: its keys, their checks, and errors that name the line."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from .. import metrics as metrics_room
from ..core.budget import Budget
from ..core.errors import ConfigurationError, did_you_mean, one_of
from ..training import OPTIMIZERS, Stage
from ..training.numerics import check_compile_options
from ..training.precision import Precision
from ..training.stages import StageSequence
from .factories import import_factory
from .yaml_lines import KeyPath, read_yaml

_FACTORY = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class OptimizerSection(_Section):
    """``optimizer:``, a name and its options."""

    name: str = "adamw"
    lr: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in OPTIMIZERS:
            raise ValueError(f"unknown optimizer {name!r}.{did_you_mean(name, OPTIMIZERS)} Known: {one_of(OPTIMIZERS)}")
        return name


class StageSection(_Section):
    """One of ``train.stages``; see `fb.training.Stage`. The direction of a target is that of its metric."""

    name: str
    targets: dict[str, float] = {}
    budget_share: float | None = Field(default=None, gt=0, le=1)
    max_steps: int | None = Field(default=None, ge=1)
    devices: int | None = Field(default=None, ge=1)
    grad_accumulation: int | None = Field(default=None, ge=1)
    precision: Precision | None = None

    @field_validator("targets")
    @classmethod
    def _known_metrics(cls, targets: dict[str, float]) -> dict[str, float]:
        for name in targets:
            metrics_room.get(name)
        return targets

    def value(self) -> Stage:
        """Return the stage; raises InvalidInputError when it isn't one."""
        modes: dict[str, Literal["max", "min"]] = {
            name: "max" if metrics_room.get(name).higher_is_better else "min" for name in self.targets
        }
        return Stage(mode=modes, **self.model_dump())


class TrainSection(_Section):
    """``train:``, the loop."""

    max_steps: int = Field(default=1000, ge=1)
    evaluate_every: int | None = Field(default=None, ge=1)
    grad_accumulation: int = Field(default=1, ge=1)
    schedule: Literal["linear", "cosine", "wsd", "constant"] = "linear"
    warmup_steps: int = Field(default=0, ge=0)
    cool_down_share: float = Field(default=0.2, gt=0, le=1)
    stages: list[StageSection] = []
    clip_grad_norm: float | None = Field(default=None, gt=0)
    precision: Precision = "fp32"
    allow_tf32: bool | None = None
    compile: bool | dict[str, Any] = False
    on_nonfinite: Literal["raise", "skip"] = "raise"
    seed: int = Field(default=0, ge=0)

    @field_validator("compile")
    @classmethod
    def _known_options(cls, options: bool | dict[str, Any]) -> bool | dict[str, Any]:
        check_compile_options(options)
        return options

    @field_validator("stages")
    @classmethod
    def _usable_stages(cls, sections: list[StageSection]) -> list[StageSection]:
        if sections:
            StageSequence([section.value() for section in sections])
        return sections


class BudgetSection(_Section):
    """``budget:``, at least one limit; the tightest rules."""

    gpu_hours: float | None = None
    wall_hours: float | None = None
    usd: float | None = None
    usd_per_device_hour: float | None = None
    kwh: float | None = None
    watts_per_device: float | None = None

    def value(self) -> Budget:
        """Return the budget; raises InvalidInputError when it isn't one."""
        return Budget(**self.model_dump())


class ExportSection(_Section):
    """``export:``, what to make of the best checkpoint."""

    target: Literal["onnx"] = "onnx"


class RunConfiguration(_Section):
    """The whole file.

    ``model`` and ``data`` are ``package.module:factory``, importable from the working directory or the file's own.
    ``model()`` returns a module. ``data()`` returns (train, validation) or (train, validation, test), re-iterables of
    batches (inputs, targets), or a mapping with these names and optionally ``test_groups``.
    """

    model: str = Field(pattern=_FACTORY)
    data: str = Field(pattern=_FACTORY)
    budget: BudgetSection
    name: str | None = Field(default=None, pattern=r"^[\w.-]+$")
    loss: str = Field(default="cross_entropy")
    optimizer: OptimizerSection = OptimizerSection()
    train: TrainSection = TrainSection()
    metrics: list[str] = Field(default=["accuracy"], min_length=1)
    select_by: str | None = None
    export: ExportSection | None = ExportSection()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = Field(default=None, ge=1)

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, names: list[str]) -> list[str]:
        for name in names:
            metrics_room.get(name)
        return names

    @field_validator("budget")
    @classmethod
    def _usable_budget(cls, section: BudgetSection) -> BudgetSection:
        section.value().in_seconds()
        return section

    @property
    def ranking_metric(self) -> str:
        """The metric that chooses the best checkpoint."""
        return self.select_by or self.metrics[0]

    @property
    def ranking_mode(self) -> Literal["max", "min"]:
        """Whether a larger or a smaller value of it is better."""
        return "max" if metrics_room.get(self.ranking_metric).higher_is_better else "min"


_RATES = ("usd_per_device_hour", "watts_per_device")


def load_configuration(path: Path, overrides: Mapping[str, Any] | None = None) -> RunConfiguration:
    """Read and check a configuration file.

    Args:
        path: A YAML file.
        overrides: Budget limits that replace the file's, as from the command line.

    Raises:
        ConfigurationError: names the file, the line, the key, and what is allowed.
    """
    document, lines = read_yaml(path)
    if overrides:
        budget = document.get("budget")
        if "budget" in document and not isinstance(budget, dict):
            raise ConfigurationError(f"{path}:{lines[('budget',)]}: budget must be a mapping, got {budget!r}.")
        # A limit from the command line replaces the file's limits; price and power stay.
        rates = {key: value for key, value in (budget or {}).items() if key in _RATES}
        document = {**document, "budget": rates | dict(overrides)}
    _import_modules(document, path.parent)
    try:
        configuration = RunConfiguration.model_validate(document)
    except ValidationError as error:
        raise ConfigurationError(_explain(path, lines, error)) from error
    if configuration.ranking_metric not in configuration.metrics:
        raise ConfigurationError(
            f"{path}:{lines[('select_by',)]}: select_by must be one of the metrics {configuration.metrics}, "
            f"got {configuration.select_by!r}.{did_you_mean(configuration.select_by or '', configuration.metrics)}"
        )
    return configuration.model_copy(update={"name": configuration.name or path.stem})


def _import_modules(document: Mapping[str, Any], search: Path) -> None:
    """Import what ``model`` and ``data`` name, so that metrics registered there are known to the checks.

    What goes wrong is told when the factories are built, after the file itself is known to be right.
    """
    for key in ("model", "data"):
        reference = document.get(key)
        if isinstance(reference, str) and re.match(_FACTORY, reference):
            with contextlib.suppress(ConfigurationError):
                import_factory(reference, key, search)


def _section_of(location: KeyPath) -> type[BaseModel]:
    """Return the section that holds the key at a location."""
    section: type[BaseModel] = RunConfiguration
    for key in location[:-1]:
        field = section.model_fields.get(str(key))
        for candidate in (field.annotation, *getattr(field.annotation, "__args__", ())) if field else ():
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                section = candidate
    return section


def _explain(path: Path, lines: Mapping[KeyPath, int], error: ValidationError) -> str:
    """Return one line per mistake: file, line, key, what was found, what is allowed."""
    problems = []
    for mistake in error.errors():
        location: KeyPath = tuple(mistake["loc"])
        key = ".".join(str(part) for part in location)
        known = location
        while known and known not in lines:
            known = known[:-1]
        where = f"{path}:{lines[known]}" if known else str(path)
        allowed = list(_section_of(location).model_fields)
        if mistake["type"] == "extra_forbidden":
            text = f"unknown key {key!r}.{did_you_mean(str(location[-1]), allowed)} Allowed: {', '.join(allowed)}."
        elif mistake["type"] == "missing":
            text = f"the key {key!r} is missing. Required: {', '.join(_required(_section_of(location)))}."
        elif mistake["type"] == "string_pattern_mismatch" and key in ("model", "data"):
            text = f"{key} must be `package.module:factory`, got {mistake['input']!r}."
        elif mistake["type"] in ("model_type", "model_attributes_type"):
            section = _section_of((*location, ""))
            text = f"{key} must be a mapping with the keys {', '.join(section.model_fields)}, got {mistake['input']!r}."
        elif mistake["type"] == "value_error":
            text = f"{key}: {mistake['ctx']['error']}"
        else:
            text = f"{key}: {mistake['msg']}, got {mistake['input']!r}."
        problems.append(f"{where}: {text}")
    return "\n".join(problems)


def _required(section: type[BaseModel]) -> list[str]:
    return [name for name, field in section.model_fields.items() if field.is_required()]
