"""States that are spread over processes (FSDP2 and other DTensors), through torch.distributed.checkpoint.

Its planners decide which process writes or reads which part, whatever the layout was. Storage is ours: its own file
system storage keeps its metadata as a pickle, and its Hugging Face storage writes neither hashes nor durably. Here the
parts lie in safetensors files like any others, and the manifest says in JSON how they make up the tensors.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from ..core.errors import InvalidInputError
from .manifest import Chunk, Manifest, ShardedTensor
from .state_tree import Node, is_distributed_tensor, tensor_names
from .tensor_files import DTYPE_NAMES, DTYPES, DamageError, FileRecord, bytes_of, read_tensors, write_shards

Publish = Callable[[dict[str, FileRecord], dict[str, ShardedTensor]], None]


class Ranks:
    """All processes of the job, over a gloo group of their own: saves in the background must not meet training's."""

    def __init__(self) -> None:
        self.group = dist.new_group(backend="gloo")
        self.rank = dist.get_rank()
        self.count = dist.get_world_size()

    def exchange(self, value: Any) -> list[Any]:
        """Return every rank's value, in order of rank."""
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value, group=self.group)
        return values


def agree(ranks: Ranks, prepare: Callable[[], tuple[str, dict[str, str]]]) -> str:
    """Return the name that ``prepare`` gave on rank 0, once the digests it gave show that all ranks save the same.

    Raises:
        Exception: that of ``prepare`` on any rank; on all ranks.
        InvalidInputError: a part that isn't sharded differs between ranks.
    """
    offer: tuple[str, dict[str, str]] | Exception
    try:
        offer = prepare()
    except Exception as error:
        offer = error
    offers = ranks.exchange(offer)
    for theirs in offers:
        if isinstance(theirs, Exception):
            raise theirs
    name, first = offers[0]
    for rank, (_, digests) in enumerate(offers):
        differing = [part for part in first | digests if first.get(part) != digests.get(part)]
        if differing:
            raise InvalidInputError(
                f"state[{differing[0]!r}] differs between ranks 0 and {rank}, but isn't sharded. Gather what each rank "
                "has of its own, such as random states, under one key per rank, the same on all ranks."
            )
    return str(name)


def local_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return this process's parts."""
    return {name: tensor.to_local() if isinstance(tensor, DTensor) else tensor for name, tensor in tensors.items()}


def part_digests(state: Node, tensors: Mapping[str, torch.Tensor], local: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return a hash of each top-level part that is the same on all ranks if what isn't sharded is."""
    digests = {}
    for key, node in state[1]:
        hasher = hashlib.sha256(json.dumps(node).encode())
        for name in tensor_names(node):
            if not is_distributed_tensor(tensors[name]):
                hasher.update(xxhash.xxh3_128_digest(bytes_of(local[name].contiguous().cpu())))
        digests[str(key)] = hasher.hexdigest()
    return digests


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """Where one part of a tensor was written. Travels to the rank that writes the manifest."""

    file: str
    name: str
    record: FileRecord


def save_sharded(
    partial: Path,
    tensors: Mapping[str, torch.Tensor],
    local: Mapping[str, torch.Tensor],
    *,
    ranks: Ranks,
    most_bytes: int,
    publish: Publish,
) -> None:
    """Write every rank's parts into one directory, then let rank 0 publish it. Returns on all ranks when it is durable.

    Raises:
        OSError: on all ranks, when any of them failed.
    """
    flat = {name: tensor if isinstance(tensor, DTensor) else local[name] for name, tensor in tensors.items()}
    writer = _ShardWriter(partial, ranks.rank, most_bytes, publish)
    try:
        save(flat, storage_writer=writer, planner=_LocalPlanner(local), process_group=ranks.group)
    except CheckpointException as error:
        raise OSError(_first_failure(error)) from error


def _first_failure(error: CheckpointException) -> str:
    rank, (cause, _) = min(error.failures.items())
    return f"rank {rank}: {cause}"


class _LocalPlanner(DefaultSavePlanner):
    """Plans by the DTensors, but saves from given memory: what they hold may have changed since the snapshot."""

    def __init__(self, local: Mapping[str, torch.Tensor]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._local = local

    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        return self._local[index.fqn]


def _stored_name(item: WriteItem) -> str:
    data = item.tensor_data
    assert data is not None
    if data.chunk.sizes == data.size:
        return item.index.fqn
    return f"{item.index.fqn}@{','.join(map(str, data.chunk.offsets))}"


class _ShardWriter(StorageWriter):
    def __init__(self, partial: Path, rank: int, most_bytes: int, publish: Publish) -> None:
        self._partial, self._rank, self._most_bytes, self._publish = partial, rank, most_bytes, publish

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None: ...

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None: ...

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False  # never chosen by a path alone

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        items = {_stored_name(item): item for item in plan.items}
        tensors = {}
        for name, item in items.items():
            tensor = planner.resolve_data(item)
            assert isinstance(tensor, torch.Tensor)
            tensors[name] = tensor
        records = write_shards(self._partial, f"tensors-rank{self._rank:05d}", tensors, self._most_bytes)
        results = [
            WriteResult(items[name].index, tensors[name].nbytes, _Stored(file=file, name=name, record=record))
            for file, record in records.items()
            for name in record.tensors or ()
        ]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        places = {result.index: result.storage_data for part in results for result in part}
        files = {place.file: place.record for place in places.values()}
        sharded = {}
        for name, described in metadata.state_dict_metadata.items():
            assert isinstance(described, TensorStorageMetadata)
            if [chunk.sizes for chunk in described.chunks] != [described.size]:
                chunks = tuple(
                    Chunk(
                        offsets=tuple(chunk.offsets),
                        sizes=tuple(chunk.sizes),
                        tensor=places[MetadataIndex(name, chunk.offsets)].name,
                    )
                    for chunk in described.chunks
                )
                dtype = DTYPE_NAMES[described.properties.dtype]
                sharded[name] = ShardedTensor(dtype=dtype, shape=tuple(described.size), chunks=chunks)
        self._publish(files, sharded)


# -- loading -------------------------------------------------------------------------------------------------------


def load_into(directory: Path, manifest: Manifest, targets: Mapping[str, DTensor], ranks: Ranks) -> None:
    """Fill DTensors of any layout from a checkpoint of any other; each rank reads the parts that it needs.

    Raises:
        DamageError: on all ranks, when any of them could not read its part; the targets are undefined then.
    """
    reader = _ShardReader(directory, manifest, targets)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    try:
        load(dict(targets), storage_reader=reader, planner=planner, process_group=ranks.group)
    except CheckpointException as error:
        raise DamageError(_first_failure(error)) from error


class _ShardReader(StorageReader):
    def __init__(self, directory: Path, manifest: Manifest, targets: Mapping[str, DTensor]) -> None:
        self._directory, self._files = directory, manifest.files
        self._described: dict[str, Any] = {}
        self._stored: dict[MetadataIndex, str] = {}
        for name, target in targets.items():
            tensor = manifest.sharded.get(name) or _in_one_piece(name, target)
            for chunk in tensor.chunks:
                self._stored[MetadataIndex(name, chunk.offsets)] = chunk.tensor
            self._described[name] = TensorStorageMetadata(
                TensorProperties(dtype=DTYPES[tensor.dtype]),
                torch.Size(tensor.shape),
                [ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes)) for chunk in tensor.chunks],
            )

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None: ...

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None: ...

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return Metadata(self._described)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        wanted: dict[str, list[Any]] = {}
        for item in plan.items:
            wanted.setdefault(self._stored[item.storage_index], []).append(item)
        for file, record in self._files.items():
            for name, tensor in read_tensors(self._directory / file, record, wanted):
                for item in wanted.pop(name):
                    ranges = zip(item.storage_offsets, item.lengths, strict=True)
                    part = tensor[tuple(slice(begin, begin + length) for begin, length in ranges)]
                    target = planner.resolve_tensor(item).detach()
                    if target.shape != part.shape:
                        raise DamageError(f"tensor {name!r} has another shape than the manifest says")
                    target.copy_(part)
                    planner.commit_tensor(item, target)
        if wanted:
            raise DamageError(f"it lacks tensor {min(wanted)!r}")
        future: Future[None] = Future()
        future.set_result(None)
        return future


def _in_one_piece(name: str, target: DTensor) -> ShardedTensor:
    whole = Chunk(offsets=(0,) * target.ndim, sizes=tuple(target.shape), tensor=name)
    return ShardedTensor(dtype=DTYPE_NAMES[target.dtype], shape=tuple(target.shape), chunks=(whole,))
