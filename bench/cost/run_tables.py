"""The scoreboard of time as text for a terminal and as a table for the documentation."""

from __future__ import annotations

from typing import Any

_COLUMNS = "count  median    p90   signed  in 10%  covered  width"


def print_runs(result: dict[str, Any]) -> None:
    print(f"Time: {result['count']} figures of {result['rows']} rows")
    if result["count"]:
        if result["leave_one_publisher_out"]:
            print("Each publisher predicted by a model fitted on the others.")
        _print_headline(result)
        for title, part in (("By publisher", "by_publisher"), ("By GPU", "by_gpu"), ("By figure", "by_measure")):
            print(f"\n{title:34} {_COLUMNS}")
            for name, one in result[part].items():
                print(_line(name, one))
        print("\nOutside the calibrated range, and rows that leave nothing open")
        for name in ("extrapolating", "nothing_assumed"):
            if result[name]["count"]:
                print(_line(name.replace("_", " "), result[name]))
        for reason, count in result["extrapolating"]["reasons"].items():
            print(f"  {count:4} {reason}")
    print("\nNot modeled")
    for reason, count in result["not_modeled"].items():
        print(f"  {count:4} {reason}")


def _print_headline(result: dict[str, Any]) -> None:
    print(f"\n{'':34} median     p90  in 10%  covered  width")
    for name, ending in ((f"{result['publishers']} publishers weighing the same", ""), ("by row", "_by_row")):
        print(
            f"{name:34} {result['median_abs_error' + ending]:6.1%} {result['p90_abs_error' + ending]:7.1%}"
            f" {result['within_10pct' + ending]:7.0%} {result['coverage' + ending]:8.0%}"
            f" {result['median_width' + ending]:6.0%}"
        )
    print(f"{'median of publishers medians':34} {result['median_of_publisher_medians']:6.1%}")
    for name, baseline in result["baselines"].items():
        for label, ending in ((name, ""), ("  by row", "_by_row")):
            print(
                f"{label:34} {baseline['median_abs_error' + ending]:6.1%} {baseline['p90_abs_error' + ending]:7.1%}"
                f" {baseline['within_10pct' + ending]:7.0%}"
            )


def _line(name: str, one: dict[str, Any]) -> str:
    return (
        f"{name[:34]:34} {one['count']:5} {one['median_abs_error']:7.1%} {one['p90_abs_error']:6.0%}"
        f" {one['median_error']:+8.1%} {one['within_10pct']:7.0%} {one['coverage']:8.0%} {one['median_width']:6.0%}"
    )


def print_run_rows(rows: list[dict[str, Any]]) -> None:
    for one in sorted(rows, key=lambda one: (one["publisher"], one["id"])):
        predicted = one["predicted"]
        print(
            f"{one['id']} {one['publisher'][:24]:24} {one['model'][:20]:20} {one['num_devices']:5}x {one['gpu']:14}"
            f" {one['published']:10.4g} {predicted['mid']:10.4g} [{predicted['low']:.4g}, {predicted['high']:.4g}]"
            f" {one['unit']} {one['error']:+7.1%} {', '.join((*one['extrapolating'], *one['assumed']))}"
        )


def markdown_table(result: dict[str, Any]) -> str:
    lines = [
        "| publisher | figures | median error | 90th percentile | signed median | covered | median width |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {name} | {one['count']} | {one['median_abs_error']:.1%} | {one['p90_abs_error']:.0%} |"
        f" {one['median_error']:+.1%} | {one['coverage']:.0%} | {one['median_width']:.0%} |"
        for name, one in result["by_publisher"].items()
    ]
    for name, ending in (("**publishers weighing the same**", ""), ("**rows weighing the same**", "_by_row")):
        lines.append(
            f"| {name} | {result['count']} | {result['median_abs_error' + ending]:.1%} |"
            f" {result['p90_abs_error' + ending]:.0%} | | {result['coverage' + ending]:.0%} |"
            f" {result['median_width' + ending]:.0%} |"
        )
    for name, baseline in (
        ("6ND at MFU 0.4", "6nd_mfu_0.4"),
        ("the GPU's median MFU, source held out", "gpu_median_mfu_source_held_out"),
    ):
        one = result["baselines"][baseline]
        lines.append(
            f"| {name}, publishers weighing the same | {result['count']} | {one['median_abs_error']:.1%} |"
            f" {one['p90_abs_error']:.0%} | | | |"
        )
    return "\n".join(lines)
