"""Blocks whose activations are computed again: the same training, less memory, chosen by the estimator."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fastbudget as fb
from fastbudget.checkpoint import CheckpointStore
from fastbudget.cost import find_blocks, recomputed_layers
from fastbudget.training.step_prediction import StepPredictor

WIDTH, LENGTH, SAMPLES, LAYERS = 32, 16, 8, 4


class Block(nn.Module):
    """As timm's vision transformers and convolutional networks have them: residual, with dropout and batch norm."""

    def __init__(self, width: int = WIDTH, hidden: int = 64) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.BatchNorm1d(width), nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.dropout = nn.Dropout(0.2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.down(self.dropout(F.gelu(self.up(self.norm(inputs.mT).mT))))


class Timm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(inputs))


class Torch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.2, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, LAYERS), nn.Linear(WIDTH, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(inputs))


def hugging_face() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    # Recompute turns the key-value cache off, as transformers' own does; with it, attention rounds differently.
    config = transformers.GPT2Config(
        n_layer=LAYERS, n_embd=WIDTH, n_head=4, vocab_size=50, n_positions=LENGTH, resid_pdrop=0.2, use_cache=False,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(SAMPLES, LENGTH, WIDTH, generator=generator),
        torch.randint(3, (SAMPLES, LENGTH), generator=generator),
    )


def cross_entropy(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
    return F.cross_entropy(outputs.flatten(0, -2), batch[1].flatten())


def tokens() -> dict[str, torch.Tensor]:
    ids = torch.randint(50, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "labels": ids}


def own(outputs: Any, batch: Any) -> torch.Tensor:
    return outputs.loss


MODELS: dict[str, tuple[Any, Any, Any, str]] = {
    "timm": (Timm, inputs, cross_entropy, "blocks."),
    "torch": (Torch, inputs, cross_entropy, "encoder.layers."),
    "hugging face": (hugging_face, tokens, own, "transformer.h."),
}


def gradients(model: nn.Module, batch: Any, loss: Any) -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    outputs = model(**batch) if isinstance(batch, dict) else model(batch[0])
    loss(outputs, batch).backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    return found | dict(model.named_buffers())


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("which", ["all", "some"])
def test_gradients_and_running_statistics_are_the_same_bit_for_bit(kind, which):
    factory, batch, loss, prefix = MODELS[kind]
    torch.manual_seed(0)
    model = factory().train()
    again = copy.deepcopy(model)
    assert list(find_blocks(model)) == [f"{prefix}{index}" for index in range(LAYERS)]
    wanted = gradients(model, batch(), loss)
    with recomputed_layers(again, None if which == "all" else [f"{prefix}1", f"{prefix}2"]):
        found = gradients(again, batch(), loss)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


def train(run_dir: Any, kind: str, **options: Any) -> tuple[fb.Trainer, dict[str, torch.Tensor]]:
    factory, batch, loss, _ = MODELS[kind]
    torch.manual_seed(0)
    trainer = fb.Trainer(
        model=factory(), train_data=[batch()] * 3, budget=fb.Budget(wall_hours=10), run_dir=run_dir, loss=loss,
        evaluate=lambda model: {"score": 0.0}, metric="score", max_steps=2, evaluate_every=100, **options,
    )  # fmt: skip
    result = trainer.fit()
    return trainer, CheckpointStore(result.last_checkpoint.parent).load(result.last_checkpoint).state["model"]


def predictor(kind: str, **options: Any) -> StepPredictor:
    factory, _, loss, _ = MODELS[kind]
    model = factory()
    optimizer = torch.optim.AdamW(model.parameters())
    return StepPredictor(model, loss, optimizer, precision="fp32", device=torch.device("cpu"), **options)


def test_auto_recomputes_the_fewest_blocks_that_fit_and_trains_the_same(tmp_path, caplog):
    step = predictor("torch")
    blocks = step.blocks
    peaks = [step.peak_bytes(step.trace(inputs(), recompute=blocks[:count])) for count in range(LAYERS + 1)]
    limit = (peaks[1] + peaks[2]) // 2
    _, wanted = train(tmp_path / "plain", "torch")
    with caplog.at_level(logging.INFO, "fastbudget.training"):
        trainer, found = train(tmp_path / "auto", "torch", recompute="auto", memory_limit_bytes=limit)
    chosen = trainer.step_memory
    assert chosen.recompute == blocks[:2]
    assert (chosen.peak_bytes, chosen.peak_without_bytes) == (peaks[2], peaks[0])
    encoder_flops = step.trace(inputs()).operations.flops_in("forward", step=1) - 2 * SAMPLES * LENGTH * WIDTH * 3
    assert chosen.extra_flops == pytest.approx(encoder_flops * 2 / LAYERS, rel=0.1)  # a block's last product is spared
    assert "recompute of 2 of 4 blocks (encoder.layers.0, encoder.layers.1)" in caplog.text
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


def test_nothing_is_recomputed_where_the_step_fits(tmp_path):
    trainer, _ = train(tmp_path, "timm", recompute="auto", memory_limit_bytes=10**9)
    assert trainer.step_memory.recompute == ()
    assert trainer.step_memory.extra_flops == 0


@pytest.mark.parametrize("recompute", ["full", ["encoder.layers.0"], ["TransformerEncoderLayer"]])
def test_what_is_named_is_recomputed_and_the_model_is_left_as_it_was(tmp_path, recompute):
    trainer, found = train(tmp_path / "again", "torch", recompute=recompute)
    _, wanted = train(tmp_path / "plain", "torch")
    assert not [module for module in trainer.model.modules() if "forward" in vars(module)]
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


def test_micro_batches_come_before_recompute(tmp_path):
    step = predictor("torch")
    limit = step.peak_bytes(step.trace(tuple(part[:4] for part in inputs()), accumulates=True))
    trainer, _ = train(tmp_path, "torch", recompute="auto", micro_batch_size="auto", memory_limit_bytes=limit)
    assert (trainer.step_memory.micro_batch_size, trainer.step_memory.recompute) == (4, ())
    assert trainer.step_memory.peak_bytes == limit


def test_a_limit_that_nothing_fits_is_refused_before_the_first_step(tmp_path):
    with pytest.raises(fb.OutOfMemoryError, match=r"limit of .*recompute='full'.*None of these fits"):
        train(tmp_path, "torch", memory_limit_bytes=1000)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"recompute": "some"}, "recompute must be one of"),
        ({"recompute": ["encoder.layer.0"]}, "Did you mean 'encoder.layers.0'"),
        ({"micro_batch_size": 0}, "micro_batch_size must be"),
        ({"micro_batch_size": "big"}, "micro_batch_size must be"),
        ({"memory_limit_bytes": 0}, "memory_limit_bytes must be above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path, options, text):
    with pytest.raises(fb.InvalidInputError, match=text):
        train(tmp_path, "torch", **options)


def test_a_model_without_blocks_says_so(tmp_path):
    with pytest.raises(fb.InvalidInputError, match="repeated blocks"):
        fb.Trainer(
            model=nn.Linear(2, 2), train_data=[(torch.ones(2, 2), torch.ones(2, 2))], budget=fb.Budget(wall_hours=1),
            run_dir=tmp_path, evaluate=lambda model: {"score": 0.0}, metric="score", loss="mse", recompute="full",
        )  # fmt: skip
