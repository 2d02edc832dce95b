"""Safetensors files, hashed while they are written and checked while they are read.

Any safetensors reader opens them. They are written and read here because the hashes then cost no second pass over the
data, tensors are streamed without a second copy, writeback to the disk starts with the first chunk, and reading uses
no memory map: a file that is cut off while it is read is an error, not a SIGBUS.

A file is: header length (8 bytes, little endian), header (JSON: name to dtype, shape, byte range), data without gaps.
Its record in the manifest holds its size, the hash of all before the data, and a hash per tensor: together every byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import torch
import xxhash

DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}

HASH = "xxh3_128"
_CHUNK_BYTES = 16 * 2**20
_MOST_HEADER_BYTES = 100_000_000  # what the safetensors library allows


class DamageError(Exception):
    """Why a checkpoint can't be trusted. The text goes on from the checkpoint's name."""


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """What the manifest knows of a file: its size and hashes that cover all of it.

    ``sha256`` is that of the whole file; only format version 1 has it, instead of the others.
    """

    bytes: int
    header: str | None = None
    tensors: dict[str, str] | None = None
    sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Entry:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    num_bytes: int


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _chunks(view: memoryview) -> Iterator[memoryview]:
    for begin in range(0, len(view), _CHUNK_BYTES):
        yield view[begin : begin + _CHUNK_BYTES]


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> FileRecord:
    """Write a new file durably. Tensors may be on any device, strided and overlapping; one at a time is made plain."""
    # Wide types first, so that all data is aligned, as the safetensors library does.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {}
    position = 0
    for name in names:
        tensor = tensors[name]
        end = position + tensor.nbytes
        header[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    hashes = {}
    with path.open("xb", buffering=0) as file:
        _write(file, memoryview(head))
        for name in names:
            hasher = xxhash.xxh3_128()
            for chunk in _chunks(bytes_of(tensors[name].detach().contiguous().cpu())):
                hasher.update(chunk)
                _write(file, chunk)
            hashes[name] = hasher.hexdigest()
        os.fsync(file.fileno())
    return FileRecord(bytes=len(head) + position, header=xxhash.xxh3_128_hexdigest(head), tensors=hashes)


def write_shards(
    directory: Path, stem: str, tensors: Mapping[str, torch.Tensor], most_bytes: int
) -> dict[str, FileRecord]:
    """Write tensors to files of at most ``most_bytes`` each, unless one alone is larger.

    They are named as Hugging Face numbers shards; a single one has no number. No tensors make no file.
    """
    shards: list[dict[str, torch.Tensor]] = []
    filled = most_bytes
    for name, tensor in tensors.items():
        if not shards or filled + tensor.nbytes > most_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += tensor.nbytes
    if len(shards) == 1:
        return {f"{stem}.safetensors": write_tensors(directory / f"{stem}.safetensors", shards[0])}
    names = [f"{stem}-{index:05d}-of-{len(shards):05d}.safetensors" for index in range(1, len(shards) + 1)]
    return {name: write_tensors(directory / name, shard) for name, shard in zip(names, shards, strict=True)}


def _write(file: FileIO, data: memoryview) -> None:
    begin = file.tell()
    written = 0
    while written < len(data):  # a write to a nearly full disk may be short
        written += file.write(data[written:])
    # Dirty pages can't be dropped, so this only starts their way to the disk while the next chunk is hashed.
    with contextlib.suppress(OSError):
        os.posix_fadvise(file.fileno(), begin, len(data), os.POSIX_FADV_DONTNEED)


def read_tensors(
    path: Path, record: FileRecord, names: Collection[str] | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a file's tensors, each in memory of its own, after checking its bytes.

    Args:
        path: A file that `write_tensors` wrote.
        record: What it returned.
        names: Those to read; None: all.

    Raises:
        DamageError: the file is not what the record says, or not a safetensors file.
    """
    with _opened(path, record) as (file, entries):
        for entry in entries:
            if names is not None and entry.name not in names:
                file.seek(entry.num_bytes, os.SEEK_CUR)
                continue
            tensor = torch.empty(entry.shape, dtype=entry.dtype)
            _read(file, entry, record, bytes_of(tensor))
            yield entry.name, tensor


def tensor_shapes(path: Path, record: FileRecord) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shape and the type's name of each tensor, from the header alone; raises `DamageError`."""
    with _opened(path, record) as (_, entries):
        return {entry.name: (entry.shape, DTYPE_NAMES[entry.dtype]) for entry in entries}


def check_tensors(path: Path, record: FileRecord) -> None:
    """Check every byte of a file without keeping it; raises `DamageError`."""
    with _opened(path, record) as (file, entries):
        largest = max((entry.num_bytes for entry in entries), default=0)
        buffer = memoryview(bytearray(min(largest, _CHUNK_BYTES)))
        for entry in entries:
            _read(file, entry, record, buffer)


@contextlib.contextmanager
def _opened(path: Path, record: FileRecord) -> Iterator[tuple[FileIO, list[_Entry]]]:
    """Yield the file at the begin of its data, and its entries in the order of their data."""
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size != record.bytes:
                raise DamageError(f"{path.name} has {size} bytes instead of {record.bytes}")
            if record.sha256 is not None:
                if hashlib.file_digest(file, "sha256").hexdigest() != record.sha256:
                    raise DamageError(f"{path.name} has changed since it was saved (its hash differs)")
                file.seek(0)
            length = file.read(8)
            header_bytes = int.from_bytes(length, "little")
            if header_bytes > min(size, _MOST_HEADER_BYTES):
                raise DamageError(f"{path.name} is not a safetensors file")
            head = length + file.read(header_bytes)
            if record.header is not None and xxhash.xxh3_128_hexdigest(head) != record.header:
                raise DamageError(f"the header of {path.name} has changed since it was saved (its hash differs)")
            entries = _parse(head[8:], data_bytes=size - len(head), file=path.name)
            if record.tensors is not None and {entry.name for entry in entries} != set(record.tensors):
                raise DamageError(f"{path.name} holds other tensors than the manifest lists")
            yield file, entries
    except (FileNotFoundError, IsADirectoryError):
        raise DamageError(f"{path.name} is missing") from None
    except OSError as error:
        raise DamageError(f"{path.name} can't be read ({error.strerror})") from error


def _parse(text: bytes, *, data_bytes: int, file: str) -> list[_Entry]:
    entries = []
    position = 0
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        for name, fields in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape, (begin, end) = DTYPES[fields["dtype"]], tuple(fields["shape"]), fields["data_offsets"]
            if not all(type(size) is int and size >= 0 for size in shape):
                raise ValueError(f"{name} has the shape {shape}")
            if begin != position or end - begin != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"{name} has the byte range {begin} to {end}")
            entries.append(_Entry(name=name, dtype=dtype, shape=shape, num_bytes=end - begin))
            position = end
        if position != data_bytes:
            raise ValueError(f"it has {data_bytes} bytes of data instead of {position}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamageError(f"{file} is not a valid safetensors file ({error})") from error
    return entries


def _read(file: FileIO, entry: _Entry, record: FileRecord, buffer: memoryview) -> None:
    """Read one tensor's bytes into ``buffer``, over and over where that is smaller, and check their hash."""
    hasher = xxhash.xxh3_128()
    left = entry.num_bytes
    while left:
        done = entry.num_bytes - left
        begin = done if len(buffer) >= entry.num_bytes else 0
        part = buffer[begin : begin + min(left, _CHUNK_BYTES)]
        count = file.readinto(part)
        if not count:
            raise DamageError(f"{Path(str(file.name)).name} ends too early")
        hasher.update(part[:count])
        left -= count
    if record.tensors is not None and hasher.hexdigest() != record.tensors[entry.name]:
        name = Path(str(file.name)).name
        raise DamageError(f"tensor {entry.name!r} in {name} has changed since it was saved (its hash differs)")
