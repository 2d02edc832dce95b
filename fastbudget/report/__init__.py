"""Reports made from records. Measures nothing."""

from .html_report import write_report
from .memory_timeline import write_memory_timeline
from .pareto_chart import write_pareto_chart
from .plan_front import front_table
from .terminal_tables import evaluation_table, export_table, plan_table, spend_table

__all__ = [
    "evaluation_table",
    "export_table",
    "front_table",
    "plan_table",
    "spend_table",
    "write_memory_timeline",
    "write_pareto_chart",
    "write_report",
]
