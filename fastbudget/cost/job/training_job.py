"""A training job as its owner thinks of it: model, data and cadence, not yet where it runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import Any

from ...core.errors import InvalidInputError
from ..transformer.training_layout import TrainingLayout
from ..transformer.transformer_config import read_transformer
from ..transformer.transformer_shape import TransformerShape

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """What is to be trained, on how much data, and what happens between the steps. Checked on construction.

    The data is either ``tokens`` or ``examples``. An example takes ``seq_len`` positions, or
    ``tokens_per_example`` of them when examples are packed.

    Attributes:
        config: a Hugging Face ``config.json`` (path or contents) or a preset such as ``"llama-7b"``.
        seq_len: tokens of a sequence.
        global_batch_size: sequences of an optimizer step.
        tokens: useful tokens of one epoch.
        examples: examples of one epoch, instead of ``tokens``.
        tokens_per_example: mean useful tokens of an example; None: ``seq_len``.
        packed: examples are packed into sequences; else each is padded to ``seq_len``.
        epochs: passes over the data; may be a fraction.
        augmentation: variants of each example that are trained on, 1: the data as it is.
        padding_waste: share of the positions that hold no useful token, in [0, 1): padding, or what packing
            leaves empty. None: what ``tokens_per_example`` says, else 0.
        precision: see :class:`TrainingLayout`, as for the next eight.
        optimizer: see there.
        lora_rank: see there.
        lora_targets: see there.
        trains_embeddings: see there.
        quantized_base: see there.
        attention: see there.
        loss: see there.
        compiled: see there.
        evaluate_every_steps: steps between evaluations; None: by ``evaluations``.
        evaluations: evaluations in the whole run.
        evaluation_tokens: tokens of one evaluation, a forward pass each.
        evaluation_s: seconds of one evaluation, instead of its tokens.
        checkpoint_every_steps: steps between checkpoints; None: the Young/Daly interval.
        checkpoint_s: seconds that training waits for one checkpoint; None: from the bytes of its states.
        buffer: share of everything else added for tuning, failed starts and surprises.
    """

    config: str | PathLike[str] | Mapping[str, Any] | TransformerShape = field(repr=False)
    seq_len: int
    global_batch_size: int
    tokens: int | None = None
    examples: int | None = None
    tokens_per_example: float | None = None
    packed: bool = False
    epochs: float = 1.0
    augmentation: float = 1.0
    padding_waste: float | None = None
    precision: str = "bf16-mixed"
    optimizer: str = "adamw"
    lora_rank: int | None = None
    lora_targets: tuple[str, ...] = ("q", "v")
    trains_embeddings: bool = False
    quantized_base: bool = False
    attention: str = "flash"
    loss: str = "eager"
    compiled: bool = False
    evaluate_every_steps: int | None = None
    evaluations: int | None = None
    evaluation_tokens: int | None = None
    evaluation_s: float | None = None
    checkpoint_every_steps: int | None = None
    checkpoint_s: float | None = None
    buffer: float = 0.25

    def __post_init__(self) -> None:
        for name in (
            "tokens",
            "examples",
            "evaluate_every_steps",
            "evaluations",
            "evaluation_tokens",
            "checkpoint_every_steps",
        ):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _whole(name, getattr(self, name)))
        for name in ("epochs", "augmentation", "tokens_per_example", "evaluation_s", "checkpoint_s"):
            _check_positive(name, getattr(self, name))
        _check_number("buffer", self.buffer, "a share of at least 0, such as 0.25", self.buffer >= 0)
        if self.padding_waste is not None:
            _check_number("padding_waste", self.padding_waste, "a share in [0, 1)", 0 <= self.padding_waste < 1)
        self._check_data()
        self._check_evaluation()
        self.layout()  # checks sizes and names

    def _check_data(self) -> None:
        if (self.tokens is None) == (self.examples is None):
            raise InvalidInputError(
                f"TrainingJob: give either tokens or examples, got tokens={self.tokens!r}, examples={self.examples!r}."
            )
        if self.tokens_per_example is None:
            return
        if self.examples is None:
            raise InvalidInputError("TrainingJob: tokens_per_example needs examples: tokens are counted already.")
        if self.padding_waste is not None and not self.packed:
            raise InvalidInputError(
                "TrainingJob: tokens_per_example says how much is padding; give padding_waste only with packed=True."
            )
        if not self.packed and self.tokens_per_example > self.seq_len:
            raise InvalidInputError(
                f"TrainingJob: tokens_per_example ({self.tokens_per_example:g}) must be at most seq_len "
                f"({self.seq_len}) unless packed=True: longer examples are cut."
            )

    def _check_evaluation(self) -> None:
        if self.evaluate_every_steps is not None and self.evaluations is not None:
            raise InvalidInputError("TrainingJob: give either evaluate_every_steps or evaluations, not both.")
        evaluates = self.evaluate_every_steps is not None or self.evaluations is not None
        sized = (self.evaluation_tokens is not None) + (self.evaluation_s is not None)
        if evaluates and sized != 1:
            raise InvalidInputError(
                "TrainingJob: evaluations need either evaluation_tokens or evaluation_s, the size of one."
            )
        if sized and not evaluates:
            raise InvalidInputError("TrainingJob: say how often: evaluate_every_steps or evaluations.")

    @cached_property
    def shape(self) -> TransformerShape:
        """The model's shape.

        Raises:
            InvalidInputError: see ``read_transformer``.
        """
        return read_transformer(self.config)

    @property
    def effective_tokens(self) -> float:
        """Useful tokens that are trained on, over all epochs and variants."""
        if self.tokens is not None:
            once = float(self.tokens)
        else:
            assert self.examples is not None
            full = self.seq_len * (1.0 - (self.padding_waste or 0.0))
            once = self.examples * (full if self.tokens_per_example is None else self.tokens_per_example)
        return once * self.epochs * self.augmentation

    @property
    def processed_tokens(self) -> float:
        """Positions that are computed: useful tokens and waste."""
        return self.effective_tokens / (1.0 - self.waste)

    @property
    def waste(self) -> float:
        """Share of the computed positions that hold no useful token."""
        if self.padding_waste is not None:
            return self.padding_waste
        if self.tokens_per_example is None or self.packed:
            return 0.0
        return 1.0 - self.tokens_per_example / self.seq_len

    @property
    def num_steps(self) -> int:
        """Optimizer steps, the last one possibly not full."""
        # The tiny subtraction keeps rounding of the shares from adding a step.
        return max(1, math.ceil(self.processed_tokens / (self.global_batch_size * self.seq_len) - 1e-9))

    @property
    def num_evaluations(self) -> int:
        """Evaluations of the whole run."""
        if self.evaluate_every_steps is not None:
            return self.num_steps // self.evaluate_every_steps
        return self.evaluations or 0

    def layout(self, **where: Any) -> TrainingLayout:
        """Return a layout of this job; ``where`` are the fields of :class:`TrainingLayout` that it leaves open."""
        return TrainingLayout(
            seq_len=self.seq_len,
            global_batch_size=self.global_batch_size,
            precision=where.pop("precision", self.precision),
            optimizer=where.pop("optimizer", self.optimizer),
            lora_rank=self.lora_rank,
            lora_targets=self.lora_targets,
            trains_embeddings=self.trains_embeddings,
            quantized_base=self.quantized_base,
            attention=where.pop("attention", self.attention),
            loss=where.pop("loss", self.loss),
            compiled=where.pop("compiled", self.compiled),
            **where,
        )


def _whole(name: str, value: Any) -> int:
    """Return a size of at least 1; floats such as 1e12 count when they are whole."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or value != value
        or value in (math.inf, -math.inf)
    ):
        raise InvalidInputError(f"TrainingJob: {name} must be a whole number of at least 1, got {value!r}.")
    if value != int(value) or not 1 <= value <= _INT64_MAX:
        raise InvalidInputError(f"TrainingJob: {name} must be a whole number of at least 1, got {value!r}.")
    return int(value)


def _check_positive(name: str, value: Any) -> None:
    if value is not None:
        _check_number(name, value, "a finite number above 0", isinstance(value, int | float) and value > 0)


def _check_number(name: str, value: Any, requirement: str, holds: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not holds:
        raise InvalidInputError(f"TrainingJob: {name} must be {requirement}, got {value!r}.")
