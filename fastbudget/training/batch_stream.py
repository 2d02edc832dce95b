"""Batches without end, with a position that a checkpoint keeps and a resumed run enters again."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..core.errors import InvalidInputError
from .batches import check_can_start_anew, num_samples
from .data import ResumableSampler, SeededDataset, TokenLoader
from .generators import generator_states, set_generator_states

EPOCH_END = object()


def no_batch() -> InvalidInputError:
    """Return the error for data that yields nothing."""
    return InvalidInputError("train_data yields no batch (any more): the data set is empty, or the stream ended.")


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the seed that torch's generators get before an epoch."""
    return (seed * 1_000_003 + epoch) % 2**63


def is_stateful(loader: Any) -> bool:
    """Whether a loader keeps its position itself, as `TokenDataset.batches` and torchdata's loaders do."""
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def check_can_resume(loader: Iterable[Any], name: str) -> None:
    """Raise InvalidInputError for an iterator without a position: it has nothing to give after a resume."""
    if not is_stateful(loader):
        check_can_start_anew(loader, name)


class BatchStream:
    """Endless batches of a loader, epoch after epoch.

    Before each epoch torch's global seed is set from (seed, epoch) and samplers with ``set_epoch`` are told, so that
    order and workers' draws repeat when training resumes. A saved position is entered

    - at once where the loader keeps one, or uses a `ResumableSampler` and nothing else depends on the batches before:
      no workers, or a `SeededDataset`;
    - else by drawing the epoch's batches up to it again and dropping them.

    Args:
        loader: Re-iterable, or stateful.
        seed: Of the order.
        state: What ``state_dict`` returned; None: from the start.

    Raises:
        InvalidInputError: the state lacks a part, or belongs to other data.
    """

    def __init__(self, loader: Iterable[Any], *, seed: int, state: Mapping[str, Any] | None = None) -> None:
        if isinstance(loader, TokenLoader):
            loader = loader.stream()  # of its own, so that nobody else moves it
        self._loader, self._seed = loader, seed
        self._sampler = _resumable_sampler(loader)
        self._keeper: Any = self._sampler or (loader if is_stateful(loader) else None)
        self._generators = _generators(loader)
        self.epoch, self.position = 0, 0
        if getattr(loader, "persistent_workers", False):
            # Workers that stay begin all epochs but their first with one random number fewer. After this no epoch is
            # their first, whether the run is new or resumed.
            iter(loader)
        self._ahead: tuple[Any, dict[str, Any], dict[str, Any]] | None = None
        if state is not None:
            self._enter(state)
        else:
            if self._sampler is not None:
                self._sampler.set_position(0)
            self._iterator = self._start_epoch()

    def look_ahead(self) -> Any:
        """Return the batch that comes next, as if it had not been drawn yet: position and generators stay."""
        if self._ahead is None:
            position, before = self.state_dict(), generator_states()
            batch = next(self)
            self._ahead = batch, position, generator_states()
            set_generator_states(before)
        return self._ahead[0]

    def __next__(self) -> Any:
        if self._ahead is not None:
            (batch, _, generators), self._ahead = self._ahead, None
            set_generator_states(generators)
            return batch
        batch = self._draw()
        if batch is EPOCH_END and self.position:
            self._next_epoch()
            batch = self._draw()
        if batch is EPOCH_END:
            raise no_batch()
        return batch

    def _draw(self) -> Any:
        """Return the epoch's next batch, or EPOCH_END."""
        for batch in self._iterator:
            self._count(batch)
            return batch
        return EPOCH_END

    def _next_epoch(self) -> None:
        self.epoch, self.position = self.epoch + 1, 0
        if self._sampler is not None:
            self._sampler.set_position(self.epoch)
        self._iterator = self._start_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return the position behind the batches taken; what loaders read ahead doesn't count."""
        if self._ahead is not None:
            return self._ahead[1]
        return {
            "epoch": self.epoch,
            "position": self.position,
            "keeper": self._keeper.state_dict() if self._keeper is not None else None,
            "generators": self._generator_states,
        }

    def _count(self, batch: Any) -> None:
        self.position += 1
        if self._sampler is not None:
            self._sampler.advance(self._samples_in(batch) if self._sampler.batch_size is None else None)

    def _samples_in(self, batch: Any) -> int:
        return num_samples(batch)

    def _start_epoch(self) -> Iterator[Any]:
        torch.manual_seed(epoch_seed(self._seed, self.epoch))
        for sampler in samplers_of(self._loader):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(self.epoch)
        self._generator_states = [generator.get_state() for generator in self._generators]
        if self._sampler is not None:
            self._sampler.advance(0)  # from here on its position is kept, whatever workers draw ahead
        return iter(self._loader)

    # Whether other ranks may have more batches in an epoch; then the position counts theirs.
    _may_end_early = False

    # -- resuming --------------------------------------------------------------------------------------------------

    def _enter(self, state: Mapping[str, Any]) -> None:
        missing = {"epoch", "position", "keeper", "generators"} - state.keys()
        if missing:
            raise InvalidInputError(f"The saved data position lacks {', '.join(sorted(missing))}.")
        kept = state["keeper"]
        if (kept is None) != (self._keeper is None) or len(state["generators"]) != len(self._generators):
            raise InvalidInputError(
                "train_data keeps its position in another way than when it was saved (another kind of loader, sampler "
                "or generator), so it can't go on from there; give the same kind of train_data, or start anew."
            )
        for generator, saved in zip(self._generators, state["generators"], strict=True):
            generator.set_state(saved)
        self.epoch = state["epoch"]
        if self._sampler is not None and not self._may_jump():
            self._sampler.load_state_dict(kept)  # refuses other data
            self._sampler.set_position(self.epoch)
            self._replay(state)
        elif self._keeper is not None:
            self._keeper.load_state_dict(kept)
            self._generator_states = state["generators"]
            # A sampler at an epoch's end stands at the start of the next, which has not begun yet.
            ended = self._sampler is not None and self._sampler.epoch > self.epoch
            self._iterator = iter(()) if ended else self._start_epoch()
            self.position = state["position"]
        else:
            self._replay(state)

    def _replay(self, state: Mapping[str, Any]) -> None:
        """Draw the epoch's batches up to the position again and drop them."""
        loader = self._loader
        if self.epoch and getattr(loader, "persistent_workers", False) and not _is_seeded(loader):
            warnings.warn(
                "Persistent workers carry random states from epoch to epoch that can't be restored: augmentation will "
                "differ from the uninterrupted run. Use a ResumableSampler with a SeededDataset, or "
                "persistent_workers=False.",
                RuntimeWarning,
                stacklevel=5,
            )
        self._iterator = self._start_epoch()
        while self.position < state["position"]:
            try:
                self._count(next(self._iterator))
            except StopIteration:
                if self._may_end_early:
                    self.position = state["position"]
                    break
                raise InvalidInputError(
                    f"train_data yields {self.position} batches an epoch, and {state['position']} were taken when the "
                    "run was saved; resume with the same data and batch size, or start anew."
                ) from None

    def _may_jump(self) -> bool:
        return not getattr(self._loader, "num_workers", 0) or _is_seeded(self._loader)


def samplers_of(loader: Any) -> list[Any]:
    """Return a loader's samplers, and those that they take their indices from, each once."""
    unseen = [getattr(loader, name, None) for name in ("batch_sampler", "sampler")]
    found: list[Any] = []
    while unseen:
        sampler = unseen.pop(0)
        if sampler is not None and sampler not in found:
            found.append(sampler)
            unseen.append(getattr(sampler, "sampler", None))
    return found


def _resumable_sampler(loader: Any) -> ResumableSampler | None:
    return next((sampler for sampler in samplers_of(loader) if isinstance(sampler, ResumableSampler)), None)


def _generators(loader: Any) -> list[torch.Generator]:
    """Generators a DataLoader was given, each once."""
    if not isinstance(loader, DataLoader):
        return []
    owners = [loader, *samplers_of(loader)]
    found = [getattr(owner, "generator", None) for owner in owners]
    return list({id(generator): generator for generator in found if isinstance(generator, torch.Generator)}.values())


def _is_seeded(loader: Any) -> bool:
    return isinstance(getattr(loader, "dataset", None), SeededDataset)
