"""Metrics by name, with mergeable states and honest intervals."""

from .metric_protocol import Metric, MetricValue
from .registered import get, list_metrics, register

# isort: split
from . import classification as _classification  # noqa: F401  (registers its metrics)
from . import content_words as _content_words  # noqa: F401
from . import edit_rates as _edit_rates  # noqa: F401
from . import embedding_match as _embedding_match  # noqa: F401
from . import language_modeling as _language_modeling  # noqa: F401
from . import machine_translation as _machine_translation  # noqa: F401
from . import meteor as _meteor  # noqa: F401
from . import probabilities as _probabilities  # noqa: F401
from . import question_answering as _question_answering  # noqa: F401
from . import ranking as _ranking  # noqa: F401
from . import regression as _regression  # noqa: F401
from . import rouge as _rouge  # noqa: F401

list = list_metrics

__all__ = ["Metric", "MetricValue", "get", "list", "register"]
