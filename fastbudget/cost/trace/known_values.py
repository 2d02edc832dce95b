"""Real values for the few small tensors whose contents decide what a model does.

Fake tensors have shapes but no contents, yet models read some: ``labels.max()``, the end-of-text positions in
``input_ids``, the schedule in ``torch.linspace(...).tolist()``, an optimizer's step counter. Small tensors
made from constants or given as integer inputs are therefore computed for real beside their fake twin, as long
as everything that they depend on is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LARGEST_KNOWN = 1 << 20
aten = torch.ops.aten

_UNKNOWABLE_TAGS = {torch.Tag.nondeterministic_seeded}
# Whole numbers drawn at random (token ids, labels) are as good as any; random reals decide nothing but layer
# drop.
_RANDOM_INTEGERS = {aten.randint.default, aten.randint.low, aten.randperm.default}
_RANDOM_REALS = {aten.rand.default}
# Experts are chosen by a top-k over router scores. Unknown scores are assumed to spread tokens evenly.
_CHOICES = {aten.topk.default}
_WITHOUT_CONTENTS = {aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty, aten.new_empty_strided}


class KnownValues:
    """Keeps real twins of fake tensors and computes new ones along with the trace."""

    def __init__(self) -> None:
        self._twins: WeakIdKeyDictionary = WeakIdKeyDictionary()
        # Kept alive, so that their addresses stay theirs.
        self._spoiled: dict[int, torch.UntypedStorage] = {}

    def remember(self, fake: torch.Tensor, real: torch.Tensor) -> None:
        """Keep ``real`` as the contents of ``fake``."""
        if real.numel() <= LARGEST_KNOWN:
            self._twins[fake] = real

    def remember_copy(self, fake: torch.Tensor, real: torch.Tensor) -> None:
        """Keep a copy of ``real`` as the contents of ``fake``: in-place operations leave ``real`` alone."""
        if real.numel() <= LARGEST_KNOWN:
            with no_dispatch():
                self._twins[fake] = real.detach().cpu().clone()

    def forget(self, fake: torch.Tensor) -> None:
        """No longer know the contents of ``fake``."""
        self._twins.pop(fake, None)

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the contents of a tensor, or None where they are not known."""
        if type(tensor) is torch.Tensor:
            return tensor if tensor.device.type == "cpu" else None
        twin: torch.Tensor | None = self._twins.get(tensor)
        if twin is not None and twin.untyped_storage()._cdata in self._spoiled:
            return None
        return twin

    def compute(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        tensors: list[torch.Tensor],
        outputs: Sequence[torch.Tensor] = (),
    ) -> Any | None:
        """Run the operation on real values and return its result; None unless every input is known.

        Tensors that the operation would write to with unknown contents are forgotten. Results that would be
        as large as ``outputs`` are not computed when those are too large to keep.
        """
        known = func.overloadpacket not in _WITHOUT_CONTENTS
        known = known and (func.is_view or sum(tensor.numel() for tensor in outputs) <= LARGEST_KNOWN)
        for tensor in tensors:
            if self.value_of(tensor) is None:
                known = False
                break
        if not known or (func.tags and not _UNKNOWABLE_TAGS.isdisjoint(func.tags) and not self._may_draw(func, args)):
            if func._schema.is_mutable and tensors:
                self._forget_written(func, args, kwargs)
            return _even_choice(args) if func in _CHOICES else None
        if not tensors and not _is_small_factory(func, args):
            return None
        with no_dispatch():
            real_args = tree_map_only(torch.Tensor, self.value_of, tuple(args))
            real_kwargs = tree_map_only(torch.Tensor, self.value_of, dict(kwargs))
            if func in _RANDOM_REALS:
                return func(*real_args, **real_kwargs).fill_(0.5)
            if func in _RANDOM_INTEGERS:
                with torch.random.fork_rng(devices=[]):
                    return func(*real_args, **real_kwargs)
            return func(*real_args, **real_kwargs)

    def _may_draw(self, func: Any, args: Sequence[Any]) -> bool:
        return func in _RANDOM_INTEGERS or (func in _RANDOM_REALS and list(args[0]) == [])

    def _forget_written(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            written = args[position] if position < len(args) else kwargs.get(argument.name)
            for tensor in written if isinstance(written, (list, tuple)) else [written]:
                if isinstance(tensor, torch.Tensor):
                    twin = self._twins.pop(tensor, None)
                    if twin is not None:
                        storage = twin.untyped_storage()
                        self._spoiled[storage._cdata] = storage


def _even_choice(args: Sequence[Any]) -> tuple[None, torch.Tensor] | None:
    """Return unknown values and positions that take turns, for a top-k over the last dimension."""
    scores, count = args[0], args[1]
    dim = args[2] if len(args) > 2 else -1
    total = scores.numel() // scores.shape[-1] * count
    if dim not in (-1, scores.dim() - 1) or total > LARGEST_KNOWN:
        return None
    with no_dispatch():
        positions = torch.arange(total) % scores.shape[-1]
        return None, positions.reshape(*scores.shape[:-1], count)


def _is_small_factory(func: Any, args: Sequence[Any]) -> bool:
    """Tell whether an operation without tensor inputs makes a tensor small enough to compute."""
    sizes = [args[0]] if args else []
    if func.overloadpacket in (aten.arange, aten.linspace, aten.logspace):
        numbers = [abs(a) for a in args if isinstance(a, (int, float))]
        return bool(numbers) and max(numbers) <= LARGEST_KNOWN
    for size in sizes:
        if isinstance(size, (list, tuple)) and all(isinstance(n, int) for n in size):
            return _product(size) <= LARGEST_KNOWN
    return func in _RANDOM_INTEGERS or func.overloadpacket is aten.scalar_tensor


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for n in sizes:
        total *= n
    return total
