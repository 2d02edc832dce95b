import copy
import json
import math

import pytest
import torch
from torch import nn

import fastbudget as fb
from fastbudget.evaluation import change_score


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(300, 700), nn.BatchNorm1d(700), nn.ReLU(), nn.Linear(700, 3, bias=False))


def test_the_change_is_the_ratio_of_norms():
    a = model()
    b = copy.deepcopy(a)
    with torch.no_grad():
        b[0].bias.add_(0.01)
        b[3].weight.mul_(1.25)
    score = change_score(a, b)

    def norm(tensors):
        return math.sqrt(sum(float(t.detach().double().square().sum()) for t in tensors))

    assert score.by_tensor["3.weight"] == pytest.approx(0.25, rel=1e-5)
    assert score.by_tensor["0.weight"] == 0
    expected = norm([torch.full((700,), 0.01)]) / norm(a[0].parameters())
    assert score.by_layer["0"] == pytest.approx(expected, rel=1e-5)
    before = [*a.parameters(), *(x for x in a.buffers() if x.is_floating_point())]
    after = [*b.parameters(), *(x for x in b.buffers() if x.is_floating_point())]
    whole = norm([y - x for x, y in zip(before, after, strict=True)]) / norm(before)
    assert score.relative_change == pytest.approx(whole, rel=1e-5)
    assert score.unchanged_layers == ("1",)
    assert score.first_changed_layer == "0"
    assert not score.identical


def test_equal_models_are_identical_whatever_their_memory_looks_like():
    a = model()
    b = copy.deepcopy(a)
    b[0].weight = nn.Parameter(a[0].weight.detach().t().contiguous().t())
    score = change_score(a, b)
    assert score.identical
    assert score.relative_change == 0
    assert score.first_changed_layer is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_smallest_difference_is_no_equality(dtype):
    a = {"x.weight": torch.zeros(10, dtype=dtype)}
    for changed in (-0.0, 1e-38):
        b = {"x.weight": torch.full((10,), changed, dtype=dtype)}
        assert not change_score(a, b).identical
    assert change_score(a, {"x.weight": torch.ones(10, dtype=dtype)}).relative_change == math.inf


def test_counters_count_for_equality_only():
    a = model()
    b = copy.deepcopy(a)
    b[1].num_batches_tracked.add_(1_000_000)
    score = change_score(a, b)
    assert score.relative_change == 0
    assert not score.identical
    assert score.first_changed_layer == "1"


def test_nan_weights_are_no_zero_change():
    a = model()
    b = copy.deepcopy(a)
    with torch.no_grad():
        b[0].weight[0, 0] = math.nan
    score = change_score(a, b)
    assert math.isnan(score.relative_change)
    json.dumps(score.to_json(), allow_nan=False)


def test_other_architectures_are_refused():
    with pytest.raises(fb.InvalidInputError, match=r"3\.bias"):
        change_score(model(), nn.Sequential(nn.Linear(300, 700), nn.BatchNorm1d(700), nn.ReLU(), nn.Linear(700, 3)))
    with pytest.raises(fb.InvalidInputError, match=r"'w' has shape \[2\] in one and \[3\]"):
        change_score({"w": torch.ones(2)}, {"w": torch.ones(3)})
