"""What an example or a model *is*, as 128 bits (xxh3): equal content has an equal hash, whatever it is called.

A hash doesn't depend on the device, memory layout or container of numbers: a torch tensor on a GPU, a strided view and
a numpy array of the same type, shape and values are the same content. xxh3 finds accidents, not attacks.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ..core.errors import InvalidInputError

HASH_BYTES = 16
Hashes = npt.NDArray[np.uint8]  # [n, HASH_BYTES]
_Feed = Callable[[bytes | memoryview], None]
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def hash_example(example: Any) -> bytes:
    """Return the 16-byte content hash of one example.

    Args:
        example: numpy arrays, torch tensors, numbers, text, bytes, PIL images, dates, None, dataclasses, and mappings,
            sequences and sets of these. A number, a numpy scalar and a 0-dimensional array of the same value are equal;
            so are a list and a tuple.

    Raises:
        InvalidInputError: it holds something else, whose content isn't known.
    """
    state = xxhash.xxh3_128()
    _feed(example, state.update)
    return state.digest()


def hash_examples(examples: Iterable[Any]) -> Hashes:
    """Return the content hashes of examples, uint8 [n, 16]."""
    return hashes_from(hash_example(example) for example in examples)


def hashes_from(digests: Iterable[bytes]) -> Hashes:
    """Return digests of 16 bytes as an array, uint8 [n, 16]."""
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, HASH_BYTES)


def hash_data(hashes: Hashes) -> str:
    """Return the content hash of a data set from its examples', hexadecimal: their order doesn't matter."""
    pairs = as_keys(hashes).view(np.uint64).reshape(-1, 2)
    # One column decides nearly always, and is sorted many times as fast as pairs.
    ordered = pairs[np.argsort(pairs[:, 0])]
    if (ordered[1:, 0] == ordered[:-1, 0]).any():
        ordered = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    return xxhash.xxh3_128_hexdigest(ordered.tobytes())


def as_keys(hashes: Hashes) -> npt.NDArray[Any]:
    """Return hashes [n, 16] as comparable keys [n]: pairs of 64-bit numbers."""
    pairs = np.ascontiguousarray(hashes).view(">u8").astype(np.uint64)
    return pairs.view(np.dtype([("high", np.uint64), ("low", np.uint64)])).reshape(-1)


def hash_model(model: Any) -> str:
    """Return the content hash of a model, hexadecimal: its weights, and for a module how it is put together.

    Args:
        model: A torch module (buffers count; device and memory layout don't; module types and their printed options
            do), a state dict, or a mapping of arrays.

    Raises:
        InvalidInputError: something else, or a state that holds what has no content hash.
    """
    state = xxhash.xxh3_128()
    if hasattr(model, "state_dict") and hasattr(model, "named_modules"):
        for name, module in model.named_modules():
            kind = f"{type(module).__module__}.{type(module).__qualname__}"
            options = _ADDRESS.sub("", module.extra_repr())
            _feed(("module", name, kind, options), state.update)
        weights = model.state_dict()
    elif isinstance(model, Mapping):
        weights = model
    else:
        raise InvalidInputError(
            f"A model's content hash needs a torch module or a mapping of its weights, got a {type(model).__name__}."
        )
    for name in sorted(weights, key=str):
        _feed((str(name), weights[name]), state.update)
    return state.hexdigest()


def _feed(value: Any, feed: _Feed) -> None:
    """Feed the content of a value, each part after its kind and size, so that no two contents share their bytes."""
    if value is None:
        feed(b"N")
    elif isinstance(value, str):
        _feed_bytes(b"S", value.encode("utf-8", "surrogatepass"), feed)
    elif isinstance(value, bytes | bytearray | memoryview):
        _feed_bytes(b"B", bytes(value), feed)
    elif isinstance(value, bool | np.bool_):
        feed(b"T" if value else b"F")
    elif isinstance(value, int | np.integer):
        _feed_bytes(b"I", str(int(value)).encode(), feed)
    elif isinstance(value, float | np.floating):
        feed(b"D" + struct.pack("<d", float(value)))
    elif isinstance(value, complex | np.complexfloating):
        feed(b"C" + struct.pack("<dd", value.real, value.imag))
    elif isinstance(value, np.ndarray):
        _feed_array(value, feed)
    elif hasattr(value, "detach") and hasattr(value, "untyped_storage"):
        _feed_tensor(value, feed)
    elif isinstance(value, Mapping):
        feed(b"M" + struct.pack("<q", len(value)))
        for key in sorted(value, key=lambda key: (type(key).__name__, str(key))):
            _feed(key, feed)
            _feed(value[key], feed)
    elif isinstance(value, list | tuple):
        feed(b"L" + struct.pack("<q", len(value)))
        for item in value:
            _feed(item, feed)
    elif isinstance(value, set | frozenset):
        _feed_bytes(b"X", b"".join(sorted(hash_example(item) for item in value)), feed)
    elif isinstance(value, datetime.date | datetime.time):
        _feed_bytes(b"W", value.isoformat().encode(), feed)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _feed({field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, feed)
    elif hasattr(value, "tobytes") and hasattr(value, "mode") and hasattr(value, "size"):  # a PIL image
        _feed(("image", value.mode, tuple(value.size), value.getpalette()), feed)
        _feed_bytes(b"B", value.tobytes(), feed)
    else:
        raise InvalidInputError(
            f"The content of a {type(value).__module__}.{type(value).__qualname__} has no hash. Let data[i] return "
            "arrays, tensors, text, bytes, images, numbers, or mappings and sequences of these; or give the data set "
            "an attribute content_hashes, uint8 [n, 16]."
        )


def _feed_bytes(kind: bytes, content: bytes | memoryview, feed: _Feed) -> None:
    feed(kind + struct.pack("<q", len(content)))
    feed(content)


def _feed_array(array: npt.NDArray[Any], feed: _Feed) -> None:
    if array.ndim == 0:
        _feed(array.item(), feed)
    elif array.dtype.kind in "OUSTV" and array.dtype.names is None:
        _feed(array.tolist(), feed)
    else:
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        feed(f"A{array.dtype.str}{array.shape}".encode())
        feed(array.reshape(-1).view(np.uint8).data)


def _feed_tensor(tensor: Any, feed: _Feed) -> None:
    import torch

    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise InvalidInputError(
            f"A tensor of layout {tensor.layout} on {tensor.device} has no content hash; pass a dense one."
        )
    if hasattr(tensor, "full_tensor"):  # a sharded one
        tensor = tensor.full_tensor()
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if tensor.ndim == 0:
        _feed(tensor.item(), feed)
        return
    try:
        _feed_array(tensor.contiguous().numpy(), feed)
    except TypeError:  # numpy lacks the type: bfloat16, float8
        feed(f"A{tensor.dtype}{tuple(tensor.shape)}".encode())
        feed(memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()))
