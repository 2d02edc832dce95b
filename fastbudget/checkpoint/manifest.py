"""The manifest: the last file of a checkpoint to be written, and what says whether the others are whole."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..core.durable_files import write_durably
from ..core.errors import InvalidInputError
from .state_tree import Node, tensor_names
from .tensor_files import HASH, DamageError, FileRecord

MANIFEST = "manifest.json"
_FORMAT = "fastbudget-checkpoint"
_FORMAT_VERSION = 2
_READABLE = (1, 2)
_FILE_NAME = re.compile(r"tensors[A-Za-z0-9-]*\.safetensors")
_RECORDED_PACKAGES = ("fastbudget", "torch", "numpy")


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A part of a tensor that several processes saved: where it begins, and the name it is stored under."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    tensor: str


@dataclass(frozen=True, kw_only=True)
class ShardedTensor:
    """A tensor saved in parts, which cover it once."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint holds. ``state`` is the tree of `state_tree`; its tensors lie in ``files``."""

    step: int
    saved_at: str
    metrics: dict[str, float]
    state: Node
    files: dict[str, FileRecord]
    sharded: dict[str, ShardedTensor] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that are neither NaN nor infinite."""
    try:
        return {str(name): float(value) for name, value in metrics.items() if math.isfinite(value)}
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"metrics must be numbers by name, got {dict(metrics)!r}: {error}.") from error


@functools.cache
def package_versions() -> dict[str, str]:
    """Return the versions of what writes a checkpoint, as far as they are installed packages."""
    versions = {}
    for name in _RECORDED_PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest durably, and with it the names of all files in the directory."""
    files = {
        name: {"bytes": record.bytes, "header": record.header, "tensors": record.tensors}
        for name, record in manifest.files.items()
    }
    body = {
        "format": _FORMAT,
        "version": _FORMAT_VERSION,
        "step": manifest.step,
        "saved_at": manifest.saved_at,
        "versions": manifest.versions,
        "metrics": manifest.metrics,
        "parts": _parts(manifest.state),
        "hash": HASH,
        "files": files,
        "sharded": {name: asdict(tensor) for name, tensor in manifest.sharded.items()},
        "state": manifest.state,
    }
    write_durably(directory / MANIFEST, sealed(body))


def sealed(body: dict[str, Any]) -> bytes:
    """Return the manifest's bytes: its body and the body's hash, so that a damaged manifest is noticed too."""
    return json.dumps({"sha256": _body_hash(body), "body": body}).encode()


def _body_hash(body: Any) -> str:
    # json round-trips key order and floats exactly, so the text can be made again from what was read.
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()


def _parts(state: Node) -> list[Any]:
    """Return the keys of the state itself, such as model and optimizer."""
    kind, items = state
    if kind != "dict":
        raise ValueError("the state is not a mapping")
    return [key for key, _ in items]


def read_manifest(directory: Path) -> Manifest:
    """Return a checkpoint's manifest.

    Raises:
        DamageError: it is missing, changed, malformed, or of a version that this fastbudget doesn't read.
    """
    try:
        document = json.loads((directory / MANIFEST).read_bytes())
        if not isinstance(document, dict) or not isinstance(document.get("body"), dict):
            raise DamageError("its manifest is not a fastbudget checkpoint's")
        body = document["body"]
        if document.get("sha256") != _body_hash(body):
            raise DamageError("its manifest has changed since it was saved")
    except FileNotFoundError:
        raise DamageError("its manifest is missing: the save didn't finish") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DamageError(f"its manifest can't be read ({error})") from error
    if body.get("format") != _FORMAT:
        raise DamageError("its manifest is not a fastbudget checkpoint's")
    if body.get("version") not in _READABLE:
        readable = " and ".join(map(str, _READABLE))
        raise DamageError(f"its format version is {body.get('version')!r}; this fastbudget reads {readable}")
    try:
        return _version_1(body) if body["version"] == 1 else _version_2(body)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DamageError(f"its manifest is malformed ({type(error).__name__}: {error})") from error


def _version_1(body: dict[str, Any]) -> Manifest:
    files = {name: FileRecord(bytes=file["bytes"], sha256=file["sha256"]) for name, file in body["files"].items()}
    if set(files) != {"tensors.safetensors"}:
        raise DamageError("its manifest lists other files than a checkpoint has")
    return Manifest(
        step=int(body["step"]),
        saved_at=str(body["saved_at"]),
        metrics=dict(body["metrics"]),
        state=body["state"],
        files=files,
        versions={"torch": str(body["torch"])},
    )


def _version_2(body: dict[str, Any]) -> Manifest:
    if body["hash"] != HASH:
        raise DamageError(f"its hashes are {body['hash']!r}; this fastbudget knows {HASH!r}")
    files = {
        name: FileRecord(bytes=int(file["bytes"]), header=str(file["header"]), tensors=dict(file["tensors"]))
        for name, file in body["files"].items()
    }
    strange = [name for name in files if not _FILE_NAME.fullmatch(name)]
    if strange:
        raise DamageError(f"its manifest lists other files than a checkpoint has: {strange[0]!r}")
    sharded = {name: _sharded_tensor(fields) for name, fields in body["sharded"].items()}
    stored = [name for record in files.values() for name in record.tensors or ()]
    chunks = [chunk.tensor for tensor in sharded.values() for chunk in tensor.chunks]
    if len(set(stored)) != len(stored) or not set(chunks) <= set(stored):
        raise ValueError("tensors are listed twice or not at all")
    if _parts(body["state"]) != body["parts"]:
        raise DamageError(f"its manifest lists the parts {body['parts']} but holds {_parts(body['state'])}")
    missing = set(tensor_names(body["state"])) - set(sharded) - (set(stored) - set(chunks))
    if missing:
        raise DamageError(f"its state lacks tensor {min(missing)!r}")
    return Manifest(
        step=int(body["step"]),
        saved_at=str(body["saved_at"]),
        metrics={str(name): float(value) for name, value in body["metrics"].items()},
        state=body["state"],
        files=files,
        sharded=sharded,
        versions=dict(body["versions"]),
    )


def _sharded_tensor(fields: dict[str, Any]) -> ShardedTensor:
    shape = tuple(fields["shape"])
    chunks = tuple(
        Chunk(offsets=tuple(chunk["offsets"]), sizes=tuple(chunk["sizes"]), tensor=chunk["tensor"])
        for chunk in fields["chunks"]
    )
    for chunk in chunks:
        ends = zip(chunk.offsets, chunk.sizes, shape, strict=True)
        if not all(min(offset, size) >= 0 and offset + size <= length for offset, size, length in ends):
            raise ValueError(f"a part of a tensor of shape {shape} lies outside it")
    if sum(math.prod(chunk.sizes) for chunk in chunks) != math.prod(shape):
        raise ValueError(f"the parts of a tensor of shape {shape} don't cover it")
    return ShardedTensor(dtype=str(fields["dtype"]), shape=shape, chunks=chunks)
