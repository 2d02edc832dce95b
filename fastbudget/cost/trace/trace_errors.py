"""Errors of a trace that name the line of the user's code."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from ...core.errors import InvalidInputError

_NOT_THE_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")


def contents_needed(operation: str) -> InvalidInputError:
    """Return the error for code that reads the contents of a tensor, which a traced one does not have."""
    return InvalidInputError(
        "the model must not let tensor contents steer it for a trace, but "
        f"{_place_in_user_code()} reads them ({operation}). Write it with tensor operations (torch.where), "
        "or measure a real run of a small batch with fastbudget.cost.measure_step instead of estimating."
    )


def shape_function_needed(operation: str) -> InvalidInputError:
    """Return the error for an operation whose result's shape PyTorch cannot tell without running it."""
    return InvalidInputError(
        f"the model uses {operation} at {_place_in_user_code()}, which has no shape function. Register one "
        "with torch.library.register_fake, or measure a real run of a small batch with "
        "fastbudget.cost.measure_step instead of estimating."
    )


def device_not_traced(device: torch.device) -> InvalidInputError:
    """Return the error for a tensor made on another device, on which autograd would abort the process."""
    return InvalidInputError(
        f"a traced model must live on the CPU, but {_place_in_user_code()} makes a tensor on {device}. Leave "
        "out devices in the model and its factory; hardware= decides which kernels are assumed."
    )


def _place_in_user_code() -> str:
    """Return ``file:line`` of the innermost frame outside torch and this package."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_NOT_THE_USERS):
            return f"{file}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "an unknown place"
