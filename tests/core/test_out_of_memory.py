import gc
import weakref

import pytest
import torch

from fastbudget.core.out_of_memory import is_out_of_memory, release_memory

OUT_OF_MEMORY = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("std::bad_alloc"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    MemoryError(),
)
OTHERS = (RuntimeError("shape mismatch"), ValueError("out of memory is a phrase"), KeyError("std::bad_alloc"))


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=str)
def test_running_out_of_memory_is_known_by_any_of_its_names(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", OTHERS, ids=str)
def test_other_errors_are_not_taken_for_it(error):
    assert not is_out_of_memory(error)


def test_a_real_allocation_that_the_cpu_refuses_is_known():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    assert is_out_of_memory(caught.value)


def test_tensors_that_the_traceback_holds_are_let_go():
    held = []

    def inner():
        tensor = torch.zeros(1000)
        held.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("no memory")

    def outer():
        tensor = torch.zeros(1000)
        held.append(weakref.ref(tensor))
        try:
            inner()
        except RuntimeError as error:
            raise RuntimeError("out of memory, as a library wraps it") from error

    failed = None
    try:
        outer()
    except RuntimeError as error:
        failed = error
    gc.collect()
    assert all(reference() is not None for reference in held)
    assert release_memory(failed) == "RuntimeError: out of memory, as a library wraps it"
    assert all(reference() is None for reference in held)
