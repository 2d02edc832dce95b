"""A model split over two ranks trains as the whole one does."""

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import fastbudget as fb
from fastbudget.training.stage_split import block_flops, split_evenly


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What two ranks over gloo found."""
    out = tmp_path_factory.mktemp("ranks") / "out.json"
    script = Path(__file__).with_name("model_parallel_ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, out]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())


def test_losses_and_weights_are_those_of_the_whole_model(ranks):
    assert list(ranks["report"]) == ["1f1b network", "gpipe network", "1f1b Named"]
    for found in ranks["report"].values():
        assert found["loss"] < 1e-6 and found["weights"] < 1e-6


def test_a_state_saved_from_one_split_is_loaded_into_another(ranks):
    assert all(found["outputs"] < 1e-6 for found in ranks["report"].values())


def test_blocks_are_named_as_in_the_model(ranks):
    assert ranks["report"]["1f1b Named"]["stages"] == [["embed", "layers.0"], ["layers.1", "layers.2", "head"]]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("blocks", "1 blocks can't be split into 2 stages"),
        ("ties", "one tied parameter"),
        ("chain", "name its blocks"),
        ("outside", "is in none of them"),
        ("few", "at least the 2 stages"),
        ("batch", "batch of 10 samples"),
    ],
)
def test_what_cannot_be_split_is_refused(ranks, name, text):
    assert text in ranks["errors"][name]


def test_without_ranks_it_says_how_to_start_them():
    with pytest.raises(fb.InvalidInputError, match="torchrun"):
        fb.training.ModelParallel(nn.Sequential(nn.Linear(2, 2)), loss=nn.functional.mse_loss, num_micro_batches=2)


@pytest.mark.parametrize("seed", range(5))
def test_no_other_cut_has_a_lighter_heaviest_stage(seed):
    weights = [random.Random(seed * 10 + index).randint(0, 9) for index in range(7)]
    names = [str(index) for index in range(7)]
    for stages in (1, 2, 3, 7):
        cuts = [(0, *inner, 7) for inner in itertools.combinations(range(1, 7), stages - 1)]
        best = min(max(sum(weights[a:b]) for a, b in itertools.pairwise(cut)) for cut in cuts)
        found = split_evenly(names, weights, stages)
        assert [name for part in found for name in part] == names
        assert max(sum(weights[int(name)] for name in part) for part in found) == best


def test_flops_of_blocks():
    chain = {"a": nn.Linear(4, 8), "b": nn.ReLU(), "c": nn.Sequential(nn.Linear(8, 2))}
    assert block_flops(chain, torch.randn(3, 4)) == [2 * 3 * 4 * 8, 0, 2 * 3 * 8 * 2]
