"""How far predicted peak memory is from published figures of real runs.

Kinds of figures are never mixed: allocated with allocated, reserved with reserved, nvidia-smi with device memory.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from published_rows import Measurement, Request, estimate, kind_of, measurements, request_of
from row_cells import NotModeled, Row, publisher_of, read_rows

from fastbudget.cost.transformer.transformer_estimation import TransformerEstimate


def predicted_bytes(kind: str, result: TransformerEstimate, row: Row) -> float:
    memory = result.memory
    if kind in ("allocated", "framework log"):
        return memory.allocated_bytes
    if kind == "active":
        return memory.active_bytes
    if kind == "reserved":
        return memory.reserved_bytes
    if kind == "formula":
        return memory.per_stage[0].allocated_bytes
    many = result.layout.num_devices if row.get("scope", "") == "sum_all_gpus" else 1
    return float(memory.device_bytes * many)


def score_memory(path: Path) -> dict[str, Any]:
    rows = read_rows(path)
    scored: list[dict[str, Any]] = []
    skipped: Counter[str] = Counter()
    verdicts: dict[str, Counter[str]] = {"oom": Counter(), "fitted": Counter()}
    for row in rows:
        ran_out = row.get("oom", "").strip() == "1"
        try:
            request = request_of(row, for_verdict=ran_out)
            result = estimate(request)
        except NotModeled as reason:
            skipped[str(reason)] += 1
            continue
        if kind_of(row) != "formula":
            verdicts["oom" if ran_out else "fitted"][result.memory.fits] += 1
        if ran_out:
            continue
        try:
            found = measurements(row)
        except NotModeled as reason:
            skipped[str(reason)] += 1
            continue
        if not found:
            skipped["no value"] += 1
        scored += [_scored(row, request, result, one) for one in found]
    return {
        "rows": len(rows),
        "count": len(scored),
        "by_kind": _summaries(scored, "kind"),
        "by_source": _summaries(scored, "kind", "publisher"),
        "without_assumptions": _summaries([one for one in scored if not one["assumed"]], "kind"),
        "publishers_weighing_the_same": _by_publisher(scored),
        "oom": _verdict_shares(verdicts),
        "not_modeled": dict(skipped.most_common()),
        "scored": scored,
    }


def _scored(row: Row, request: Request, result: TransformerEstimate, one: Measurement) -> dict[str, Any]:
    predicted = predicted_bytes(one.kind, result, row)
    return {
        "id": row.get("mem_id", ""),
        "model": row.get("model", ""),
        "method": row.get("method", "")[:40],
        "publisher": publisher_of(row),
        "kind": one.kind,
        "published_bytes": one.value_bytes,
        "predicted_bytes": predicted,
        "error": predicted / one.value_bytes - 1,
        "assumed": request.assumed,
    }


def _summaries(scored: list[dict[str, Any]], *keys: str) -> dict[str, Any]:
    groups: dict[str, list[float]] = defaultdict(list)
    for one in scored:
        groups[", ".join(one[key] for key in keys)].append(one["error"])
    return {name: _summary(errors) for name, errors in sorted(groups.items())}


def _summary(errors: list[float]) -> dict[str, Any]:
    sizes = sorted(abs(error) for error in errors)
    return {
        "count": len(sizes),
        "median_abs_error": statistics.median(sizes),
        "p95_abs_error": sizes[min(len(sizes) - 1, int(0.95 * len(sizes)))],
        "median_error": statistics.median(errors),
        "within_10pct": sum(size <= 0.1 for size in sizes) / len(sizes),
    }


def _by_publisher(scored: list[dict[str, Any]]) -> dict[str, Any]:
    """Return per kind the median over publishers of their medians: no publisher counts more than another."""
    medians: dict[str, list[float]] = defaultdict(list)
    for name, summary in _summaries(scored, "kind", "publisher").items():
        medians[name.split(", ")[0]].append(summary["median_abs_error"])
    return {
        kind: {"publishers": len(values), "median_of_medians": statistics.median(values), "worst": max(values)}
        for kind, values in medians.items()
    }


def _verdict_shares(verdicts: dict[str, Counter[str]]) -> dict[str, Any]:
    ran_out, fitted = verdicts["oom"], verdicts["fitted"]
    return {
        "ran_out": ran_out.total(),
        "ran_out_called_no_or_at_risk": _share(ran_out, "no", "at risk"),
        "fitted": fitted.total(),
        "fitted_called_yes_or_at_risk": _share(fitted, "yes", "at risk"),
        "fitted_called_yes": _share(fitted, "yes"),
    }


def _share(counts: Counter[str], *names: str) -> float | None:
    return sum(counts[name] for name in names) / counts.total() if counts.total() else None


def print_memory(result: dict[str, Any]) -> None:
    print(f"Memory: {result['count']} figures of {result['rows']} rows")
    for title, part in (("By kind", "by_kind"), ("Nothing assumed", "without_assumptions"), ("By source", "by_source")):
        print(f"\n{title:64}  count  median    p95  signed  within 10%")
        for name, one in result[part].items():
            print(
                f"{name:64} {one['count']:6} {one['median_abs_error']:7.1%} {one['p95_abs_error']:6.1%}"
                f" {one['median_error']:+7.1%} {one['within_10pct']:11.0%}"
            )
    print("\nPublishers weighing the same")
    for kind, one in result["publishers_weighing_the_same"].items():
        print(f"  {kind}: median {one['median_of_medians']:.1%}, worst {one['worst']:.1%} of {one['publishers']}")
    print("\nVerdicts", json.dumps(result["oom"]))
    print("\nNot modeled")
    for reason, count in result["not_modeled"].items():
        print(f"  {count:4} {reason}")


def print_memory_rows(rows: list[dict[str, Any]]) -> None:
    for one in sorted(rows, key=lambda one: (one["kind"], one["publisher"], one["id"])):
        published, predicted = one["published_bytes"] / 2**30, one["predicted_bytes"] / 2**30
        print(
            f"{one['id']} {one['kind'][:10]:10} {one['model'][:18]:18} {one['method'][:34]:34} {published:8.2f}"
            f" {predicted:8.2f} GiB {one['error']:+7.1%} {', '.join(one['assumed'])}"
        )
