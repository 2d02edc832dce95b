"""Which model is this? Its content decides, never its name."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..core.errors import InvalidInputError
from ..store import hash_example, hash_model

# Larger models are hashed when a store or a model_key asks for it: reading them takes seconds.
_HASHED_UNASKED_BYTES = 2**30
_DEEPEST = 4
_INSTALLED = re.compile(r"[\\/](site|dist)-packages[\\/]")


def identify_model(predict: Callable[[Any], Any], model_key: Any, *, wanted: bool) -> str | None:
    """Return the content hash of the model behind ``predict``, or None where it isn't known.

    Args:
        predict: A module, or a function. A function's code counts, and every weight and value that it refers to.
        model_key: The model's module or state dict, whose content alone counts then; or a text that names all that
            ``predict`` depends on, beside the weights of modules that it refers to; or None.
        wanted: Without it a large model isn't hashed.

    Raises:
        InvalidInputError: the identity is wanted and can't be told.
    """
    owners = [*_modules(predict, _DEEPEST), *(_modules(model_key, 1) if _is_module(model_key) else [])]
    own = _identity(predict, model_key, wanted=wanted)
    if own is not None and _layers_in_training(owners):
        # Its results are random or of other statistics: they must not be found again in evaluation mode.
        return hash_example(("training mode", own)).hex()
    return own


def warn_of_training_mode(predict: Callable[[Any], Any]) -> None:
    """Warn where the model that ``predict`` is, or names, is in training mode: it was evaluated in that mode then.

    Models that lie deeper, in objects that it names, may be others and cause no warning.
    """
    if kinds := _layers_in_training(_modules(inspect.unwrap(predict), 1)):
        warnings.warn(
            f"The model was evaluated in training mode ({', '.join(kinds)}): its results are random or depend on the "
            "batch. Call model.eval() before.",
            stacklevel=3,
        )


def _layers_in_training(owners: list[Any]) -> list[str]:
    """Return the kinds of layers in training mode that behave otherwise in evaluation mode: dropout, batch norm."""
    return sorted({type(part).__name__ for owner in owners for part in owner.modules() if _differs_in_training(part)})


def _differs_in_training(part: Any) -> bool:
    if not part.training:
        return False
    if getattr(part, "running_mean", None) is not None:  # batch norm
        return True
    return "Dropout" in type(part).__name__ and getattr(part, "p", 0) > 0


def _identity(predict: Callable[[Any], Any], model_key: Any, *, wanted: bool) -> str | None:
    if model_key is not None and not isinstance(model_key, str):
        return hash_model(model_key)
    if not wanted and model_key is None and sum(map(_num_bytes, _modules(predict, _DEEPEST))) > _HASHED_UNASKED_BYTES:
        return None
    if isinstance(model_key, str):
        weights = [hash_model(module) for module in _modules(predict, _DEEPEST)]
        return hash_example(("key", model_key, weights)).hex()
    if _is_module(predict):
        return hash_model(predict)
    try:
        return hash_example(_content(predict, _DEEPEST)).hex()
    except InvalidInputError as error:
        if not wanted:
            return None
        raise InvalidInputError(
            f"The store can't tell which model this is: {error} Give model_key=: the torch module, its state dict, or "
            "a text that changes whenever the model does."
        ) from None


def _is_grad_mode(value: Any) -> bool:
    """Whether a value is torch's no_grad or the like, of which a decorated function holds one."""
    return type(value).__module__ == "torch.autograd.grad_mode"


def _is_module(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "named_modules")


def _num_bytes(module: Any) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _references(function: types.FunctionType) -> dict[str, Any]:
    """Return the values that a function's code refers to by name, from its closure, defaults and globals.

    Of a module or class of the user's (``settings.threshold``) these are the attributes that the code names.
    """
    found: dict[str, Any] = {}
    names = set(_global_names(function.__code__))
    for name in names & function.__globals__.keys():
        found[name] = function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name, value in list(found.items()):
        found |= _named_attributes(name, value, names)
    found["<defaults>"] = [function.__defaults__, function.__kwdefaults__]
    return found


def _named_attributes(path: str, owner: Any, names: set[str], depth: int = _DEEPEST) -> dict[str, Any]:
    """Return what code that names these attributes may read from a module or class that isn't a library's."""
    if depth == 0 or not isinstance(owner, types.ModuleType | type) or _is_library(owner):
        return {}
    found: dict[str, Any] = {}
    for name in names & vars(owner).keys():
        value = vars(owner)[name]
        value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        found[f"{path}.{name}"] = value
        found |= _named_attributes(f"{path}.{name}", value, names, depth - 1)
    return found


def _is_library(owner: types.ModuleType | type) -> bool:
    """Whether a module or class was installed, so that it changes with its version and not with the model."""
    module = owner if isinstance(owner, types.ModuleType) else sys.modules.get(owner.__module__)
    if module is None or module.__name__.split(".")[0] in {*sys.stdlib_module_names, "fastbudget"} - {"__main__"}:
        return True
    return _INSTALLED.search(getattr(module, "__file__", None) or "") is not None


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _modules(value: Any, depth: int) -> list[Any]:
    """Return the torch modules that a callable refers to."""
    if _is_module(value):
        return [value]
    if depth == 0:
        return []
    if isinstance(value, types.MethodType):
        return [*_modules(value.__self__, depth - 1), *_modules(value.__func__, depth - 1)]
    if isinstance(value, functools.partial):
        parts = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, types.FunctionType):
        parts = list(_references(value).values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif isinstance(value, Mapping):
        parts = list(value.values())
    elif hasattr(value, "__dict__") and not isinstance(value, type | types.ModuleType):
        parts = list(vars(value).values())
    else:
        return []
    return [module for part in parts for module in _modules(part, depth - 1)]


def _content(value: Any, depth: int) -> Any:
    """Return what decides how a value behaves, as something that has a content hash."""
    if _is_module(value):
        return ("module", hash_model(value))
    if isinstance(value, types.ModuleType):
        return ("name", value.__name__)
    bound_to = (
        value.__self__ if isinstance(value, types.BuiltinFunctionType) else None
    )  # a module, where it's a function
    is_bound = not isinstance(bound_to, types.ModuleType | type | None)
    if (isinstance(value, types.BuiltinFunctionType | type) and not is_bound) or value is Ellipsis:
        return ("name", getattr(value, "__module__", None), getattr(value, "__qualname__", value.__class__.__name__))
    if _is_grad_mode(value):
        return ("gradients", type(value).__qualname__, getattr(value, "mode", None))
    if depth == 0:
        raise InvalidInputError(f"a {type(value).__name__} lies too deep inside predict.")
    if is_bound:
        return ("method", value.__name__, _content(bound_to, depth - 1))
    if isinstance(value, types.MethodType):
        return ("method", _content(value.__self__, depth - 1), _content(value.__func__, depth - 1))
    if isinstance(value, functools.partial):
        return ("partial", _content([value.func, *value.args], depth - 1), _content(value.keywords, depth - 1))
    if isinstance(value, types.FunctionType):
        if (value.__module__ or "").split(".")[0] in {"torch", "numpy"}:
            return ("name", value.__module__, value.__qualname__)
        return ("function", _code(value.__code__), _content(_references(value), depth - 1))
    if isinstance(value, Mapping):
        return {str(key): _content(item, depth) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_content(item, depth) for item in value]
    hash_example(value)  # raises where a value has no content of its own
    return value


def _code(code: types.CodeType) -> list[Any]:
    constants = [_code(item) if isinstance(item, types.CodeType) else _constant(item) for item in code.co_consts]
    return [code.co_code, constants, list(code.co_names), list(code.co_freevars)]


def _constant(value: Any) -> str:
    # A set of strings has another order in each process.
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
