"""torch module to ONNX file."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from pathlib import Path
from typing import Any

import torch

from ..core.errors import InvalidInputError

# The newest opset and IR that the oldest supported onnxruntime and TensorRT-RTX read.
OPSET = 20


def convert(
    model: torch.nn.Module,
    example_inputs: tuple[torch.Tensor, ...],
    dynamic_shapes: tuple[Any, ...],
    path: Path,
) -> None:
    """Write the model as ONNX. It must be in eval mode on the CPU.

    Args:
        model: Takes tensors by position.
        example_inputs: One tensor per argument.
        dynamic_shapes: Per argument {axis: torch.export.Dim}.
        path: Target file; weights go inside.

    Raises:
        InvalidInputError: torch can't convert it; the message holds torch's reason.
    """
    names = [f"input_{index}" for index in range(len(example_inputs))]
    try:
        # The exporter talks on stdout and through warnings; a failure's text comes with the exception.
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            _quiet("torch.onnx", "onnxscript"),
        ):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                model,
                example_inputs,
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=dynamic_shapes,
                input_names=names,
                verbose=False,
            )
            assert program is not None
            program.save(str(path), external_data=False)
    except Exception as error:
        reason = str(error.__cause__ or error).strip().splitlines()
        raise InvalidInputError(
            f"torch can't convert the model to ONNX: {reason[0] if reason else type(error).__name__}. "
            "A model whose control flow depends on tensor values must be rewritten with torch.where or torch.cond."
        ) from error


@contextlib.contextmanager
def _quiet(*loggers: str) -> Any:
    old = {name: logging.getLogger(name).level for name in loggers}
    for name in loggers:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in old.items():
            logging.getLogger(name).setLevel(level)
