"""Trace a step of a model on fake tensors: every operation runs, nothing is allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map_only

from ...core.errors import InvalidInputError, did_you_mean, one_of
from .cuda_semantics import CudaSemantics
from .decoding_step import run_decoding
from .fake_world import fake_world
from .kernel_memory import CpuKernelMemory, NoKernelMemory
from .layer_recompute import recomputed_layers
from .module_paths import ModulePaths
from .step_recorder import StepRecorder
from .traced_optimizers import make_optimizer
from .training_step import (
    GradientScaler,
    Inputs,
    Loss,
    autocast,
    call_model,
    check_precision,
    inputs_in,
    run_micro_batch,
    run_training_step,
)

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from .allocation_log import AllocationLog
    from .operation_table import OperationTable

ModelOrFactory = nn.Module | Callable[[], nn.Module]
OptimizerChoice = str | Callable[[Iterable[nn.Parameter]], "Optimizer"]

RECOMPUTE = ("none", "module", "full")
MODES = ("train", "infer", "decode", "gradients")
_WITHOUT_GRADIENTS = ("infer", "decode")
KERNELS = ("cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What a traced run did.

    Attributes:
        log: allocations and frees of building the model and of the steps: the first training step, where the
            optimizer states appear, and a steady one.
        operations: one row for each operation.
        num_params: parameters, tied ones once.
        num_trainable_params: those that require gradients.
    """

    log: AllocationLog
    operations: OperationTable
    num_params: int
    num_trainable_params: int


def trace_step(
    model: ModelOrFactory,
    inputs: Inputs | Callable[[], Inputs],
    *,
    optimizer: OptimizerChoice = "adamw",
    precision: str = "fp32",
    grad_accumulation: int = 1,
    recompute: str | Sequence[str] = "none",
    mode: str = "train",
    loss: Loss | None = None,
    kernels: str = "cpu",
) -> Trace:
    """Run a training or inference step of the model on fake tensors and record it.

    Args:
        model: a module, which is left as it was, or a factory, which is called on fake tensors.
        inputs: a mapping (keywords), a tuple (positions) or a tensor (the one argument) for a micro-batch, or
            a callable that returns one; it is called on fake tensors.
        optimizer: a name or a callable ``parameters -> Optimizer``.
        precision: ``"fp32"``, ``"bf16-mixed"``, ``"fp16-mixed"`` (with gradient scaling) or ``"bf16"``.
        grad_accumulation: micro-batches per optimizer step.
        recompute: ``"none"`` leaves the model as it is, ``"module"`` calls its
            ``gradient_checkpointing_enable``, ``"full"`` recomputes each of its repeated blocks; a list of
            names recomputes those submodules, or those of a class of that name.
        mode: ``"train"``; ``"infer"`` (evaluation mode, no gradients); ``"decode"`` (a prompt, then the token
            after it with a key-value cache); ``"gradients"`` (forward and backward of one micro-batch, no
            optimizer).
        loss: ``loss(outputs, inputs) -> scalar``; None uses the model's own.
        kernels: ``"cpu"``: those of this machine's CPU, with what they take for themselves. ``"cuda"``: those
            of an NVIDIA GPU; what cuBLAS and cuDNN take for themselves is not in the log.

    Raises:
        InvalidInputError: an argument is not usable, or the model's control flow depends on tensor contents.
    """
    check_precision(precision)
    if isinstance(recompute, str):
        _check_choice("recompute", recompute, RECOMPUTE)
    _check_choice("mode", mode, MODES)
    _check_choice("kernels", kernels, KERNELS)
    if isinstance(grad_accumulation, bool) or not isinstance(grad_accumulation, int) or grad_accumulation < 1:
        raise InvalidInputError(f"grad_accumulation must be a whole number of at least 1, got {grad_accumulation!r}.")
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    paths = ModulePaths()
    kernel_memory = CpuKernelMemory() if kernels == "cpu" else NoKernelMemory()
    device: AbstractContextManager[Any] = nullcontext() if kernels == "cpu" else CudaSemantics()
    recorder = StepRecorder(fake_mode, paths, kernel_memory)
    with ExitStack() as stack:
        surroundings = fake_world(recorder.known, record_random_state=kernels == "cpu")
        for context in (torch.random.fork_rng(devices=[]), surroundings, fake_mode, paths, recorder, device):
            stack.enter_context(context)
        module = stack.enter_context(_on_fake_tensors(model, precision, fake_mode, recorder))
        stack.enter_context(_kept_modes(module))
        paths.register(module)
        module.train(mode not in _WITHOUT_GRADIENTS)
        parameters = list(module.parameters())
        owners = paths.owners(module)
        for held, owner in owners.items():
            recorder.storages.label(held, "parameter", owner)
        counts = (sum(p.numel() for p in parameters), sum(p.numel() for p in parameters if p.requires_grad))
        batch = _fake_inputs(inputs, precision, fake_mode, recorder)
        if mode not in _WITHOUT_GRADIENTS:
            stack.enter_context(recomputing(module, recompute))
        if mode in _WITHOUT_GRADIENTS:
            recorder.enter_phase("evaluate")
            with torch.no_grad(), autocast(precision), _explained(module):
                if mode == "infer":
                    call_model(module, batch)
                else:
                    run_decoding(module, batch, prompt_done=partial(_begin_decoding, recorder))
        elif mode == "gradients":
            with _explained(module):
                run_micro_batch(
                    module,
                    batch,
                    loss,
                    precision=precision,
                    grad_accumulation=1,
                    enter_phase=recorder.enter_phase,
                )
        else:
            if not counts[1]:
                raise InvalidInputError(
                    "The model has no trainable parameter, so there is no training step to trace; unfreeze some, or "
                    "use mode='infer'."
                )
            # PyTorch's own default: all tensors together on GPUs, one after the other on CPUs.
            foreach = None if kernels == "cpu" else True
            _train(module, batch, optimizer, loss, precision, grad_accumulation, foreach, recorder, owners)
        storages = recorder.storages
        # What dies with the trace's own variables is not part of the step.
        storages.stop()
    return Trace(
        log=storages.finish(paths.names, kernel_memory.workspace_bytes()),
        operations=recorder.operations(),
        num_params=counts[0],
        num_trainable_params=counts[1],
    )


def _begin_decoding(recorder: StepRecorder, cache: Any) -> None:
    """Count what follows to the steady step; the cache is state that stays."""
    recorder.step = 1
    for layer in getattr(cache, "layers", cache):
        parts = layer if isinstance(layer, (tuple, list)) else vars(layer).values()
        for part in parts:
            if isinstance(part, torch.Tensor):
                recorder.storages.label(part, "buffer")


def _train(
    module: nn.Module,
    batch: Inputs,
    optimizer: OptimizerChoice,
    loss: Loss | None,
    precision: str,
    grad_accumulation: int,
    foreach: bool | None,
    recorder: StepRecorder,
    owners: Mapping[torch.Tensor, int],
) -> None:
    parameters = list(module.parameters())
    update = make_optimizer(optimizer, parameters, foreach=foreach)
    scaler = GradientScaler() if precision == "fp16-mixed" else None

    def enter_phase(phase: str) -> None:
        if phase in ("forward", "optimizer"):
            for parameter in parameters:
                if parameter.grad is not None:
                    recorder.storages.label(parameter.grad, "gradient", owners.get(parameter))
        if phase == "zero_grad":
            for held, state in update.state.items():
                for value in tree_leaves(state):
                    if isinstance(value, torch.Tensor):
                        recorder.storages.label(value, "optimizer_state", owners.get(held))
        recorder.enter_phase(phase)

    for step in (0, 1):
        recorder.step = step
        with _explained(module):
            run_training_step(
                module,
                [batch] * grad_accumulation,
                update,
                loss,
                precision=precision,
                scaler=scaler,
                enter_phase=enter_phase,
            )


@contextmanager
def _on_fake_tensors(
    model: ModelOrFactory, precision: str, fake_mode: FakeTensorMode, recorder: StepRecorder
) -> Iterator[nn.Module]:
    """Build the factory's model on fake tensors, or lend the module fake ones while inside."""
    if isinstance(model, nn.Module):
        with _lent_fake_tensors(model, precision, fake_mode) as module:
            _observe_model(module, recorder)
            yield module
        return
    if not callable(model):
        raise InvalidInputError(
            f"model must be a torch.nn.Module or a factory that returns one, got {type(model).__name__}."
        )
    with _factory_explained():
        module = model()
    if not isinstance(module, nn.Module):
        raise InvalidInputError(f"the model factory must return a torch.nn.Module, got {type(module).__name__}.")
    if precision == "bf16":
        module.to(torch.bfloat16)
    _observe_model(module, recorder)
    yield module


def _observe_model(module: nn.Module, recorder: StepRecorder) -> None:
    for buffer in module.buffers():
        recorder.observe_existing(buffer, "buffer")
    for parameter in module.parameters():
        recorder.observe_existing(parameter, "parameter")


def _fake_on_cpu(tensor: torch.Tensor, fake_mode: FakeTensorMode) -> torch.Tensor:
    """Return a fake CPU tensor like this one, which may be on any device."""
    if tensor.device.type == "cpu":
        return fake_mode.from_tensor(tensor)
    fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return fake.requires_grad_(tensor.requires_grad)


@contextmanager
def _factory_explained() -> Iterator[None]:
    """Say what a model factory must do when it fails on fake CPU tensors."""
    try:
        yield
    except InvalidInputError:
        raise
    except Exception as error:
        if any(word in str(error) for word in ("CUDA", "NVIDIA", "cuda")):
            raise InvalidInputError(
                f"the model factory must build on the CPU, where it is traced, but it needs a GPU: {error} "
                "Leave out devices in the factory; hardware= decides which kernels are assumed."
            ) from error
        error.add_note("fastbudget was calling the model factory on fake tensors, which have no contents.")
        raise


@contextmanager
def _lent_fake_tensors(module: nn.Module, precision: str, fake_mode: FakeTensorMode) -> Iterator[nn.Module]:
    originals = [(owner, dict(owner._parameters), dict(owner._buffers)) for owner in module.modules()]
    fakes: dict[int, Any] = {}

    def fake_of(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in fakes:
            with no_dispatch():
                plain = tensor.detach()
            plain = _fake_on_cpu(plain, fake_mode)
            if precision == "bf16" and plain.is_floating_point():
                plain = plain.to(torch.bfloat16)
            fakes[id(tensor)] = (
                nn.Parameter(plain, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else plain
            )
        return fakes[id(tensor)]

    try:
        for owner, parameters, buffers in originals:
            for table, tensors in ((owner._parameters, parameters), (owner._buffers, buffers)):
                for name, tensor in tensors.items():
                    if tensor is not None:
                        table[name] = fake_of(tensor)  # type: ignore[assignment]
        yield module
    finally:
        for owner, parameters, buffers in originals:
            owner._parameters.update(parameters)
            owner._buffers.update(buffers)


@contextmanager
def _kept_modes(module: nn.Module) -> Iterator[None]:
    """Put every submodule's training flag back afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def recomputing(module: nn.Module, recompute: str | Sequence[str]) -> AbstractContextManager[Any]:
    """Return the context in which a model recomputes what was asked for."""
    if not isinstance(recompute, str):
        return recomputed_layers(module, recompute)
    if recompute == "module":
        return _module_checkpointing(module)
    return recomputed_layers(module) if recompute == "full" else nullcontext()


@contextmanager
def _module_checkpointing(module: nn.Module) -> Iterator[None]:
    """Turn on the recompute that a ``transformers`` model brings along, while inside."""
    enable = getattr(module, "gradient_checkpointing_enable", None)
    if enable is None:
        raise InvalidInputError(
            "recompute='module' requires a model with gradient_checkpointing_enable(), and "
            f"{type(module).__name__} has none. Use recompute='full' to recompute each repeated block."
        )
    enable()
    try:
        yield
    finally:
        module.gradient_checkpointing_disable()  # type: ignore[operator]


def _fake_inputs(
    inputs: Inputs | Callable[[], Inputs], precision: str, fake_mode: FakeTensorMode, recorder: StepRecorder
) -> Inputs:
    given = inputs() if callable(inputs) and not isinstance(inputs, (torch.Tensor, Mapping)) else inputs

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        fake = tensor
        if not isinstance(tensor, torch._subclasses.fake_tensor.FakeTensor):
            fake = _fake_on_cpu(tensor, fake_mode)
            if not tensor.is_floating_point():
                recorder.known.remember_copy(fake, tensor)
        return fake

    batch = inputs_in(precision, tree_map_only(torch.Tensor, convert, given))
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor):
            recorder.observe_existing(leaf, "input")
    return batch


@contextmanager
def _explained(module: nn.Module) -> Iterator[None]:
    """Add to the model's own errors what was being done."""
    try:
        yield
    except InvalidInputError:
        raise
    except Exception as error:
        error.add_note(
            f"fastbudget was tracing a step of {type(module).__name__} with the inputs given to it; "
            "if the model runs for real with these inputs, measure a real run instead of estimating."
        )
        raise


def _check_choice(parameter: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise InvalidInputError(
            f"{parameter} must be one of {one_of(allowed)}, got {given!r}.{did_you_mean(str(given), allowed)}"
        )
