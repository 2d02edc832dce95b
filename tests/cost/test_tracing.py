"""The trace of a step: what it records, against real runs and against numbers worked out by hand."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fastbudget.core import InvalidInputError
from fastbudget.cost import CATEGORIES, PHASES, measure_step, trace_step

BATCH, WIDTH, HIDDEN = 32, 64, 256


def mean_square(outputs, batch):
    first = outputs[0] if isinstance(outputs, tuple) else outputs
    return first.float().pow(2).mean()


def perceptron():
    return nn.Sequential(
        nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.BatchNorm1d(HIDDEN), nn.Dropout(0.1), nn.Linear(HIDDEN, 10)
    )


def image_network():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.ConvTranspose2d(16, 8, 2, 2),
        nn.GroupNorm(4, 8),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(4),
    )


def encoder():
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(500, WIDTH)
        self.head = nn.Linear(WIDTH, 500, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return F.cross_entropy(self.head(self.embedding(ids)).flatten(0, 1), ids.flatten())


class Scaled(nn.Module):
    """A parameter whose contents the trace knows, until the precision changes it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.tensor(2.5))

    def forward(self, x):
        return self.linear(x) * self.scale


def features():
    return torch.randn(BATCH, WIDTH)


def images():
    return torch.randn(4, 3, 16, 16)


def sequences():
    return torch.randn(4, 32, WIDTH)


def token_ids():
    return torch.randint(0, 500, (8, 16))


CASES = {
    "adamw": (perceptron, features, {}),
    "adamw foreach": (perceptron, features, {"optimizer": partial(torch.optim.AdamW, foreach=True)}),
    "adamw fused": (perceptron, features, {"optimizer": partial(torch.optim.AdamW, fused=True)}),
    "sgd": (perceptron, features, {"optimizer": "sgd"}),
    "sgd-momentum": (perceptron, features, {"optimizer": "sgd-momentum"}),
    "adafactor": (perceptron, features, {"optimizer": "adafactor"}),
    "lion": (perceptron, features, {"optimizer": "lion"}),
    "muon": (perceptron, features, {"optimizer": "muon"}),
    "bf16": (perceptron, features, {"precision": "bf16"}),
    "bf16 with a scalar": (Scaled, features, {"precision": "bf16"}),
    "bf16-mixed": (perceptron, features, {"precision": "bf16-mixed"}),
    "fp16-mixed": (perceptron, features, {"precision": "fp16-mixed"}),
    "accumulation": (perceptron, features, {"grad_accumulation": 3}),
    "inference": (perceptron, features, {"mode": "infer"}),
    "images": (image_network, images, {}),
    "images bf16-mixed": (image_network, images, {"precision": "bf16-mixed"}),
    "encoder": (encoder, sequences, {}),
    "encoder recomputed": (encoder, sequences, {"recompute": "full"}),
    "encoder inference": (encoder, sequences, {"mode": "infer"}),
    "recurrent": (lambda: nn.LSTM(WIDTH, 128, 2, batch_first=True), sequences, {}),
    "gated recurrent": (lambda: nn.GRU(WIDTH, 128, batch_first=True), sequences, {}),
    "tied weights": (Tied, token_ids, {"loss": None}),
}


@pytest.mark.parametrize("name", CASES)
def test_peak_equals_that_of_a_real_run(name):
    factory, inputs, settings = CASES[name]
    settings = {"loss": mean_square, **settings}
    predicted = trace_step(factory, inputs, **settings).log.peak_bytes
    assert predicted == pytest.approx(measure_step(factory, inputs, **settings), rel=1e-3)


def test_flops_of_a_linear_layer():
    trace = trace_step(lambda: nn.Linear(WIDTH, HIDDEN), features, loss=mean_square)
    product = 2 * BATCH * WIDTH * HIDDEN
    assert trace.operations.flops_in("forward", step=1) == product
    # No gradient of the inputs is needed, so the backward pass has one product too.
    assert trace.operations.flops_in("backward", step=1) == product
    assert trace.num_params == trace.num_trainable_params == WIDTH * HIDDEN + HIDDEN


def test_moved_bytes_of_a_linear_layer():
    trace = trace_step(lambda: nn.Linear(WIDTH, HIDDEN), features, loss=mean_square)
    table = trace.operations
    product = next(i for i in range(len(table)) if table.names[table.name[i]] == "aten.addmm.default")
    operands = BATCH * WIDTH + WIDTH * HIDDEN + HIDDEN + BATCH * HIDDEN
    assert table.moved_bytes[product] == 4 * operands


def test_categories_at_the_peak():
    trace = trace_step(perceptron, features, loss=mean_square)
    log = trace.log
    shares = log.bytes_by_category(log.event_at_peak)
    assert sum(shares.values()) == log.peak_bytes
    assert shares["parameter"] == 4 * trace.num_params
    # Two states of each parameter's size, and a step counter for each.
    assert shares["optimizer_state"] == 8 * trace.num_params + 4 * 6
    assert shares["input"] == 4 * BATCH * WIDTH


def test_log_is_consistent():
    log = trace_step(encoder, sequences, loss=mean_square, recompute="full").log
    alive = np.zeros(len(log.size_bytes), dtype=np.int64)
    for storage, delta in zip(log.storage, log.delta_bytes, strict=True):
        alive[storage] += delta
        assert alive[storage] in (0, log.size_bytes[storage])
    assert log.live_bytes.min() >= 0
    assert set(np.unique(log.phase)) <= set(range(len(PHASES)))
    assert set(np.unique(log.category)) <= set(range(len(CATEGORIES)))


def test_steady_step_leaves_nothing_behind():
    log = trace_step(perceptron, features, loss=mean_square).log
    left = log.live_storages(len(log.storage) - 1)
    kinds = {CATEGORIES[log.category[number]] for number in left}
    assert kinds <= {"parameter", "optimizer_state", "input", "buffer"}


def test_storages_know_their_module():
    log = trace_step(perceptron, features, loss=mean_square).log
    gradients = [n for n in range(len(log.size_bytes)) if CATEGORIES[log.category[n]] == "gradient"]
    made_by = {log.modules[log.module[n]] for n in gradients}
    assert {"0", "2", "4"} <= made_by


def test_recompute_lowers_the_peak_and_costs_a_forward_pass():
    def shape():
        return torch.randn(16, 128, WIDTH)

    plain = trace_step(encoder, shape, loss=mean_square, optimizer="sgd")
    full = trace_step(encoder, shape, loss=mean_square, optimizer="sgd", recompute="full")
    assert full.log.peak_bytes < 0.7 * plain.log.peak_bytes
    extra = full.operations.flops_in("backward", step=1) - plain.operations.flops_in("backward", step=1)
    assert extra == pytest.approx(plain.operations.flops_in("forward", step=1), rel=0.05)


def test_frozen_parameters_have_no_gradient_and_no_state():
    def half_frozen():
        model = perceptron()
        model[0].requires_grad_(False)
        return model

    trace = trace_step(half_frozen, features, loss=mean_square)
    frozen = WIDTH * HIDDEN + HIDDEN
    assert trace.num_params - trace.num_trainable_params == frozen
    shares = trace.log.bytes_by_category(trace.log.event_at_peak)
    assert shares["optimizer_state"] == 8 * trace.num_trainable_params + 4 * 4


def test_the_users_module_is_left_as_it_was():
    model = perceptron().eval()
    before = {name: (value, value.clone()) for name, value in model.state_dict(keep_vars=True).items()}
    trace_step(model, features(), loss=mean_square)
    for name, value in model.state_dict(keep_vars=True).items():
        assert value is before[name][0]
        assert torch.equal(value, before[name][1])
        assert value.grad is None
    assert not any(part.training for part in model.modules())


def test_module_and_factory_agree():
    torch.manual_seed(0)
    from_factory = trace_step(encoder, sequences, loss=mean_square).log
    from_module = trace_step(encoder(), sequences(), loss=mean_square).log
    assert from_module.peak_bytes == from_factory.peak_bytes


@pytest.mark.parametrize("form", ["tensor", "tuple", "mapping", "callable"])
def test_forms_of_inputs(form):
    tensor = features()
    given = {
        "tensor": tensor,
        "tuple": (tensor,),
        "mapping": {"input": tensor},
        "callable": lambda: {"input": torch.randn(BATCH, WIDTH)},
    }[form]
    assert trace_step(perceptron, given, loss=mean_square).log.peak_bytes > 0


def test_known_contents_may_steer_the_model():
    class Steered(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(500, WIDTH)
            self.rates = [rate.item() for rate in torch.linspace(0, 0.2, 3)]

        def forward(self, ids):
            rows = self.embedding(ids[ids > 3])
            ends = (ids == 2).nonzero()
            return rows[: int(ids.max())].sum() + self.embedding(ids[ends[:, 0], ends[:, 1]]).sum()

    ids = torch.tensor([[1, 2, 5, 9], [7, 2, 2, 4]])
    measured = measure_step(Steered, lambda: ids.clone())
    assert trace_step(Steered, ids).log.peak_bytes == pytest.approx(measured, rel=1e-3)


def test_unknown_contents_name_the_line():
    class Unsteady(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            y = self.linear(x)
            return y * 2 if y.sum() > 0 else y

    with pytest.raises(InvalidInputError, match=r"test_tracing\.py:\d+ reads them.*measure_step"):
        trace_step(Unsteady, features, loss=mean_square)


def test_even_routing_is_assumed_for_experts():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(WIDTH, 4)
            self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

        def forward(self, x):
            chosen = self.router(x).topk(2, dim=-1).indices
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                rows = (chosen == number).nonzero()[:, 0]
                out = out.index_add(0, rows, expert(x[rows]))
            return out

    trace = trace_step(Experts, features, loss=mean_square)
    routed = 2 * (2 * BATCH) * WIDTH * WIDTH
    assert trace.operations.flops_in("forward", step=1) == routed + 2 * BATCH * WIDTH * 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "bf16-mix"}, "Did you mean 'bf16-mixed'"),
        ({"optimizer": "adamW"}, "Did you mean 'adamw'"),
        ({"recompute": "fully"}, "Did you mean 'full'"),
        ({"mode": "inference"}, "mode must be one of"),
        ({"grad_accumulation": 0}, "at least 1, got 0"),
        ({"loss": None}, "tensor with one element, got a tensor of shape"),
        ({"recompute": "module"}, "gradient_checkpointing_enable"),
        ({"recompute": "full"}, "repeated blocks"),
    ],
)
def test_unusable_settings(settings, message):
    with pytest.raises(InvalidInputError, match=message):
        trace_step(perceptron, features, **{"loss": mean_square, **settings})


def test_unusable_models():
    with pytest.raises(InvalidInputError, match=r"nn\.Module or a factory"):
        trace_step(3, features)
    with pytest.raises(InvalidInputError, match=r"must return a torch\.nn\.Module, got int"):
        trace_step(lambda: 3, features)


def test_inputs_that_do_not_fit_say_what_was_done():
    with pytest.raises(Exception, match=r"reduction dim|shapes") as caught:
        trace_step(perceptron, torch.randn(4, 3), loss=mean_square)
    assert any("tracing a step of Sequential" in note for note in caught.value.__notes__)


def test_low_rank_adapters_train_little():
    peft = pytest.importorskip("peft")

    def adapted():
        config = peft.LoraConfig(r=4, target_modules=["0"])
        return peft.get_peft_model(perceptron(), config)

    trace = trace_step(adapted, features, loss=mean_square)
    assert trace.num_trainable_params == 4 * (WIDTH + HIDDEN)
    measured = measure_step(adapted, features, loss=mean_square)
    assert trace.log.peak_bytes == pytest.approx(measured, rel=1e-3)


def test_decoding_keeps_a_cache_and_matches_a_real_run():
    transformers = pytest.importorskip("transformers")
    layers, batch, length, heads, head = 2, 3, 40, 2, 16

    def factory():
        config = transformers.LlamaConfig(
            vocab_size=200,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=heads,
        )
        return transformers.LlamaForCausalLM(config)

    def prompt():
        return {"input_ids": torch.randint(3, 200, (batch, length))}

    trace = trace_step(factory, prompt, mode="decode")
    assert trace.log.peak_bytes == pytest.approx(measure_step(factory, prompt, mode="decode"), rel=1e-3)
    cache = 2 * layers * batch * heads * length * head * 4
    assert trace.log.bytes_by_category(trace.log.event_at_peak)["buffer"] <= cache + 4096
    prompt_flops, token_flops = (trace.operations.flops_in("evaluate", step=step) for step in (0, 1))
    assert token_flops < prompt_flops / 10
    with pytest.raises(InvalidInputError, match="input_ids"):
        trace_step(perceptron, features, mode="decode")


def test_a_factory_that_wants_a_gpu():
    with pytest.raises(InvalidInputError, match="on the CPU"):
        trace_step(lambda: nn.Linear(WIDTH, WIDTH, device="cuda"), features, loss=mean_square)


def test_a_model_on_the_meta_device():
    with torch.device("meta"):
        model = perceptron()
    on_meta = trace_step(model, features(), loss=mean_square).log.peak_bytes
    assert on_meta == trace_step(perceptron(), features(), loss=mean_square).log.peak_bytes
    assert all(parameter.device.type == "meta" for parameter in model.parameters())


def test_sizes_beyond_int64():
    with pytest.raises(Exception, match="overflow") as caught:
        trace_step(lambda: nn.Linear(2**40, 2**40), features, loss=mean_square)
    assert caught.value.__notes__


def test_large_results_of_small_known_tensors_are_not_computed():
    class Distances(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, 1)

        def forward(self, x):
            positions = torch.arange(1 << 18)
            far = (positions[:, None] - positions[None, :]).abs()  # half a tebibyte, if it were real
            return self.linear(x).sum() + far[0, 0]

    assert trace_step(Distances, features, mode="infer").log.peak_bytes > 1 << 39


def test_gradients_of_assignments_are_copies():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, 4 * WIDTH)

        def forward(self, x):
            y = self.linear(x)
            rows = torch.arange(0, BATCH, 2)
            y = y.masked_fill(torch.ones_like(y, dtype=torch.bool).triu(), 0.0)
            y = y.index_put((rows,), torch.zeros(()))
            return y.scatter(1, torch.zeros(BATCH, 1, dtype=torch.long), 1.0)[rows]

    predicted = trace_step(Masked, features, loss=mean_square).log.peak_bytes
    assert predicted == pytest.approx(measure_step(Masked, features, loss=mean_square), rel=1e-3)
