"""Memory that kernels take for themselves beside their outputs (workspaces, reordered copies), by device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch._C._profiler import _EventType
from torch.profiler import record_function
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_flatten, tree_unflatten

from .memory_profiler import profiled_memory
from .operation_cost import operation_flops

LARGEST_PROBE_BYTES = 256 << 20
LARGEST_PROBE_FLOPS = 4 * 10**9

aten = torch.ops.aten
_CONVOLUTIONS = (aten.convolution, aten.convolution_backward)


class KernelMemory(Protocol):
    """Tells what memory a kernel takes for itself."""

    def kind_of(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
        """Return a number, the same for calls that take the same; None where they take nothing."""
        ...

    def workspace_bytes(self) -> list[int]:
        """Return the bytes that each kind of call holds while it runs, beside inputs and outputs."""
        ...


class NoKernelMemory:
    """Kernels that work in place or straight into their outputs."""

    def kind_of(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Return None: nothing is taken."""
        return

    def workspace_bytes(self) -> list[int]:
        """Return an empty list."""
        return []


class CpuKernelMemory:
    """What the kernels of this CPU take, found out by running each kind of call once, alone, after the trace.

    oneDNN picks blocked layouts and scratchpads by processor, thread count and shape and tells nobody, so no
    formula would hold. Calls on more than ``LARGEST_PROBE_BYTES`` or of more than ``LARGEST_PROBE_FLOPS`` are
    not
    run: convolutions then count a reordered copy of each operand, the rest nothing.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._calls: list[Callable[[], Any] | int] = []

    def kind_of(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
        """Return the number of this kind: the same operation on the same shapes, strides and types."""
        leaves, structure = tree_flatten((tuple(args), dict(kwargs)))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not tensors or not _is_safe_alone(func) or _is_plain_pointwise(func, tensors):
            return None
        key = (func, *(_describe(leaf) for leaf in leaves))
        if key not in self._numbers:
            self._numbers[key] = len(self._calls)
            self._calls.append(_probe_of(func, args, kwargs, leaves, structure, tensors))
        return self._numbers[key]

    def workspace_bytes(self) -> list[int]:
        """Run the calls and return what each held beside its inputs and outputs."""
        found = [call if isinstance(call, int) else 0 for call in self._calls]
        probes = [(number, call) for number, call in enumerate(self._calls) if not isinstance(call, int)]
        if not probes:
            return found
        with no_dispatch(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            with profiled_memory() as profiler:
                for number, prepare in probes:
                    self._run(number, prepare)
            tree = profiler.profiler.kineto_results.experimental_event_tree()
        for event in tree:
            if event.name.startswith(_MARK):
                found[int(event.name.removeprefix(_MARK))] = _held_beside_result(event)
        return found

    def _run(self, number: int, prepare: Callable[[], Any]) -> None:
        call = prepare()
        try:
            with record_function(f"{_MARK}{number}"):
                result = call()
        except (RuntimeError, IndexError, ValueError, NotImplementedError):
            return  # made-up contents do not suit this operation
        del result


_MARK = "fastbudget workspace "


def _is_safe_alone(func: Any) -> bool:
    """Tell whether the operation may run on made-up contents; others' may, say, talk to other processes."""
    return func.namespace == "aten" and not func.is_view


def _is_plain_pointwise(func: Any, tensors: list[torch.Tensor]) -> bool:
    if torch.Tag.pointwise not in func.tags:
        return False
    dtype = tensors[0].dtype
    return all(tensor.dtype == dtype and tensor.is_contiguous() for tensor in tensors)


def _describe(leaf: Any) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        return (tuple(leaf.shape), leaf.stride(), leaf.dtype)
    return leaf if isinstance(leaf, (int, float, str, bool, type(None))) else str(leaf)


def _probe_of(
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    leaves: list[Any],
    structure: Any,
    tensors: list[torch.Tensor],
) -> Callable[[], Any] | int:
    """Return what prepares the call for a run, or the bytes to assume where a run would be too big."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    shapes = (tuple(args), dict(kwargs))
    flops = _flops_of(func, *shapes)
    if sum(sizes) > LARGEST_PROBE_BYTES or flops > LARGEST_PROBE_FLOPS:
        return sum(sizes) if func.overloadpacket in _CONVOLUTIONS else 0
    plan = [
        (tuple(leaf.shape), leaf.stride(), leaf.dtype) if isinstance(leaf, torch.Tensor) else None for leaf in leaves
    ]
    plain = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    def prepare() -> Callable[[], Any]:
        filled = [
            leaf if made is None else torch.empty_strided(made[0], made[1], dtype=made[2]).zero_()
            for leaf, made in zip(plain, plan, strict=True)
        ]
        real_args, real_kwargs = tree_unflatten(filled, structure)
        return lambda: func(*real_args, **real_kwargs)

    return prepare


def _flops_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    packet = func.overloadpacket
    if packet in _CONVOLUTIONS:
        # Its formula wants the result; an upper bound without one: every output element against the whole
        # kernel.
        first, weight = (args[0], args[1]) if packet is aten.convolution else (args[0], args[2])
        return int(6 * first.numel() * weight[0].numel())
    try:
        return operation_flops(func, args, kwargs, None)
    except Exception:
        return 0


def _held_beside_result(event: Any) -> int:
    alive = peak = 0
    for size in _allocations(event):
        alive += size
        peak = max(peak, alive)
    return peak - max(alive, 0)


def _allocations(event: Any) -> Iterator[int]:
    """Yield the sizes of allocations, and minus those of frees, in order of time."""
    for child in sorted(event.children, key=lambda part: part.start_time_ns):
        if child.tag == _EventType.Allocation:
            yield child.extra_fields.alloc_size
        else:
            yield from _allocations(child)
