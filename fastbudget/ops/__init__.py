"""Native operators and what the compiled module can do here. Needs torch and numpy only."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .build_report import BuildReport, report_build

if TYPE_CHECKING:
    from .scoring_head import TokenScores, linear_cross_entropy, token_logprobs

__all__ = ["BuildReport", "TokenScores", "linear_cross_entropy", "report_build", "token_logprobs"]

# These import torch; asking how the module was built must not.
_SOURCES = {name: "scoring_head" for name in ("TokenScores", "linear_cross_entropy", "token_logprobs")}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _SOURCES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_SOURCES[name]}", __name__), name)
