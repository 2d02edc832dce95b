"""An optimizer's update that runs out of memory: taken again where nothing was changed yet, else refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from ..core.errors import OutOfMemoryError
from ..core.out_of_memory import is_out_of_memory, release_memory

_log = logging.getLogger("fastbudget.training")


def update_within_memory(optimizer: torch.optim.Optimizer, update: Callable[[], Any]) -> None:
    """Call ``update``, an optimizer's step; where memory runs out in it, once more with less.

    The first step makes the optimizer's states, so memory may run out there though the backward pass had enough. What
    was half made is dropped, cached memory given back, and parameters are updated one after the other
    (``foreach=False``), which needs no temporary copies of all of them.

    Raises:
        OutOfMemoryError: it doesn't fit, or a part of the parameters or states was changed already, so that taking the
            step again would apply it twice.
    """
    known, versions = len(optimizer.state), _versions(optimizer)
    try:
        update()
        return
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        failed = error
    text = release_memory(failed)
    del failed
    for parameter in list(optimizer.state)[known:]:
        del optimizer.state[parameter]
    if _versions(optimizer) != versions:
        raise OutOfMemoryError(
            f"The optimizer's step ran out of memory ({text}) with a part of its work done. The last checkpoint is "
            f"whole: resume from it with {_ADVICE}."
        )
    for group in optimizer.param_groups:
        if "foreach" in group and not group.get("fused"):
            group["foreach"] = False
    _log.warning(
        "The optimizer's step ran out of memory before it changed anything (%s); it is taken again, parameter by "
        "parameter.",
        text.splitlines()[0],
    )
    try:
        update()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        text = release_memory(error)
        raise OutOfMemoryError(f"The optimizer's states don't fit the memory ({text}). Use {_ADVICE}.") from None


_ADVICE = "an optimizer with smaller states (sgd, adafactor, 8-bit), shard them over devices, or train a smaller model"


def _versions(optimizer: torch.optim.Optimizer) -> list[int]:
    """Return autograd's counters of changes in place, of each group's first parameter with a gradient and its states.

    Every optimizer of PyTorch begins with these, one by one or all at once. To read the counters of all takes longer
    than the steps of a small model.
    """
    found = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                found.append(parameter._version)
                states = optimizer.state.get(parameter, {}).values()
                found += [value._version for value in states if isinstance(value, torch.Tensor)]
                break
    return found
