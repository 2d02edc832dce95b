"""The fewest blocks to recompute, against every set there is."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import nn

from fastbudget.core.errors import InvalidInputError
from fastbudget.cost import Trace, fewest, find_blocks, measure_step, smallest_recompute, trace_step


class Block(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, hidden), nn.Linear(hidden, 16)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.down(torch.tanh(self.up(inputs)).square())


def mean_square(outputs: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    return outputs.square().mean()


def flops(trace: Trace) -> int:
    return trace.operations.flops_in("forward", "loss", "backward", "optimizer", step=1)


@pytest.mark.parametrize("seed", [0, 1])
def test_no_other_set_of_unequal_blocks_fits_with_less_computation(seed):
    sizes = random.Random(seed)
    model = nn.Sequential(*[Block(sizes.choice([8, 32, 32, 150])) for _ in range(4)])
    blocks = tuple(find_blocks(model))
    every = {
        names: trace_step(model, torch.randn(128, 16), loss=mean_square, recompute=names)
        for count in range(len(blocks) + 1)
        for names in itertools.combinations(blocks, count)
    }
    peaks = {names: trace.log.peak_bytes for names, trace in every.items()}
    lowest, highest = min(peaks.values()), peaks[()]
    for share in (0.0, 0.2, 0.5, 0.8, 1.0):
        limit = int(highest - share * (highest - lowest))
        choice = smallest_recompute(every.__getitem__, blocks, limit_bytes=limit)
        least = min(flops(every[names]) for names, peak in peaks.items() if peak <= limit)
        assert choice.fits and choice.peak_bytes == peaks[choice.blocks] <= limit
        assert choice.step_flops == least
        assert choice.step_flops_without == flops(every[()])


def test_where_nothing_fits_all_blocks_are_recomputed_and_it_says_so():
    model = nn.Sequential(Block(8), Block(8))
    choice = smallest_recompute(
        lambda names: trace_step(model, torch.randn(8, 16), loss=mean_square, recompute=names),
        tuple(find_blocks(model)),
        limit_bytes=1,
    )
    assert not choice.fits and choice.blocks == ("0", "1")


@pytest.mark.parametrize("guess", range(1, 8))
def test_fewest_finds_the_smallest_count_from_any_guess(guess):
    for most, answer in itertools.product(range(1, 7), range(1, 9)):
        assert fewest(lambda count, answer=answer: count >= answer, guess, most) == min(answer, most)


def test_the_peak_predicted_for_named_blocks_is_the_one_measured():
    def factory() -> nn.Module:
        return nn.Sequential(*[Block(64) for _ in range(4)])

    settings = {"loss": mean_square, "optimizer": torch.optim.AdamW, "recompute": ("0", "2")}
    predicted = trace_step(factory, lambda: torch.randn(256, 16), **settings).log.peak_bytes
    assert predicted == pytest.approx(measure_step(factory, lambda: torch.randn(256, 16), **settings), rel=0.005)


def test_blocks_by_name_class_and_structure():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoder(layer, 3), nn.Linear(8, 2))
    wanted = ["1.layers.0", "1.layers.1", "1.layers.2"]
    assert list(find_blocks(model)) == wanted
    assert list(find_blocks(model, ["TransformerEncoderLayer"])) == wanted
    assert list(find_blocks(model, ["1.layers.2", "1.layers.0"])) == ["1.layers.0", "1.layers.2"]
    assert find_blocks(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))) == {}
    with pytest.raises(InvalidInputError, match=r"Did you mean '1\.layers\.2'"):
        find_blocks(model, ["1.layers.20"])
