"""FSDP2 states: saved by some ranks, loaded by others."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import fastbudget as fb
from fastbudget.checkpoint import CheckpointStore, DamagedCheckpointWarning


def _rank(rank: int, ranks: int, directory: Path, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=ranks)
    try:
        work(directory, *arguments)
    finally:
        dist.destroy_process_group()


def on_ranks(ranks: int, directory: Path, work: Callable[..., None], *arguments: Any) -> None:
    (directory / "rendezvous").unlink(missing_ok=True)
    mp.start_processes(_rank, (ranks, directory, work, arguments), nprocs=ranks, start_method="fork")


def full(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class Run:
    """A model of odd sizes (rank 1 of 2 holds nothing of the last bias) and an optimizer with state."""

    def __init__(self, directory: Path) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1))
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.store = CheckpointStore(directory / "store", keep_last=10)
        self.step = 0

    def train(self, steps: int) -> None:
        for _ in range(steps):
            inputs = torch.randn(6, 5, generator=torch.Generator().manual_seed(self.step))
            self.model(inputs).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step, "order": torch.arange(self.step)}

    def resume(self) -> None:
        loaded = self.store.load(into=self.state(), require=("model", "optimizer"))
        state = loaded.state
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = state["step"]
        assert loaded.step == self.step and torch.equal(state["order"], torch.arange(self.step))

    def whole(self) -> dict[str, torch.Tensor]:
        return {name: full(tensor) for name, tensor in self.model.state_dict().items()}


def begin(directory: Path) -> None:
    """Save at step 2 and go on without interruption, which also must not leak into what is being saved."""
    run = Run(directory)
    run.train(2)
    handle = run.store.save_async(2, run.state(), {"loss": 0.5})
    run.train(4)
    assert handle.wait() == run.store.latest()
    whole = run.whole()
    if dist.get_rank() == 0:
        torch.save(whole, directory / "expected")


def continue_to(directory: Path, step: int) -> None:
    run = Run(directory)
    run.resume()
    run.train(step - run.step)
    run.store.save(step, run.state())
    whole = run.whole()
    if dist.get_rank() == 0:
        torch.save(whole, directory / f"reached-{step}")


def test_two_ranks_then_one_then_two(tmp_path: Path) -> None:
    on_ranks(2, tmp_path, begin)
    on_ranks(1, tmp_path, continue_to, 4)
    on_ranks(2, tmp_path, continue_to, 6)
    expected, reached = torch.load(tmp_path / "expected"), torch.load(tmp_path / "reached-6")
    for name, tensor in expected.items():
        torch.testing.assert_close(reached[name], tensor, rtol=1e-6, atol=1e-7)  # sums over ranks round differently
    store = CheckpointStore(tmp_path / "store")
    assert [int(path.name[5:]) for path in store.paths()] == [2, 4, 6]
    for path in store.paths():
        assert store.verify(path) is None
        assert {file.suffix for file in path.iterdir()} == {".json", ".safetensors"}
    # Without ranks the same checkpoint comes back whole.
    state = store.load().state
    for name, tensor in reached.items():
        assert torch.equal(state["model"][name], tensor) and type(state["model"][name]) is torch.Tensor
    body = json.loads((store.paths()[-1] / "manifest.json").read_text())["body"]
    assert body["sharded"]["model.0.weight"]["shape"] == [7, 5]
    assert [chunk["offsets"] for chunk in body["sharded"]["model.0.weight"]["chunks"]] == [[0, 0], [4, 0]]


def save_layouts(directory: Path) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    whole = torch.arange(60, dtype=torch.float64).reshape(6, 10)
    state = {
        "rows": distribute_tensor(whole, mesh, [Replicate(), Shard(0)]),
        "columns": distribute_tensor(whole, mesh["shard"], [Shard(1)]),
        "grid": distribute_tensor(whole, mesh, [Shard(0), Shard(1)]),
        "replicated": distribute_tensor(whole, mesh, [Replicate(), Replicate()]),
        "uneven": distribute_tensor(torch.arange(5).bfloat16(), mesh, [Shard(0), Replicate()]),
        "scalar": distribute_tensor(torch.tensor(3.5), mesh, [Replicate(), Replicate()]),
        "plain": torch.arange(3),
    }
    state["tied"] = state["rows"]
    CheckpointStore(directory / "store", max_shard_bytes=200).save(1, state)


def load_layouts(directory: Path) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(60, dtype=torch.float64).reshape(6, 10)
    zeros = torch.zeros_like(whole)
    into = {
        "rows": distribute_tensor(zeros, mesh, [Shard(1)]),
        "columns": distribute_tensor(zeros, mesh, [Shard(0)]),
        "grid": distribute_tensor(zeros, mesh, [Replicate()]),
        "replicated": distribute_tensor(zeros, mesh, [Shard(0)]),
        "plain": distribute_tensor(torch.zeros(3, dtype=torch.int64), mesh, [Shard(0)]),
    }
    into["tied"] = into["rows"]
    state = CheckpointStore(directory / "store").load(into=into).state
    assert state["rows"] is state["tied"]
    for name in ("rows", "columns", "grid", "replicated"):
        assert isinstance(state[name], DTensor) and torch.equal(full(state[name]), whole), name
        assert torch.equal(full(into[name]), whole), name
    assert full(state["plain"]).tolist() == [0, 1, 2]
    assert state["uneven"].tolist() == [0, 1, 2, 3, 4] and state["scalar"].item() == 3.5
    for name, wrong, message in (
        ("rows", torch.zeros(6, 11, dtype=torch.float64), r"\(6, 10\).*\(6, 11\)"),
        ("rows", torch.zeros(6, 10), "float64.*float32"),
        ("plain", torch.zeros(4, dtype=torch.int64), r"\(3,\).*\(4,\)"),
        ("other", torch.zeros(2), "no tensor 'other'"),
    ):
        with pytest.raises(fb.InvalidInputError, match=message):
            CheckpointStore(directory / "store").load(into={name: distribute_tensor(wrong, mesh, [Shard(0)])})


def test_any_layout_into_any_other(tmp_path: Path) -> None:
    on_ranks(4, tmp_path, save_layouts)
    store = CheckpointStore(tmp_path / "store")
    loaded = store.load()
    whole = torch.arange(60, dtype=torch.float64).reshape(6, 10)
    assert all(torch.equal(loaded.state[name], whole) for name in ("rows", "columns", "grid", "replicated"))
    assert loaded.state["rows"] is loaded.state["tied"] and loaded.state["uneven"].dtype == torch.bfloat16
    data_bytes = 0
    for file in loaded.path.glob("*.safetensors"):
        content = file.read_bytes()
        data_bytes += len(content) - 8 - int.from_bytes(content[:8], "little")
        file.unlink()
        assert f"{file.name} is missing" in str(store.verify(loaded.path))
        with pytest.raises(fb.CheckpointError, match="is missing"):
            store.load(loaded.path)
        file.write_bytes(content)
    assert data_bytes == 4 * whole.nbytes + 5 * 2 + 4 + 3 * 8, "replicas are stored once"
    on_ranks(3, tmp_path, load_layouts)


def fail_in_several_ways(directory: Path) -> None:
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2,))
    store = CheckpointStore(directory / "store", keep_last=10)

    def state(value: float, **more: Any) -> dict[str, Any]:
        return {"w": distribute_tensor(torch.full((6, 2), value), mesh, [Shard(0)]), **more}

    store.save(1, state(1.0))
    store.save(2, state(2.0))
    with pytest.raises(fb.RunDirectoryError, match="saved before"):
        store.save(2, state(2.0))
    with pytest.raises(fb.InvalidInputError, match=r"'random'.*differs between ranks 0 and 1"):
        store.save(3, state(3.0, random={"state": torch.tensor(rank)}))
    from fastbudget.checkpoint import sharded_state

    write = sharded_state.write_shards
    if rank == 1:

        def full_disk(*arguments: Any) -> None:
            raise OSError(28, "No space left on device")

        sharded_state.write_shards = full_disk  # type: ignore[assignment]
    with pytest.raises(fb.SaveError, match=r"rank 1.*No space left"):
        store.save_async(3, state(3.0)).wait()
    sharded_state.write_shards = write
    dist.barrier()
    assert [path.name[-1] for path in sorted((directory / "store").iterdir())] == ["1", "2"]
    # One rank's file is damaged: all ranks go back to the one before.
    if rank == 0:
        file = store.paths()[-1] / "tensors-rank00001.safetensors"
        content = bytearray(file.read_bytes())
        content[-3] ^= 16
        file.write_bytes(content)
    dist.barrier()
    into = state(0.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DamagedCheckpointWarning)
        assert store.load(into=into).step == 1
    assert any("hash differs" in str(warning.message) for warning in caught)
    assert full(into["w"]).unique().tolist() == [1.0]
    store.save(4, state(4.0))
    assert store.load(into=into).step == 4


def test_what_fails_on_one_rank_fails_on_all(tmp_path: Path) -> None:
    on_ranks(2, tmp_path, fail_in_several_ways)
    assert CheckpointStore(tmp_path / "store").load().step == 4
