"""Certainty from samples: sequential tests that stop when decided, intervals, tests and sample sizes. No torch."""

from .bootstrap_intervals import bootstrap, bootstrap_ratio, bootstrap_sums
from .count_intervals import bootstrap_counts
from .gates import non_inferiority, proxy_audit, superiority, threshold_test
from .group_means import mean_of_groups
from .multiple_testing import benjamini_hochberg, holm
from .paired_tests import approximate_randomization, mcnemar, paired_permutation
from .proportions import clopper_pearson_interval, wilson_interval
from .results import ConfidenceInterval, TestResult
from .sample_size import minimum_detectable_difference, paired_power, required_examples
from .sequential_test import SequentialPairedTest

__all__ = [
    "ConfidenceInterval",
    "SequentialPairedTest",
    "TestResult",
    "approximate_randomization",
    "benjamini_hochberg",
    "bootstrap",
    "bootstrap_counts",
    "bootstrap_ratio",
    "bootstrap_sums",
    "clopper_pearson_interval",
    "holm",
    "mcnemar",
    "mean_of_groups",
    "minimum_detectable_difference",
    "non_inferiority",
    "paired_permutation",
    "paired_power",
    "proxy_audit",
    "required_examples",
    "superiority",
    "threshold_test",
    "wilson_interval",
]
