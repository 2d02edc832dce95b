"""The budget in the real transformers.Trainer, on a tiny model whose steps and evaluations take a known time."""

import time

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch
from transformers import Trainer, TrainingArguments

import fastbudget as fb
from fastbudget.budget import read_ledger
from fastbudget.integrations.huggingface import BudgetCallback

TICK_S = 0.25


class Slow(torch.nn.Module):
    """A regression whose steps take 10 ms and whose evaluations take 0.4 s (4 batches of 0.1 s)."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        time.sleep(0.01 if self.training else 0.1)
        return {"loss": torch.nn.functional.mse_loss(self.layer(x), labels), "logits": self.layer(x)}


def samples(count):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 4, generator=generator)
    return [{"x": x, "labels": x.sum().reshape(1)} for x in inputs]


def train(directory, budget_s, *, resume=None, callback_options=None, **options):
    callback = BudgetCallback(fb.Budget(wall_hours=budget_s / 3600), **(callback_options or {}))
    arguments = TrainingArguments(
        output_dir=str(directory),
        **{
            "per_device_train_batch_size": 4,
            "per_device_eval_batch_size": 4,
            "num_train_epochs": 10_000,
            "eval_strategy": "steps",
            "eval_steps": 50,
            "save_strategy": "steps",
            "save_steps": 50,
            "save_total_limit": 2,
            "logging_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "use_cpu": True,
            **options,
        },
    )
    run = Trainer(Slow(), arguments, train_dataset=samples(40), eval_dataset=samples(16), callbacks=[callback])
    run.train(resume_from_checkpoint=resume)
    return {
        "steps": run.state.global_step,
        "evaluated": [one["step"] for one in run.state.log_history if "eval_loss" in one],
        "stop_reason": callback.guard.stop_reason,
        "spent_s": callback.guard.spent_s,
        "by_phase": callback.guard.spend()["seconds_by_phase"],
    }


def test_it_stops_evaluated_and_saved_inside_the_budget(tmp_path, in_child):
    run = in_child(train, tmp_path, 4.0)
    assert run["stop_reason"] == "budget"
    assert 2.0 <= run["spent_s"] <= 4.0 + TICK_S
    assert run["evaluated"][0] == 1
    assert run["evaluated"][-1] == run["steps"]
    assert (tmp_path / f"checkpoint-{run['steps']}").is_dir()
    assert run["by_phase"]["evaluate"] >= 0.4 * len(run["evaluated"])
    assert run["by_phase"]["checkpoint"] > 0
    assert read_ledger(tmp_path).closed


def test_a_resumed_training_counts_what_was_spent_before(tmp_path, in_child):
    before = in_child(lambda: train(tmp_path, 1000, max_steps=30))
    assert before["steps"] == 30
    assert before["stop_reason"] is None
    budget_s = before["spent_s"] + 3.0
    run = in_child(lambda: train(tmp_path, budget_s, resume=True))
    assert run["steps"] > 30
    assert run["stop_reason"] == "budget"
    assert before["spent_s"] < run["spent_s"] <= budget_s + TICK_S


def test_without_evaluations_only_the_save_is_kept_back(tmp_path, in_child):
    run = in_child(lambda: train(tmp_path, 2.5, eval_strategy="no", save_steps=10_000))
    assert "evaluate" not in run["by_phase"]
    assert (tmp_path / f"checkpoint-{run['steps']}").is_dir()
    assert run["spent_s"] <= 2.5 + TICK_S


def test_saving_only_the_best_bills_its_saves(tmp_path, in_child):
    best = {"save_strategy": "best", "metric_for_best_model": "loss", "load_best_model_at_end": True, "eval_steps": 20}
    run = in_child(lambda: train(tmp_path, 3.0, **best))
    assert run["by_phase"]["checkpoint"] > 0
    assert run["spent_s"] <= 3.0 + TICK_S


def test_a_training_shorter_than_its_budget_is_left_alone(tmp_path, in_child):
    options = {"run_dir": str(tmp_path / "ledger"), "measure_first": False}
    run = in_child(lambda: train(tmp_path / "out", 3600, callback_options=options, max_steps=5))
    assert run["steps"] == 5
    assert 1 not in run["evaluated"]
    assert run["stop_reason"] is None
    assert read_ledger(tmp_path / "ledger").closed


def test_the_guard_is_there_only_once_training_began():
    with pytest.raises(fb.InvalidInputError, match="clock starts with training"):
        _ = BudgetCallback(fb.Budget(wall_hours=1)).guard
