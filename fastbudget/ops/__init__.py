"""Native operators and what the compiled module can do here. Needs torch and numpy only."""

from .build_report import BuildReport, report_build

__all__ = ["BuildReport", "report_build"]
