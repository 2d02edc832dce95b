"""The bound against the full estimate, on layouts drawn at random."""

import random
from statistics import median

import pytest

from fastbudget.core.errors import InvalidInputError
from fastbudget.cost import read_transformer
from fastbudget.cost.transformer.memory_bound import memory_bound
from fastbudget.cost.transformer.training_layout import (
    FRAMEWORKS,
    LOSSES,
    OPTIMIZER_KERNELS,
    OPTIMIZERS,
    PRECISIONS,
    RECOMPUTES,
    SHARDINGS,
    TrainingLayout,
)
from fastbudget.cost.transformer.transformer_memory import estimate_transformer_memory
from fastbudget.hardware import find_device

MODELS = ("llama-3-8b", "gpt2", "mixtral-8x7b", "falcon-7b", "t5-large", "gemma-3-4b")


def drawn(seed, count):
    choose = random.Random(seed).choice
    found = 0
    while found < count:
        shape = read_transformer(choose(MODELS))
        try:
            layout = TrainingLayout(
                seq_len=choose((512, 1024)),
                global_batch_size=choose((64, 256)),
                micro_batch_size=choose((1, 2, 4)),
                num_devices=choose((1, 2, 8, 64)),
                tensor_parallel=choose((1, 1, 2, 4)),
                pipeline_parallel=choose((1, 1, 2, 8)),
                virtual_pipeline=choose((1, 1, 2)),
                context_parallel=choose((1, 1, 2)),
                expert_parallel=choose((1, 1, 4)),
                sharding=choose(SHARDINGS),
                recompute=choose(RECOMPUTES),
                precision=choose(PRECISIONS),
                optimizer=choose(OPTIMIZERS),
                framework=choose(FRAMEWORKS),
                loss=choose(LOSSES),
                keeps_outputs=choose((True, False)),
                offload=choose(("none", "none", "optimizer", "all")),
                attention=choose(("flash", "eager")),
                optimizer_kernels=choose(OPTIMIZER_KERNELS),
                lora_rank=choose((None, None, 16)),
                compiled=choose((True, False)),
            )
            layout.check(shape)
        except InvalidInputError:
            continue
        found += 1
        yield shape, layout


@pytest.mark.parametrize("seed", range(2))
def test_the_bound_is_below_the_estimate_and_close(seed):
    device = find_device("h100-sxm")
    ratios = []
    for shape, layout in drawn(seed, 150):
        estimated = estimate_transformer_memory(shape, layout, device).device_bytes
        bound = memory_bound(shape, layout, device)
        assert 0 < bound <= estimated, layout
        ratios.append(bound / estimated)
    assert median(ratios) > 0.95
