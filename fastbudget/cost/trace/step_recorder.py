"""The dispatch mode that sees every operation of a traced step."""

from __future__ import annotations

from array import array
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from .allocation_log import PHASES
from .fake_kernels import run_fake_kernel
from .known_values import KnownValues
from .module_paths import ModulePaths
from .operation_cost import operation_bytes, operation_flops, product_shape
from .operation_table import OperationTable
from .storage_recorder import StorageRecorder
from .trace_errors import contents_needed, device_not_traced, shape_function_needed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch._subclasses.fake_tensor import FakeTensorMode

    from .kernel_memory import KernelMemory

aten = torch.ops.aten
_BACKWARD = PHASES.index("backward")
_OPTIMIZER = PHASES.index("optimizer")

_DEVICE = torch.ops.prim.device.default
# Autograd sums gradients, and fills fresh tensors, in place, unless a tensor subclass or a dispatch mode is
# about: then it makes copies. The traced run must do what the real one does.
_IN_PLACE_IN_BACKWARD = {
    aten.add.Tensor: aten.add_.Tensor,
    aten.index_put.default: aten.index_put_.default,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.scatter.src: aten.scatter_.src,
}
_INDEX_NODE = "IndexBackward0"
_READS_VALUE = {aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default}
_SHAPE_FROM_VALUES = {
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_consecutive.default,
    aten.unique_dim.default,
    aten.repeat_interleave.Tensor,
    aten.bincount.default,
}


class StepRecorder(TorchDispatchMode):
    """Records the storages and operations of everything that runs inside it.

    Enter it inside a ``FakeTensorMode``: it stands in front and sees each operation before the fake kernel.

    Args:
        fake_mode: the mode that makes the tensors.
        model_paths: tells which module is running.
        kernel_memory: tells what memory a kernel takes for itself beside its outputs.
    """

    def __init__(self, fake_mode: FakeTensorMode, model_paths: ModulePaths, kernel_memory: KernelMemory) -> None:
        super().__init__()
        self.storages = StorageRecorder()
        self.known = KnownValues()
        self.step = 0
        self._sole_owner_counts = _sole_owner_counts()
        self._fake_mode = fake_mode
        self._paths = model_paths
        self._kernel_memory = kernel_memory
        self._rows: dict[str, array[int]] = {
            "name": array("i"),
            "dtype": array("i"),
            "module": array("i"),
            "phase": array("B"),
            "step": array("B"),
            "flops": array("q"),
            "moved_bytes": array("q"),
            "product": array("q"),
            "recomputed": array("B"),
        }
        self._names: dict[str, int] = {}
        self._dtypes: dict[str, int] = {}

    def enter_phase(self, phase: str) -> None:
        """Count what follows to ``phase``, one of ``PHASES``."""
        if phase == "backward":
            self.storages.label_saved_activations()
        self.storages.phase = PHASES.index(phase)

    def observe_existing(self, tensor: torch.Tensor, category: str) -> None:
        """Record a tensor that no operation made, such as a converted parameter or an input."""
        self.storages.observe(tensor, 0, -1)
        self.storages.label(tensor, category)

    def operations(self) -> OperationTable:
        """Return the table of the operations so far."""
        return OperationTable(
            name=np.array(self._rows["name"], dtype=np.int32),
            dtype=np.array(self._rows["dtype"], dtype=np.int32),
            module=np.array(self._rows["module"], dtype=np.int32),
            phase=np.array(self._rows["phase"], dtype=np.uint8),
            step=np.array(self._rows["step"], dtype=np.uint8),
            flops=np.array(self._rows["flops"], dtype=np.int64),
            moved_bytes=np.array(self._rows["moved_bytes"], dtype=np.int64),
            product=np.array(self._rows["product"], dtype=np.int64).reshape(-1, 4),
            recomputed=np.array(self._rows["recomputed"], dtype=np.bool_),
            names=tuple(self._names),
            dtypes=tuple(self._dtypes),
            modules=self._paths.names,
        )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE:  # asked about twice for every operation
            return args[0].fake_device if isinstance(args[0], FakeTensor) else func(*args, **kwargs)
        node = torch._C._current_autograd_node()
        in_backward = node is not None and not torch.is_grad_enabled()
        if in_backward and func in _IN_PLACE_IN_BACKWARD and self._would_write_in_place(func, args, node):
            func = _IN_PLACE_IN_BACKWARD[func]
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        value = None
        if func in _READS_VALUE or func in _SHAPE_FROM_VALUES:
            value = self.known.compute(func, args, kwargs, inputs)
            if func in _READS_VALUE and value is not None:
                return value
        if func is aten.index.Tensor:
            args = self._with_positions_for_masks(args)
        module = self._paths.current(node)
        operation = len(self._rows["name"])
        kind = self._kernel_memory.kind_of(func, args, kwargs)
        taken = self.storages.borrow(kind, module, operation) if kind is not None else None
        out = self._run(func, args, kwargs, value)
        outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        for tensor in outputs:
            if tensor.device.type != "cpu":
                raise device_not_traced(tensor.device)
            self.storages.observe(tensor, module, operation)
        if taken is not None:
            self.storages.give_back(taken)
        if value is None:
            value = self.known.compute(func, args, kwargs, inputs, outputs)
        if value is not None:
            for tensor, real in zip(outputs, tree_leaves(value), strict=False):
                if isinstance(real, torch.Tensor):
                    self.known.remember(tensor, real)
        if not func.is_view and func is not aten.detach.default:
            self._write_row(func, args, kwargs, out, inputs, outputs, module)
        if self.storages.phase == _BACKWARD and torch.is_grad_enabled():
            for tensor in outputs:
                self.storages.label_recomputed(tensor)
        return out

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], value: Any) -> Any:
        if func is aten._local_scalar_dense.default and self.storages.phase == _OPTIMIZER:
            # Optimizers read norms, to scale by them; any number will do.
            return 1.0 if args[0].is_floating_point() else 1
        if func in _SHAPE_FROM_VALUES and value is not None:
            return tree_map_only(torch.Tensor, self._fake_mode.from_tensor, value)
        try:
            return run_fake_kernel(func, args, kwargs, self.known)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise contents_needed(str(func)) from error
        except UnsupportedOperatorException as error:
            raise shape_function_needed(str(func)) from error

    def _would_write_in_place(self, func: Any, args: Sequence[Any], node: Any) -> bool:
        target: Any = args[0]
        tensor_uses, storage_uses = self._sole_owner_counts
        if not _is_fake(target) or target._use_count() > tensor_uses:
            return False
        if torch._C._storage_Use_Count(target.untyped_storage()._cdata) > storage_uses:
            return False
        if func is aten.add.Tensor:
            other = args[1]
            return (
                isinstance(other, torch.Tensor)
                and other.shape == target.shape
                and is_non_overlapping_and_dense_or_false(target)
            )
        # The gradient of an assignment (IndexPutBackward) is a copy in a real run too.
        return func is not aten.index_put.default or node.name() == _INDEX_NODE

    def _with_positions_for_masks(self, args: Sequence[Any]) -> Sequence[Any]:
        """Replace boolean masks in an index by positions, as the CPU kernel does, where the mask is known."""
        indices: list[Any] = []
        for index in args[1]:
            value = self.known.value_of(index) if isinstance(index, torch.Tensor) else None
            if value is not None and value.dtype in (torch.bool, torch.uint8):
                # A mode is off while it runs, so it calls itself to see these operations too.
                positions = self.__torch_dispatch__(aten.nonzero.default, (), (index,))
                indices.extend(
                    self.__torch_dispatch__(aten.select.int, (), (positions, 1, dim)) for dim in range(index.dim())
                )
            else:
                indices.append(index)
        return (args[0], indices)

    def _write_row(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        out: Any,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        module: int,
    ) -> None:
        name = str(func)
        dtype = str(outputs[0].dtype).removeprefix("torch.") if outputs else ""
        rows = self._rows
        rows["name"].append(self._names.setdefault(name, len(self._names)))
        rows["dtype"].append(self._dtypes.setdefault(dtype, len(self._dtypes)))
        rows["module"].append(module)
        rows["phase"].append(self.storages.phase)
        rows["step"].append(self.step)
        rows["flops"].append(operation_flops(func, args, kwargs, out))
        rows["moved_bytes"].append(operation_bytes(func, inputs, outputs))
        rows["product"].extend(product_shape(func, args, kwargs, out))
        # Outside of any backward node it is the loss's own gradient.
        recomputed = self.storages.phase == _BACKWARD and torch.is_grad_enabled()
        rows["recomputed"].append(recomputed and torch._C._current_autograd_node() is not None)


def _is_fake(value: Any) -> bool:
    return isinstance(value, FakeTensor)


class _CountUses(TorchDispatchMode):
    """Notes the reference counts of a tensor that the backward pass adds to and nobody else holds."""

    def __init__(self) -> None:
        super().__init__()
        self.uses = (0, 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is aten.add.Tensor:
            target = args[0]
            self.uses = (target._use_count(), torch._C._storage_Use_Count(target.untyped_storage()._cdata))
        return func(*args, **(kwargs or {}))


@cache
def _sole_owner_counts() -> tuple[int, int]:
    with torch.enable_grad(), _CountUses() as probe:
        leaf = torch.zeros(2, requires_grad=True)
        middle = leaf * 2.0
        branches = middle.sigmoid().sum() * middle.tanh().sum()
        torch.autograd.grad(branches, leaf)
    return probe.uses
