"""The sampler: one global order, whatever the ranks and workers, entered anywhere."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import random
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

import fastbudget as fb
from fastbudget.training import ResumableSampler, SampleIndex, SeededDataset, sample_generators


def epoch_of(sampler: ResumableSampler) -> list[int]:
    return [int(index) for batch in sampler for index in batch]


@given(
    size=st.integers(1, 300), batch=st.integers(1, 9), world=st.integers(1, 5), drop_last=st.booleans(),
    by_length=st.booleans(), shuffle=st.booleans(),
)  # fmt: skip
def test_ranks_share_an_epoch_without_overlap(
    size: int, batch: int, world: int, drop_last: bool, by_length: bool, shuffle: bool
) -> None:
    options: dict[str, Any] = {"batch_size": batch, "drop_last": drop_last, "shuffle": shuffle, "world_size": world}
    if by_length:
        options |= {"lengths": [index * 7 % 13 for index in range(size)], "pool_batches": 3}
    if size < (batch * world if drop_last else world):
        with pytest.raises(fb.InvalidInputError, match="global batch"):
            ResumableSampler(size, **options)
        return
    samplers = [ResumableSampler(size, rank=rank, **options) for rank in range(world)]
    per_rank = [list(sampler) for sampler in samplers]
    assert {len(batches) for batches in per_rank} == {len(samplers[0])}, "every rank takes the same number of steps"
    assert all(1 <= len(part) <= batch for batches in per_rank for part in batches)
    seen = [int(index) for step in zip(*per_rank, strict=True) for part in step for index in part]
    assert seen == samplers[0].global_order(0, samplers[0].samples_per_epoch, epoch=0).tolist()
    assert len(set(seen)) == len(seen) == samplers[0].samples_per_epoch
    left_out = size - len(seen)
    assert left_out == (size % (batch * world) if drop_last or size % (batch * world) < world else 0)
    if not shuffle and not by_length:
        assert seen == list(range(len(seen)))


@given(
    size=st.integers(1, 200), batch=st.integers(1, 8), steps=st.integers(0, 120), by_length=st.booleans(),
)  # fmt: skip
def test_it_goes_on_anywhere(size: int, batch: int, steps: int, by_length: bool) -> None:
    lengths = [index * 5 % 11 for index in range(size)] if by_length else None

    def make() -> ResumableSampler:
        return ResumableSampler(size, batch_size=batch, seed=3, lengths=lengths, pool_batches=2)

    def take(sampler: ResumableSampler, count: int) -> list[Any]:
        taken = []
        while len(taken) < count:
            for indices in sampler.track(DataLoader(range(size), batch_sampler=sampler)):
                taken.append(indices.tolist())
                if len(taken) == count:
                    break
        return taken

    whole = take(make(), steps + 10)
    first = make()
    assert take(first, steps) == whole[:steps]
    state = json.loads(json.dumps(first.state_dict()))
    second = make()
    second.load_state_dict(state)
    assert take(second, 10) == whole[steps:]


SESSION = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 9))


@given(
    size=st.integers(4, 120), sessions=st.lists(SESSION, min_size=2, max_size=5), drop_last=st.booleans(),
    single=st.booleans(),
)  # fmt: skip
def test_any_change_of_ranks_and_batches_keeps_the_order(
    size: int, sessions: list[tuple[int, int, int]], drop_last: bool, single: bool
) -> None:
    """Sessions of some batch size, ranks and steps: no sample comes twice in an epoch, and all in the global order."""
    state: dict[str, Any] | None = None
    seen: dict[int, list[int]] = {}
    for batch, world, steps in sessions:
        if drop_last and size < batch * world:
            continue
        options: dict[str, Any] = {"drop_last": drop_last, "world_size": world} | (
            {} if single else {"batch_size": batch}
        )
        samplers = [ResumableSampler(size, rank=rank, **options) for rank in range(world)]
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
        while steps > 0:
            for drawn in zip(*samplers, strict=True):
                members = [[index] for index in drawn] if single else drawn
                assert all(members), "no rank is left without samples"
                for index in (index for part in members for index in part):
                    seen.setdefault(index.key[1], []).append(int(index))
                for sampler in samplers:
                    sampler.advance(1 if single else None)
                steps -= 1
                if steps == 0:
                    break
        state = samplers[0].state_dict()
        assert all(sampler.state_dict() == state for sampler in samplers)
    for epoch, indices in seen.items():
        assert indices == ResumableSampler(size).global_order(0, len(indices), epoch=epoch).tolist()
        assert epoch == max(seen) or len(indices) > size - 5 * 4


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_position_is_what_the_loop_got_not_what_workers_asked_for(workers: int) -> None:
    sampler = ResumableSampler(100, batch_size=5)
    loader = DataLoader(range(100), batch_sampler=sampler, num_workers=workers, prefetch_factor=4 if workers else None)
    for step, _ in enumerate(sampler.track(loader), start=1):
        assert (sampler.epoch, sampler.position) == divmod(5 * step, 100)
        if step == 7:
            break
    assert sampler.state_dict()["position"] == 35
    rest = [batch.tolist() for batch in sampler.track(loader)]
    assert [index for batch in rest for index in batch] == sampler.global_order(35, 100, epoch=0).tolist()
    assert (sampler.epoch, sampler.position) == (1, 0)


def test_a_position_nobody_kept_is_not_guessed() -> None:
    sampler = ResumableSampler(100, batch_size=5)
    assert sampler.state_dict()["position"] == 0
    next(iter(DataLoader(range(100), batch_sampler=sampler)))
    with pytest.raises(fb.InvalidInputError, match="track"):
        sampler.state_dict()
    sampler.advance()
    assert sampler.state_dict()["position"] == 5


def test_without_a_position_each_iteration_is_the_next_epoch() -> None:
    sampler = ResumableSampler(50, batch_size=5)
    epochs = [epoch_of(sampler) for _ in range(3)]
    assert [sampler.global_order(0, 50, epoch=epoch).tolist() for epoch in range(3)] == epochs
    assert len(set(map(tuple, epochs))) == 3


def test_as_a_sampler_of_single_samples() -> None:
    def loader(rank: int, world: int, drop_last: bool = False) -> tuple[ResumableSampler, DataLoader[Any]]:
        sampler = ResumableSampler(21, rank=rank, world_size=world)
        return sampler, DataLoader(range(21), sampler=sampler, batch_size=4, drop_last=drop_last)

    sampler, data = loader(0, 1)
    order = sampler.global_order(0, 21).tolist()
    assert [index for batch in sampler.track(data) for index in batch.tolist()] == order
    assert (sampler.epoch, sampler.position) == (1, 0)
    ranks = [loader(rank, 2) for rank in range(2)]
    both = [[index for batch in s.track(d) for index in batch.tolist()] for s, d in ranks]
    assert both[0] == order[:20:2] and both[1] == order[1:20:2]
    sampler, data = loader(0, 1, drop_last=True)
    assert len(list(sampler.track(data))) == 5 and (sampler.epoch, sampler.position) == (1, 0)


def test_batches_of_similar_length() -> None:
    generator = random.Random(0)
    lengths = [min(2000, int(generator.lognormvariate(4, 1)) + 1) for _ in range(4000)]

    def padded(sampler: ResumableSampler) -> float:
        batches = [[lengths[index] for index in batch] for batch in sampler]
        return sum(max(batch) * len(batch) for batch in batches) / sum(lengths)

    assert padded(ResumableSampler(4000, batch_size=16)) > 2.0
    bucketed = ResumableSampler(4000, batch_size=16, lengths=lengths)
    assert padded(bucketed) < 1.15
    longest_first = [
        max(lengths[index] for index in batch) for batch in ResumableSampler(4000, batch_size=16, lengths=lengths)
    ]
    assert abs(np.corrcoef(longest_first[:60], range(60))[0, 1]) < 0.5, "batches don't come in order of length"


def test_a_billion_samples_cost_nothing() -> None:
    tracemalloc.start()
    start = time.perf_counter()
    sampler = ResumableSampler(10**9, batch_size=32, rank=3, world_size=8)
    sampler.load_state_dict(sampler.state_dict() | {"epoch": 4, "position": 32 * 8 * 3_000_000})
    first = next(iter(sampler))
    elapsed = time.perf_counter() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(first) == 32 and elapsed < 0.5 and peak < 5e6
    begin = 32 * 8 * 3_000_000 + 32 * 3
    assert list(map(int, first)) == sampler.global_order(begin, begin + 32, epoch=4).tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "empty"),
        ({"batch_size": 0}, "batch_size"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"world_size": 0}, "world_size"),
        ({"batch_size": 11, "drop_last": True}, "global batch is 11 samples"),
        ({"batch_size": 4, "world_size": 3, "drop_last": True}, "4 on each of 3 ranks"),
        ({"lengths": [1] * 9}, "one length per sample"),
        ({"lengths": [1] * 10, "batch_size": None}, "batch_size"),
    ],
    ids=str,
)
def test_what_it_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fb.InvalidInputError, match=message):
        ResumableSampler(**{"num_samples": 10, "batch_size": 2, **options})


def test_a_position_of_other_data_is_refused() -> None:
    state = ResumableSampler(100, batch_size=5, seed=1).state_dict()
    for other, what in [
        ({"num_samples": 101}, "num_samples 100"),
        ({"seed": 2}, "seed 1"),
        ({"shuffle": False}, "shuffle"),
    ]:
        sampler = ResumableSampler(**{"num_samples": 100, "batch_size": 5, "seed": 1, **other})
        with pytest.raises(fb.InvalidInputError, match=what):
            sampler.load_state_dict(state)
    for part in state:
        with pytest.raises(fb.InvalidInputError, match=f"lacks {part}"):
            ResumableSampler(100, batch_size=5, seed=1).load_state_dict({k: v for k, v in state.items() if k != part})
    by_length = ResumableSampler(100, batch_size=7, seed=1, lengths=[1] * 100)
    with pytest.raises(fb.InvalidInputError, match="multiple of the global batch"):
        by_length.load_state_dict(by_length.state_dict() | {"position": 5})


# -- random numbers of samples -------------------------------------------------------------------------------------


class Augmented(Dataset[Any]):
    """Draws from all three generators."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, random.random(), np.random.normal(), float(torch.rand(()))], dtype=torch.float64)


@pytest.mark.parametrize("workers", [1, 2])
def test_augmentation_does_not_depend_on_workers(workers: int) -> None:
    def epochs(num_workers: int, persistent: bool = False) -> list[list[list[float]]]:
        sampler = ResumableSampler(40, batch_size=6, seed=9)
        loader = DataLoader(
            SeededDataset(Augmented()), batch_sampler=sampler, num_workers=num_workers, persistent_workers=persistent
        )
        return [[batch.tolist() for batch in sampler.track(loader)] for _ in range(2)]

    expected = epochs(0)
    torch.manual_seed(77), random.seed(8), np.random.seed(9)
    assert epochs(workers) == expected
    assert epochs(workers, persistent=True) == expected
    draws = [tuple(row[1:]) for epoch in expected for batch in epoch for row in batch]
    assert len(set(draws)) == 80, "each sample has its own numbers in each epoch"


def test_the_context_gives_the_same_numbers_and_puts_the_generators_back() -> None:
    def draw() -> list[float]:
        return [random.random(), float(np.random.random()), float(torch.rand(()))]

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = draw()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    inside = []
    for key in [(0, 0, 5), (0, 0, 5), (0, 1, 5), (1, 0, 5), (0, 0, 6)]:
        with sample_generators(*key):
            inside.append(tuple(draw()))
    assert draw() == expected
    assert inside[0] == inside[1] and len(set(inside)) == 4


def test_sample_keys() -> None:
    first = next(iter(ResumableSampler(10, batch_size=3, seed=4, rank=1, world_size=2)))
    assert [index.key for index in first] == [(4, 0, 3), (4, 0, 4), (4, 0, 5)]
    copy = pickle.loads(pickle.dumps(first[0]))
    assert isinstance(copy, SampleIndex) and copy == first[0] and copy.key == first[0].key
    assert np.random.default_rng(first[0].key).random() == np.random.default_rng((4, 0, 3)).random()
    with pytest.raises(fb.InvalidInputError, match="ResumableSampler"):
        SeededDataset(Augmented())[3]


# -- real ranks ----------------------------------------------------------------------------------------------------


def _session(rank: int, world: int, batch_size: int, steps: int, state: dict[str, Any] | None, out: Path) -> None:
    """One rank: takes steps, gathers what all ranks got, and rank 0 writes that and the position."""
    dist.init_process_group("gloo", init_method=f"file://{out}.rendezvous", rank=rank, world_size=world)
    try:
        data = SeededDataset(Augmented())
        sampler = ResumableSampler(
            40, batch_size=batch_size, seed=2, rank=dist.get_rank(), world_size=dist.get_world_size()
        )
        if state is not None:
            sampler.load_state_dict(state)
        loader = DataLoader(data, batch_sampler=sampler)
        seen: list[list[float]] = []
        while steps:
            for batch in sampler.track(loader):
                gathered = [torch.empty_like(batch) for _ in range(world)]
                dist.all_gather(gathered, batch)
                seen += torch.cat(gathered).tolist()
                steps -= 1
                if not steps:
                    break
        if rank == 0:
            out.write_text(json.dumps({"seen": seen, "state": sampler.state_dict()}))
    finally:
        dist.destroy_process_group()


def _run_ranks(world: int, batch_size: int, steps: int, state: dict[str, Any] | None, out: Path) -> dict[str, Any]:
    context = multiprocessing.get_context("fork")
    arguments = [(rank, world, batch_size, steps, state, out) for rank in range(world)]
    ranks = [context.Process(target=_session, args=given) for given in arguments]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
        assert process.exitcode == 0
    return json.loads(out.read_text())


@pytest.mark.parametrize("batch_sizes", [(4, 2, 4), (4, 4, 2)], ids=["same global batch", "other global batch"])
def test_the_global_order_survives_one_rank_two_ranks_one_rank(
    tmp_path: Path, batch_sizes: tuple[int, int, int]
) -> None:
    alone = _run_ranks(1, 2, 50, None, tmp_path / "alone")
    seen: list[list[float]] = []
    state = None
    for session, (world, batch_size) in enumerate(zip((1, 2, 1), batch_sizes, strict=True)):
        ended = _run_ranks(world, batch_size, 7, state, tmp_path / str(session))
        seen += ended["seen"]
        state = ended["state"]
    assert len(seen) > 40, "an epoch ends within"
    assert seen == alone["seen"][: len(seen)]
