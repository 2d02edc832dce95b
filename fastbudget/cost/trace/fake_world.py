"""The surroundings of a traced run: what must behave differently while tensors have no contents."""

from __future__ import annotations

import logging
import sys
import warnings
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch

from .trace_errors import contents_needed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .known_values import KnownValues

_RNG_STATE_BYTES = torch.get_rng_state().numel()


@contextmanager
def fake_world(known: KnownValues, *, record_random_state: bool) -> Iterator[None]:
    """Make initializers, random states and checks for fake tensors fit for a traced run.

    They are changed for the whole process, not for one thread.

    - Initializers leave fake tensors alone: there is nothing to fill, and some need contents to work.
    - The random state that checkpointing saves is a fake tensor where its memory is to be recorded.
    - A copied fake tensor stays in the mode that made it; a copy of the mode would not recognize its views.
    - ``module.to()`` gives a fake parameter its new contents as it does a real one; its own way for fake
      ones, to swap the tensors, refuses tensors that are followed by weak references.
    - ``numpy()`` works where contents are known.
    - The logs and warnings of fake tensors are for those who write fake kernels; what a user needs is raised.
    - ``transformers`` skips checks of masks when it sees fake tensors; the real run makes them, so must we.
    """
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        for name, function in _initializers():
            stack.enter_context(mock.patch.object(torch.nn.init, name, _unless_fake(function)))
        hf_initializers = sys.modules.get("transformers.initialization")
        if hf_initializers is not None:
            table = hf_initializers.TORCH_INIT_FUNCTIONS
            guarded = {name: _unless_fake(function) for name, function in table.items()}
            stack.enter_context(mock.patch.dict(table, guarded))
        hf_imports = sys.modules.get("transformers.utils.import_utils")
        if hf_imports is not None and hasattr(hf_imports, "is_fake_tensor"):
            stack.enter_context(mock.patch.object(hf_imports, "is_fake_tensor", lambda _: False))
        copy_mode = mock.patch.object(FakeTensorMode, "__deepcopy__", lambda mode, memo: mode, create=True)
        stack.enter_context(copy_mode)
        stack.enter_context(mock.patch.object(FakeTensor, "numpy", _numpy_with(known), create=True))
        stack.enter_context(mock.patch.object(torch.utils, "swap_tensors", _swap_with(known)))
        if record_random_state:
            stack.enter_context(mock.patch.object(torch, "get_rng_state", _fake_rng_state))
        stack.enter_context(mock.patch.object(torch, "set_rng_state", lambda _: None))
        yield


def _initializers() -> list[tuple[str, Callable[..., Any]]]:
    return [
        (name, function)
        for name, function in vars(torch.nn.init).items()
        if name.endswith("_") and not name.startswith("__") and callable(function)
    ]


def _unless_fake(function: Callable[..., Any]) -> Callable[..., Any]:
    # A module imported during the trace may keep this function for good, so it must still fill real tensors.
    @wraps(function)
    def initialize(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return tensor if isinstance(tensor, FakeTensor) else function(tensor, *args, **kwargs)

    return initialize


def _fake_rng_state() -> torch.Tensor:
    return torch.empty(_RNG_STATE_BYTES, dtype=torch.uint8)


def _swap_with(known: KnownValues) -> Callable[[torch.Tensor, torch.Tensor], None]:
    swap_tensors = torch.utils.swap_tensors

    def swap(first: torch.Tensor, second: torch.Tensor) -> None:
        if not isinstance(first, FakeTensor):
            swap_tensors(first, second)
            return
        known.forget(first)
        first.constant = None
        first.data = second.detach()

    return swap


def _numpy_with(known: KnownValues) -> Callable[..., Any]:
    def numpy(tensor: torch.Tensor, *, force: bool = False) -> Any:
        value = known.value_of(tensor)
        if value is None:
            raise contents_needed("numpy()")
        with no_dispatch():
            return value.detach().numpy()

    return numpy
