"""Steps and evaluations that run out of memory: taken again with less, as if they had been taken once."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensor
from torch.nn import functional as F

import fastbudget as fb
from fastbudget.checkpoint import CheckpointStore

WIDTH, SAMPLES, STEPS = 6, 8, 3


class Fails:
    """Raises when asked too much; counts what happened."""

    def __init__(self, above: int = 10**9, *, at_calls: tuple[int, ...] = (), error: Any = None) -> None:
        self.above, self.at_calls = above, at_calls
        self.error = error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 TiB.")
        self.calls, self.failures = 0, 0

    def __call__(self, samples: int) -> None:
        self.calls += 1
        if samples > self.above or self.calls in self.at_calls:
            self.failures += 1
            raise self.error


class InBackward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, fails: Fails) -> torch.Tensor:
        context.fails = fails
        return tensor.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        context.fails(len(gradient))
        return gradient, None


class Model(torch.nn.Module):
    """Dropout, batch norm, and draws from every generator."""

    def __init__(
        self, *, forward: Fails | None = None, backward: Fails | None = None, random_parts: bool = True
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 3)
        self.norm = torch.nn.BatchNorm1d(WIDTH) if random_parts else torch.nn.Identity()
        self.dropout = torch.nn.Dropout(0.3 if random_parts else 0.0)
        self.in_forward, self.in_backward, self.random_parts = forward or Fails(), backward or Fails(), random_parts
        self.activation: Any = lambda: None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        assert self.activation() is None, "the failed attempt's activations are still held"
        hidden = self.dropout(self.norm(self.first(inputs)))
        if self.random_parts:
            hidden = hidden * (1 + random.random()) * (1 + np.random.rand())
        if self.training:
            activation = torch.tanh(hidden)
            try:
                if not isinstance(inputs, FakeTensor):  # an estimate needs no memory
                    self.in_forward(len(inputs))
            except RuntimeError:
                self.activation = weakref.ref(activation)
                raise
            hidden = InBackward.apply(activation, self.in_backward)
        return self.second(hidden)


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(SAMPLES, WIDTH, generator=generator), torch.randint(3, (SAMPLES,), generator=generator))
        for _ in range(5)
    ]


def train(run_dir: Path, model: torch.nn.Module, **options: Any) -> tuple[fb.Trainer, dict[str, torch.Tensor]]:
    """Train a few steps from fixed random states; returns the trainer and the weights of the last step."""
    random.seed(0), np.random.seed(0)
    settings: dict[str, Any] = {
        "train_data": batches(), "budget": fb.Budget(wall_hours=10), "run_dir": run_dir, "max_steps": STEPS,
        "evaluate": lambda _: {"score": 0.0}, "metric": "score", "loss": "cross_entropy", "evaluate_every": 1000,
        "optimizer_options": {"lr": 0.05}, "clip_grad_norm": 1.0,
    }  # fmt: skip
    trainer = fb.Trainer(model=model, **{**settings, **options})
    result = trainer.fit()
    assert result.steps == STEPS
    return trainer, CheckpointStore(result.last_checkpoint.parent).load(result.last_checkpoint).state["model"]


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


CPU_ALLOCATOR = RuntimeError(
    "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes."
)


@pytest.mark.parametrize(
    "where",
    [
        {"forward": Fails(4)},
        {"backward": Fails(4)},
        {"forward": Fails(4, error=CPU_ALLOCATOR)},
        {"forward": Fails(4, error=MemoryError("std::bad_alloc"))},
    ],
    ids=["forward", "backward", "cpu allocator", "host memory"],
)
def test_a_step_that_runs_out_is_as_if_it_had_been_taken_in_halves_at_once(tmp_path, where, caplog):
    _, wanted = train(tmp_path / "halves", Model(), micro_batch_size=4)
    model = Model(**where)
    with caplog.at_level(logging.WARNING, "fastbudget.training"):
        _, found = train(tmp_path / "whole", model)
    assert_same(found, wanted)  # dropout, batch norm's statistics and all
    assert model.in_forward.failures + model.in_backward.failures == 1  # what was learned is kept for later steps
    assert "micro-batches of 4 instead of 8" in caplog.text and "Batch norms see fewer" in caplog.text


def test_it_halves_until_it_fits(tmp_path):
    _, wanted = train(tmp_path / "ones", Model(random_parts=False), micro_batch_size=1)
    model = Model(forward=Fails(1), random_parts=False)
    _, found = train(tmp_path / "whole", model)
    assert_same(found, wanted)
    assert model.in_forward.failures == 3


def test_the_effective_batch_stays_the_same(tmp_path):
    _, wanted = train(tmp_path / "whole", Model(random_parts=False))
    _, found = train(tmp_path / "cut", Model(forward=Fails(3), random_parts=False))
    for name, value in wanted.items():
        assert torch.allclose(found[name], value, rtol=0, atol=1e-6), name


@pytest.mark.parametrize("call", [2, 3, 4])
def test_running_out_in_the_middle_of_accumulation(tmp_path, call):
    _, wanted = train(tmp_path / "whole", Model(random_parts=False), grad_accumulation=2)
    _, found = train(tmp_path / "cut", Model(forward=Fails(at_calls=(call,)), random_parts=False), grad_accumulation=2)
    for name, value in wanted.items():
        assert torch.allclose(found[name], value, rtol=0, atol=1e-6), name


def test_a_later_step_may_run_out_too(tmp_path):
    _, wanted = train(tmp_path / "wanted", Model(random_parts=False))
    model = Model(backward=Fails(at_calls=(3,)), random_parts=False)
    _, found = train(tmp_path / "found", model)
    assert model.in_backward.failures == 1
    for name, value in wanted.items():
        assert torch.allclose(found[name], value, rtol=0, atol=1e-6), name


def test_one_sample_that_does_not_fit_is_an_error_that_says_what_would(tmp_path):
    with pytest.raises(fb.OutOfMemoryError, match="one sample at a time") as caught:
        train(tmp_path, Model(forward=Fails(0), random_parts=False))
    assert "precision='bf16-mixed'" in str(caught.value) and "checkpoints saved before are kept" in str(caught.value)
    assert CheckpointStore(tmp_path / "checkpoints").latest() is not None


def test_a_model_that_cannot_be_traced_is_cut_when_memory_runs_out(tmp_path, caplog):
    class Branches(Model):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs) if float(inputs.sum()) > -1e9 else inputs

    _, wanted = train(tmp_path / "wanted", Branches(), micro_batch_size=4)
    with caplog.at_level(logging.WARNING, "fastbudget.training"):
        _, found = train(tmp_path / "found", Branches(forward=Fails(4)), micro_batch_size="auto")
    assert "can't be traced" in caplog.text
    assert_same(found, wanted)
    with pytest.raises(fb.InvalidInputError, match="can't be traced"):
        train(tmp_path / "limit", Branches(), memory_limit_bytes=10**9)


def test_a_batch_that_cannot_be_cut_is_an_error_that_says_why(tmp_path):
    class Packed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(WIDTH, 3)

        def forward(self, values: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    packed = [{"values": torch.randn(12, WIDTH), "bounds": torch.tensor([0, 5, 12])}]
    with pytest.raises(fb.OutOfMemoryError, match=r"can't be halved.*\['bounds'\] holds one of shape \[3\]"):
        train(tmp_path, Packed(), train_data=packed, loss=lambda outputs, batch: outputs.sum())


def test_other_errors_are_not_caught(tmp_path):
    with pytest.raises(RuntimeError, match="device-side assert"):
        train(tmp_path, Model(forward=Fails(0, error=RuntimeError("device-side assert triggered"))))


# -- the optimizer -----------------------------------------------------------------------------------------------------


class RunsOut(torch.optim.AdamW):
    """Raises in the middle of making its states, or after a part of its work."""

    def __init__(self, params: Any, *, when: int, partly: bool = False, **options: Any) -> None:
        super().__init__(params, **options)
        self.calls, self.when, self.partly = 0, when, partly

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.calls += 1
        if self.calls == self.when:
            parameter = self.param_groups[0]["params"][0]
            if self.partly:
                parameter.add_(0.1)
            elif self.when == 1:
                self.state[parameter]["step"] = torch.zeros(())  # and memory for the moments is missing
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        super().step(closure)


@pytest.mark.parametrize("when", [1, 2])
def test_an_optimizer_that_ran_out_before_it_changed_anything_steps_again(tmp_path, when, caplog):
    _, wanted = train(tmp_path / "wanted", Model(), optimizer=torch.optim.AdamW)
    with caplog.at_level(logging.WARNING, "fastbudget.training"):
        _, found = train(tmp_path / "found", Model(), optimizer=lambda params: RunsOut(params, when=when))
    assert_same(found, wanted)
    assert "parameter by parameter" in caplog.text


def test_an_optimizer_that_changed_something_is_not_called_twice(tmp_path):
    with pytest.raises(fb.OutOfMemoryError, match=r"part of its work done.*resume"):
        train(tmp_path, Model(), optimizer=lambda params: RunsOut(params, when=2, partly=True))


def test_an_optimizer_that_never_fits_says_what_would():
    from fastbudget.training.optimizer_update import update_within_memory

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)

    def update() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(fb.OutOfMemoryError, match="smaller states"):
        update_within_memory(optimizer, update)


# -- evaluations -------------------------------------------------------------------------------------------------------


def test_an_evaluation_that_runs_out_shrinks_its_own_batch_and_not_the_training_s(tmp_path, caplog):
    sizes = []

    def evaluate(model: torch.nn.Module, batch_size: int = 64) -> dict[str, float]:
        torch.rand(1)  # no matter how often it is called, training draws the same numbers
        sizes.append(batch_size)
        if batch_size > 20:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return {"score": 1.0}

    _, wanted = train(tmp_path / "wanted", Model())
    with caplog.at_level(logging.WARNING, "fastbudget.training"):
        trainer, found = train(tmp_path / "found", Model(), evaluate=evaluate, final_evaluate=evaluate)
    assert sizes == [64, 32, 16, 16, 16]
    assert trainer._training_step.micro_batches.size is None
    assert_same(found, wanted)
    assert "batch_size=16" in caplog.text


def test_an_evaluation_that_cannot_shrink_says_how_it_could(tmp_path):
    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    def never(model: torch.nn.Module, batch_size: int = 2) -> dict[str, float]:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(fb.OutOfMemoryError, match="parameter batch_size"):
        train(tmp_path / "a", Model(), evaluate=evaluate)
    with pytest.raises(fb.OutOfMemoryError, match="one example at a time"):
        train(tmp_path / "b", Model(), evaluate=never)


# -- cutting -----------------------------------------------------------------------------------------------------------


def test_micro_batches_of_a_nested_batch_have_the_gradient_of_the_whole(tmp_path):
    class Nested(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(WIDTH, 3)

        def forward(self, features: dict[str, torch.Tensor], scale: torch.Tensor, names: list[str]) -> torch.Tensor:
            assert len(names) == len(features["a"])
            return self.layer(features["a"] + features["b"]) * scale

    generator = torch.Generator().manual_seed(2)
    data = [
        {
            "features": {name: torch.randn(7, WIDTH, generator=generator) for name in "ab"},
            "scale": torch.full((1, 3), 0.5), "names": list("abcdefg"), "labels": torch.arange(7) % 3,
        }
        for _ in range(3)
    ]  # fmt: skip

    class Called(Nested):
        def forward(self, labels: torch.Tensor, **inputs: Any) -> torch.Tensor:
            return F.cross_entropy(super().forward(**inputs), labels)

    _, wanted = train(tmp_path / "whole", Called(), train_data=data, loss=None)
    _, found = train(tmp_path / "cut", Called(), train_data=data, loss=None, micro_batch_size=3)
    for name, value in wanted.items():
        assert torch.allclose(found[name], value, rtol=0, atol=1e-6), name


# -- a real shortage ---------------------------------------------------------------------------------------------------

SHORTAGE = """
import resource, sys
import torch
import fastbudget as fb
from torch import nn

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, inputs):
        spread = inputs[:, :, None] * torch.ones(1, 1, 1_000_000)  # 16 MB a sample
        return self.layer(torch.tanh(spread).mean(-1))

torch.set_num_threads(1)
trainer = fb.Trainer(model=Wide(), train_data=[(torch.randn(16, 4), torch.randn(16, 1))] * 2, loss="mse",
                     budget=fb.Budget(wall_hours=1), run_dir=sys.argv[1], evaluate=lambda model: {"score": 0.0},
                     metric="score", max_steps=2)
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 400 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
result = trainer.fit()
assert result.steps == 2
print(trainer._training_step.micro_batches.size)
"""


def test_a_process_that_may_have_no_more_memory_goes_on_in_smaller_micro_batches(tmp_path):
    command = [sys.executable, "-P", "-c", SHORTAGE, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert 1 <= int(done.stdout) <= 8
