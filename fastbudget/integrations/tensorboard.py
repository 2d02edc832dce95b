"""TensorBoard as a sink of `fastbudget.Trainer`."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path

from ..core.errors import MissingExtraError
from .background_sink import BackgroundSink


class TensorBoardSink(BackgroundSink):
    """Writes the numbers of each record to event files. Close it, or use it in a ``with`` block.

    Args:
        log_dir: where the event files go; made when missing.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """

    def __init__(self, log_dir: str | Path) -> None:
        if find_spec("tensorboard") is None:
            raise MissingExtraError("TensorBoardSink needs tensorboard: `pip install 'fastbudget[tensorboard]'`.")
        super().__init__(partial(_EventFile, Path(log_dir)), name="TensorBoard")


class _EventFile:
    def __init__(self, log_dir: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(log_dir))

    def write(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
