"""Read a claim as people write it: ``"150 ms/step, 8xA100, 524288 tokens/step, 124M"``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ...hardware.devices import Device, find_device, known_devices
from ..transformer.transformer_config import known_presets
from .claim import Claim

_N = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_MULTIPLIER = r"\s*(k|m|b|t|thousand|million|billion|trillion|mil|bn|mm)?\b"
_COUNT = _N + _MULTIPLIER
_IS = r"\s*(?:of|is|was|at|=|:|~|about|approx\.?|around)?\s*"
_PER = r"\s*(?:/|per|a|an)\s*"
_DEVICES = r"(?:gpus?|devices?|accelerators?|chips?|cards?|tpus?)"
_STEP = r"(?:steps?|iterations?|iters?|it|updates?|batch|batches)\b"
_TOKENS = r"(?:tokens?|toks?)"
_TIME = r"(us|µs|ms|milliseconds?|s|secs?|seconds?|mins?|minutes?|h|hrs?|hours?|d|days?|weeks?|months?|years?)\b"
_BYTES = r"(mib|gib|tib|mb|gb|tb)\b"

# Figures that are also written behind their unit.
_UNITS = (
    rf"{_TOKENS}\s*(?:/|per)\s*(?:s|sec|second|step|iter|batch)(?:\s*(?:/|per)\s*{_DEVICES})?|"
    r"(?:n_|num_|number of )?(?:gpus|devices)|gpu[-_ ]hours|total[-_ ]tokens|steps"
)

_FACTORS = {
    "": 1.0, "k": 1e3, "thousand": 1e3, "m": 1e6, "mm": 1e6, "mil": 1e6, "million": 1e6, "b": 1e9, "bn": 1e9,
    "billion": 1e9, "t": 1e12, "trillion": 1e12,
}  # fmt: skip
_SECONDS = {
    "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "mil": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "hr": 3600.0,
    "hou": 3600.0, "d": 86400.0, "day": 86400.0, "wee": 7 * 86400.0, "mon": 30 * 86400.0, "yea": 365 * 86400.0,
}  # fmt: skip
_SIZES = {"mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_RATES = {"g": 1e9, "t": 1e12, "p": 1e15, "e": 1e18}
# Words that say nothing that could be checked.
_SMALL_TALK = frozenset(
    """
    a an the on in at of with for from using use used uses and or to is was are it its by per about around approx
    approximately roughly only just over under total overall run runs running train trains trained training pretrain
    pretraining model models gpu gpus device devices node nodes transformer transformers decoder dense llm lm we i got
    get gets achieved achieve achieves reached reach takes took take nvidia amd google parameter parameters param params
    throughput speed each every mixed precision global batch size step steps time full single one x peak measured
    sustained average mean wall clock cluster dp data parallel fsdp ddp w/ hit hits n num number
    """.split()  # noqa: SIM905
)


@dataclass
class _Text:
    """A claim's text, from which what is understood is taken out."""

    rest: str
    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def take(self, pattern: str, use: Callable[[re.Match[str]], bool | None]) -> None:
        """Let ``use`` read each match, and take it out unless ``use`` returns False."""

        def reader(match: re.Match[str]) -> str:
            return match.group() if use(match) is False else " | "

        self.rest = re.sub(r"(?<![\w.])" + pattern, reader, self.rest)

    def set(self, name: str, value: Any) -> None:
        """Keep a value; a second, different one is said to be left out."""
        kept = self.values.setdefault(name, value)
        alike = isinstance(value, int | float) and abs(value - kept) <= 0.02 * abs(value)
        if kept != value and not alike:
            self.notes.append(f"{name} is said twice, {kept} and {value}: the first counts.")


@dataclass(frozen=True, kw_only=True)
class ReadClaim:
    """A claim as read.

    Attributes:
        claim: what was understood.
        unread: the pieces that were not.
        notes: how doubtful pieces were understood.
    """

    claim: Claim
    unread: tuple[str, ...]
    notes: tuple[str, ...]


def read_claim(text: str) -> ReadClaim:
    """Read a claim. What can't be read is returned, never dropped."""
    found = _Text(_normalized(text))
    for reader in (
        _read_words,
        _read_utilization,
        _read_device_hours,
        _read_money,
        _read_model,
        _read_devices,
        _read_flops,
        _read_tokens,
        _read_batch,
        _read_step_time,
        _read_memory,
        _read_run,
        _read_params,
    ):
        reader(found)
    return ReadClaim(claim=Claim(**found.values), unread=_unread(found.rest), notes=tuple(found.notes))


def _normalized(text: str) -> str:
    """Return a text in lower case with plain signs, digits in one piece and units behind their figures."""
    plain = re.sub("[\u2010-\u2015]", "-", text.lower().replace("×", "x"))
    plain = re.sub("(?<=\\d)[\u00a0\u2009\u202f](?=\\d{3}(?!\\d))", "", plain)
    plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", re.sub("[\u00a0\u2009\u202f]", " ", plain))
    plain = re.sub(r"(?<![\w.-] )(?<![\w.])(\d{1,3}) (\d{3})(?= *(?:tok|steps|gpu|iter))", r"\1\2", plain)
    # "gpus=8", "tokens/s: 1.2M" and a piece that begins with "tokens/s 1.2M" have their unit in front.
    figure = rf"{_N}\s*([kmbt]\b)?(?!\s*{_TOKENS})"
    plain = re.sub(rf"(?<!\w)({_UNITS})\s*[=:]\s*{figure}", r"\2\3 \1 | ", plain)
    return re.sub(rf"((?:^|[,;|(])\s*)({_UNITS})\s+{figure}", r"\1\3\4 \2 | ", plain)


def _number(match: re.Match[str], group: int = 1) -> float:
    """Return the number of a group, times the multiplier that follows it."""
    return float(match[group]) * _FACTORS[match[group + 1] or ""]


def _seconds(amount: str, unit: str) -> float:
    return float(amount) * (_SECONDS.get(unit) or _SECONDS.get(unit[:3]) or _SECONDS[unit.rstrip("s")])


def _read_words(text: _Text) -> None:
    for pattern, name, value in (
        (r"(?=q-?lora\b)", "quantized", True),
        (r"q?-?lora\b", "lora", True),
        (r"(?:4|8)[- ]?bit\b(?: base| weights)?", "quantized", True),
        (r"(?:cpu )?offload(?:ing|ed)?\b", "offloads", True),
        (r"(?:bf16|bfloat16)(?:[- ]mixed)?\b", "precision", "bf16"),
        (r"(?:fp16|float16|half)(?:[- ]mixed)?\b", "precision", "fp16"),
        (r"(?:fp8|float8|mxfp8)(?:[- ]mixed)?\b", "precision", "fp8"),
        (r"(?:nvfp4|mxfp4|fp4)\b", "precision", "fp4"),
        (r"(?:tf32|tensorfloat-?32)\b", "precision", "tf32"),
        (r"(?:fp32|float32)\b", "precision", "fp32"),
    ):
        text.take(pattern, lambda match, name=name, value=value: text.set(name, value))  # type: ignore[misc]
    text.take(r"(?:full |selective )?(?:activation |gradient )?(?:re-?compute|checkpointing|recomputation)\b", _ignored)
    text.take(r"(?:tp|pp|cp|ep|dp|vp|mbs|zero|micro[- ]?batch(?: size)?)[- ]?=?\s*\d+\b", _ignored)


def _ignored(match: re.Match[str]) -> None:
    """Read what no check needs."""


def _read_utilization(text: _Text) -> None:
    name = r"(mfu|hfu|model[- ]flops?[- ]utili[sz]ation|hardware[- ]flops?[- ]utili[sz]ation)\b"

    def use(match: re.Match[str], which: str, amount: str, percent: str | None) -> None:
        value = float(amount)
        # "MFU 45" is percent, "MFU 0.45" and "MFU 1.04" are shares.
        share = value / 100 if percent or value > 1.5 else value
        if not percent and 1.5 < value < 10:
            text.notes.append(f"{which.upper()} {amount} was taken as percent.")
        if share > 0:
            text.set("hfu" if which.startswith("h") else "mfu", share)

    text.take(name + _IS + _N + r"\s*(%|percent\b)?", lambda m: use(m, m[1], m[2], m[3]))
    text.take(_N + r"\s*(%|percent)\s*(?:of\s*)?" + name, lambda m: use(m, m[3], m[1], m[2]))


def _read_device_hours(text: _Text) -> None:
    unit = r"(hours?|hrs?|h|days?|years?)\b"

    def use(match: re.Match[str]) -> None:
        text.set("gpu_hours", _number(match) * _seconds("1", match[4]) / 3600)
        if not re.fullmatch(_DEVICES, match[3]):
            text.set("device", _device(match[3]))

    device = rf"({_DEVICES}|{_device_pattern()})(?:[- ]*{_DEVICES})?"
    text.take(_COUNT + r"\s*-?" + device + r"[-_ ]*" + unit, use)
    text.take(
        _N + r"\s*(?:pf|pflop/?s?|petaflop/?s?)[- ]?days?\b",
        lambda m: text.set("total_flops", float(m[1]) * 1e15 * 86400),
    )


def _read_money(text: _Text) -> None:
    hour = r"(\s*(?:/|per|an)\s*(?:(?:gpu|device)[- /]?)?(?:h|hr|hour)\b(?:\s*/\s*gpu)?)?"

    def use(match: re.Match[str]) -> None:
        text.set("usd_per_device_hour" if match[3] else "cost_usd", _number(match))

    text.rest = text.rest.replace("$", " usd ")
    text.take(r"usd\s*" + _COUNT + hour, use)
    text.take(_COUNT + r"\s*(?:usd|dollars?)" + hour, use)


def _read_model(text: _Text) -> None:
    for name, pattern in _model_patterns():
        if "config" not in text.values:
            text.take(pattern + r"\b(?!\.\d)", lambda match, name=name: text.set("config", name))  # type: ignore[misc]
    text.take(
        r"(?:gpt|llama|bloom|opt|falcon|mpt|palm|pythia|qwen|mistral|mixtral|deepseek)(?:[- ]?v?\d(?:\.\d)?)?(?![\w.])",
        _ignored,
    )


def _read_devices(text: _Text) -> None:
    device = r"(?:nvidia |amd |google )?(" + _device_pattern() + r")s?(?:\s*" + _DEVICES + r")?\b"

    def use(count: str | None, name: str) -> None:
        text.set("device", _device(name))
        if count:
            text.set("num_devices", int(float(count)))

    text.take(_N + r"\s*(?:x|\*)?\s*-?" + device, lambda m: use(m[1], m[2]))
    text.take(r"(?:a|an|one|single|a single|one single)\s+" + device, lambda m: use("1", m[1]))
    text.take(device + r"\s*(?:x|\*)\s*(\d+)\b", lambda m: use(m[2], m[1]))
    text.take(device, lambda m: use(None, m[1]))
    nodes: list[int] = []
    text.take(r"(\d+)\s*(?:x\s*)?nodes?\b(?:\s*(?:of|x))?", lambda m: nodes.append(int(m[1])))
    text.take(r"(\d+)\s*" + _DEVICES + r"\b(?:" + _PER + r"node\b)?", lambda m: text.set("num_devices", int(m[1])))
    if nodes:
        text.set("num_devices", text.values.pop("num_devices", 8) * nodes[0])


def _read_flops(text: _Text) -> None:
    rate = _N + r"\s*(g|t|p|e)(?:era|eta|iga|xa)?-?flops?(?:\s*/\s*s(?:ec)?|ps| per second)?\b"
    one = r"(\s*(?:/|per)\s*" + _DEVICES + r")?"

    def peak(match: re.Match[str]) -> None:
        text.set("peak_flops_per_s", float(match[1]) * _RATES[match[2]])

    def use(match: re.Match[str]) -> None:
        name = "flops_per_s_per_device" if match[3] else "flops_per_s_unlabeled"
        text.set(name, float(match[1]) * _RATES[match[2]])

    text.take(r"peak" + _IS + rate + one, peak)
    text.take(r"(?:out of|of|vs\.?|against|assuming)\s*(?:a\s*)?" + rate + one, peak)
    text.take(rate + one + r"\s*(?:sparse |dense |theoretical )?peak\b", peak)
    text.take(rate + one, use)
    text.take(r"(?:with\s*)?(?:structured\s*)?(?:sparsity|sparse|2:4)(?: peak)?\b", _ignored)
    text.take(_N + r"\s*flops?\b", lambda m: text.set("total_flops", float(m[1])) if float(m[1]) > 1e16 else False)


def _read_tokens(text: _Text) -> None:
    one = r"(\s*(?:/|per)\s*" + _DEVICES + r")?"
    period = r"(s|sec|second|min|minute|h|hour|day)\b"

    def rate(match: re.Match[str], unit: str, per_device: bool) -> None:
        name = "tokens_per_s_per_device" if per_device else "tokens_per_s_unlabeled"
        text.set(name, _number(match) / _seconds("1", unit))

    text.take(
        _COUNT + r"\s*" + _TOKENS + r"\s*(?:/|per)\s*" + _DEVICES + _PER + period,
        lambda m: rate(m, m[3], True),
    )
    text.take(_COUNT + r"\s*" + _TOKENS + _PER + period + one, lambda m: rate(m, m[3], bool(m[4])))
    text.take(_COUNT + r"\s*(?:tps)\b", lambda m: rate(m, "s", False))
    text.take(_COUNT + r"\s*(?:tgs)\b", lambda m: rate(m, "s", True))
    text.take(_COUNT + r"\s*" + _TOKENS + _PER + _STEP, lambda m: text.set("tokens_per_step", _number(m)))
    text.take(
        r"(?:sequences|samples|seqs)\s*(?:of|x)\s*" + _COUNT + r"\s*" + _TOKENS + r"\b",
        lambda m: text.set("seq_len", _length(m)),
    )
    batch = r"(?:global\s*)?batch(?:[- ]?size)?" + _IS
    text.take(batch + _COUNT + r"\s*" + _TOKENS + r"\b", lambda m: text.set("tokens_per_step", _number(m)))
    text.take(_COUNT + r"[- ]?tokens?\s+batch(?:es)?\b", lambda m: text.set("tokens_per_step", _number(m)))


def _read_batch(text: _Text) -> None:
    length = r"(?:seq(?:uence)?[_ -]?(?:len(?:gth)?)?|context(?:[_ -]?(?:len(?:gth)?|window|size))?|ctx|block[_ ]?size)"
    text.take(length + _IS + _COUNT, lambda m: text.set("seq_len", _length(m)))
    text.take(_COUNT + r"[- ]*" + length + r"\b", lambda m: text.set("seq_len", _length(m)))
    sequences = r"\s*(?:sequences|samples|seqs|examples)"
    text.take(_COUNT + sequences + _PER + _STEP, lambda m: text.set("global_batch_size", _number(m)))
    text.take(
        r"(?:gbs|(?:global\s*)?batch(?:[- _]?size)?)" + _IS + _COUNT + r"(?:" + sequences + r"\b)?",
        lambda m: text.set("global_batch_size", _number(m)),
    )


def _length(match: re.Match[str]) -> int:
    # 8k tokens of context are 8,192.
    return int(float(match[1]) * 1024) if match[2] == "k" else int(_number(match))


def _read_step_time(text: _Text) -> None:
    text.take(_N + r"\s*" + _TIME + _PER + _STEP, lambda m: text.set("step_time_s", _seconds(m[1], m[2])))
    text.take(
        r"(?:step|iteration|iter)[- ]?time" + _IS + _N + r"\s*" + _TIME,
        lambda m: text.set("step_time_s", _seconds(m[1], m[2])),
    )
    text.take(
        _N + r"\s*" + _STEP + _PER + r"(s|sec|second|min|minute|h|hour|day)\b",
        lambda m: text.set("step_time_s", _seconds("1", m[2]) / float(m[1])),
    )


def _read_memory(text: _Text) -> None:
    what = r"(?:(?:peak|gpu|device|max|of)\s+)*(?:memory|mem|vram|hbm|ram)\b(?:\s*(?:usage|used|use))?"
    one = r"(\s*(?:/|per|on each|each)\s*" + _DEVICES + r")?"

    def use(match: re.Match[str]) -> None:
        text.set("memory_bytes", float(match[1]) * _SIZES[match[2]])
        if match[3]:
            text.set("memory_is_per_device", True)

    text.take(what + _IS + _N + r"\s*" + _BYTES + one, use)
    text.take(r"(?:uses|using|used|needs|takes|peak|allocated|reserved)" + _IS + _N + r"\s*" + _BYTES + one, use)
    text.take(_N + r"\s*" + _BYTES + r"\s*(?:" + what + ")?" + one, use)


def _read_run(text: _Text) -> None:
    text.take(_COUNT + r"\s*" + _TOKENS + r"\b", lambda m: text.set("total_tokens", _number(m)))
    text.take(
        r"(?:a|one)?\s*(million|billion|trillion)\s*" + _TOKENS + r"\b",
        lambda m: text.set("total_tokens", _FACTORS[m[1]]),
    )
    text.take(_COUNT + r"\s*" + r"(?:steps|iterations|iters|updates)\b", lambda m: text.set("steps", _number(m)))

    def duration(match: re.Match[str]) -> None:
        seconds = _seconds(match[1], match[2])
        if seconds < 60 and "step_time_s" not in text.values:
            text.set("step_time_s", seconds)
            text.notes.append(f"{match.group().strip()} was taken as the time of a step.")
        else:
            text.set("wall_s", seconds)

    text.take(_N + r"\s*-?" + _TIME, duration)


def _read_params(text: _Text) -> None:
    size = _N + r"\s*(m|b|t|million|billion|trillion|bn)"
    what = r"(?:[- ]*(?:params?|parameters?|model|weights))?\b"
    text.take(
        size + r"[- ]*active(?: params?| parameters?)?\b",
        lambda m: text.set("active_params", float(m[1]) * _FACTORS[m[2]]),
    )
    text.take(size + what, lambda m: text.set("params", float(m[1]) * _FACTORS[m[2]]))


def _unread(rest: str) -> tuple[str, ...]:
    pieces = []
    for piece in re.split(r"[|,;()\n]|\.\s", rest):
        words = [word for word in re.findall(r"[^\s]*\w[^\s]*", piece) if word.strip(".:=~-") not in _SMALL_TALK]
        if words:
            pieces.append(" ".join(words))
    return tuple(pieces)


def _device(name: str) -> Device:
    return find_device(re.sub(r"(\d)g$", r"\1gb", re.sub(r"[\s_]+", "-", name.strip())))


@cache
def _device_pattern() -> str:
    names = {name for device in known_devices() for name in (device.key, *device.aliases)}
    # Bare numbers ("4090") would take other figures for devices.
    readable = sorted((name for name in names if re.search("[a-z]", name)), key=len, reverse=True)
    named = "|".join(re.escape(name).replace(r"\-", r"[\s_-]*").replace("gb", "gb?") for name in readable)
    return named + r"|[345]090(?!\s*(?:tok|steps|iter|gpus?|[smhd]\b|ms|[kmbt]\b))"


@cache
def _model_patterns() -> tuple[tuple[str, str], ...]:
    """Preset names as people write them: "Llama-2 70B", "GPT-2", "gpt2"."""
    patterns = []
    for name in sorted(known_presets(), key=len, reverse=True):
        parts = re.findall(r"[a-z]+(?:\d+[a-z]\d*)?|\d+(?:\.\d+)?[a-z]*\d*", name)
        patterns.append((name, r"[\s_-]*".join(re.escape(part) for part in parts)))
    return tuple(patterns)
