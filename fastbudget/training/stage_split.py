"""A model as a chain of blocks, and the chain cut into stages of about the same weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import nn

from ..core.errors import InvalidInputError, did_you_mean
from ..cost import trace_step


def chain_of(model: nn.Module, blocks: Sequence[str] | None) -> dict[str, nn.Module]:
    """Return the modules to call one after the other, by name.

    Args:
        model: An ``nn.Sequential``, or any module with ``blocks``.
        blocks: Their names in the order of the calls; a list's name means its members.

    Raises:
        InvalidInputError: an unknown name, or parameters outside of the blocks.
    """
    if blocks is None:
        if not isinstance(model, nn.Sequential):
            raise InvalidInputError(
                f"Only an nn.Sequential is a chain by itself, got a {type(model).__name__}; name its blocks in the "
                "order in which they are called: blocks=['embed', 'layers', 'head']."
            )
        return dict(model.named_children())
    modules = dict(model.named_modules())
    chain: dict[str, nn.Module] = {}
    for name in blocks:
        if name not in modules:
            raise InvalidInputError(f"The model has no module {name!r}.{did_you_mean(name, modules)}")
        if isinstance(modules[name], nn.ModuleList | nn.Sequential):
            chain |= {f"{name}.{key}": member for key, member in modules[name].named_children()}
        else:
            chain[name] = modules[name]
    held = {id(parameter) for block in chain.values() for parameter in block.parameters()}
    outside = [name for name, parameter in model.named_parameters() if id(parameter) not in held]
    if outside:
        raise InvalidInputError(f"blocks must hold all of the model's parameters; {outside[0]!r} is in none of them.")
    return chain


def block_parameters(chain: Mapping[str, nn.Module]) -> list[int]:
    """Return the number of parameters of each block."""
    return [sum(parameter.numel() for parameter in block.parameters()) for block in chain.values()]


def block_flops(chain: Mapping[str, nn.Module], inputs: torch.Tensor) -> list[int]:
    """Return the floating-point operations of each block's forward pass, by a trace."""
    operations = trace_step(nn.Sequential(*chain.values()), inputs, mode="infer").operations
    owners = np.array([int(name.split(".")[0]) if name else -1 for name in operations.modules])
    return [int(operations.flops[owners[operations.module] == index].sum()) for index in range(len(chain))]


def split_evenly(
    names: Sequence[str], weights: Sequence[int], stages: int, *, given: bool = False
) -> list[tuple[str, ...]]:
    """Cut a chain into consecutive stages whose heaviest is as light as can be.

    Args:
        names: Of the chain's blocks.
        weights: Of each block; with ``given``, how many blocks each stage takes.
        stages: At least one block each.
        given: See ``weights``.

    Raises:
        InvalidInputError: fewer blocks than stages, or given numbers that don't add up.
    """
    if len(names) < stages:
        raise InvalidInputError(f"A model of {len(names)} blocks can't be split into {stages} stages; use fewer ranks.")
    if given:
        if len(weights) != stages or sum(weights) != len(names) or min(weights) < 1:
            raise InvalidInputError(
                f"balance must give each of {stages} stages at least one of {len(names)} blocks, got {list(weights)}."
            )
        bounds = [0, *accumulate(weights)]
    else:
        bounds = _lightest_bounds(weights, stages)
    return [tuple(names[start:stop]) for start, stop in pairwise(bounds)]


def _lightest_bounds(weights: Sequence[int], stages: int) -> list[int]:
    """Return the cuts, by dynamic programming over how many stages hold the first blocks."""
    sums = [0, *accumulate(weights)]
    count = len(weights)
    heaviest: list[dict[int, tuple[int, int]]] = [{0: (0, 0)}]  # blocks taken -> (heaviest stage, last cut)
    for stage in range(1, stages + 1):
        row = {}
        for stop in range(stage, count - (stages - stage) + 1):
            row[stop] = min(
                (max(heaviest[-1][cut][0], sums[stop] - sums[cut]), cut) for cut in heaviest[-1] if cut < stop
            )
        heaviest.append(row)
    bounds = [count]
    for row in reversed(heaviest[1:]):
        bounds.append(row[bounds[-1]][1])
    return bounds[::-1]


def check_ties(chain: Mapping[str, nn.Module], stages: Sequence[Sequence[str]]) -> None:
    """Raise InvalidInputError for a parameter in blocks of two stages: each would train a copy of its own."""
    seen: dict[int, tuple[int, str]] = {}
    for number, names in enumerate(stages):
        for name in names:
            for key, parameter in chain[name].named_parameters():
                first = seen.setdefault(id(parameter), (number, f"{name}.{key}"))
                if first[0] != number:
                    raise InvalidInputError(
                        f"{first[1]} and {name}.{key} are one tied parameter, on stages {first[0]} and {number}; untie "
                        "them, or choose a balance that puts both on one stage."
                    )
