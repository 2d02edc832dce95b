"""Evaluation of a model whose first layers stay the same: their activations are kept, the rest is computed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
import xxhash

from ..core.errors import InvalidInputError, one_of
from .activation_cache import ActivationCache, Bytes, TensorLayout
from .block_chain import (
    Structure,
    block_hash,
    call,
    captured,
    find_chain,
    replaced,
    row_hashes,
    rows_as_bytes,
    tensors_in,
)


class FrozenPrefix:
    """Keeps the activations after the last block that doesn't change, so that evaluations compute only what follows.

    ``prefix.predictor()`` returns a ``predict`` for `fb.evaluate` that holds for the model's weights at that moment.
    It hashes the blocks from the input on; as many as are equal to those of the call before (at the first call: as
    have no trainable parameter) are the frozen prefix. The first pass computes and keeps, the later ones reuse::

        prefix = FrozenPrefix(model)
        for epoch in range(10):
            train_the_head(model)
            record = fb.evaluate(prefix.predictor(), data)

    The result is the model's own, bit for bit. That is checked, not assumed: at the first batch of each prefix the
    model is run as it is, run again (a random or stateful prefix is refused), and run from the activations; and
    wherever the model uses a skipped block's numbers in another way than through the next block, it meets NaN.

    Args:
        model: In eval mode. Blocks may return tensors, or tuples and mappings of them, with the batch first.
        blocks: Names of the blocks from the input on, each fed by the one before; None: the children of an
            ``nn.Sequential``. What runs before the first block runs each time.
        cache: Where activations are kept; None: up to 1 GiB of memory.
        match: What is reused. ``"batch"``: only for the very same batch, because kernels round differently in batches
            of other sizes; so it is exact. ``"example"``: for each example in any batch; equal up to that rounding.

    Raises:
        InvalidInputError: a block that isn't there.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        blocks: Sequence[str] | None = None,
        cache: ActivationCache | None = None,
        match: Literal["batch", "example"] = "batch",
    ) -> None:
        if match not in ("batch", "example"):
            raise InvalidInputError(f"match must be 'batch' or 'example', got {match!r}.")
        self.model, self.match = model, match
        self.cache = ActivationCache() if cache is None else cache
        chain = find_chain(model, blocks)
        self._names, self._blocks = list(chain), list(chain.values())
        self._hashes: list[bytes] | None = None
        self._verified: bytes | None = None
        self._structures: list[Structure] = []
        self._recorded_size = 0
        self.frozen_blocks: tuple[str, ...] = ()

    def predictor(self) -> Callable[[Any], Any]:
        """Return ``predict(inputs)`` for the weights as they are now; with no frozen block it is the model itself.

        Raises:
            InvalidInputError: the model is in training mode. While predicting: the weights were changed since, the
                prefix is random or stateful, or its blocks aren't a chain.
        """
        training = [name or "the model" for name, module in self.model.named_modules() if module.training]
        if training:
            raise InvalidInputError(
                f"The model must be in eval mode, or dropout and batch statistics change what it computes: call "
                f"model.eval(); {one_of(training[:3])} {'is' if len(training) == 1 else 'are'} in training mode."
            )
        hashes = [block_hash(block) for block in self._blocks]
        count = self._count_frozen(hashes)
        self._hashes = hashes
        self.frozen_blocks = tuple(self._names[:count])
        if count == 0:
            return self._plain
        content = b"".join(hashes[:count])
        stamps = self._stamps(count)

        def predict(inputs: Any) -> Any:
            if self._stamps(count) != stamps:
                raise InvalidInputError("The weights of the prefix changed since predictor(): call it again.")
            return self._predict(inputs, count, xxhash.xxh3_128_digest(content + self._settings().encode()))

        return predict

    def _count_frozen(self, hashes: list[bytes]) -> int:
        if self._hashes is None:
            count = _leading(not any(p.requires_grad for p in block.parameters()) for block in self._blocks)
        else:
            count = _leading(new == old for new, old in zip(hashes, self._hashes, strict=True))
        if count == len(self._blocks) and self.frozen_blocks:
            return len(self.frozen_blocks)  # nothing was trained meanwhile, which says nothing new
        # Layers without weights cost less than reading their results.
        return count if any(list(block.parameters()) for block in self._blocks[:count]) else 0

    def _plain(self, inputs: Any) -> Any:
        with torch.no_grad():
            return call(self.model, inputs)

    def _settings(self) -> str:
        """What beside the weights decides the bits of an activation."""
        parameter = next(self.model.parameters(), None)
        device = "cpu" if parameter is None else parameter.device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        precision = torch.get_float32_matmul_precision()
        return f"{device} {autocast} {precision} {torch.get_num_threads()} {torch.__version__} {self.match}"

    def _stamps(self, count: int) -> list[tuple[int, int]]:
        return [
            (tensor.data_ptr(), tensor._version)
            for block in self._blocks[:count]
            for tensor in (*block.parameters(), *block.buffers())
        ]

    def _predict(self, inputs: Any, count: int, prefix: bytes) -> Any:
        self.cache.begin(prefix)
        keys = row_hashes(inputs)
        if self.match == "batch":
            whole = xxhash.xxh3_128_digest(b"".join(keys))
            keys = [whole + key + place.to_bytes(4, "big") for place, key in enumerate(keys)]
        blocks = self._blocks[:count]
        with torch.no_grad():
            rows = self.cache.get(keys) if self._verified == prefix else None
            if rows is not None:
                return self._from(rows, blocks, inputs, len(keys))
            with captured(blocks) as outputs:
                result = call(self.model, inputs)
            self._check_calls(outputs[:-1])
            structures = [structure for (structure,) in outputs[:-1]]
            self._check_batch_first(structures[-1], len(keys))
            rows = _to_rows(outputs[-1][0])
            if self._verified != prefix:
                self._structures, self._recorded_size = structures, len(keys)
                self._verify(inputs, blocks, rows, result, len(keys))
                self._verified = prefix
            if _shapes(structures[-1]) == _shapes(self._structures[-1]):
                self.cache.put(keys, rows)
            else:
                self.cache.left_out += len(keys)
            return result

    def _from(self, rows: Bytes, blocks: Sequence[torch.nn.Module], inputs: Any, size: int) -> Any:
        """Run the model on activations instead of its first blocks."""
        *skipped, last = self._structures
        outputs = [
            structure.filled(iter([self._poison(layout, size) for layout in structure.layouts]))
            for structure in skipped
        ]
        outputs.append(last.filled(iter(_from_rows(rows, last.layouts))))
        with replaced(blocks, outputs):
            return call(self.model, inputs)

    def _poison(self, layout: TensorLayout, size: int) -> torch.Tensor:
        """Return what stands for a skipped block's tensor and spoils whatever uses it, without taking memory."""
        value: Any = float("nan") if layout.dtype.is_floating_point or layout.dtype.is_complex else 0
        batched = layout.shape[:1] == (self._recorded_size,)
        shape = (size, *layout.shape[1:]) if batched else layout.shape
        return torch.full((), value, dtype=layout.dtype, device=layout.device).expand(shape)

    def _verify(self, inputs: Any, blocks: Sequence[torch.nn.Module], rows: Bytes, result: Any, size: int) -> None:
        assert self._hashes is not None
        again = call(self.model, inputs)
        if not _same(again, result) or [block_hash(block) for block in blocks] != self._hashes[: len(blocks)]:
            raise InvalidInputError(
                "The model doesn't compute the same twice: something in it is random or changes its buffers in eval "
                "mode. Its activations can't be kept; evaluate the model itself."
            )
        try:
            exact = _same(self._from(rows, blocks, inputs, size), result)
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
            exact = False  # the model stumbled over what stands for a skipped block's output
        if not exact:
            raise InvalidInputError(
                f"The blocks {one_of(self.frozen_blocks)} aren't a chain: the model uses the output of one of them "
                "elsewhere too. Name blocks that only feed the next one."
            )

    def _check_calls(self, outputs: Sequence[list[Any]]) -> None:
        for name, calls in zip(self.frozen_blocks, outputs, strict=True):
            if len(calls) != 1:
                raise InvalidInputError(f"Block {name!r} runs {len(calls)} times in a forward pass; it must run once.")

    def _check_batch_first(self, structure: Structure, size: int) -> None:
        if not structure.layouts or any(layout.shape[:1] != (size,) for layout in structure.layouts):
            shapes = [list(layout.shape) for layout in structure.layouts]
            raise InvalidInputError(
                f"Block {self.frozen_blocks[-1]!r} must return tensors with the batch ({size}) first, got {shapes}."
            )


def _leading(flags: Iterable[bool]) -> int:
    """How many are true before the first that is not."""
    return sum(1 for _ in itertools.takewhile(bool, flags))


def _shapes(structure: Structure) -> list[tuple[int, ...]]:
    """The shapes of one example's tensors."""
    return [layout.shape[1:] for layout in structure.layouts]


def _to_rows(activation: Sequence[torch.Tensor]) -> Bytes:
    parts = [rows_as_bytes(tensor) for tensor in activation]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _from_rows(rows: Bytes, layouts: Sequence[TensorLayout]) -> list[torch.Tensor]:
    tensors, start = [], 0
    for layout in layouts:
        part = np.ascontiguousarray(rows[:, start : start + layout.row_bytes])
        start += layout.row_bytes
        flat = torch.from_numpy(part).view(layout.dtype)
        tensors.append(layout.arranged(flat.reshape(len(rows), *layout.shape[1:]).to(layout.device)))
    return tensors


def _same(a: Any, b: Any) -> bool:
    mine, other = list(tensors_in(a)), list(tensors_in(b))
    return len(mine) == len(other) and all(
        x.shape == y.shape and torch.equal(_bits(x), _bits(y)) for x, y in zip(mine, other, strict=True)
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
