"""Export: convert, verify, and only then put the artifact in place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from ..core.durable_files import sync_directory, sync_file, write_json
from ..core.errors import InvalidInputError, RunDirectoryError, one_of
from .artifact import FORMAT, MANIFEST, MODEL_FILE, VERSION, Artifact, Runner, file_sha256, load_artifact
from .onnx_conversion import OPSET, convert
from .verification import verify

Target = Literal["onnx"]

# {argument index: {axis: (smallest, largest or None)}}
DynamicAxes = Mapping[int, Mapping[int, tuple[int, int | None]]]

_LARGEST_BATCH = 4096


@dataclass(frozen=True)
class _Plan:
    """Inputs as tensors on the CPU, and which axes may vary."""

    inputs: tuple[torch.Tensor, ...]
    dynamic: dict[int, dict[int, tuple[int, int | None]]]

    def dynamic_shapes(self) -> tuple[dict[int, Any], ...]:
        shared: dict[tuple[int, int | None, int], Any] = {}

        def dim(axis: int, limits: tuple[int, int | None]) -> Any:
            # The same axis with the same limits is the same dimension: all inputs share one batch size.
            key = (*limits, axis)
            if key not in shared:
                shared[key] = torch.export.Dim(f"axis{axis}_{len(shared)}", min=limits[0], max=limits[1])
            return shared[key]

        return tuple(
            {axis: dim(axis, limits) for axis, limits in self.dynamic.get(index, {}).items()}
            for index in range(len(self.inputs))
        )

    def described(self) -> list[dict[str, Any]]:
        described = []
        for index, tensor in enumerate(self.inputs):
            limits = self.dynamic.get(index, {})
            shape = [list(limits.get(axis, (size, size))) for axis, size in enumerate(tensor.shape)]
            dtype = str(tensor.dtype).removeprefix("torch.")
            described.append({"name": f"input_{index}", "dtype": dtype, "shape": shape})
        return described

    def batches(self, real: Sequence[tuple[torch.Tensor, ...]]) -> list[tuple[torch.Tensor, ...]]:
        """Return inputs at batch sizes 1, 2, 3 and the example's, from the real ones where given."""
        source = real[0] if real else self.inputs
        if not all(0 in self.dynamic.get(index, {}) for index in range(len(self.inputs))):
            return [self.inputs, *real]
        low = max(self.dynamic[index][0][0] for index in range(len(self.inputs)))
        sizes = sorted({size for size in (1, 2, 3, len(source[0])) if low <= size <= len(source[0])})
        return [*real[1:], *(tuple(tensor[:size] for tensor in source) for size in sizes)]


def _plan(example_inputs: Any, dynamic: DynamicAxes | None) -> _Plan:
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    if not inputs or not all(isinstance(value, torch.Tensor) for value in inputs):
        raise InvalidInputError(
            "example_inputs must be a tensor or a tuple of tensors, the model's positional arguments; got "
            f"{type(example_inputs).__name__}."
        )
    tensors = tuple(value.detach().cpu() for value in inputs)
    if dynamic is None:
        if any(tensor.ndim == 0 or len(tensor) < 2 for tensor in tensors):
            raise InvalidInputError(
                "example_inputs need a batch of at least 2: torch.export takes a size of 1 for a constant."
            )
        dynamic = {index: {0: (1, _LARGEST_BATCH)} for index in range(len(tensors))}
    _check_dynamic(dynamic, tensors)
    return _Plan(tensors, {index: dict(axes) for index, axes in dynamic.items()})


def _check_dynamic(dynamic: DynamicAxes, inputs: tuple[torch.Tensor, ...]) -> None:
    for index, axes in dynamic.items():
        for axis, (low, high) in axes.items():
            name = f"dynamic[{index}][{axis}]"
            if not 0 <= index < len(inputs) or not 0 <= axis < inputs[index].ndim:
                shapes = ", ".join(str(list(tensor.shape)) for tensor in inputs)
                raise InvalidInputError(f"{name} is no axis of the inputs, whose shapes are {shapes}.")
            size = inputs[index].shape[axis]
            if low < 1 or not max(2, low) <= size <= (size if high is None else high):
                raise InvalidInputError(
                    f"{name} is from {low} to {high}; it must begin at 1 or more and hold the example's size, which is "
                    f"{size} and must be at least 2."
                )


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in ("fastbudget", "torch", "onnx", "onnxscript", "onnxruntime"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def export(
    model: torch.nn.Module,
    example_inputs: Any,
    directory: str | os.PathLike[str],
    target: Target = "onnx",
    *,
    dynamic: DynamicAxes | None = None,
    check_inputs: Sequence[tuple[torch.Tensor, ...]] = (),
) -> Artifact:
    """Export a model and verify the result against it. Nothing is left behind unless the check passes.

    The model is exported in eval mode from the CPU, and gets its mode and device back.

    Args:
        model: Takes tensors by position.
        example_inputs: A tensor or a tuple of tensors.
        directory: Made; must not exist yet, be empty, or be an artifact and nothing else, which is replaced.
        target: ``"onnx"``.
        dynamic: {argument index: {axis: (smallest, largest or None)}}; None: the first axis of each from 1 to 4096.
        check_inputs: Real inputs to verify on, each a tuple as the model takes; the example's are used without.

    Raises:
        InvalidInputError: the model can't be converted, or differs from its export.
        RunDirectoryError: ``directory`` holds something else.
    """
    if target not in get_args(Target):
        raise InvalidInputError(f"target must be one of {one_of(get_args(Target))}, got {target!r}.")
    out = Path(directory)
    _check_free(out)
    plan = _plan(example_inputs, dynamic)
    real = [tuple(tensor.detach().cpu() for tensor in inputs) for inputs in check_inputs]
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    modes = [(module, module.training) for module in model.modules()]
    aside = out.with_name(f".{out.name}.{os.getpid()}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        model.cpu().eval()
        onnx_path = aside / MODEL_FILE
        convert(model, plan.inputs, plan.dynamic_shapes(), onnx_path)
        inputs = plan.described()
        runner = Runner(onnx_path, {"inputs": inputs}, threads=1)
        verification = verify(model, runner, plan.batches(real))
        size = onnx_path.stat().st_size
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "target": target,
            "opset": OPSET,
            "inputs": inputs,
            "files": {MODEL_FILE: {"bytes": size, "sha256": file_sha256(onnx_path)}},
            "num_params": sum(parameter.numel() for parameter in model.parameters()),
            "versions": _versions(),
            "verification": verification.to_json(),
        }
        sync_file(onnx_path)
        write_json(aside / MANIFEST, manifest)
        if out.exists():
            shutil.rmtree(out)
        aside.rename(out)
        sync_directory(out.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        model.to(device)
        for module, training in modes:
            module.training = training
    return Artifact(out, manifest)


def _check_free(out: Path) -> None:
    """Raise RunDirectoryError unless ``out`` may be replaced: what is deleted must be ours."""
    if not out.exists():
        return
    names = {path.name for path in out.iterdir()} if out.is_dir() else {out.name}
    if not names:
        return
    try:
        load_artifact(out)
    except RunDirectoryError:
        raise RunDirectoryError(f"{out} exists and is not an artifact; choose another directory.") from None
    others = sorted(names - {MANIFEST, MODEL_FILE})
    if others:
        raise RunDirectoryError(f"{out} holds more than an artifact: {', '.join(others)}; choose another directory.")
