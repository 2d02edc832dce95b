import copy

import pytest
import torch
from torch import nn

import fastbudget as fb
from fastbudget.evaluation import ActivationCache, FrozenPrefix


def sequential(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 64, 32),
        nn.ReLU(inplace=True),
        nn.Linear(32, 10),
    ).to(dtype)


def freeze(module):
    for parameter in module.parameters():
        parameter.requires_grad_(False)


def train_head(model):
    with torch.no_grad():
        model[-1].weight.add_(torch.randn_like(model[-1].weight) * 0.1)


def batches(count=4, size=32, dtype=torch.float32):
    torch.manual_seed(1)
    return list(torch.randn(count * size - 5, 1, 8, 8).to(dtype).split(size))


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


class Calls:
    """How often a module ran."""

    def __init__(self, module):
        self.count = 0
        forward = type(module).forward

        def counted(*arguments):
            self.count += 1
            return forward(module, *arguments)

        module.forward = counted


def assert_exact(predict, model, data):
    with torch.no_grad():
        for batch in data:
            assert torch.equal(bits(predict(batch)), bits(model(batch)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_results_are_the_models_own_bit_for_bit(dtype, memory_format):
    model = sequential(dtype).to(memory_format=memory_format).eval()
    freeze(model[:6])
    prefix, data = FrozenPrefix(model), [batch.to(memory_format=memory_format) for batch in batches(dtype=dtype)]
    for _ in range(3):
        assert_exact(prefix.predictor(), model, data)
        train_head(model)
    assert prefix.frozen_blocks == tuple("012345")
    assert prefix.cache.hits == 2 * sum(map(len, data))


def test_what_stays_the_same_is_found_by_content_even_if_trainable():
    model = sequential().eval()
    prefix, data = FrozenPrefix(model), batches()
    assert_exact(prefix.predictor(), model, data)
    assert prefix.frozen_blocks == ()
    train_head(model)
    assert_exact(prefix.predictor(), model, data)
    assert prefix.frozen_blocks == tuple("012345")
    train_head(model)
    predict = prefix.predictor()
    convolution = Calls(model[0])
    for batch in data:
        predict(batch)
    assert convolution.count == 0


@pytest.mark.parametrize("change", ["weight", "buffer", "setting"])
def test_a_changed_prefix_is_not_served_from_the_cache(change):
    model = sequential().eval()
    freeze(model[:4])
    prefix, data = FrozenPrefix(model), batches()
    assert_exact(prefix.predictor(), model, data)
    if change == "weight":
        model[0].weight.data.mul_(1.001)  # .data leaves no trace in the version counter
    elif change == "buffer":
        model[1].running_mean.add_(0.1)
    else:
        model[1].eps = 0.1
    assert_exact(prefix.predictor(), model, data)
    assert prefix.cache.hits == 0


def test_a_predictor_outlived_by_its_weights_says_so():
    model = sequential().eval()
    freeze(model[:4])
    predict = FrozenPrefix(model).predictor()
    data = batches()
    predict(data[0])
    with torch.no_grad():
        model[0].weight.mul_(2)
    with pytest.raises(fb.InvalidInputError, match=r"changed since predictor"):
        predict(data[0])


def test_training_mode_is_refused():
    model = sequential()
    with pytest.raises(fb.InvalidInputError, match="eval mode"):
        FrozenPrefix(model).predictor()
    model.eval()
    model[1].train()
    with pytest.raises(fb.InvalidInputError, match="'1' is in training mode"):
        FrozenPrefix(model).predictor()


class AlwaysDrops(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return nn.functional.dropout(self.inner(x), 0.5, training=True)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return self.inner(x)


@pytest.mark.parametrize("block", [AlwaysDrops, Counts])
def test_random_and_stateful_prefixes_are_refused(block):
    model = nn.Sequential(block(), nn.Linear(4, 2)).eval()
    freeze(model[0])
    predict = FrozenPrefix(model).predictor()
    with pytest.raises(fb.InvalidInputError, match="twice"):
        predict(torch.randn(8, 4))


class Named(nn.Module):
    """Blocks that aren't in a Sequential, fed after an embedding that stays outside."""

    def __init__(self, skip=False):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(3))
        self.head = nn.Linear(8, 3)
        self.skip = skip

    def forward(self, tokens, scale):
        first = x = self.embed(tokens)
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index == 0:
                first = x
        x = self.head(x.mean(1)) * scale[:, None]
        return {"logits": x + first.mean((1, 2))[:, None] if self.skip else x}


NAMES = ["layers.0", "layers.1", "layers.2"]


def test_named_blocks_and_inputs_by_keyword():
    model = Named().eval()
    freeze(model.layers[:2])
    prefix = FrozenPrefix(model, blocks=NAMES)
    data = [{"tokens": torch.randint(0, 10, (6, 5)), "scale": torch.rand(6)} for _ in range(3)]
    for _ in range(2):
        predict = prefix.predictor()
        for batch in data:
            with torch.no_grad():
                assert torch.equal(bits(predict(batch)["logits"]), bits(model(**batch)["logits"]))
        with torch.no_grad():
            model.head.weight.mul_(1.1)
            model.layers[2].linear1.weight.mul_(1.1)
    assert prefix.frozen_blocks == ("layers.0", "layers.1")
    assert prefix.cache.hits == 18


def test_plain_values_among_the_inputs_belong_to_the_key():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x, scale=1.0):
            return self.head(self.body(x * scale))

    model = Scaled().eval()
    freeze(model.body)
    predict = FrozenPrefix(model, blocks=["body", "head"]).predictor()
    x = torch.randn(3, 4)
    with torch.no_grad():
        for scale in (1.0, 2.0, 1.0):
            assert torch.equal(predict({"x": x, "scale": scale}), model(x, scale))


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_hugging_face_models(name):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}
    if name == "bert":
        model = transformers.BertForSequenceClassification(transformers.BertConfig(intermediate_size=32, **sizes))
        blocks, head = ["bert.embeddings", "bert.encoder.layer.0", "bert.encoder.layer.1"], model.classifier
    elif name == "gpt2":
        config = transformers.GPT2Config(
            n_embd=16, n_layer=2, n_head=2, vocab_size=50, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0
        )
        model = transformers.GPT2LMHeadModel(config)
        blocks, head = ["transformer.h.0", "transformer.h.1"], model.lm_head
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(intermediate_size=32, **sizes))
        blocks, head = ["model.layers.0", "model.layers.1"], model.lm_head
    model.eval()
    for block in blocks:
        freeze(model.get_submodule(block))
    prefix = FrozenPrefix(model, blocks=blocks)
    batch = {"input_ids": torch.randint(0, 50, (4, 6))} | ({} if name == "bert" else {"use_cache": False})
    for _ in range(2):
        predict = prefix.predictor()
        with torch.no_grad():
            assert torch.equal(bits(predict(batch).logits), bits(model(**batch).logits))
            head.weight.mul_(1.1)
    assert prefix.cache.hits == 4


def test_fb_evaluate_takes_the_predictor():
    model = sequential().eval()
    freeze(model[:6])
    prefix, images = FrozenPrefix(model), torch.cat(batches())
    data = list(zip(images, torch.randint(0, 10, (len(images),)), strict=True))
    for _ in range(2):
        found, expected = (fb.evaluate(predict, data) for predict in (prefix.predictor(), model))
        assert found["accuracy"] == expected["accuracy"]
        train_head(model)
    assert prefix.cache.hits == len(images)


def test_blocks_that_are_used_elsewhere_too_are_refused():
    model = Named(skip=True).eval()
    freeze(model.layers)
    predict = FrozenPrefix(model, blocks=NAMES).predictor()
    with pytest.raises(fb.InvalidInputError, match="aren't a chain"):
        predict({"tokens": torch.randint(0, 10, (6, 5)), "scale": torch.rand(6)})


def test_other_batches_miss_by_default_and_hit_by_example():
    model = sequential().eval()
    freeze(model[:4])
    whole = torch.cat(batches())
    for match, hits in (("batch", 0), ("example", len(whole))):
        prefix = FrozenPrefix(model, match=match)
        predict = prefix.predictor()
        predict(whole)
        shuffled = whole[torch.randperm(len(whole))]
        with torch.no_grad():
            torch.testing.assert_close(predict(shuffled), model(shuffled))
        assert prefix.cache.hits == hits


def test_memory_mapped_files_hold_the_same_and_are_removed(tmp_path):
    model = sequential().eval()
    freeze(model[:4])
    cache = ActivationCache(directory=tmp_path)
    prefix, data = FrozenPrefix(model, cache=cache), batches(count=60)
    for _ in range(2):
        assert_exact(prefix.predictor(), model, data)
    assert cache.hits == sum(map(len, data))
    assert list(tmp_path.iterdir()) == []  # it has no name: gone even after a crash


def test_the_limit_holds_and_the_rest_is_computed():
    model = sequential().eval()
    freeze(model[:4])
    row = 8 * 64 * 4
    cache = ActivationCache(max_bytes=70 * row + 5)
    prefix, data = FrozenPrefix(model, cache=cache), batches()
    for _ in range(2):
        assert_exact(prefix.predictor(), model, data)
    assert len(cache) == 64
    assert cache.bytes_used <= cache.max_bytes
    assert cache.left_out > 0
    assert cache.hits == 64


def test_what_cannot_be_a_chain_is_named():
    with pytest.raises(fb.InvalidInputError, match=r"no nn\.Sequential"):
        FrozenPrefix(Named())
    with pytest.raises(fb.InvalidInputError, match=r"Did you mean 'layers\.0'"):
        FrozenPrefix(Named(), blocks=["layer.0"])
    model = copy.deepcopy(sequential()).eval()
    freeze(model)
    with pytest.raises(fb.InvalidInputError, match="batch as first"):
        FrozenPrefix(model).predictor()(torch.tensor(1.0))
