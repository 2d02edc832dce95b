"""How texts become tokens. The choice is part of a text metric's signature.

``auto``
    Lowercase words of letters and digits of any script; of scripts without spaces (Chinese, Japanese, Thai, Lao,
    Khmer, Burmese, Tibetan) every character with its combining marks is a word. Of ASCII text the words are those of
    ``rouge_score``.
``rouge_score``
    Lowercase runs of a-z and 0-9, all else dropped, as the package rouge-score does: other scripts have no words.
``whitespace``
    What stands between whitespace, as it is.
``characters``
    Code points; ``ink``: those that aren't whitespace.
``13a``, ``none``
    sacrebleu's; its others (``zh``, ``intl``, ``char``, ``ja-mecab``, …) are called where sacrebleu is installed.
"""

from __future__ import annotations

import re
import unicodedata
import warnings
from functools import cache
from typing import Any

from ..core.errors import InvalidInputError, MissingExtraError, did_you_mean, one_of

TOKENIZERS = ("auto", "rouge_score", "whitespace", "characters", "ink", "13a", "none")
_RULES = {"auto": "words", "rouge_score": "alphanumeric", "none": "whitespace"}

# Scripts that are written without spaces between words, each character with its combining marks.
_UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u19e0-\u19ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f"
    "\U00020000-\U0003ffff"
)
_FIRST_OF_UNSPACED = re.compile(f"[{_UNSPACED}]")


class _Separators(dict[int, str]):
    """For str.translate: letters, marks and digits stay, all else becomes a space."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        self[code] = kept = character if unicodedata.category(character)[0] in "LMN" else " "
        return kept


_SEPARATORS = _Separators()


def check_tokenizer(name: str, allowed: tuple[str, ...] = TOKENIZERS) -> str:
    """Return the name if it is allowed, else raise InvalidInputError."""
    if name not in allowed:
        raise InvalidInputError(
            f"tokenizer must be one of {one_of(allowed)}, got {name!r}.{did_you_mean(name, allowed)}"
        )
    return name


def without_spaces(texts: list[str]) -> bool:
    """Whether a text holds a script that is written without spaces."""
    return not are_ascii(texts) and any(_FIRST_OF_UNSPACED.search(text) for text in texts if not text.isascii())


def are_ascii(texts: list[str]) -> bool:
    """Whether all texts are ASCII: most are, and then need no more care."""
    return all(map(str.isascii, texts))


def announce(metric: Any, text: str) -> None:
    """Say once per metric how its texts are cut, where that isn't a matter of course."""
    if not getattr(metric, "_announced", False):
        metric._announced = True
        warnings.warn(f"{metric.name or type(metric).__name__}: {text}", stacklevel=2)


def native_rule(tokenizer: str) -> tuple[str, bool]:
    """Return the native token rule and whether texts are lowercased."""
    if tokenizer not in TOKENIZERS:
        return "whitespace", False
    return _RULES.get(tokenizer, tokenizer), tokenizer in ("auto", "rouge_score")


def prepared(texts: list[str], tokenizer: str) -> list[str]:
    """Return texts of which the native rule makes the tokenizer's tokens."""
    if tokenizer in ("auto", "rouge_score") and are_ascii(texts):
        return texts
    if tokenizer == "auto":
        return [text if text.isascii() else spaced(text) for text in texts]
    if tokenizer == "rouge_score":
        return [text if text.isascii() else text.lower() for text in texts]
    if tokenizer not in TOKENIZERS:
        cut = sacrebleu_tokenizer(tokenizer)
        return [str(cut(text.rstrip())) for text in texts]
    return texts


def spaced(text: str) -> str:
    """Return the text lowercase, its words and the characters of unspaced scripts between spaces."""
    text = unicodedata.normalize("NFC", text.lower()).translate(_SEPARATORS)
    return "".join(_with_spaces(text)) if _FIRST_OF_UNSPACED.search(text) else text


def _with_spaces(text: str) -> list[str]:
    pieces = []
    in_unspaced = False
    for character in text:
        unspaced = _FIRST_OF_UNSPACED.match(character) is not None
        mark = unicodedata.category(character)[0] == "M"
        if not (mark and in_unspaced):  # a mark belongs to the character before it
            if unspaced or in_unspaced:
                pieces.append(" ")
            in_unspaced = unspaced
        pieces.append(character)
    return pieces


@cache
def sacrebleu_tokenizer(name: str) -> Any:
    """Return one of sacrebleu's tokenizers, a callable from text to text.

    Raises:
        MissingExtraError: sacrebleu isn't installed.
        InvalidInputError: it has none of this name.
    """
    try:
        from sacrebleu.metrics import bleu
    except ImportError as error:
        raise MissingExtraError(f"The tokenizer {name!r} is sacrebleu's: pip install sacrebleu ({error}).") from error
    known = (*bleu.BLEU.TOKENIZERS,)
    if name not in known:
        raise InvalidInputError(f"tokenizer must be one of {one_of(known)}, got {name!r}.{did_you_mean(name, known)}")
    return bleu._get_tokenizer(name)()
