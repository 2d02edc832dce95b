"""How often the claim check is right: false alarms on published runs, and wrong versions of them that it finds.

Run: python bench/cost/claims.py --runs CSV [--json] [--alarms]

Each verified language-model row becomes a claim in words, as its authors might have written it. Rows flagged as
inconsistent should be flagged; the others should not. Then each row is made wrong in ways that people are wrong.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from row_cells import Row, read_rows

from fastbudget.cost import ClaimReport, check_claim
from fastbudget.hardware import cpu_name

_CELLS = (
    ("seq_len", "seq {}"),
    ("global_batch_seqs", "batch {} sequences"),
    ("tokens_per_s_per_gpu", "{} tokens/s/GPU"),
    ("sec_per_step", "{} s/step"),
    ("mfu_pct", "{}% MFU"),
    ("hfu_pct", "{}% HFU"),
    ("model_tflops_per_gpu", "{} TFLOP/s/GPU"),
    ("gpu_hours", "{} GPU hours"),
    ("wall_hours", "{} hours"),
)


def claim_of(row: Row) -> str | None:
    """Return a row in words, or None where it is no claim about training a language model."""
    if row.get("verified") != "yes" or not row.get("domain", "").startswith("llm") or not row.get("gpu"):
        return None
    if row.get("kind") == "mlperf" or "as-logged" in row.get("flag", ""):
        return None
    size = f"{row['params_b']}B params" if row.get("params_b") else row["model"].replace("_", " ")
    memory = f" {row['gpu_mem_gb']}GB" if row.get("gpu_mem_gb") and row["gpu"].startswith(("A100", "V100")) else ""
    words = [size, f"{row.get('n_gpus') or ''} x {row['gpu']}{memory}".strip(" x")]
    if row.get("active_params_b"):
        words.append(f"{row['active_params_b']}B active")
    precision = re.search(r"fp8|fp4|bf16|fp16|fp32|tf32|mxfp8|nvfp4", row.get("precision", "").lower())
    words += [precision[0]] if precision else []
    if row["domain"] == "llm-lora":
        how = " ".join(row.get(cell, "") for cell in ("framework", "precision", "model", "note")).lower()
        words.append("QLoRA" if re.search(r"q-?lora|int4|4-?bit|nf4", how) else "LoRA")
    words += [template.format(row[cell]) for cell, template in _CELLS if row.get(cell)]
    if row.get("tokens_b"):
        words.append(f"{row['tokens_b']}B tokens")
    return ", ".join(words)


def _scaled(cell: str, factor: float) -> Callable[[Row], Row | None]:
    return lambda row: row | {cell: f"{float(row[cell]) * factor:g}"} if row.get(cell) else None


MISTAKES: dict[str, Callable[[Row], Row | None]] = {
    "tokens/s 3 times too high": _scaled("tokens_per_s_per_gpu", 3.0),
    "step time 3 times too short": _scaled("sec_per_step", 1 / 3),
    "MFU of the sparse peak": lambda row: (
        row | {"mfu_pct": f"{float(row['mfu_pct']) / 2:g}"}
        if row.get("mfu_pct") and (row.get("tokens_per_s_per_gpu") or row.get("model_tflops_per_gpu"))
        else None
    ),
    "MFU of the A100's peak on an H100": lambda row: (
        row | {"mfu_pct": f"{float(row['mfu_pct']) * 989 / 312:g}"}
        if row.get("mfu_pct") and row["gpu"].startswith("H100")
        else None
    ),
    "a third of the GPU-hours": _scaled("gpu_hours", 1 / 3),
}


def score(rows: list[Row]) -> tuple[dict[str, Any], list[tuple[str, ClaimReport]]]:
    """Return the shares, and the false alarms with their claims."""
    verdicts: dict[str, Counter[str]] = {"sane": Counter(), "inconsistent": Counter()}
    mistakes: dict[str, Counter[str]] = {name: Counter() for name in MISTAKES}
    alarms, unread = [], Counter[str]()
    for row in rows:
        claim = claim_of(row)
        if claim is None:
            continue
        report = check_claim(claim)
        unread.update(report.unread)
        sane = "INCONSISTENT" not in row.get("flag", "")
        verdicts["sane" if sane else "inconsistent"][report.verdict] += 1
        if sane and report.verdict not in ("plausible", "unchecked"):
            alarms.append((claim, report))
        if report.verdict != "plausible":
            continue
        for name, mistake in MISTAKES.items():
            wrong = mistake(row)
            if wrong is not None:
                mistakes[name][check_claim(str(claim_of(wrong))).verdict] += 1
    return {
        "claims": sum(verdicts["sane"].values()),
        "false_alarms": _flagged(verdicts["sane"]),
        "inconsistent_found": _flagged(verdicts["inconsistent"]),
        "verdicts": {name: dict(counts) for name, counts in verdicts.items()},
        "mistakes_found": {name: _flagged(counts) for name, counts in mistakes.items()},
        "mistakes_made": {name: counts.total() for name, counts in mistakes.items()},
        "unread": dict(unread.most_common(10)),
    }, alarms


def _flagged(counts: Counter[str]) -> float | None:
    """Share of the claims with any check that are flagged."""
    checked = counts.total() - counts["unchecked"]
    return None if not checked else (checked - counts["plausible"]) / checked


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="a CSV with the columns of published_runs.csv")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--alarms", action="store_true", help="list the false alarms")
    arguments = parser.parse_args()
    found, alarms = score(read_rows(arguments.runs))
    found = {"runs": arguments.runs.name, "machine": {"processor": cpu_name()}} | found
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    print(f"published claims           {found['claims']}")
    print(f"flagged though sane        {_share(found['false_alarms'])}   {found['verdicts']['sane']}")
    print(f"inconsistent and flagged   {_share(found['inconsistent_found'])}   {found['verdicts']['inconsistent']}")
    for name, share in found["mistakes_found"].items():
        print(f"{name:34} {_share(share):>6} found of {found['mistakes_made'][name]}")
    print(f"not understood: {found['unread']}")
    for claim, report in alarms if arguments.alarms else []:
        print(f"\n{claim}")
        for finding in report.findings:
            print(f"  {finding.kind}: {finding.message}")


if __name__ == "__main__":
    main()
