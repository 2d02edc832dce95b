"""Trainings on two ranks: the same run as on one, the same decisions on both, and one end for both."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import fastbudget as fb
from fastbudget.training import DataParallel, ResumableSampler

STEPS = 8


class Sequences(Dataset):
    """Rows with 1 to 7 targets, so that ranks' and micro-batches' weights differ."""

    def __init__(self, size=37):
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(size, 6, generator=generator)
        self.targets = torch.randint(0, 4, (size, 7), generator=generator)
        self.targets[torch.arange(7) > torch.randint(0, 7, (size, 1), generator=generator)] = -100

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.GELU()) for _ in range(2)])
        self.head = nn.Linear(6, 28)

    def forward(self, inputs):
        for layer in self.layers:
            inputs = layer(inputs)
        return self.head(inputs).view(-1, 7, 4)


def loss(outputs, batch):
    return F.cross_entropy(outputs.flatten(0, 1), batch[1].flatten())


def trainer(run_dir, train_data=None, *, model=None, **options):
    torch.manual_seed(3)
    return fb.Trainer(
        model=model or Model(),
        train_data=DataLoader(Sequences(), batch_size=8, shuffle=True) if train_data is None else train_data,
        budget=fb.Budget(wall_hours=0.2),
        run_dir=run_dir,
        evaluate=options.pop(
            "evaluate", lambda model: {"loss": float(loss(model(Sequences().inputs), Sequences()[:]))}
        ),
        metric="loss",
        mode="min",
        loss=options.pop("loss", loss),
        optimizer_options={"lr": 1e-2},
        **{"max_steps": STEPS, "grad_accumulation": 2, "clip_grad_norm": 0.5, "evaluate_every": 5, **options},
    )


def saved(run_dir):
    return fb.CheckpointStore(Path(run_dir) / "checkpoints").load()


def difference(first, second):
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def losses(run_dir):
    lines = (json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run on one rank."""
    run_dir = tmp_path_factory.mktemp("alone")
    trainer(run_dir).fit()
    return run_dir


def in_several_ways(rank, directory):
    for name, distributed in (
        ("ddp", None), ("static", DataParallel(static_graph=True)), ("fsdp2", "fsdp2"),
        ("fp16-hook", DataParallel(comm_hook="fp16", bucket_cap_mb=1)),
    ):  # fmt: skip
        result = trainer(directory / name, distributed=distributed).fit()
        assert result.stop_reason == "completed" and result.steps == STEPS
    # Half of it on two ranks, in both strategies, to be continued elsewhere.
    trainer(directory / "first-half", max_steps=4, schedule=CONSTANT).fit()
    trainer(directory / "swapped", max_steps=4, schedule=CONSTANT).fit()
    trainer(directory / "swapped", schedule=CONSTANT, distributed="fsdp2").fit(resume=True)


CONSTANT = fb.training.LearningRateSchedule(shape="constant")


def test_two_ranks_train_as_one_does(on_two_ranks, alone, tmp_path):
    on_two_ranks(in_several_ways, tmp_path)
    expected = saved(alone).state
    for name in ("ddp", "static", "fsdp2"):
        found = saved(tmp_path / name).state
        assert difference(expected["model"], found["model"]) <= 1e-6, name
        assert losses(tmp_path / name) == pytest.approx(losses(alone), abs=1e-6), name
        assert found["data"] == expected["data"], name  # so that any number of ranks can go on
    assert difference(expected["model"], saved(tmp_path / "fp16-hook").state["model"]) <= 1e-3

    trainer(tmp_path / "constant", schedule=CONSTANT).fit()
    trainer(tmp_path / "first-half", schedule=CONSTANT).fit(resume=True)  # on one rank
    whole = saved(tmp_path / "constant").state["model"]
    for name in ("first-half", "swapped"):
        assert difference(whole, saved(tmp_path / name).state["model"]) <= 1e-6, name
        assert len(losses(tmp_path / name)) == STEPS


def with_data_of_their_own(rank, directory):
    """Rank 0 has three batches, rank 1 two of which the last is small: padding must not count, nothing may hang."""
    rows = Sequences()[:]
    own = [slice(0, 5), slice(5, 10), slice(10, 15)] if rank == 0 else [slice(20, 25), slice(25, 27)]
    batches = [tuple(part[rows_] for part in rows) for rows_ in own]
    trainer(directory / "list", batches, max_steps=None, max_epochs=2, grad_accumulation=1).fit()
    trainer(directory / "stream", Endless(batches), max_steps=6, grad_accumulation=1).fit()


class Endless:
    """Batches that don't say how many they are."""

    def __init__(self, batches):
        self._batches = batches

    def __iter__(self):
        return iter(self._batches)


def test_ranks_with_unequal_data_take_each_step_together(on_two_ranks, tmp_path):
    on_two_ranks(with_data_of_their_own, tmp_path)
    rows = Sequences()[:]
    together = [[*range(5), *range(20, 25)], [*range(5, 10), 25, 26], [*range(10, 15)]]
    batches = [tuple(part[rows_] for part in rows) for rows_ in together]
    trainer(tmp_path / "one", batches, max_steps=None, max_epochs=2, grad_accumulation=1).fit()
    for name in ("list", "stream"):
        assert saved(tmp_path / name).step == 6
        assert difference(saved(tmp_path / "one").state["model"], saved(tmp_path / name).state["model"]) <= 1e-6, name


def with_bad_numbers_and_little_memory(rank, directory):
    calls = []

    def often_nan(outputs, batch):
        calls.append(len(calls))
        value = loss(outputs, batch)
        return value * float("nan") if rank == 1 and len(calls) == 4 else value

    skipping = trainer(directory / "nan", loss=often_nan, on_nonfinite="skip", grad_accumulation=1, max_steps=6)
    skipping.fit()

    def short_of_memory(outputs, batch):
        if rank == 0 and len(batch[0]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        return loss(outputs, batch)

    trainer(directory / "oom", loss=short_of_memory).fit()
    trainer(directory / "half", precision="fp16-mixed", distributed="fsdp2", max_steps=3).fit()
    return skipping.step


def test_what_goes_wrong_on_one_rank_is_decided_by_all(on_two_ranks, alone, tmp_path):
    assert on_two_ranks(with_bad_numbers_and_little_memory, tmp_path) == [6, 6]
    lines = [json.loads(line) for line in (tmp_path / "nan" / "metrics.jsonl").read_text().splitlines()]
    assert sum("skipped" in line for line in lines) == 1
    assert difference(saved(alone).state["model"], saved(tmp_path / "oom").state["model"]) <= 1e-6
    assert saved(tmp_path / "half").step == 3


def refused(rank, directory):
    rows = Sequences(6)[:]
    elsewhere = ResumableSampler(37, batch_size=4, rank=0, world_size=3)
    for data, expected in (
        (DataLoader(Sequences(), batch_size=9), "can't be shared evenly by 2 ranks"),
        ([tuple(part[:5] for part in rows)], "can't be shared evenly by 2 ranks"),
        (DataLoader(Sequences(6), batch_size=8), "the data set has 6"),
        (DataLoader(Sequences(), batch_sampler=elsewhere), "rank 0 of 3"),
        ([] if rank else [rows], "yields no batch"),
    ):  # fmt: skip
        with pytest.raises(fb.InvalidInputError, match=expected):
            trainer(directory / "never", data)
    with pytest.raises(fb.InvalidInputError, match="bare model"):
        trainer(directory / "never", model=nn.parallel.DistributedDataParallel(Model()))
    assert not (directory / "never" / "checkpoints").exists()


def test_bad_input_is_refused_on_all_ranks_before_the_start(on_two_ranks, tmp_path):
    on_two_ranks(refused, tmp_path)


def failing(rank, directory, where):
    def raises(model):
        if rank == 0 and run.step:
            raise ValueError("bad evaluation")
        return {"loss": 1.0}

    def breaks(outputs, batch):
        if rank == 1 and run.step == 3:
            raise ValueError("bad loss")
        return loss(outputs, batch)

    options = {"evaluation": {"evaluate": raises}, "loss": {"loss": breaks}}[where]
    run = trainer(directory, **options)
    begun = time.monotonic()
    try:
        run.fit()
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - begun
    return None


@pytest.mark.parametrize(("where", "first"), [("evaluation", 0), ("loss", 1)])
def test_a_failing_rank_ends_the_other_with_its_name(on_two_ranks, tmp_path, where, first):
    found = on_two_ranks(failing, tmp_path, where)
    assert found[first][0] == "ValueError"
    kind, text, seconds = found[1 - first]
    assert kind == "RankFailedError" and f"Rank {first} failed" in text and "ValueError: bad" in text
    assert seconds < 20


def stopped(rank, directory):
    run = trainer(directory, loss=slow, max_steps=100_000, evaluate_every=1000)
    result = run.fit()
    return result.stop_reason, result.steps


def slow(outputs, batch):
    time.sleep(0.005)
    return loss(outputs, batch)


def test_a_signal_to_one_rank_ends_both_with_a_checkpoint(on_two_ranks, tmp_path):
    def tell(processes):
        until = time.monotonic() + 60
        while not (tmp_path / "metrics.jsonl").exists() or not losses(tmp_path):
            assert time.monotonic() < until
            time.sleep(0.05)
        os.kill(processes[1].pid, signal.SIGTERM)

    first, second = on_two_ranks(stopped, tmp_path, tell=tell)
    assert first == second and first[0] == "sigterm"
    assert saved(tmp_path).step == first[1] > 0
