"""Metrics by name, with mergeable states and honest intervals."""

from .metric_protocol import Metric, MetricValue
from .registered import get, list_metrics, register

# isort: split
from . import classification as _classification  # noqa: F401  (registers its metrics)
from . import language_modeling as _language_modeling  # noqa: F401
from . import probabilities as _probabilities  # noqa: F401
from . import ranking as _ranking  # noqa: F401
from . import regression as _regression  # noqa: F401

list = list_metrics

__all__ = ["Metric", "MetricValue", "get", "list", "register"]
