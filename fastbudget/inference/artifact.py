"""An exported model on disk, and how to run it."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError, RunDirectoryError

MANIFEST = "manifest.json"
MODEL_FILE = "model.onnx"
FORMAT = "fastbudget-artifact"
VERSION = 1


def file_sha256(path: Path) -> str:
    """Return a file's SHA-256 as hexadecimal text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Artifact:
    """A directory with ``model.onnx`` and ``manifest.json``: what it came from, how it was checked, the figures."""

    path: Path
    manifest: dict[str, Any]

    def load(self, *, threads: int | None = None) -> Runner:
        """Return a callable with the model's positional signature, after checking the file's hash.

        Args:
            threads: onnxruntime's threads within an operator; None: its default.

        Raises:
            RunDirectoryError: the model's file is missing or has changed.
        """
        model = self.path / MODEL_FILE
        try:
            found = file_sha256(model)
        except OSError as error:
            raise RunDirectoryError(f"{model} can't be read: {error.strerror}; export it again.") from error
        if found != self.manifest["files"][MODEL_FILE]["sha256"]:
            raise RunDirectoryError(f"{model} has changed since it was exported and verified; export it again.")
        return Runner(model, self.manifest, threads=threads)


class Runner:
    """Runs an artifact in onnxruntime on the CPU, refusing inputs outside the ranges it was verified for."""

    def __init__(self, model: Path, manifest: dict[str, Any], *, threads: int | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if threads is not None:
            options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self._inputs: list[dict[str, Any]] = manifest["inputs"]

    def __call__(self, *inputs: Any) -> npt.NDArray[Any] | tuple[npt.NDArray[Any], ...]:
        """Return the output array, or a tuple of them.

        Args:
            inputs: numpy arrays or CPU tensors, in the order of the model's arguments.

        Raises:
            InvalidInputError: wrong number, dtype or shape.
        """
        if len(inputs) != len(self._inputs):
            raise InvalidInputError(f"The artifact takes {len(self._inputs)} inputs, got {len(inputs)}.")
        feed = {}
        for value, expected in zip(inputs, self._inputs, strict=True):
            array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value, order="C")
            self._check(array, expected)
            feed[expected["name"]] = array
        outputs = self._session.run(None, feed)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    @staticmethod
    def _check(array: npt.NDArray[Any], expected: dict[str, Any]) -> None:
        name = expected["name"]
        if str(array.dtype) != expected["dtype"]:
            raise InvalidInputError(f"Input {name!r} must be {expected['dtype']}, got {array.dtype}.")
        if array.ndim != len(expected["shape"]):
            raise InvalidInputError(f"Input {name!r} must have {len(expected['shape'])} dimensions, got {array.ndim}.")
        for axis, (size, (low, high)) in enumerate(zip(array.shape, expected["shape"], strict=True)):
            if not low <= size <= (high if high is not None else size):
                allowed = str(low) if low == high else f"{low} to {high if high is not None else 'any'}"
                raise InvalidInputError(f"Input {name!r}: dimension {axis} must be {allowed}, got {size}.")


def load_artifact(path: str | os.PathLike[str]) -> Artifact:
    """Open an artifact directory.

    Raises:
        RunDirectoryError: it isn't one, or its manifest can't be read.
    """
    directory = Path(path)
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{directory} is not an exported artifact: {error}.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise RunDirectoryError(f"{directory / MANIFEST} is not a fastbudget artifact's manifest.")
    if manifest.get("version") != VERSION:
        raise RunDirectoryError(
            f"{directory / MANIFEST} is of version {manifest.get('version')!r}; this fastbudget reads {VERSION}."
        )
    return Artifact(directory, manifest)
