"""Read the layout in a launcher's configuration file."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from ...core.errors import ConfigurationError
from .accelerate_files import from_accelerate
from .deepspeed_files import from_deepspeed
from .launch_config import LaunchConfig, read_json_or_yaml


def read_launch_config(path: str | PathLike[str]) -> LaunchConfig:
    """Read a layout from accelerate's YAML (or JSON) or a DeepSpeed JSON file.

    Args:
        path: Accelerate's ``default_config.yaml``, as ``accelerate config`` writes it, or the JSON file that is
            given to ``deepspeed --deepspeed_config`` or to the Trainer.

    Raises:
        ConfigurationError: the file can't be read, or asks for what layouts can't say; the key is named.
    """
    source = Path(path)
    values = read_json_or_yaml(source)
    if "distributed_type" in values or "compute_environment" in values:
        return from_accelerate(values, source)
    if source.suffix == ".json":
        return from_deepspeed(values, str(source))
    raise ConfigurationError(
        f"{source} is neither accelerate's configuration (the key 'distributed_type' is missing) nor DeepSpeed's, "
        "which is a .json file."
    )
