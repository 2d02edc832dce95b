"""vTrain's measured iteration times on one node of A100s (github.com/VIA-Research/vTrain, MIT-like licence)."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

from runtime_fit import MeasuredStep

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
                )
            )
    return steps


@cache
def _shape(layers: int, hidden: int, heads: int, seq_len: int) -> TransformerShape:
    config = {"model_type": "gpt2", "n_layer": layers, "n_embd": hidden, "n_head": heads, "vocab_size": 51200}
    return read_transformer({**config, "n_positions": seq_len})
