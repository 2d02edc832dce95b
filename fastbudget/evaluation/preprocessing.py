"""Do training and evaluation prepare their inputs alike?"""

from __future__ import annotations

import inspect
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ..core.errors import InvalidInputError

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
# Means further apart than this share of the spread, or spreads further apart than this factor, are another scaling.
_MEAN_TOLERANCE, _SPREAD_FACTOR = 0.25, 1.5


@dataclass(frozen=True, kw_only=True)
class OutputSummary:
    """What a transform made of the sampled inputs.

    Attributes:
        kinds: Type, dtype and shape of each distinct kind of output.
        low: Smallest number; None where the outputs aren't numbers.
        high: Largest.
        mean: Of all numbers.
        spread: Their standard deviation.
        content: Hash of the outputs; None for a transform that is random.
    """

    kinds: tuple[str, ...]
    low: float | None
    high: float | None
    mean: float | None
    spread: float | None
    content: str | None


@dataclass(frozen=True, kw_only=True)
class PreprocessingFingerprint:
    """What a preprocessing is, by settings, code and outputs.

    Attributes:
        config: Settings, as text.
        code: Hash of the source of the transform's functions and classes; None where there is no source.
        outputs: On sampled inputs; None without samples.
        digest: Of all three, for ``preprocessing=`` of `fb.evaluate`. Outputs of a random transform count by kind only.
    """

    config: str
    code: str | None
    outputs: OutputSummary | None
    digest: str

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class ConsistencyReport:
    """How two preprocessings differ.

    Attributes:
        problems: Differences that change what the model sees: kinds, value ranges, scaling, outputs.
        notes: Differences that may be meant, such as augmentation in training.
        consistent: Whether there is no problem.
    """

    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def consistent(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self) | {"consistent": self.consistent}


def preprocessing_fingerprint(
    transform: Callable[[Any], Any], *, config: Mapping[str, Any] | None = None, samples: Sequence[Any] = ()
) -> PreprocessingFingerprint:
    """Take the fingerprint of a transform.

    Args:
        transform: From raw input to what the model takes: a function, a torchvision transform, a tokenizer, ….
        config: Its settings; None: its printed form.
        samples: A few raw inputs. Each is transformed under several fixed seeds, which shows whether the transform is
            random; the generators of Python, numpy and torch are put back afterwards.

    Raises:
        InvalidInputError: settings that have no JSON form, or a transform that fails on a sample.
    """
    settings = _settings(transform, config)
    code = _code_hash(transform)
    outputs = _summary(transform, samples) if len(samples) else None
    parts = [settings, code, None if outputs is None else [outputs.kinds, outputs.content]]
    return PreprocessingFingerprint(
        config=settings, code=code, outputs=outputs, digest=xxhash.xxh3_128_hexdigest(json.dumps(parts).encode())
    )


def compare_preprocessing(
    training: PreprocessingFingerprint, evaluation: PreprocessingFingerprint
) -> ConsistencyReport:
    """Report how the preprocessing of training and that of evaluation differ.

    Random augmentation in training is meant; another scale, type or size is not, and the outputs on the same samples
    tell them apart.
    """
    problems: list[str] = []
    notes: list[str] = []
    if training.config != evaluation.config:
        notes.append(f"The settings differ: {training.config} in training, {evaluation.config} in evaluation.")
    if training.code != evaluation.code:
        notes.append("The code differs.")
    a, b = training.outputs, evaluation.outputs
    if a is None or b is None:
        problems += notes  # no outputs show that the difference is harmless
        return ConsistencyReport(problems=tuple(problems), notes=() if problems else tuple(notes))
    if a.kinds != b.kinds:
        problems.append(f"The outputs are {', '.join(a.kinds)} in training and {', '.join(b.kinds)} in evaluation.")
    if a.content is not None and b.content is not None:
        if a.content != b.content:
            problems.append("The same inputs come out differently, and neither preprocessing is random.")
    elif b.content is None:
        problems.append("The evaluation's preprocessing is random: the same example gives different results.")
    else:
        notes.append("The training's preprocessing is random (augmentation); its outputs are compared by their range.")
    problems += _scale_problems(a, b)
    return ConsistencyReport(problems=tuple(problems), notes=tuple(notes))


def _scale_problems(a: OutputSummary, b: OutputSummary) -> list[str]:
    if a.mean is None or b.mean is None or a.spread is None or b.spread is None:
        return []
    apart = abs(a.mean - b.mean) > _MEAN_TOLERANCE * max(a.spread, b.spread)
    wide, narrow = max(a.spread, b.spread), min(a.spread, b.spread)
    if not apart and (wide == narrow or wide <= _SPREAD_FACTOR * narrow):
        return []
    return [
        f"The numbers have mean {a.mean:.4g}, spread {a.spread:.4g}, range {a.low:.4g} to {a.high:.4g} in training and "
        f"mean {b.mean:.4g}, spread {b.spread:.4g}, range {b.low:.4g} to {b.high:.4g} in evaluation: another scaling."
    ]


def _settings(transform: Any, config: Mapping[str, Any] | None) -> str:
    if config is None:
        # A function prints its address, which says nothing.
        return str(transform.__qualname__) if inspect.isroutine(transform) else _ADDRESS.sub("", repr(transform))
    try:
        return json.dumps(dict(config), sort_keys=True, default=str)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"config must hold plain data, such as numbers and text: {error}.") from error


def _code_hash(transform: Any) -> str | None:
    """Hash the source of a function, or of the class of an object and of the transforms it holds."""
    sources: list[str] = []

    def add(value: Any, depth: int) -> None:
        target = value if inspect.isroutine(value) or inspect.isclass(value) else type(value)
        if target.__module__ == "builtins":
            return
        try:
            sources.append(inspect.getsource(target))
        except (OSError, TypeError):
            sources.append(f"{target.__module__}.{getattr(target, '__qualname__', '')}")
        if depth and hasattr(value, "__dict__") and not inspect.isroutine(value):
            for held in vars(value).values():
                for part in held if isinstance(held, list | tuple) else [held]:
                    if callable(part):
                        add(part, depth - 1)

    add(transform, 3)
    return xxhash.xxh3_128_hexdigest("\n".join(sources).encode()) if sources else None


def _summary(transform: Callable[[Any], Any], samples: Sequence[Any]) -> OutputSummary:
    runs = [_outputs(transform, samples, seed) for seed in (0, 1, 2)]
    contents = {_content(outputs) for outputs in runs}
    numbers = [array.reshape(-1).astype(np.float64) for outputs in runs for array in _arrays(outputs)]
    joined = np.concatenate(numbers) if numbers else np.zeros(0)

    def of_numbers(function: Callable[[Any], Any]) -> float | None:
        return float(function(joined)) if joined.size else None

    return OutputSummary(
        kinds=tuple(sorted({kind for output in runs[0] for kind in _kinds(output)})),
        low=of_numbers(np.min),
        high=of_numbers(np.max),
        mean=of_numbers(np.mean),
        spread=of_numbers(np.std),
        content=contents.pop() if len(contents) == 1 else None,
    )


def _outputs(transform: Callable[[Any], Any], samples: Sequence[Any], seed: int) -> list[Any]:
    """Transform the samples with all generators seeded, and put the generators back."""
    import torch

    before = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)
    try:
        return [transform(sample) for sample in samples]
    except Exception as error:
        raise InvalidInputError(f"The transform fails on a sample: {type(error).__name__}: {error}.") from error
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.random.set_rng_state(before[2])


def _as_array(value: Any) -> npt.NDArray[Any]:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [leaf for key in sorted(value) for leaf in _leaves(value[key])]
    if isinstance(value, tuple) or (isinstance(value, list) and value and not isinstance(value[0], int | float)):
        return [leaf for entry in value for leaf in _leaves(entry)]
    return [value]


def _arrays(outputs: Sequence[Any]) -> list[npt.NDArray[Any]]:
    arrays = [_as_array(leaf) for output in outputs for leaf in _leaves(output)]
    return [array for array in arrays if array.dtype.kind in "biuf"]


def _kinds(output: Any) -> list[str]:
    kinds = []
    for leaf in _leaves(output):
        array = _as_array(leaf)
        plain = array.dtype.kind in "biuf"
        kinds.append(f"{array.dtype} {list(array.shape)}" if plain else type(leaf).__name__)
    return kinds


def _content(outputs: Sequence[Any]) -> str:
    hasher = xxhash.xxh3_128()
    for output in outputs:
        for leaf in _leaves(output):
            array = _as_array(leaf)
            if array.dtype.kind in "biuf":
                hasher.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
            else:
                hasher.update(_ADDRESS.sub("", repr(leaf)).encode())
    return hasher.hexdigest()
