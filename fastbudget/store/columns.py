"""Values of examples, packed for the store without loss."""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError

Values = npt.NDArray[Any]  # [n, …]; of objects where they aren't numbers


def as_values(values: Any) -> Values:
    """Return values per example as an array [n, …]: numbers as they are, anything else as objects [n]."""
    if hasattr(values, "detach"):
        values = values.detach()
        values = (values.float() if str(values.dtype) == "torch.bfloat16" else values).cpu().numpy()
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return values
    items = list(values)
    if items and all(isinstance(item, bool | int | float | np.number | np.bool_) for item in items):
        return np.asarray(items)
    return as_objects(items)


def pack(values: Values) -> tuple[str, bytes]:
    """Return an encoding and the packed bytes.

    Raises:
        InvalidInputError: objects that aren't JSON.
    """
    if values.dtype.kind not in "biuf":
        try:
            text = json.dumps(values.tolist(), ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"Only numbers, text and JSON values can be stored per example: {error}.") from None
        return "json", zlib.compress(text.encode("utf-8", "surrogatepass"), 1)
    narrow = _narrowed(values)
    layout = {"read_as": values.dtype.str, "stored_as": narrow.dtype.str, "shape": list(values.shape[1:])}
    return json.dumps(layout), np.ascontiguousarray(narrow).tobytes()


def unpack(encoding: str, content: bytes) -> Values:
    """Return what was packed."""
    if encoding == "json":
        return as_objects(json.loads(zlib.decompress(content).decode("utf-8", "surrogatepass")))
    layout = json.loads(encoding)
    values = np.frombuffer(content, layout["stored_as"]).reshape(-1, *layout["shape"])
    return values.astype(layout["read_as"], copy=False)


def as_objects(items: list[Any]) -> Values:
    """Return a list as an array of objects [n]."""
    objects = np.empty(len(items), object)
    for index, item in enumerate(items):  # a slice would make nested lists of one length two-dimensional
        objects[index] = item
    return objects


def _narrowed(values: Values) -> Values:
    """Return float64 values in the smallest type that holds them all exactly: most scores are 0 or 1."""
    if values.dtype != np.float64 or values.size == 0:
        return values
    with np.errstate(invalid="ignore", over="ignore"):
        for kind in (np.uint8, np.float32):
            narrow = values.astype(kind)
            if np.array_equal(narrow, values, equal_nan=True) and not (np.signbit(values) & (values == 0)).any():
                return narrow
    return values
