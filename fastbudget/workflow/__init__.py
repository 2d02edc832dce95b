"""The main job: plan, train, evaluate, export, report."""

from .configuration import RunConfiguration, load_configuration
from .export_stage import export_factory, export_run
from .factories import call_factory, import_factory, import_object
from .main_job import run
from .observer import Observer
from .run_record import RunRecord, read_run_record
from .train_job import TrainOptions, train

__all__ = [
    "Observer",
    "RunConfiguration",
    "RunRecord",
    "TrainOptions",
    "call_factory",
    "export_factory",
    "export_run",
    "import_factory",
    "import_object",
    "load_configuration",
    "read_run_record",
    "run",
    "train",
]
