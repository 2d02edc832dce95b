"""The one door of this room to the compiled module: shuffled orders and token files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from ...core.errors import DataFileError, InvalidInputError, not_compiled

try:
    from ... import _C
except ImportError as error:
    raise not_compiled(error) from error

Indices = npt.NDArray[np.int64]

TokenFile = _C.TokenFile
TokenBatches = _C.TokenBatches


def permute_range(size: int, seed: int, epoch: int, begin: int, end: int) -> Indices:
    """Return elements [begin, end) of the shuffled order of ``range(size)``; any part costs only its own length."""
    # Threads start to pay beyond what a loop asks for at once.
    return _C.permute_range(size, seed % 2**64, epoch, begin, end, 1 if end - begin < 2**17 else 0)


@contextmanager
def explained() -> Iterator[None]:
    """Raise a native reader's errors as the package's."""
    try:
        yield
    except IndexError as error:
        raise InvalidInputError(f"{error}. Check vocab_size, dtype and offset_bytes.") from None
    except RuntimeError as error:
        raise DataFileError(f"{error}.") from None
