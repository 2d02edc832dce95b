"""YAML with the line of every key, so that a mistake can be pointed at."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from ..core.errors import ConfigurationError


class _Loader(yaml.SafeLoader):
    """Safe YAML in which ``1e-3`` is a number, as in YAML 1.2 and in every programming language."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)

KeyPath = tuple[str | int, ...]


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """Return a mapping and the line of each key in it, nested keys by their path.

    Raises:
        ConfigurationError: no such file, not YAML, not a mapping, or a key given twice.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} can't be read: {error}.") from error
    try:
        root = yaml.compose(text, Loader=_Loader)
        document = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigurationError(f"{where}: not valid YAML: {getattr(error, 'problem', error)}.") from error
    except RecursionError as error:
        raise ConfigurationError(f"{path}: nested too deeply.") from error
    if not isinstance(root, yaml.MappingNode):
        raise ConfigurationError(f"{path}: must be a mapping of keys like `model: module:factory`.")
    lines: dict[KeyPath, int] = {}
    _collect(root, (), lines, path)
    return document, lines


def _collect(node: yaml.Node, prefix: KeyPath, lines: dict[KeyPath, int], path: Path) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigurationError(f"{path}:{key.start_mark.line + 1}: keys must be plain text.")
            here = (*prefix, key.value)
            line = key.start_mark.line + 1
            if here in lines:
                raise ConfigurationError(
                    f"{path}:{line}: the key {key.value!r} was given on line {lines[here]} already."
                )
            lines[here] = line
            _collect(value, here, lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*prefix, index)] = value.start_mark.line + 1
            _collect(value, (*prefix, index), lines, path)
