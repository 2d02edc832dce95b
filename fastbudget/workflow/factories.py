"""`package.module:factory`, imported and called, with errors that point into the user's code."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..core.errors import ConfigurationError, FastbudgetError, did_you_mean


def import_factory(reference: str, key: str, search: Path) -> Callable[..., Any]:
    """Return the function a reference names; see `import_object`.

    Raises:
        ConfigurationError: the module can't be imported, or has no such function.
    """
    factory = import_object(reference, key, search)
    if not callable(factory):
        module_name, _, name = reference.partition(":")
        raise ConfigurationError(f"{key}: {name!r} in {module_name!r} is a {type(factory).__name__}, not a function.")
    return factory


def import_object(reference: str, key: str, search: Path) -> Any:
    """Return what a reference names.

    Args:
        reference: ``package.module:name``.
        key: The configuration key it stands under, for messages.
        search: A directory to import from, besides the working directory and what is installed.

    Raises:
        ConfigurationError: the module can't be imported, or has no such name.
    """
    module_name, _, name = reference.partition(":")
    for directory in (str(search.resolve()), str(Path.cwd())):
        if directory not in sys.path:
            sys.path.insert(0, directory)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(missing + "."):
            hint = f"looked in the working directory, {search}, and the installed packages"
        else:
            hint = f"{module_name} itself imports it; install it"
        raise ConfigurationError(
            f"{key}: {reference!r} can't be imported: no module named {missing!r} ({hint})."
        ) from error
    except Exception as error:
        raise ConfigurationError(f"{key}: importing {module_name!r} failed: {_where(error)}.") from error
    if not name or not hasattr(module, name):
        public = [candidate for candidate in vars(module) if not candidate.startswith("_")]
        file = getattr(module, "__file__", None)
        raise ConfigurationError(
            f"{key}: {name!r} does not exist in {module_name!r} ({file or 'built in'}).{did_you_mean(name, public)}"
        )
    return getattr(module, name)


def call_factory(factory: Callable[..., Any], reference: str, key: str) -> Any:
    """Call a factory without arguments.

    Raises:
        ConfigurationError: it raised; the message says what and where.
    """
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise ConfigurationError(
            f"{key}: {reference!r} is called without arguments, but has some without a default ({error})."
        ) from error
    except ValueError:
        pass  # some built-in callables have no signature
    try:
        return factory()
    except FastbudgetError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{key}: {reference!r} raised {_where(error)}.") from error


def _where(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    text = f"{type(error).__name__}: {error}"
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text
