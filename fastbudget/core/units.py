"""Numbers as people read them. Bytes and seconds inside; GiB, GB and hours only where shown."""

from __future__ import annotations

SECONDS_PER_HOUR = 3600.0

_SI = ("", "k", "M", "G", "T", "P", "E")


def format_count(value: float, unit: str = "") -> str:
    """Format with a decimal prefix: ``1234567`` is ``1.23 M``."""
    size = abs(float(value))
    power = 0
    while size >= 999.5 and power < len(_SI) - 1:
        size /= 1000
        power += 1
    sign = "-" if value < 0 else ""
    digits = f"{size:.0f}" if power == 0 and size == int(size) else f"{size:.3g}"
    return f"{sign}{digits} {_SI[power]}{unit}".rstrip()


def format_bytes(value: float) -> str:
    """Format with a binary prefix: KiB is 2^10 bytes, GiB 2^30."""
    size = float(value)
    for prefix in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or prefix == "GiB":
            return f"{size:.0f} B" if prefix == "B" else f"{size:.2f} {prefix}"
        size /= 1024
    raise AssertionError("unreachable")


def format_seconds(value: float) -> str:
    """Format a duration: ``0.0042`` is ``4.2 ms``, ``4000`` is ``1 h 6 min 40 s``."""
    if value < 0:
        return f"-{format_seconds(-value)}"
    if value < 1e-3:
        return f"{value * 1e6:.3g} µs"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    if value < 60:
        return f"{value:.3g} s"
    whole = round(value)
    hours, rest = divmod(whole, 3600)
    minutes, seconds = divmod(rest, 60)
    return (f"{hours:,} h " if hours else "") + f"{minutes} min {seconds} s"
