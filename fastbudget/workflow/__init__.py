"""The main job: plan, train, evaluate, export, report."""

from .configuration import RunConfiguration, load_configuration
from .main_job import run
from .observer import Observer
from .run_record import RunRecord, read_run_record

__all__ = ["Observer", "RunConfiguration", "RunRecord", "load_configuration", "read_run_record", "run"]
