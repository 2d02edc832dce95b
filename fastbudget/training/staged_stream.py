"""Batches of a training in stages: each stage may bring data of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..core.errors import InvalidInputError
from .batch_stream import BatchStream, check_can_resume
from .stages import Stage, StageSequence

TrainData = Iterable[Any] | Callable[[Stage], Iterable[Any]]


def makes_data(train_data: TrainData) -> bool:
    """Whether ``train_data`` is a function of the stage, and not data that happens to be callable."""
    return callable(train_data) and not hasattr(train_data, "__iter__")


def check_stage_data(train_data: TrainData, stages: StageSequence | None) -> None:
    """Raise InvalidInputError for data that can't be resumed, or that doesn't go with the stages."""
    if not makes_data(train_data):
        check_can_resume(train_data, "train_data")  # type: ignore[arg-type]
        if stages is not None and (what := stages.needs_own_data()):
            raise InvalidInputError(
                f"{what}, so train_data must be a function train_data(stage) that returns the stage's batches; got a "
                f"{type(train_data).__name__}."
            )
    elif stages is None:
        raise InvalidInputError("train_data is a function, which only stages call; give batches, or stages too.")


def data_of_stage(train_data: TrainData, stages: StageSequence | None, seed: int) -> tuple[Iterable[Any], int]:
    """Return the data of the stage under way, and the seed of its order: another one in each stage."""
    if stages is None or not makes_data(train_data):
        return train_data, seed  # type: ignore[return-value]
    stage = stages.current
    data = train_data(stage)  # type: ignore[operator]
    if not hasattr(data, "__iter__"):
        raise InvalidInputError(
            f"train_data(stage) must return the batches of stage {stage.name!r}, got a {type(data).__name__}."
        )
    check_can_resume(data, f"train_data(stage {stage.name!r})")
    return data, seed + stages.index


class StagedStream:
    """A `BatchStream` that is replaced when a stage begins; its position is that in the stage's data.

    Args:
        make: Makes the stream of the stage under way, from a saved position or, for None, from its start.
        state: The position to begin at.
        has_own_data: Whether each stage has; else the stream goes on.
    """

    def __init__(
        self,
        make: Callable[[Mapping[str, Any] | None], BatchStream],
        state: Mapping[str, Any] | None,
        *,
        has_own_data: bool,
    ) -> None:
        self._make, self._has_own_data = make, has_own_data
        self._stream = make(state)

    def __next__(self) -> Any:
        return next(self._stream)

    def look_ahead(self) -> Any:
        """Return the batch that comes next, without taking it."""
        return self._stream.look_ahead()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the stage's data."""
        return self._stream.state_dict()

    def begin_stage(self) -> None:
        """Begin the data of the stage that begins, if it has its own."""
        if self._has_own_data:
            self._stream = self._make(None)


Stream = BatchStream | StagedStream
