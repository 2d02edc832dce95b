"""vTrain's measured iteration times on one node of A100s (github.com/VIA-Research/vTrain, MIT-like licence)."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from runtime_fit import MeasuredStep, fit_constants, log_errors, prior_constants

from fastbudget.cost.transformer.training_layout import TrainingLayout
from fastbudget.cost.transformer.transformer_config import read_transformer
from fastbudget.cost.transformer.transformer_shape import TransformerShape
from fastbudget.hardware import find_device


def read_vtrain(path: Path) -> list[MeasuredStep]:
    """Return the measured steps: Megatron-DeepSpeed, full recompute, 1F1B, no FlashAttention (vTrain's section 5)."""
    steps = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            sizes = {name: int(row[name]) for name in row if name not in ("iteration_time_ms", "source")}
            layout = TrainingLayout(
                seq_len=sizes["seq_len"],
                global_batch_size=sizes["global_batch_seqs"],
                micro_batch_size=sizes["micro_batch_seqs"],
                num_devices=sizes["n_gpus"],
                tensor_parallel=sizes["tp"],
                pipeline_parallel=sizes["pp"],
                sharding="none",
                recompute="full",
                precision="fp16-mixed",
                framework="megatron",
                attention="eager",
                sequence_parallel=False,
            )
            steps.append(
                MeasuredStep(
                    publisher="VIA-Research/vTrain",
                    shape=_shape(sizes["layers"], sizes["hidden"], sizes["heads"], sizes["seq_len"]),
                    layout=layout,
                    device=find_device("a100-80gb"),
                    software="Megatron-DeepSpeed 2022",
                    seconds=float(row["iteration_time_ms"]) / 1e3,
                    noise=0.01,
                )
            )
    return steps


@cache
def _shape(layers: int, hidden: int, heads: int, seq_len: int) -> TransformerShape:
    config = {"model_type": "gpt2", "n_layer": layers, "n_embd": hidden, "n_head": heads, "vocab_size": 51200}
    return read_transformer({**config, "n_positions": seq_len})


# What one system's rows can tell apart; wide priors, since it may be far from the average system.
_FREE = (
    "measured_share",
    "half_rows",
    "half_columns",
    "half_depth",
    "wave_loss",
    "score_passes",
    "fused_passes",
    "kernels_per_layer",
    "kernels_per_collective",
    "launch_s",
    "head_passes",
    "optimizer_passes",
    "step_s",
    "link_share",
    "link_latency_s",
    "data_overlap",
)


def held_out_errors(steps: Sequence[MeasuredStep], *, seeds: int, fitted: int = 50) -> list[dict[str, float]]:
    """Return the errors on all other rows of a model fitted to a random choice of them, for several choices."""
    results = []
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(steps))
        chosen = [steps[index] for index in order[:fitted]]
        found = fit_constants(chosen, prior=prior_constants(), free=_FREE, iterations=25, prior_width=2.5)
        errors = np.abs(np.expm1(log_errors([steps[index] for index in order[fitted:]], found.constants)))
        results.append(
            {
                "seed": seed,
                "median_abs_error": float(np.median(errors)),
                "p90_abs_error": float(np.quantile(errors, 0.9)),
            }
        )
    return results
