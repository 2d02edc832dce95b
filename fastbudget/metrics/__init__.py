"""Metrics by name, with mergeable states and honest intervals."""

from .distributed_states import merge_ranks
from .metric_protocol import Metric, MetricValue
from .metric_set import MetricSet, preset
from .perturbations import perturb
from .rater_agreement import cohen_kappa, fleiss_kappa, krippendorff_alpha
from .rating_sheets import Preference, Rating, paired_preference, rating_table, read_ratings, write_rating_sheet
from .registered import get, list_metrics, register
from .robustness_scores import RobustnessResult, measure_robustness

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

__all__ = [
    "Metric",
    "MetricSet",
    "MetricValue",
    "Preference",
    "Rating",
    "RobustnessResult",
    "cohen_kappa",
    "fleiss_kappa",
    "get",
    "krippendorff_alpha",
    "list",
    "measure_robustness",
    "merge_ranks",
    "paired_preference",
    "perturb",
    "preset",
    "rating_table",
    "read_ratings",
    "register",
    "write_rating_sheet",
]
