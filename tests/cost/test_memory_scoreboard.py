"""The memory scoreboard reads any table with the columns, and accuracy on the published figures holds."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCOREBOARD = ROOT / "bench" / "cost" / "scoreboard.py"
PUBLISHED = ROOT.parent / "shared" / "data" / "published_memory.csv"
COLUMNS = [
    "mem_id",
    "model",
    "method",
    "layers",
    "hidden",
    "seq_len",
    "micro_batch_seqs",
    "global_batch_seqs",
    "gpu",
    "gpu_mem_gb",
    "n_gpus",
    "tp",
    "pp",
    "dp",
    "cp",
    "ep",
    "sharding",
    "recompute",
    "precision",
    "optimizer",
    "framework",
    "sw_date",
    "metric",
    "value",
    "unit",
    "scope",
    "oom",
    "verified",
    "flag",
    "source",
]

pytestmark = pytest.mark.skipif(not SCOREBOARD.exists(), reason="bench/ lies in the source tree only")


def score(path):
    command = [sys.executable, str(SCOREBOARD), "--memory", str(path), "--json"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return json.loads(found.stdout)["memory"]


def row(**values):
    plain = {
        "model": "meta-llama/Llama-3.1-8B-Instruct", "method": "full", "seq_len": "4096", "micro_batch_seqs": "1",
        "gpu": "H100", "n_gpus": "8", "sharding": "FSDP", "precision": "bf16", "metric": "max_memory_reserved",
        "value": "40", "unit": "GiB", "oom": "0", "verified": "yes", "source": "github:someone/something README",
    }  # fmt: skip
    return {**dict.fromkeys(COLUMNS, ""), **plain, **values}


def test_unseen_rows_are_scored_or_skipped_with_a_reason(tmp_path):
    rows = [
        row(),
        row(metric="torch.cuda.max_memory_allocated"),
        row(metric="nvidia-smi"),
        row(metric="peaks", value="30 allocated / 45 reserved / 44 active"),
        row(model="Mamba-7B"),
        row(seq_len=""),
        row(gpu="abacus"),
        row(value="about 40"),
        row(unit="pages"),
        row(tp="3", n_gpus="6"),
        row(n_gpus="8/16"),
        row(framework="Megatron-LM", tp=""),
        row(method="full", value="", oom="1", gpu="RTX 3090", n_gpus="1", sharding="none"),
        row(verified="no"),
    ]
    path = tmp_path / "unseen.csv"
    with path.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    memory = score(path)
    assert memory["rows"] == len(rows)
    counts = {kind: one["count"] for kind, one in memory["by_kind"].items()}
    assert counts == {"reserved": 2, "allocated": 2, "nvidia-smi": 1, "active": 1}
    assert memory["not_modeled"] == {
        "unknown model": 1,
        "no sequence length": 1,
        "unknown hardware": 1,
        "the value is not one number": 1,
        "unknown unit": 1,
        "the sizes in the row don't divide each other": 1,
        "several numbers of GPUs in one row": 1,
        "the parallel layout is not given": 1,
        "from memory, not read in its source": 1,
    }
    assert memory["oom"]["ran_out"] == 1
    assert memory["oom"]["ran_out_called_no_or_at_risk"] == 1.0


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published figures are not in ../shared/data")
def test_accuracy_on_published_figures_holds():
    memory = score(PUBLISHED)
    assert memory["by_kind"]["reserved"]["count"] >= 80
    assert memory["by_kind"]["reserved"]["median_abs_error"] <= 0.06
    assert memory["by_kind"]["total over GPUs"]["median_abs_error"] <= 0.07
    assert memory["oom"]["ran_out_called_no_or_at_risk"] == 1.0
    assert memory["oom"]["fitted_called_yes_or_at_risk"] >= 0.95
