"""One optimizer step: the gradient of the whole accumulated batch, numbers that aren't finite, precision."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import fastbudget as fb
from fastbudget.checkpoint import CheckpointStore
from fastbudget.training import PaddingCollate, count_targets

PLENTY = fb.Budget(wall_hours=10)


def run(run_dir: Path, model: torch.nn.Module, data: Any, **options: Any) -> fb.TrainingResult:
    settings: dict[str, Any] = {
        "budget": PLENTY, "run_dir": run_dir, "evaluate": lambda _: {"score": 0.0}, "metric": "score",
        "loss": "cross_entropy", "optimizer": "sgd", "optimizer_options": {"lr": 0.5}, "evaluate_every": 1000,
    }  # fmt: skip
    return fb.Trainer(model=model, train_data=data, **{**settings, **options}).fit()


def records(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").open()]


def last_weights(result: fb.TrainingResult) -> dict[str, torch.Tensor]:
    return CheckpointStore(result.last_checkpoint.parent).load(result.last_checkpoint).state["model"]


# -- accumulation ----------------------------------------------------------------------------------------------------

VOCAB = 11
LENGTHS = (2, 60, 7, 31)


class Tokens(torch.nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = torch.nn.Embedding(VOCAB, 8, dtype=dtype), torch.nn.Linear(8, VOCAB, dtype=dtype)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.embed(tokens))


def sequences(lengths: tuple[int, ...] = LENGTHS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randint(VOCAB, (n,), generator=generator), torch.randint(VOCAB, (n,), generator=generator))
        for n in lengths
    ]


def step_of(run_dir: Path, data: Any, accumulation: int, model: torch.nn.Module | None = None, **options: Any) -> Any:
    """The change of the weights in one SGD step of learning rate 1: minus the gradient."""
    model = model or Tokens()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = run(
        run_dir, model, data, grad_accumulation=accumulation, max_steps=1, optimizer_options={"lr": 1.0}, **options
    )
    after = last_weights(result)
    return torch.cat([(after[name] - value).flatten().double() for name, value in before.items()])


def own_cross_entropy(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), batch[1].flatten())


def relative_error(step: torch.Tensor, expected: torch.Tensor) -> float:
    return float((step - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("loss", ["cross_entropy", own_cross_entropy])
def test_sequences_of_unequal_length_add_up_to_the_full_batch(tmp_path: Path, loss: Any, dtype: torch.dtype) -> None:
    """The mean of the four means, as loops without this have it, is off by 229% on a worse model than this one."""
    micro = [(inputs[None], targets[None]) for inputs, targets in sequences()]
    whole = [tuple(torch.cat(column)[None] for column in zip(*sequences(), strict=True))]
    expected = step_of(tmp_path / "whole", whole, 1, Tokens(dtype), loss=loss)
    assert relative_error(step_of(tmp_path / "parts", micro, 4, Tokens(dtype), loss=loss), expected) <= 1e-6
    by_sample = step_of(tmp_path / "naive", micro, 4, Tokens(dtype), loss=loss, loss_weight="samples")
    assert relative_error(by_sample, expected) > 0.1, "the case would not show the fault"
    losses = [records(tmp_path / name)[1]["loss"] for name in ("whole", "parts")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_padded_targets_do_not_count(tmp_path: Path) -> None:
    collate = PaddingCollate((0, -100))
    data = sequences()
    padded = [collate(data[:2]), collate(data[2:])]
    whole = [tuple(torch.cat(column)[None] for column in zip(*data, strict=True))]
    expected = step_of(tmp_path / "whole", whole, 1)
    assert relative_error(step_of(tmp_path / "padded", padded, 2), expected) <= 1e-6
    # A micro-batch without any target has no loss, and takes no part.
    nothing = (torch.zeros(2, 3, dtype=torch.long), torch.full((2, 3), -100))
    assert relative_error(step_of(tmp_path / "nothing", [padded[0], nothing, padded[1]], 3), expected) <= 1e-6


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_micro_batches_of_unequal_size_add_up_to_the_full_batch(tmp_path: Path, task: str) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(16, 6, generator=generator).double()
    if task == "classification":
        targets, loss = torch.randint(0, 2, (16,), generator=generator), "cross_entropy"
    else:
        targets, loss = torch.randn(16, 2, generator=generator).double(), "mse"
    pieces = list(zip(inputs.split([5, 1, 7, 3]), targets.split([5, 1, 7, 3]), strict=True))

    def model() -> torch.nn.Module:
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()

    expected = step_of(tmp_path / "whole", [(inputs, targets)], 1, model(), loss=loss)
    assert relative_error(step_of(tmp_path / "parts", pieces, 4, model(), loss=loss), expected) <= 1e-12


def test_a_causal_model_of_hugging_face_adds_up_to_the_full_batch(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=8, vocab_size=VOCAB, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )

    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        return transformers.GPT2LMHeadModel(config).double()

    samples = [{"input_ids": tokens, "labels": tokens.clone()} for tokens, _ in sequences()]
    samples[1]["labels"][:20] = -100  # a prompt
    collate = PaddingCollate({"input_ids": 0, "labels": -100})
    expected = step_of(tmp_path / "whole", [collate(samples)], 1, model(), loss=None)
    parts = step_of(tmp_path / "parts", [collate([sample]) for sample in samples], 4, model(), loss=None)
    assert relative_error(parts, expected) <= 1e-6


@pytest.mark.parametrize(
    ("batch", "shifted", "count"),
    [
        ((torch.zeros(3, 4), torch.tensor([0, 1, -100])), False, 2),
        ((torch.zeros(3, 4), torch.zeros(3, 5)), False, 15),
        ((torch.zeros(3, 4), torch.zeros(3, dtype=torch.bool)), False, 3),
        ({"input_ids": torch.zeros(2, 4), "labels": torch.tensor([[1, 2, -100, 4], [-100, -100, 5, -100]])}, False, 4),
        ({"input_ids": torch.zeros(2, 4), "labels": torch.tensor([[1, 2, -100, 4], [-100, -100, 5, -100]])}, True, 3),
        ({"input_ids": torch.zeros(2, 4), "labels": torch.tensor([1, 0])}, True, 2),
        ({"input_ids": torch.zeros(2, 4)}, False, 2),
        ({"x": torch.zeros(2, 4), "targets": torch.ones(2, 4, dtype=torch.long)}, False, 8),
        (torch.zeros(5, 4), False, 5),
        ((torch.zeros(5, 4), {"boxes": torch.zeros(5)}), False, 5),
    ],
)
def test_targets_that_count(batch: Any, shifted: bool, count: int) -> None:
    assert count_targets(batch, shifted=shifted) == count


def test_a_weight_of_ones_own(tmp_path: Path) -> None:
    """Padding marked by a zero, which the built-in rule can't know."""
    data = [(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 0, 0]])), (torch.tensor([[4, 5]]), torch.tensor([[6, 7]]))]

    def loss(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), batch[1].flatten(), ignore_index=0)

    whole = [(torch.tensor([[1, 4, 5]]), torch.tensor([[4, 6, 7]]))]
    expected = step_of(tmp_path / "whole", whole, 1, loss=loss)
    own = step_of(tmp_path / "own", data, 2, loss=loss, loss_weight=lambda batch: int((batch[1] != 0).sum()))
    assert relative_error(own, expected) <= 1e-12


# -- numbers that aren't finite --------------------------------------------------------------------------------------


class Scaled(torch.nn.Linear):
    """Multiplies what it gives by a factor that batches carry in their second input."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs[:, :4]) * inputs[:, 4:5]


def batches(bad: dict[int, float], count: int = 12) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    data = []
    for number in range(count):
        inputs = torch.randn(6, 5, generator=generator)
        inputs[:, 4] = bad.get(number, 1.0)
        data.append((inputs, torch.randint(2, (6,), generator=generator)))
    return data


def scaled() -> Scaled:
    torch.manual_seed(2)
    return Scaled(4, 2)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_skipped_steps_change_nothing(tmp_path: Path, value: float, clip: float | None) -> None:
    options = {"max_steps": 10, "optimizer": "adamw", "optimizer_options": {"lr": 0.1}, "clip_grad_norm": clip}
    skipping = run(tmp_path / "bad", scaled(), batches({3: value, 7: value}), on_nonfinite="skip", **options)
    good = [batch for number, batch in enumerate(batches({})) if number not in (3, 7)]
    expected = run(tmp_path / "good", scaled(), good, **options)
    for name, weight in last_weights(expected).items():
        assert torch.equal(last_weights(skipping)[name], weight)
    # The schedule moved with the steps that were taken.
    rates = [[line["lr"] for line in records(tmp_path / name) if "lr" in line] for name in ("bad", "good")]
    assert rates[0] == rates[1] and len(rates[0]) == 10
    assert [line["step"] for line in records(tmp_path / "bad") if "skipped" in line] == [3, 6]


class RootOfZero(torch.nn.Linear):
    """A finite loss whose gradient isn't, from its third batch on."""

    calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = super().forward(inputs)
        if self.training:
            self.calls += 1
        return outputs + (self.weight.sum() * 0).sqrt() if self.training and self.calls == 3 else outputs


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_gradient_that_is_no_number_is_found_before_it_is_saved(tmp_path: Path, clip: float | None) -> None:
    data = [(torch.ones(2, 3), torch.tensor([0, 1]))]
    options = {"max_steps": 9, "clip_grad_norm": clip, "evaluate_every": 1}
    with pytest.raises(fb.NonFiniteLossError, match="gradient norm is nan at step 3" if clip else "after step 3"):
        run(tmp_path / "raise", RootOfZero(3, 2), data, **options)
    store = CheckpointStore(tmp_path / "raise" / "checkpoints")
    assert store.load().step == 2 and all(value.isfinite().all() for value in store.load().state["model"].values())
    result = run(tmp_path / "skip", RootOfZero(3, 2), data, on_nonfinite="skip", **options)
    assert result.steps == 9


def test_skipping_has_an_end(tmp_path: Path) -> None:
    with pytest.raises(fb.NonFiniteLossError, match="25 steps in a row"):
        run(tmp_path, scaled(), batches(dict.fromkeys(range(12), math.nan)), max_steps=5, on_nonfinite="skip")


def test_a_batch_without_any_target(tmp_path: Path) -> None:
    data = [(torch.randn(3, 4), torch.full((3,), -100))] * 2
    for accumulation in (1, 2):
        with pytest.raises(fb.NonFiniteLossError, match="all -100"):
            run(tmp_path / str(accumulation), torch.nn.Linear(4, 2), data, max_steps=2, grad_accumulation=accumulation)


# -- precision -------------------------------------------------------------------------------------------------------


def test_half_precision_scales_and_clips_what_it_unscaled(tmp_path: Path) -> None:
    """Against torch's own recipe, with a batch that overflows in float16."""
    data = batches({4: 60_000.0, 5: 2.0}, 10)
    options = {"optimizer": "adamw", "optimizer_options": {"lr": 0.1}, "clip_grad_norm": 0.1, "max_steps": 12}
    result = run(tmp_path, scaled(), data, precision="fp16-mixed", **options)

    model, taken = scaled(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for number in range(100):
        inputs, targets = data[number % 10]
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (1 - taken / 12)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        taken += scaler.get_scale() >= before
        if taken == 12:
            break
    assert number >= 12, "no step overflowed: the test proves nothing"
    for name, weight in model.state_dict().items():
        assert torch.equal(last_weights(result)[name], weight)
    assert sum("skipped" in line for line in records(tmp_path)) == number + 1 - 12
    state = CheckpointStore(result.last_checkpoint.parent).load(result.last_checkpoint).state
    assert state["loss_scale"] == scaler.state_dict()


def test_bfloat16_is_autocast_in_training_and_evaluation(tmp_path: Path) -> None:
    seen: set[tuple[bool, torch.dtype]] = set()

    class Watched(torch.nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            outputs = super().forward(inputs)
            seen.add((self.training, outputs.dtype))
            return outputs

    data = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))]

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        return {"score": float(model(data[0][0]).sum())}

    result = run(tmp_path, Watched(3, 2), data, precision="bf16-mixed", max_steps=2, evaluate=evaluate)
    assert seen == {(True, torch.bfloat16), (False, torch.bfloat16)}
    assert all(value.dtype == torch.float32 for value in last_weights(result).values())


# -- how long, and in which mode -------------------------------------------------------------------------------------


def test_epochs_are_counted_in_steps(tmp_path: Path) -> None:
    data = DataLoader(list(zip(torch.randn(20, 4), torch.zeros(20, dtype=torch.long), strict=True)), batch_size=6)
    for name, options, steps in [
        ("a", {"max_epochs": 3}, 12), ("b", {"max_epochs": 2, "grad_accumulation": 3}, 3),
        ("c", {"max_epochs": 3, "max_steps": 7}, 7), ("d", {"max_epochs": 3, "max_steps": 70}, 12),
    ]:  # fmt: skip
        assert run(tmp_path / name, torch.nn.Linear(4, 2), data, **options).steps == steps

    class Endless:
        def __iter__(self) -> Any:
            return iter(data)

    with pytest.raises(fb.InvalidInputError, match="no length"):
        run(tmp_path / "e", torch.nn.Linear(4, 2), Endless(), max_epochs=1)


def test_parts_set_to_eval_by_the_user_stay_so(tmp_path: Path) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)
    )
    model[1].requires_grad_(False).eval()
    data = [(torch.randn(8, 4) + 5, torch.randint(2, (8,)))]
    run(tmp_path / "frozen", model, data, max_steps=6, evaluate_every=2)
    assert not model[1].training and model[2].training and model.training
    assert model[1].num_batches_tracked == 0 and model[2].num_batches_tracked > 0
    # A model that comes in eval mode as a whole, as pretrained ones do, is trained as a whole.
    run(tmp_path / "whole", model.eval(), data, max_steps=2)
    assert model.training and model[1].training


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp8"}, "precision must be one of"),
        ({"on_nonfinite": "ignore"}, "on_nonfinite must be one of"),
        ({"mode": "best"}, "mode must be one of"),
        ({"loss_weight": "tokens"}, "loss_weight must be"),
        ({"max_epochs": 0}, "max_epochs"),
    ],
    ids=str,
)
def test_options_are_checked(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(fb.InvalidInputError, match=message):
        run(
            tmp_path / "run",
            torch.nn.Linear(4, 2),
            [(torch.zeros(1, 4), torch.zeros(1).long())],
            **{"max_steps": 1, **options},
        )
    assert not (tmp_path / "run").exists()
