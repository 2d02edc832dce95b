"""Models whose step time is measured: each name gives a factory, one micro-batch and a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One measured step.

    Attributes:
        name: the model and its batch.
        build: the model.
        inputs: one micro-batch.
        loss: None where the model has its own.
        mode: ``"train"`` or ``"infer"``.
        optimizer: its name.
        precision: as in ``fb.estimate``.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    loss: Callable[[Any, Any], torch.Tensor] | None = None
    mode: str = "train"
    optimizer: str = "adamw"
    precision: str = "fp32"


def squared(outputs, inputs):
    return outputs.float().pow(2).mean()


def first_class(outputs, inputs):
    return F.cross_entropy(outputs.float(), torch.zeros(len(outputs), dtype=torch.long))


def mlp(*widths):
    layers = [layer for i, o in pairwise(widths) for layer in (nn.Linear(i, o), nn.GELU())]
    return nn.Sequential(*layers[:-1])


class ResidualBlock(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        same = stride == 1 and channels == out
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet(widths, depth):
    layers = [nn.Conv2d(3, widths[0], 7, 2, 3, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = widths[0]
    for stage, width in enumerate(widths):
        for index in range(depth):
            layers.append(ResidualBlock(channels, width, 2 if stage and not index else 1))
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def vgg():
    def stage(i, o):
        return [nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*stage(3, 64), *stage(64, 128), *stage(128, 256), nn.Flatten(), nn.Linear(256 * 16, 10))


def mobilenet():
    def block(i, o, stride):
        return [
            nn.Conv2d(i, i, 3, stride, 1, groups=i, bias=False), nn.BatchNorm2d(i), nn.ReLU6(),
            nn.Conv2d(i, o, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU6(),
        ]  # fmt: skip

    stem = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
    body = [*block(32, 64, 1), *block(64, 128, 2), *block(128, 128, 1), *block(128, 256, 2), *block(256, 256, 1)]
    return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


class Recurrent(nn.Module):
    def __init__(self, vocabulary, width, layers):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0])


def next_token(outputs, tokens):
    return F.cross_entropy(outputs.float().flatten(0, 1), tokens.flatten())


class Recommender(nn.Module):
    """Large embedding tables, looked up a few rows at a time, and a small network above."""

    def __init__(self, rows, tables, width):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.network = mlp(tables * width, 256, 64, 1)

    def forward(self, ids):
        found = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        return self.network(torch.cat(found, dim=1))


class NanoGpt(nn.Module):
    """A transformer written by hand, with the encoder layers of PyTorch."""

    def __init__(self, vocabulary, width, layers, heads):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)))


def hugging_face(kind, **sizes):
    def build():
        import transformers

        transformers.logging.set_verbosity_error()
        config = getattr(transformers, f"{kind}Config")(**sizes)
        return getattr(transformers, _HEADS[kind])(config)

    return build


_HEADS = {
    "GPT2": "GPT2LMHeadModel",
    "Llama": "LlamaForCausalLM",
    "Bert": "BertForMaskedLM",
    "ViT": "ViTForImageClassification",
    "T5": "T5ForConditionalGeneration",
}


def tokens(vocabulary, batch, length, *, labels=True):
    def make():
        ids = torch.randint(0, vocabulary, (batch, length))
        return {"input_ids": ids, "labels": ids} if labels else ids

    return make


def images(batch, size, *, keyword=None):
    def make():
        pixels = torch.randn(batch, 3, size, size)
        return {keyword: pixels, "labels": torch.zeros(batch, dtype=torch.long)} if keyword else pixels

    return make


GPT2 = hugging_face("GPT2", vocab_size=2048, n_embd=256, n_layer=4, n_head=4, n_positions=256)
GPT2_TINY = hugging_face("GPT2", vocab_size=512, n_embd=64, n_layer=2, n_head=2, n_positions=128)
LLAMA = hugging_face(
    "Llama", vocab_size=2048, hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=8,
    num_key_value_heads=4, max_position_embeddings=512, use_cache=False,
)  # fmt: skip
BERT = hugging_face(
    "Bert", vocab_size=4096, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
)
VIT = hugging_face(
    "ViT", image_size=64, patch_size=8, hidden_size=192, num_hidden_layers=6, num_attention_heads=3,
    intermediate_size=768,
)  # fmt: skip
T5 = hugging_face(
    "T5", vocab_size=2048, d_model=256, d_kv=32, d_ff=512, num_layers=3, num_heads=8, decoder_start_token_id=0
)


def workloads() -> list[Workload]:
    """Return every measured step."""
    made = []

    def add(name, build, inputs, loss=None, **more):
        made.append(Workload(name=name, build=build, inputs=inputs, loss=loss, **more))

    for batch in (16, 512):
        add(
            f"mlp 256-1024-1024-10, {batch}",
            lambda: mlp(256, 1024, 1024, 10),
            lambda b=batch: torch.randn(b, 256),
            first_class,
        )
    add("mlp 64-64-64-10, 32", lambda: mlp(64, 64, 64, 10), lambda: torch.randn(32, 64), first_class, optimizer="sgd")
    add("mlp 2048x6, 128", lambda: mlp(*[2048] * 7), lambda: torch.randn(128, 2048), squared, optimizer="sgd-momentum")
    add("mlp 1024x4, 1024, infer", lambda: mlp(*[1024] * 5), lambda: torch.randn(1024, 1024), mode="infer")
    for batch in (4, 32):
        add(
            f"resnet 32-256, {batch}x64px",
            lambda: resnet((32, 64, 128, 256), 2),
            images(batch, 64),
            first_class,
            optimizer="sgd-momentum",
        )
    add("resnet 64-256, 8x96px, infer", lambda: resnet((64, 128, 256), 2), images(8, 96), mode="infer")
    add("vgg, 32x32px", vgg, images(32, 32), first_class)
    add("mobilenet, 16x64px", mobilenet, images(16, 64), first_class)
    add("gpt2 2x64, 2x32", GPT2_TINY, tokens(512, 2, 32))
    add("gpt2 4x256, 4x128", GPT2, tokens(2048, 4, 128))
    add("gpt2 4x256, 8x256, infer", GPT2, tokens(2048, 8, 256), mode="infer")
    add("llama 4x256, 4x256", LLAMA, tokens(2048, 4, 256))
    add("llama 4x256, 1x64", LLAMA, tokens(2048, 1, 64))
    add("llama 4x256, 1x512, infer", LLAMA, tokens(2048, 1, 512), mode="infer")
    add("llama 4x256, 4x256, bf16-mixed", LLAMA, tokens(2048, 4, 256), precision="bf16-mixed")
    add("bert 4x256, 8x128", BERT, tokens(4096, 8, 128))
    add("bert 4x256, 1x128, infer", BERT, tokens(4096, 1, 128), mode="infer")
    add("vit 6x192, 16x64px", VIT, images(16, 64, keyword="pixel_values"))
    add("vit 6x192, 32x64px, infer", VIT, images(32, 64, keyword="pixel_values"), mode="infer")
    add("t5 3x256, 4x128", T5, tokens(2048, 4, 128))
    add("encoder 4x256, 8x128", lambda: NanoGpt(1024, 256, 4, 4), tokens(1024, 8, 128, labels=False), next_token)
    for batch in (4, 64):
        add(
            f"lstm 2x256, {batch}x64",
            lambda: Recurrent(1024, 256, 2),
            tokens(1024, batch, 64, labels=False),
            next_token,
        )
    add("lstm 2x256, 16x64, infer", lambda: Recurrent(1024, 256, 2), tokens(1024, 16, 64, labels=False), mode="infer")
    add(
        "embeddings 8x100k, 256",
        lambda: Recommender(100_000, 8, 32),
        lambda: torch.randint(0, 100_000, (256, 8)),
        squared,
        optimizer="sgd",
    )
    add(
        "embeddings 8x20k, 1024",
        lambda: Recommender(20_000, 8, 32),
        lambda: torch.randint(0, 20_000, (1024, 8)),
        squared,
    )
    return made
