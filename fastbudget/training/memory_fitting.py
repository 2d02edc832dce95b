"""Memory settings of a run: what is recomputed, how batches are cut, and what is said where memory doesn't suffice."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from ..core.errors import FastbudgetError, InvalidInputError
from ..core.units import format_bytes
from ..cost import find_blocks, recomputed_layers
from .losses import Loss
from .micro_batches import MicroBatches
from .step_memory import Recompute, StepMemory, check_micro_batch_size, check_recompute, fit_step, what_would_fit
from .step_prediction import StepPredictor

if TYPE_CHECKING:
    from .distributed import Ranks

_log = logging.getLogger("fastbudget.training")


class MemoryFitting:
    """Applies ``recompute`` and ``micro_batch_size`` to a run, and chooses what is ``"auto"`` from its first batch.

    Args:
        model: Trained.
        loss: ``loss(outputs, batch)``.
        optimizer: Of the model.
        precision: Of the run.
        device: Of the model.
        recompute: ``"none"``, ``"full"``, ``"auto"``, or names of modules or their classes.
        micro_batch_size: Samples, ``"auto"``, or None.
        memory_limit_bytes: See `StepPredictor`; None: the device's memory.
        is_sharded: Whether the model is spread over ranks: then a step can't be traced, and nothing can be chosen.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        *,
        precision: str,
        device: torch.device,
        recompute: Recompute = "none",
        micro_batch_size: int | Literal["auto"] | None = None,
        memory_limit_bytes: int | None = None,
        is_sharded: bool = False,
    ) -> None:
        check_recompute(recompute)
        check_micro_batch_size(micro_batch_size)
        if memory_limit_bytes is not None and not memory_limit_bytes > 0:
            raise InvalidInputError(f"memory_limit_bytes must be above 0, got {memory_limit_bytes}.")
        self._model, self._device, self._size = model, device, micro_batch_size
        self._is_auto = isinstance(recompute, str) and recompute == "auto"
        self._named = [] if self._is_auto or recompute == "none" else list(recompute_names(model, recompute))
        self._predictor = StepPredictor(
            model, loss, optimizer, precision=precision, device=device, memory_limit_bytes=memory_limit_bytes
        )
        self.is_pending = self._chooses = self._is_auto or micro_batch_size == "auto" or memory_limit_bytes is not None
        if is_sharded and self.is_pending:
            raise InvalidInputError(
                "'auto' and memory_limit_bytes can't be with a sharded model, whose step can't be traced; give "
                "micro_batch_size and recompute as fb.estimate(..., sharding=...) advises before."
            )
        self.chosen: StepMemory | None = None
        self._applied = ExitStack()

    @contextmanager
    def applied(self, micro_batches: MicroBatches) -> Iterator[None]:
        """Recompute what was asked for while inside, and cut batches as asked for."""
        self._micro_batches = micro_batches
        micro_batches.advice = self._advice
        if isinstance(self._size, int):
            micro_batches.size = self._size
        with self._applied:
            if self._named:
                self._applied.enter_context(recomputed_layers(self._model, self._named))
            yield

    def start_anew(self) -> None:
        """Choose again before the next step, whose batches may have another shape."""
        self.is_pending = self._chooses

    def choose(self, batches: Sequence[Any], ranks: Ranks | None = None) -> None:
        """Choose what is ``"auto"`` from the batches of the step about to be taken; with ranks, from rank 0's.

        Raises:
            OutOfMemoryError: ``memory_limit_bytes`` was given and nothing of this fits it.
            InvalidInputError: ``recompute="auto"`` or a limit was given, and the step can't be traced.
        """
        self.is_pending = False
        # A trace runs the model as it is, so what was named is undone for it: the trace does it itself.
        self._applied.close()

        def fit() -> StepMemory:
            try:
                return fit_step(
                    self._predictor,
                    batches[0],
                    recompute="auto" if self._is_auto else self._named,
                    micro_batch_size=self._size,
                    accumulates=len(batches) > 1,
                )
            except FastbudgetError:
                raise
            except Exception as error:  # whatever the model raises on fake tensors
                raise InvalidInputError(f"{type(error).__name__}: {error}") from error

        try:
            self.chosen = fit() if ranks is None else ranks.group.done_by_rank_0(fit)
        except InvalidInputError as error:
            if self._is_auto or self._predictor.is_limit_given:
                raise InvalidInputError(
                    f"The step can't be traced, so nothing can be chosen for its memory: {error} Give micro_batch_size "
                    "and recompute yourself, without memory_limit_bytes."
                ) from error
            _log.warning("The step can't be traced; batches are cut only when memory runs out. %s", error)
        names = self._named if self.chosen is None else list(self.chosen.recompute)
        if names:
            self._applied.enter_context(recomputed_layers(self._model, names))
        if self.chosen is not None and self.chosen.micro_batch_size is not None:
            self._micro_batches.size = self.chosen.micro_batch_size

    def compare(self) -> None:
        """After the step that was chosen for: say how its peak compares. On the CPU nobody counts."""
        if self.chosen is None or self._device.type != "cuda":
            return
        measured = torch.cuda.max_memory_reserved(self._device)
        self.chosen = replace(self.chosen, measured_peak_bytes=measured)
        _log.info(
            "The step ran: %s reserved at its peak, %s predicted with what lies beside.",
            format_bytes(measured),
            format_bytes(self.chosen.peak_bytes),
        )

    def _advice(self, batch: Any) -> str:
        names = self._named if self.chosen is None else self.chosen.recompute
        self._applied.close()
        return what_would_fit(self._predictor, batch, names)


def recompute_names(model: torch.nn.Module, recompute: Recompute) -> tuple[str, ...]:
    """Return the names of the modules to recompute, those of ``"full"`` being the repeated blocks.

    Raises:
        InvalidInputError: the model has no repeated blocks, or no module of a name.
    """
    if isinstance(recompute, str):
        blocks = find_blocks(model)
        if not blocks:
            raise InvalidInputError(
                f"recompute={recompute!r} requires a model with repeated blocks in an nn.ModuleList or nn.Sequential, "
                f"and {type(model).__name__} has none. Name the modules to recompute."
            )
        return tuple(blocks)
    return tuple(find_blocks(model, recompute))
