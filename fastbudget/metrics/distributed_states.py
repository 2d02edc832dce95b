"""States of several ranks as one."""

from __future__ import annotations

from functools import reduce
from typing import Any

from .metric_protocol import Metric
from .metric_set import MetricSet


def merge_ranks(metric: Metric[Any] | MetricSet, state: Any, group: Any = None) -> Any:
    """Return the merged state of all ranks of ``torch.distributed``, the same on each; alone, the state itself.

    Every rank must call it, those without examples too. States travel as pickled objects, so the ranks must trust each
    other, as in all of ``torch.distributed``. Give `update` the examples' ids where a sampler pads the last batches.

    Args:
        metric: The metric, or set of metrics, that the state is of.
        state: This rank's.
        group: A process group; None: all ranks.
    """
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return state
    states: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(states, state, group=group)
    return reduce(metric.merge, states)
