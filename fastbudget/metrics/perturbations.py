"""Named changes of inputs that shouldn't change what a good model says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError, did_you_mean, one_of
from .inputs import is_tensor, to_numpy
from .text_batches import as_list

Perturbation = Callable[[Any, float, np.random.Generator], Any]


def _noise(images: npt.NDArray[np.float64], strength: float, generator: np.random.Generator) -> Any:
    """Gaussian noise of 10% of the value range."""
    return images + generator.normal(0, 0.1 * strength * np.ptp(images), images.shape)


def _blur(images: npt.NDArray[np.float64], strength: float, generator: np.random.Generator) -> Any:
    """Gaussian blur of one pixel's standard deviation."""
    radius = max(1, round(3 * strength))
    kernel = np.exp(-0.5 * np.square(np.arange(-radius, radius + 1) / strength))
    kernel /= kernel.sum()
    for axis in (-2, -1):
        widths = [(0, 0)] * images.ndim
        widths[axis] = (radius, radius)
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(images, widths, "edge"), len(kernel), axis)
        images = windows @ kernel
    return images


def _shift(images: npt.NDArray[np.float64], strength: float, generator: np.random.Generator) -> Any:
    """A shift by up to 10% of height and width, a different one for each image; edges are repeated."""
    height, width = images.shape[-2:]
    most = [max(1, round(0.1 * strength * side)) for side in (height, width)]
    moved = np.empty_like(images)
    for i, image in enumerate(images):
        rows, columns = (
            np.clip(np.arange(side) + generator.integers(-far, far + 1), 0, side - 1)
            for side, far in zip((height, width), most, strict=True)
        )
        moved[i] = image[..., rows[:, None], columns[None, :]]
    return moved


def _brightness(images: npt.NDArray[np.float64], strength: float, generator: np.random.Generator) -> Any:
    """All values of an image up or down by up to 20% of the value range."""
    shape = (len(images), *[1] * (images.ndim - 1))
    return images + generator.uniform(-0.2, 0.2, shape) * strength * np.ptp(images)


def _typos(text: str, strength: float, generator: np.random.Generator) -> str:
    """In 5% of the letters a typing error: left out, doubled, or swapped with the next."""
    letters = list(text)
    for i in np.flatnonzero(generator.random(len(letters)) < 0.05 * strength).tolist():
        if not letters[i].isalpha():
            continue
        kind = generator.integers(3)
        if kind == 2 and i + 1 < len(letters):
            letters[i], letters[i + 1] = letters[i + 1], letters[i]
        else:
            letters[i] = "" if kind == 0 else letters[i] * 2
    return "".join(letters)


def _case(text: str, strength: float, generator: np.random.Generator) -> str:
    """All capitals, all small, or every word capitalized."""
    return (text.upper, text.lower, text.title)[int(generator.integers(3))]()


def _whitespace(text: str, strength: float, generator: np.random.Generator) -> str:
    """Spaces doubled in 20% of the places where there is one, and at the ends."""
    chance = min(1.0, 0.2 * strength)
    return " " + "".join(c * 2 if c == " " and generator.random() < chance else c for c in text) + " "


IMAGE_PERTURBATIONS = {"noise": _noise, "blur": _blur, "shift": _shift, "brightness": _brightness}
TEXT_PERTURBATIONS = {"typos": _typos, "case": _case, "whitespace": _whitespace}


def perturb(inputs: Any, name: str, *, strength: float = 1.0, seed: int = 0) -> Any:
    """Return changed inputs of the same kind.

    Args:
        inputs: Images [n, …, H, W], numpy or torch, integer or float (their values stay within their range); or a list
            of texts.
        name: Of `IMAGE_PERTURBATIONS` or `TEXT_PERTURBATIONS`, or the path of a JSONL file of paraphrases: one
            ``{"text": …, "paraphrase": …}`` a line for every input text.
        strength: Multiplies the change; 1 is as the perturbation's docstring says.
        seed: Equal seeds change equally.

    Raises:
        InvalidInputError: an unknown name, inputs of the other kind, or a text without a paraphrase.
    """
    if not strength > 0:
        raise InvalidInputError(f"strength must be above 0, got {strength}.")
    generator = np.random.default_rng(seed)
    if name in IMAGE_PERTURBATIONS:
        return _on_images(inputs, lambda images: IMAGE_PERTURBATIONS[name](images, strength, generator), name)
    if name in TEXT_PERTURBATIONS:
        return [TEXT_PERTURBATIONS[name](text, strength, generator) for text in _texts(inputs, name)]
    if Path(name).suffix == ".jsonl":
        return _paraphrased(_texts(inputs, name), Path(name))
    known = (*IMAGE_PERTURBATIONS, *TEXT_PERTURBATIONS)
    raise InvalidInputError(
        f"A perturbation must be one of {one_of(known)} or a .jsonl file of paraphrases, got {name!r}."
        f"{did_you_mean(name, known)}"
    )


def _on_images(inputs: Any, change: Callable[[npt.NDArray[np.float64]], Any], name: str) -> Any:
    original = to_numpy(inputs, "inputs")
    if original.ndim < 3 or original.dtype.kind not in "fiu":
        raise InvalidInputError(
            f"{name} changes images [n, …, H, W], got shape {list(original.shape)} of {original.dtype}."
        )
    if original.size == 0:
        return inputs
    images = original.astype(np.float64)
    changed = np.clip(change(images), images.min(), images.max())
    if original.dtype.kind in "iu":
        changed = changed.round()
    changed = changed.astype(original.dtype)
    if not is_tensor(inputs):
        return changed
    import torch

    return torch.from_numpy(changed).to(inputs.device, inputs.dtype)


def _texts(inputs: Any, name: str) -> list[str]:
    texts = as_list(inputs, "inputs")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidInputError(f"{name} changes texts; inputs[{i}] is a {type(text).__name__}.")
    return texts


def _paraphrased(texts: list[str], path: Path) -> list[str]:
    known: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            entry = json.loads(line)
            known[entry["text"]] = entry["paraphrase"]
        except (ValueError, KeyError, TypeError):
            raise InvalidInputError(
                f'{path}, line {number}: every line must be {{"text": …, "paraphrase": …}}, got {line[:60]!r}.'
            ) from None
    missing = [text for text in texts if text not in known]
    if missing:
        raise InvalidInputError(f"{path} lacks {len(missing)} of {len(texts)} texts, {missing[0][:60]!r} for one.")
    return [known[text] for text in texts]
