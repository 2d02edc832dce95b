"""Native operators and what the compiled module can do here. Needs torch and numpy only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.public_names import lazy_names
from .build_report import BuildReport, report_build

# These import torch; asking how the module was built must not.
_SOURCES = dict.fromkeys(("TokenScores", "linear_cross_entropy", "token_logprobs"), "scoring_head")

__all__ = ["BuildReport", "TokenScores", "linear_cross_entropy", "report_build", "token_logprobs"]

if TYPE_CHECKING:
    from .scoring_head import TokenScores as TokenScores
    from .scoring_head import linear_cross_entropy as linear_cross_entropy
    from .scoring_head import token_logprobs as token_logprobs
else:
    __getattr__, __dir__ = lazy_names(__name__, globals(), _SOURCES)
