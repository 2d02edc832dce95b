"""How a transformer is trained: batch, parallelism, precision, optimizer, what is recomputed and offloaded."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.errors import InvalidInputError, did_you_mean, one_of
from .transformer_shape import TransformerShape

SHARDINGS = ("none", "zero1", "zero2", "zero3")
RECOMPUTES = ("none", "selective", "full")
PRECISIONS = ("fp32", "tf32", "bf16-mixed", "fp16-mixed", "fp8-mixed", "fp4-mixed", "bf16", "fp16")
OPTIMIZERS = ("adamw", "adamw-8bit", "sgd", "sgd-momentum", "adafactor", "lion", "muon")
OFFLOADS = ("none", "optimizer", "all")
FRAMEWORKS = ("pytorch", "deepspeed", "megatron")
ATTENTIONS = ("flash", "eager")
LOSSES = ("eager", "shifted", "fused", "chunked")
OPTIMIZER_KERNELS = ("foreach", "foreach-2.0", "for-loop", "fused")
MODES = ("train", "infer", "decode")
LORA_TARGETS = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True, kw_only=True)
class TrainingLayout:
    """One way to train a transformer. Checked on construction; against a shape by :meth:`check`.

    Attributes:
        seq_len: tokens of a sequence.
        global_batch_size: sequences of an optimizer step.
        micro_batch_size: sequences of one forward pass on one data-parallel rank.
        num_devices: all devices; what the other sizes leave is data parallelism.
        tensor_parallel: devices that share each layer.
        pipeline_parallel: stages.
        virtual_pipeline: chunks of layers a stage holds (interleaved 1F1B).
        context_parallel: devices that share a sequence.
        expert_parallel: data-parallel ranks that share the experts.
        sharding: ``"zero1"`` shards optimizer states over data-parallel ranks, ``"zero2"`` gradients too,
            ``"zero3"`` parameters too (fully sharded data parallel).
        recompute: ``"full"`` keeps a layer's input only; ``"selective"`` every second matrix product and the
            attention's output (torchtitan's policy), with eager attention all but its scores (Korthikanti et al.).
        precision: ``"bf16"`` and ``"fp16"`` hold everything in 16 bits, the mixed ones train float32 weights;
            ``"fp8-mixed"`` and ``"fp4-mixed"`` (MXFP8, NVFP4) multiply matrices in 8 or 4 bits; ``"tf32"`` keeps
            float32 and multiplies in TF32.
        optimizer: one of ``OPTIMIZERS``.
        offload: ``"optimizer"`` keeps optimizer states on the CPU, ``"all"`` parameters and gradients too.
        framework: whose habits decide where float32 copies and buffers are.
        attention: ``"flash"`` saves no scores; ``"eager"`` does.
        loss: ``"eager"`` makes float32 copies of the logits; ``"shifted"`` keeps those too and copies them once
            more (transformers before 4.47); ``"fused"`` makes none (a compiled loss); ``"chunked"`` never has
            all logits (Liger, cut cross-entropy).
        keeps_outputs: the loop holds the model's outputs, and so the logits, during the backward pass; trainers
            let them go.
        compiled: ``torch.compile`` fuses norms and activation functions, which then save less.
        sequence_parallel: tensor parallelism also divides norms and residuals.
        lora_rank: rank of the adapters; None: all parameters are trained.
        lora_targets: the projections that have adapters.
        trains_embeddings: embedding and head are trained in full beside the adapters.
        quantized_base: the frozen matrices are stored in 4 bits (QLoRA).
        optimizer_kernels: of AdamW in PyTorch: ``"foreach"``, its default, holds one temporary of all trained
            parameters' size, ``"foreach-2.0"`` (of torch 2.0) two, ``"for-loop"`` one of the largest tensor's
            size, ``"fused"`` none.
        empties_cache: the allocator's cache is emptied every step (``torch_empty_cache_steps``).
        mode: ``"train"``; ``"infer"`` is a forward pass, ``"decode"`` one token with a KV cache of ``seq_len``.
    """

    seq_len: int
    global_batch_size: int
    micro_batch_size: int = 1
    num_devices: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    virtual_pipeline: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1
    sharding: str = "none"
    recompute: str = "none"
    precision: str = "bf16-mixed"
    optimizer: str = "adamw"
    offload: str = "none"
    framework: str = "pytorch"
    attention: str = "flash"
    loss: str = "eager"
    keeps_outputs: bool = False
    compiled: bool = False
    sequence_parallel: bool = True
    lora_rank: int | None = None
    lora_targets: tuple[str, ...] = ("q", "v")
    trains_embeddings: bool = False
    quantized_base: bool = False
    optimizer_kernels: str = "foreach"
    empties_cache: bool = False
    mode: str = "train"

    def __post_init__(self) -> None:
        for name in (
            "seq_len",
            "global_batch_size",
            "micro_batch_size",
            "num_devices",
            "tensor_parallel",
            "pipeline_parallel",
            "virtual_pipeline",
            "context_parallel",
            "expert_parallel",
        ):
            _check_size(name, getattr(self, name))
        if self.lora_rank is not None:
            _check_size("lora_rank", self.lora_rank)
        for name, allowed in (
            ("sharding", SHARDINGS),
            ("recompute", RECOMPUTES),
            ("precision", PRECISIONS),
            ("optimizer", OPTIMIZERS),
            ("offload", OFFLOADS),
            ("framework", FRAMEWORKS),
            ("attention", ATTENTIONS),
            ("loss", LOSSES),
            ("optimizer_kernels", OPTIMIZER_KERNELS),
            ("mode", MODES),
        ):
            _check_choice(name, getattr(self, name), allowed)
        for target in self.lora_targets:
            _check_choice("lora_targets", target, LORA_TARGETS)
        if self.trains_embeddings and self.lora_rank is None:
            raise InvalidInputError("trains_embeddings needs lora_rank: without adapters everything is trained.")
        if self.quantized_base and self.lora_rank is None:
            raise InvalidInputError("quantized_base needs lora_rank: 4-bit weights can't be trained themselves.")
        self._check_devices()

    def _check_devices(self) -> None:
        shared = self.tensor_parallel * self.pipeline_parallel * self.context_parallel
        if self.num_devices % shared:
            raise InvalidInputError(
                f"num_devices ({self.num_devices}) must be a multiple of tensor_parallel x pipeline_parallel x "
                f"context_parallel = {shared}."
            )
        if (self.data_parallel * self.context_parallel * self.tensor_parallel) % self.expert_parallel:
            raise InvalidInputError(
                f"expert_parallel ({self.expert_parallel}) must divide the "
                f"{self.num_devices // self.pipeline_parallel} devices of a pipeline stage."
            )
        per_pass = self.micro_batch_size * self.data_parallel
        if self.global_batch_size % per_pass:
            raise InvalidInputError(
                f"global_batch_size ({self.global_batch_size}) must be a multiple of micro_batch_size x data parallel "
                f"ranks = {self.micro_batch_size} x {self.data_parallel} = {per_pass}."
            )
        if self.seq_len % self.context_parallel:
            raise InvalidInputError(
                f"seq_len ({self.seq_len}) must be a multiple of context_parallel ({self.context_parallel})."
            )

    def check(self, shape: TransformerShape) -> None:
        """Check that the layout can divide a model.

        Raises:
            InvalidInputError: it can't; the message says what doesn't divide what.
        """
        tensor = self.tensor_parallel
        for block in shape.all_blocks:
            if block.attention.heads % tensor:
                raise InvalidInputError(
                    f"tensor_parallel ({tensor}) must divide the {block.attention.heads} attention heads."
                )
            if block.mlp.experts % self.expert_parallel:
                raise InvalidInputError(
                    f"expert_parallel ({self.expert_parallel}) must divide the {block.mlp.experts} experts."
                )
        chunks = self.pipeline_parallel * self.virtual_pipeline
        if chunks > shape.layers:
            raise InvalidInputError(
                f"pipeline_parallel x virtual_pipeline ({chunks}) must not exceed the {shape.layers} layers."
            )
        if self.expert_parallel > 1 and not any(block.mlp.experts for block in shape.all_blocks):
            raise InvalidInputError("expert_parallel is above 1, but the model has no experts.")
        if shape.max_positions is not None and self.seq_len > shape.max_positions:
            raise InvalidInputError(
                f"seq_len ({self.seq_len}) exceeds the {shape.max_positions} positions the model has learned."
            )

    @property
    def data_parallel(self) -> int:
        """Ranks that see different sequences."""
        return self.num_devices // (self.tensor_parallel * self.pipeline_parallel * self.context_parallel)

    @property
    def shard_ranks(self) -> int:
        """Ranks that ZeRO shards over: ranks of a context group hold the same parameters."""
        return self.data_parallel * self.context_parallel

    @property
    def micro_batches(self) -> int:
        """Forward passes of an optimizer step on one rank."""
        return self.global_batch_size // (self.micro_batch_size * self.data_parallel)

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens of one forward pass on one rank."""
        return self.micro_batch_size * self.seq_len // self.context_parallel

    @property
    def compute_bytes(self) -> int:
        """Bytes of an activation."""
        return 4 if self.precision in ("fp32", "tf32") else 2

    @property
    def trains_all(self) -> bool:
        """All parameters are trained, not adapters."""
        return self.lora_rank is None


def _check_size(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**63:
        raise InvalidInputError(f"{name} must be an integer in [1, 2**63), got {value!r}.")


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidInputError(
            f"Unknown {name} {value!r}.{did_you_mean(str(value), allowed)} Known: {one_of(allowed)}."
        )
