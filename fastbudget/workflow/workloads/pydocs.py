"""Python's documentation as bytes, and a small GPT."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

CONTEXT = 128
BATCH = 24
_VOCABULARY = 256
_LONG_TOPIC = 12_000


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [B, T, width]."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads).unbind(2)
        attended = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        x = x + self.project(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_2(x))


class ByteGPT(nn.Module):
    """Next-byte logits for bytes [B, T] with T <= 128; the output layer shares the embedding's weights."""

    def __init__(self, width: int = 144, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                scale = 0.02 / math.sqrt(2 * layers) if name.endswith(("project.weight", "mlp.2.weight")) else 0.02
                nn.init.normal_(parameter, std=scale)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: int64 [B, T]; returns [B, T, 256]."""
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embedding.weight)


def build_model() -> nn.Module:
    """Return a GPT of about a million parameters."""
    return ByteGPT()


class RandomWindows:
    """Endless in effect: each epoch yields as many batches of random windows as would cover the text once."""

    def __init__(self, text: np.ndarray[Any, Any]) -> None:
        self.text = torch.from_numpy(text.astype(np.int64))

    def __len__(self) -> int:
        return len(self.text) // (BATCH * CONTEXT)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        # One draw when the epoch starts, so that a given seed fixes the epoch whatever is drawn in between.
        starts = torch.randint(0, len(self.text) - CONTEXT, (len(self), BATCH))
        span = torch.arange(CONTEXT + 1)
        for row in starts:
            windows = self.text[row[:, None] + span]
            yield windows[:, :-1], windows[:, 1:]


def _blocks(documents: list[bytes]) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], np.ndarray[Any, Any]]:
    """Cut documents into blocks one after the other; what doesn't fill a block is padded and not scored (-100)."""
    inputs, targets, owners = [], [], []
    for owner, document in enumerate(documents):
        text = np.frombuffer(document, np.uint8).astype(np.int64)
        for start in range(0, len(text) - 1, CONTEXT):
            piece = text[start : start + CONTEXT + 1]
            size = len(piece) - 1
            inputs.append(np.pad(piece[:-1], (0, CONTEXT - size)))
            targets.append(np.pad(piece[1:], (0, CONTEXT - size), constant_values=-100))
            owners.append(owner)
    x, y = torch.from_numpy(np.stack(inputs)), torch.from_numpy(np.stack(targets))
    batches = [(x[i : i + 32], y[i : i + 32]) for i in range(0, len(x), 32)]
    return batches, np.array(owners, np.int64)


def _share(name: str) -> float:
    """Place a topic in [0, 1) by its name's hash, so that a topic never changes its split."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") / 2**32


def build_data() -> dict[str, Any]:
    """Return loaders over whole topics: about 6% of the text validates, 10% tests, the rest trains.

    The few long topics always train: one of them held out would be a third of the text.
    """
    splits: dict[str, list[bytes]] = {"train": [], "validation": [], "test": []}
    for name, text in sorted(topics.items()):
        share = _share(name)
        split = "validation" if share < 0.1 else "test" if share < 0.35 else "train"
        if len(text) > _LONG_TOPIC:
            split = "train"
        splits[split].append(text.encode())
    validation, _ = _blocks(splits["validation"])
    test, test_groups = _blocks(splits["test"])
    return {
        "train": RandomWindows(np.frombuffer(b"\n\n".join(splits["train"]), np.uint8)),
        "validation": validation,
        "test": test,
        "test_groups": test_groups,
    }
