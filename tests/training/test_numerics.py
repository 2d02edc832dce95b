"""TF32 and compilation: on during a run, as before after it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import fastbudget as fb
from fastbudget.checkpoint import CheckpointStore


def trainer_of(run_dir: Path, **options: Any) -> fb.Trainer:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "model": torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)),
        "train_data": [(torch.randn(8, 4), torch.randint(2, (8,))) for _ in range(4)], "loss": "cross_entropy",
        "budget": fb.Budget(wall_hours=1), "run_dir": run_dir, "evaluate": lambda model: {"score": 0.0},
        "metric": "score", "optimizer": "sgd", "optimizer_options": {"lr": 0.1}, "max_steps": 4,
    }  # fmt: skip
    return fb.Trainer(**{**settings, **options})


@pytest.mark.parametrize(("allow", "during"), [(True, "high"), (False, "highest"), (None, "medium")])
def test_tf32_is_switched_for_the_run_alone(tmp_path: Path, allow: bool | None, during: str) -> None:
    seen: set[str] = set()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:

        def loss(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
            seen.add(torch.get_float32_matmul_precision())
            return torch.nn.functional.cross_entropy(outputs, batch[1])

        trainer_of(tmp_path / "good", loss=loss, allow_tf32=allow).fit()
        assert seen == {during} and torch.get_float32_matmul_precision() == "medium"
        with pytest.raises(fb.InvalidInputError):
            trainer_of(tmp_path / "bad", loss=lambda outputs, batch: outputs, allow_tf32=allow).fit()
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_compiled_model_trains_alike_and_its_state_keeps_its_names(tmp_path: Path) -> None:
    calls = 0

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        nonlocal calls
        calls += 1
        return graph.forward

    eager = trainer_of(tmp_path / "eager")
    eager.fit()
    compiled = trainer_of(tmp_path / "compiled", compile={"backend": backend})
    result = compiled.fit()
    assert calls, "nothing was compiled"
    state = CheckpointStore(result.last_checkpoint.parent).load(result.last_checkpoint).state["model"]
    assert list(state) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    expected = CheckpointStore(tmp_path / "eager" / "checkpoints").load().state["model"]
    assert all(torch.equal(state[name], value) for name, value in expected.items())
    before = calls
    compiled.model(torch.randn(2, 4))
    torch.compiler.reset()
    compiled.model(torch.randn(3, 4))
    assert calls == before, "the model is as it was given"
    trainer_of(tmp_path / "compiled", max_steps=6).fit(resume=True)  # and goes on without compilation


def test_compile_options_are_checked_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(fb.InvalidInputError, match=re.escape("got ['modus']")):
        trainer_of(tmp_path, compile={"modus": "max-autotune"})
    with pytest.raises(fb.InvalidInputError, match="True, False or a mapping"):
        trainer_of(tmp_path, compile="max-autotune")
