"""A runner that is not the model must not pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fastbudget as fb
from fastbudget.inference.verification import verify

BATCHES = [(torch.linspace(-1, 1, 12).reshape(3, 4),), (torch.linspace(0, 2, 8).reshape(2, 4),)]


class Model(torch.nn.Module):
    def __init__(self, wrap: Callable[[torch.Tensor], Any] = lambda outputs: outputs) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 3)
        self.wrap = wrap

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.wrap(self.layer(inputs))


def runner_of(model: Model, change: Callable[[np.ndarray], Any] = lambda outputs: outputs) -> Callable[..., Any]:
    return lambda inputs: change(model.layer(inputs).numpy())


def test_the_model_itself_passes() -> None:
    model = Model().eval()
    result = verify(model, runner_of(model), BATCHES, pairs=3)
    assert result.max_abs_diff == result.max_relative_diff == 0 and result.same_predictions == 1
    assert result.num_examples == 5 and result.batch_sizes == [3, 2] and result.latency_batch_size == 2
    assert result.torch_latency_s > 0 and result.artifact_latency_s > 0


def test_small_differences_are_measured() -> None:
    model = Model().eval()
    result = verify(model, runner_of(model, lambda outputs: outputs + 1e-6), BATCHES, pairs=1)
    assert result.max_abs_diff == pytest.approx(1e-6, rel=0.2)
    assert 0 < result.max_relative_diff < result.tolerance


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda outputs: outputs + 0.01, "differs from the original"),
        (lambda outputs: outputs * 1.01, "differs from the original"),
        (lambda outputs: outputs[:, ::-1], "differs from the original"),
        (lambda outputs: np.zeros_like(outputs), "differs from the original"),
        (lambda outputs: np.where(np.arange(3) == 2, np.nan, outputs), "finite"),
        (lambda outputs: outputs[:1], "shape"),
        (lambda outputs: outputs[:, :2], "shape"),
        (lambda outputs: outputs.reshape(-1), "shape"),
        (lambda outputs: (outputs, outputs), "2 outputs"),
        (lambda outputs: (), "0 outputs"),
    ],
)
def test_a_wrong_runner_is_refused(change: Callable[[np.ndarray], Any], message: str) -> None:
    model = Model().eval()
    with pytest.raises(fb.InvalidInputError, match=message):
        verify(model, runner_of(model, change), BATCHES)


def test_a_runner_wrong_on_one_batch_only_is_refused() -> None:
    model = Model().eval()
    with pytest.raises(fb.InvalidInputError, match="differs"):
        verify(model, lambda inputs: model.layer(inputs).numpy() + (0.1 if len(inputs) == 3 else 0), BATCHES)


def test_infinities_must_be_the_same_ones() -> None:
    model = Model(lambda outputs: outputs.masked_fill(torch.tensor([True, False, False]), -torch.inf)).eval()

    def with_first(value: float) -> Callable[..., Any]:
        return runner_of(model, lambda outputs: np.where(np.arange(3) == 0, np.float32(value), outputs))

    verify(model, with_first(-np.inf), BATCHES, pairs=1)
    for wrong in (np.inf, np.nan):
        with pytest.raises(fb.InvalidInputError, match="finite"):
            verify(model, with_first(wrong), BATCHES)


@pytest.mark.parametrize(
    "wrap", [lambda outputs: {"logits": outputs}, lambda outputs: (outputs, None), lambda _: "text"]
)
def test_outputs_that_are_no_tensors_are_refused(wrap: Callable[[torch.Tensor], Any]) -> None:
    model = Model(wrap).eval()
    with pytest.raises(fb.InvalidInputError, match="tensor or a tuple of tensors"):
        verify(model, runner_of(model), BATCHES)


def test_torchs_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    model = Model().eval()
    verify(model, runner_of(model), BATCHES, pairs=1)
    assert torch.get_num_threads() == before
