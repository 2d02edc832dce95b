"""Read cells of published tables: numbers, accelerators, precisions and dates however they are spelled."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from fastbudget.core.errors import InvalidInputError
from fastbudget.hardware import Device, find_device

Row = dict[str, str]

_NUMBER = re.compile(r"^[~≈<>=$\s]*([+-]?\d[\d,_ ]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(.*)$")
_EMPTY = ("", "-", "—", "n/a", "na", "nan", "none", "null", "?", "unknown", "tbd")
# What a family of accelerators is called in a text, and the table's name for it.
_FAMILIES = (
    (r"gb\s?300", "gb300"),
    (r"gb\s?200", "gb200"),
    (r"b300", "b300"),
    (r"b200", "b200"),
    (r"h200", "h200"),
    (r"gh200", "h200"),
    (r"h100", "h100"),
    (r"h800", "h800"),
    (r"h20", "h20"),
    (r"a100", "a100"),
    (r"a800", "a800"),
    (r"v100", "v100"),
    (r"l40s", "l40s"),
    (r"l4", "l4"),
    (r"a10g", "a10g"),
    (r"a10", "a10"),
    (r"t4", "t4"),
    (r"(?:rtx\s?)?pro\s?6000(?: blackwell)?", "rtx-pro-6000"),
    (r"(?:rtx\s?)?6000\s?ada", "rtx-6000-ada"),
    (r"(?:rtx\s?)?a6000", "rtx-a6000"),
    (r"(?:rtx\s?)?([345]090)", None),
    (r"mi\s?(250|300|325|355)x?", None),
    (r"gaudi\s?2", "gaudi2"),
    (r"trillium", "tpu-v6e"),
    (r"(?:tpu\s?)?v([3-6])(?:\s?(lite|litepod|e|p)(?![a-z]))?", None),
)
# A slip of a digit must not make a model that no machine can hold.
_LARGEST = {
    "layers": 2000, "hidden": 2**17, "heads": 2**11, "params_b": 1e5, "active_params_b": 1e5, "seq_len": 2**24,
    "global_batch_seqs": 2**24, "micro_batch_seqs": 2**20, "n_gpus": 2**20, "tp": 2**12, "pp": 2**12, "vp": 2**12,
    "dp": 2**20, "cp": 2**12, "ep": 2**12,
}  # fmt: skip
_MLPERF_DATES = {
    "v0.7": "2020-07", "v1.0": "2021-06", "v1.1": "2021-11", "v2.0": "2022-05", "v2.1": "2022-10", "v3.0": "2023-05",
    "v3.1": "2023-10", "v4.0": "2024-05", "v4.1": "2024-10", "v5.0": "2025-04", "v5.1": "2025-10", "v6.0": "2026-04",
}  # fmt: skip


class NotModeled(Exception):
    """The row can't be estimated; the message is the reason, the same words for the same kind of row."""


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a table; a byte-order mark, missing columns and surplus cells don't matter."""
    with path.open(newline="", encoding="utf-8-sig") as lines:
        return [
            {key.strip().lower(): (value or "").strip() for key, value in row.items() if isinstance(key, str)}
            for row in csv.DictReader(lines)
        ]


def number(text: str, scales: dict[str, float] | None = None) -> float | None:
    """Return the number in a cell, None where there is none, several, or an unknown unit.

    Args:
        text: such as ``"1,024"``, ``"~40 %"``, ``"150 ms"``.
        scales: unit in lower case to factor; other units than these and a percent sign are refused.
    """
    if text.strip().lower() in _EMPTY:
        return None
    found = _NUMBER.match(text.strip())
    if not found:
        return None
    unit = found[2].strip().lower().rstrip(".")
    factor = 1.0 if unit in ("", "%", "+") else (scales or {}).get(unit)
    try:
        return None if factor is None else float(re.sub(r"[,_ ]", "", found[1])) * factor
    except ValueError:
        return None


def positive(row: Row, key: str, scales: dict[str, float] | None = None) -> float | None:
    """Return a cell's positive number, else None.

    Raises:
        NotModeled: the number is beyond anything there is.
    """
    value = number(row.get(key, ""), scales)
    if value is None or value <= 0:
        return None
    if not value <= _LARGEST.get(key, 1e12):
        raise NotModeled("a number beyond anything there is")
    return value


def count(row: Row, key: str, scales: dict[str, float] | None = None) -> int | None:
    """Return a cell's whole number from 1 on, else None.

    Raises:
        NotModeled: the number is beyond anything there is.
    """
    value = positive(row, key, scales)
    return None if value is None or value != int(value) else int(value)


def find_accelerator(name: str, memory: str = "") -> Device:
    """Return the accelerator that a table means.

    Args:
        name: as printed: ``"NVIDIA H100-SXM5-80GB"``, ``"Blackwell GPU (B200-SXM-180GB)"``, ``"8x A100"``.
        memory: its memory as printed (``"80 GB"``, ``"81559 MiB"``), which tells 40 from 80 GB cards.

    Raises:
        NotModeled: no accelerator, an unknown one, or several.
    """
    text = re.sub(r"\((?:r|tm|c)\)|[®™]", " ", name.lower())
    text = re.sub(r"[^a-z0-9.]+", " ", text).strip()
    if not text:
        raise NotModeled("no hardware")
    families = _families(text)
    if len({family for family, _ in families}) > 1:
        raise NotModeled("several kinds of hardware in one row")
    candidates = [name, name.split("(")[0]]
    size = _gigabytes(memory) or _gigabytes_in(text)
    for family, _ in families:
        form = next((form for form in ("pcie", "nvl", "sxm") if re.search(rf"\b{form}\d?\b|{form}", text)), "")
        if family == "h200" and form == "nvl":
            form = ""
        sized = [f"{family}-{form}-{near}gb" for near in _near(size)] + [f"{family}-{near}gb" for near in _near(size)]
        plain = [f"{family}-{form}", f"{family}-sxm", family]
        # The size printed in a table tells variants apart; without one the text may hold it.
        candidates = [one.replace("--", "-").strip("-") for one in (*sized, *plain)] + candidates
    for candidate in candidates:
        try:
            found = find_device(candidate)
        except InvalidInputError:
            continue
        if "sxm" not in text or "pcie" not in found.key:  # a size alone may find the other form
            return found
    raise NotModeled("unknown hardware")


def _families(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    taken: list[tuple[int, int]] = []
    for pattern, key in _FAMILIES:
        for match in re.finditer(rf"(?<![a-z0-9]){pattern}(?![0-9])(?:x\b|\b|(?=[a-z]))", text):
            if any(start < match.end() and match.start() < end for start, end in taken):
                continue
            taken.append(match.span())
            found.append((key or _composed(match), match[0]))
    return found


def _composed(match: re.Match[str]) -> str:
    digits = match[1]
    if len(digits) == 4:
        return f"rtx-{digits}"
    if len(digits) == 3:
        return f"mi{digits}x"
    kind = {"lite": "e", "litepod": "e"}.get(match[2] or "", match[2] or "")
    return f"tpu-v{digits}{kind}"


def _gigabytes(memory: str) -> float | None:
    value = number(re.sub(r"^\d+\s*x\s*", "", memory.lower()), {"gb": 1, "gib": 1, "g": 1, "mib": 1 / 1024, "mb": 1e-3})
    return value if value is None or value < 5000 else value / 1024


def _gigabytes_in(text: str) -> float | None:
    found = re.search(r"(\d+) ?gi?b", text)
    return float(found[1]) if found else None


def _near(size: float | None) -> list[int]:
    """Return the advertised sizes that a driver's figure may stand for: 79.6 is an 80 GB card."""
    if size is None:
        return []
    return [one for one in (round(size), 16, 32, 40, 48, 80, 94, 96, 141, 180, 186, 288) if abs(one / size - 1) < 0.06]


def precision_of(row: Row, device: Device) -> tuple[str, str | None]:
    """Return a training precision and the assumption made where the row names none or one that isn't modeled."""
    text = row.get("precision", "").lower()
    sixteen = "bf16-mixed" if device.bf16_flops_per_s or not device.fp16_flops_per_s else "fp16-mixed"
    if "fp4" in text:
        return "fp4-mixed", None
    if re.search(r"fp8|float8|e4m3|int8", text):
        return "fp8-mixed", "INT8 as FP8" if "int8" in text else None
    if "tf32" in text:
        return "tf32", None
    if re.search(r"fp32|float32|^32|single", text) and not re.search(r"16|mixed|amp", text):
        return "fp32", None
    if re.search(r"bf16|bfloat16", text):
        return ("bf16" if "pure" in text else "bf16-mixed"), None
    if re.search(r"fp16|float16|^16|half", text):
        return "fp16-mixed", None
    return sixteen, None if text in ("amp", "mixed") else f"precision {sixteen}"


def software_date(row: Row) -> str | None:
    """Return the year, or year and month, of the software: ``"2023"``, ``"2026-04"``."""
    for text in (row.get("sw_date", "").strip().lower(), row.get("framework", "").lower()):
        if text in _MLPERF_DATES:
            return _MLPERF_DATES[text]
        if found := re.search(r"\b(20[12]\d)(?:[-/.](0[1-9]|1[0-2]))?", text):
            return found[1] + (f"-{found[2]}" if found[2] else "")
        if found := re.search(r"\b([12]\d)\.(0[1-9]|1[0-2])\b", text):  # NVIDIA's containers: 26.04
            return f"20{found[1]}-{found[2]}"
    return None


def publisher_of(row: Row) -> str:
    """Return who published a row: "owner/repository" on GitHub or Hugging Face, an arXiv number, else first words.

    Of a quotation the original counts; the rounds of a benchmark are one publisher.
    """
    source = row.get("source", "")
    original = re.split(r"(?:,? as)? quoted in", source)[0].strip() or source
    if found := re.search(r"arxiv[: ]*\d{4}\.\d{4,5}", original, re.I):
        return found[0].replace(" ", "")
    if found := re.search(r"(?:github(?:\.com)?|huggingface\.co)[:/]([\w.-]+/[\w.-]+)", original, re.I):
        return re.sub(r"_v\d+(\.\d+)?$", "", found[1].removesuffix(".git"))
    if found := re.search(r"https?://(?:www\.)?([\w.-]+)", original):
        return found[1]
    name = " ".join(re.sub(r"[^\w.+-]+", " ", original).split()[:2]) or "unknown"
    return {"LLaMA paper": "arXiv:2302.13971"}.get(name, name)
