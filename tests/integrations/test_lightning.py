"""The budget in the real Lightning Trainer, on a tiny model whose steps and validations take a known time."""

import contextlib
import time
import warnings

import pytest

pytest.importorskip("lightning")

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import fastbudget as fb
from fastbudget.budget import read_ledger
from fastbudget.integrations.lightning import BudgetCallback

TICK_S = 0.25
SANITY_BATCHES, VALIDATION_BATCHES = 2, 8


class Slow(pl.LightningModule):
    """Steps of 10 ms; validations of 0.8 s (8 batches of 0.1 s)."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.validated = 0

    def training_step(self, batch, index):
        time.sleep(0.01)
        return self.layer(batch).square().mean()

    def validation_step(self, batch, index):
        time.sleep(0.1)
        self.validated += 1
        self.log("val_loss", self.layer(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Failing(Slow):
    def training_step(self, batch, index):
        raise ArithmeticError("no")


def fit(directory, budget_s, *, model=Slow, ckpt_path=None, **options):
    callback = BudgetCallback(fb.Budget(wall_hours=budget_s / 3600))
    keep = ModelCheckpoint(dirpath=directory / "checkpoints", monitor="val_loss", save_last=True)
    module = model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            default_root_dir=directory,
            callbacks=[callback, keep],
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=SANITY_BATCHES,
            **{"max_epochs": 10_000, "check_val_every_n_epoch": None, "val_check_interval": 100, **options},
        )
        data = torch.utils.data.DataLoader(torch.randn(80, 4), batch_size=4)
        held_out = torch.utils.data.DataLoader(torch.randn(4 * VALIDATION_BATCHES, 4), batch_size=4)
        with contextlib.suppress(ArithmeticError):
            trainer.fit(module, data, held_out, ckpt_path=ckpt_path)
    return {
        "steps": trainer.global_step,
        "validated": module.validated,
        "stop_reason": callback.guard.stop_reason,
        "spent_s": callback.guard.spent_s,
        "by_phase": callback.guard.spend()["seconds_by_phase"],
    }


def test_it_stops_validated_and_saved_inside_the_budget(tmp_path, in_child):
    run = in_child(fit, tmp_path, 6.0)
    assert run["stop_reason"] == "budget"
    assert 2.0 <= run["spent_s"] <= 6.0 + TICK_S
    assert run["by_phase"]["evaluate"] >= 0.8
    assert (run["validated"] - SANITY_BATCHES) % VALIDATION_BATCHES == 0
    assert torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=False)["global_step"] == run["steps"]
    assert read_ledger(tmp_path).closed
    assert not (tmp_path / "first.ckpt").exists()


def test_the_first_validation_is_kept_back_before_any_was_seen(tmp_path, in_child):
    """A validation of a third of the budget, which no step shows: the sanity check does."""
    run = in_child(lambda: fit(tmp_path, 3.0, val_check_interval=10_000))
    assert run["spent_s"] <= 3.0 + TICK_S
    assert run["validated"] == SANITY_BATCHES + VALIDATION_BATCHES


def test_a_resumed_fit_counts_what_was_spent_before(tmp_path, in_child):
    before = in_child(lambda: fit(tmp_path, 3600, max_steps=30, max_epochs=-1, val_check_interval=15))
    budget_s = before["spent_s"] + 4.0
    run = in_child(lambda: fit(tmp_path, budget_s, ckpt_path=tmp_path / "checkpoints" / "last.ckpt"))
    assert run["steps"] > before["steps"] == 30
    assert run["stop_reason"] == "budget"
    assert run["spent_s"] <= budget_s + TICK_S


def test_the_budget_outranks_min_epochs(tmp_path, in_child):
    run = in_child(lambda: fit(tmp_path, 3.0, min_epochs=9_000, min_steps=100_000))
    assert run["stop_reason"] == "budget"
    assert run["spent_s"] <= 3.0 + TICK_S


def test_a_failing_fit_closes_the_ledger_with_its_reason(tmp_path, in_child):
    run = in_child(lambda: fit(tmp_path, 3600, model=Failing))
    assert run["stop_reason"] == "error: ArithmeticError"
    assert read_ledger(tmp_path).closed
