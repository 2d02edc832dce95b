"""Reports made from records. Measures nothing."""

from .html_report import write_report
from .memory_timeline import write_memory_timeline
from .terminal_tables import evaluation_table, export_table, plan_table, spend_table

__all__ = ["evaluation_table", "export_table", "plan_table", "spend_table", "write_memory_timeline", "write_report"]
