"""The runtime scoreboard reads any table with the columns, and accuracy on committed facts doesn't regress."""

import csv
import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import fastbudget as fb

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench" / "cost"
FULL_RUNS = BENCH / "published_full_runs.csv"

pytestmark = pytest.mark.skipif(not BENCH.exists(), reason="bench/ lies in the source tree only")


@pytest.fixture
def read_run(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    from published_runs import read_run

    return read_run


@pytest.fixture
def not_modeled(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    from row_cells import NotModeled

    return NotModeled


def row(**values):
    plain = {
        "run_id": "a", "kind": "benchmark", "domain": "llm-pretrain", "model": "Llama-2-7B", "seq_len": "4096",
        "global_batch_seqs": "512", "micro_batch_seqs": "2", "gpu": "NVIDIA A100-SXM4-80GB", "n_gpus": "64",
        "sharding": "FSDP-FULL_SHARD", "recompute": "none", "precision": "amp_bf16", "framework": "PyTorch FSDP",
        "sw_date": "2024-02", "tokens_per_s_per_gpu": "3700", "verified": "yes", "source": "github:a/b README",
    }  # fmt: skip
    return {**plain, **values}


def score(path, *options):
    command = [sys.executable, str(BENCH / "scoreboard.py"), "--runs", str(path), "--json", *options]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return json.loads(found.stdout)["runs"]


class TestReading:
    def test_a_complete_row_leaves_nothing_open(self, read_run):
        run = read_run(row())
        assert run.assumed == ()
        assert run.layout.data_parallel == 64
        assert run.layout.sharding == "zero3"
        assert run.layout.recompute == "none"
        assert run.device.key == "a100-sxm-80gb"
        assert run.software == "PyTorch FSDP (2024-02)"
        assert run.publisher == "a/b"
        assert run.step_time_s == pytest.approx(512 * 4096 / 64 / 3700)

    @pytest.mark.parametrize(
        ("name", "memory", "key"),
        [
            ("NVIDIA H100-SXM5-80GB", "81559 MiB", "h100-sxm"),
            ("A100 80GB", "", "a100-sxm-80gb"),
            ("A100-SXM", "40", "a100-sxm-40gb"),
            ("NVIDIA A100 - PCIe - 80 GB", "80 GB", "a100-pcie-80gb"),
            ("NVIDIA GeForce RTX 4090", "24GB", "rtx-4090"),
            ("AMD Instinct MI300X 192GB HBM3", "192 GB", "mi300x"),
            ("NVIDIA Blackwell GPU (B200-SXM-180GB)", "143771 MiB", "b200-sxm"),
            ("GB200 NVL72", "", "gb200"),
            ("H100 NVL Tensor Core GPU (PCIe)", "95830 MiB", "h100-nvl"),
            ("TPU v5e-256", "", "tpu-v5e"),
            ("TPU-trillium", "32GB", "tpu-v6e"),
            ("Intel(R) Gaudi(R) 2 AI Accelerator", "96 GB", "gaudi2"),
            ("V100-SXM", "16", "v100-sxm-32gb"),
            ("A800", "80", "a100-sxm-80gb"),
            ("8x H200", "", "h200-sxm"),
        ],
    )
    def test_accelerators_by_any_spelling(self, read_run, name, memory, key):
        assert read_run(row(gpu=name, gpu_mem_gb=memory, tokens_per_s_per_gpu="100")).device.key == key

    @pytest.mark.parametrize(
        ("name", "layers", "billions"),
        [
            ("LLAMA3_70B", 80, 70.6),
            ("LLAMA3.1_405B", 126, 405.9),
            ("Meta-Llama-3-8B-Instruct", 32, 8.03),
            ("Qwen3_235B_a22B (tokendrop)", 94, 235),
            ("MPT-7B", 32, 6.66),
            ("MPT-1B-RedPajama-200B", 24, 1.32),
            ("Megatron-Turing NLG 530B", 105, 530),
            ("GPT OSS 120B", 36, 117),
            ("OLMo 2 13B", 40, 13.7),
            ("PaLM-540B", 118, 540),
            ("BLOOM", 70, 176),
            ("Mixtral 8x7B", 32, 46.7),
            ("GPT-2-1558M (llm.c)", 48, 1.56),
        ],
    )
    def test_models_by_name(self, read_run, name, layers, billions):
        run = read_run(row(model=name, tokens_per_s_per_gpu="1"))
        assert run.shape.layers == layers
        assert run.shape.num_params / 1e9 == pytest.approx(billions, rel=0.01)

    def test_a_family_and_parameters_name_a_model(self, read_run):
        assert read_run(row(model="LLaMA 2", params_b="13", tokens_per_s_per_gpu="900")).shape.layers == 40
        assert read_run(row(model="GPT-3", params_b="6.7")).shape.layers == 32

    def test_sizes_in_the_row_win_over_its_name(self, read_run):
        run = read_run(row(model="my-llama", params_b="2.9", layers="28", hidden="3072", heads="24"))
        assert (run.shape.layers, run.shape.hidden) == (28, 3072)
        assert run.shape.num_params / 1e9 == pytest.approx(2.9, rel=0.08)

    def test_parameters_alone_give_the_usual_proportions(self, read_run):
        run = read_run(row(model="House model", params_b="70", tokens_per_s_per_gpu="300"))
        assert run.shape.num_params / 1e9 == pytest.approx(70, rel=0.05)
        assert 60 <= run.shape.layers <= 90
        assert "layers and width from the parameters" in run.assumed

    @pytest.mark.parametrize(
        ("text", "layout"),
        [
            ("ZeRO-3", "zero3"),
            ("zero 1", "zero1"),
            ("FSDP2", "zero3"),
            ("FSDP=64", "zero3"),
            ("HSDP", "zero3"),
            ("FSDP-SHARD_GRAD_OP", "zero2"),
            ("DDP", "none"),
        ],
    )
    def test_shardings(self, read_run, text, layout):
        assert read_run(row(sharding=text)).layout.sharding == layout

    @pytest.mark.parametrize(
        ("text", "precision"),
        [
            ("BF16", "bf16-mixed"),
            ("MXFP8", "fp8-mixed"),
            ("fp8-rowwise", "fp8-mixed"),
            ("float8", "fp8-mixed"),
            ("NVFP4", "fp4-mixed"),
            ("tf32", "tf32"),
            ("fp32", "fp32"),
            ("fp16", "fp16-mixed"),
        ],
    )
    def test_precisions(self, read_run, text, precision):
        assert read_run(row(precision=text, tokens_per_s_per_gpu="100")).layout.precision == precision

    def test_numbers_with_units(self, read_run):
        run = read_run(row(seq_len="4k", global_batch_seqs="1,024", tokens_per_s_per_gpu="~3.7k"))
        assert run.layout.seq_len == 4096
        assert run.step_time_s == pytest.approx(1024 * 4096 / 64 / 3700)
        run = read_run(row(tokens_per_s_per_gpu="", sec_per_step="8900 ms"))
        assert run.step_time_s == pytest.approx(8.9)

    def test_what_was_measured_in_the_order_of_certainty(self, read_run):
        assert read_run(row(sec_per_step="9")).measure.kind == "sec_per_step"
        assert read_run(row(tokens_per_s_per_gpu="", samples_per_s_total="50")).measure.kind == "samples_per_s_total"
        hours = read_run(row(tokens_per_s_per_gpu="", gpu_hours="184320", tokens_b="2T"))
        assert hours.measure.gpu_hours == 184320
        assert hours.measure.tokens == 2_000_000_000_000
        assert read_run(row(tokens_per_s_per_gpu="", mfu_pct="57")).measure.kind == "mfu_pct"

    def test_a_logged_throughput_is_in_the_unit_that_is_possible(self, read_run):
        logged = {
            "kind": "mlperf", "domain": "mlperf-gpt3", "model": "gpt3", "seq_len": "2048", "global_batch_seqs": "2048",
            "micro_batch_seqs": "", "gpu": "NVIDIA H100-SXM5-80GB", "n_gpus": "512", "sharding": "", "precision": "",
            "framework": "NVIDIA NeMo", "tokens_per_s_per_gpu": "", "flag": "throughput-unit-as-logged",
        }  # fmt: skip
        run = read_run(row(**logged, samples_per_s_total="404455"))
        assert run.step_time_s == pytest.approx(2048 * 2048 / 404455)
        assert "throughput in tokens per second" in run.assumed
        assert run.layout.precision == "fp8-mixed"

    def test_a_missing_layout_is_one_that_fits(self, read_run):
        run = read_run(
            row(
                model="GPT3-175B", gpu="H100", gpu_mem_gb="80", n_gpus="512", framework="Megatron-Core", sharding="",
                recompute="", micro_batch_seqs="", seq_len="2048", tokens_per_s_per_gpu="600",
            )
        )  # fmt: skip
        assert run.layout.tensor_parallel == 8
        assert run.layout.pipeline_parallel > 1
        assert run.layout.framework == "megatron"
        assert any(one.startswith("TP 8") for one in run.assumed)

    @pytest.mark.parametrize(
        ("values", "reason"),
        [
            ({"model": "ResNet-50", "domain": "cv-cls"}, "no transformer"),
            ({"model": "Mamba-2.8B"}, "layers other than attention"),
            ({"model": "Stable Diffusion", "domain": "diffusion"}, "a diffusion model"),
            ({"model": "a model", "params_b": ""}, "unknown model"),
            ({"model": "Big-8x40B"}, "a mixture of experts of unknown shape"),
            ({"gpu": "abacus"}, "unknown hardware"),
            ({"gpu": "A100 then H100"}, "several kinds of hardware in one row"),
            ({"verified": "no"}, "from memory, not read in its source"),
            ({"flag": "INCONSISTENT: too fast"}, "flagged as suspect"),
            ({"n_gpus": "8/16"}, "several numbers of GPUs in one row"),
            ({"tokens_per_s_per_gpu": "50000"}, "faster than the hardware can be"),
            ({"tokens_per_s_per_gpu": ""}, "no figure of time"),
            ({"tokens_per_s_per_gpu": "", "gpu_hours": "10"}, "hours without the tokens or examples they took"),
            (
                {"tokens_per_s_per_gpu": "", "sec_per_step": "3", "global_batch_seqs": ""},
                "seconds per step without a batch size",
            ),
            ({"global_batch_seqs": "100"}, "the sizes in the row don't divide each other"),
        ],
    )
    def test_what_is_not_modeled_says_why(self, read_run, not_modeled, values, reason):
        with pytest.raises(not_modeled) as raised:
            read_run(row(**values))
        assert str(raised.value) == reason


def test_a_table_with_a_byte_order_mark_and_few_columns(tmp_path):
    path = tmp_path / "unseen.csv"
    with path.open("w", newline="", encoding="utf-8-sig") as lines:
        writer = csv.writer(lines)
        writer.writerow(["model", "gpu", "n_gpus", "seq_len", "tokens_per_s_per_gpu", "source"])
        writer.writerow(["Llama 2 7B", "A100 80GB", "128", "4096", "3,700", "https://pytorch.org/blog/x"])
        writer.writerow(["Llama 2 7B", "A100 80GB", "64", "4096", "3,600", "github:other/place"])
        writer.writerow(["ResNet-50", "A100 80GB", "8", "", "", ""])
    found = score(path)
    assert found["rows"] == 3
    assert found["count"] == 2
    assert found["not_modeled"] == {"no transformer": 1}
    for name in ("median_abs_error", "p90_abs_error", "within_10pct", "coverage", "median_width"):
        assert isinstance(found[name], float)
    assert set(found["by_publisher"]) == {"pytorch.org", "other/place"}
    assert set(found["by_gpu"]) == {"a100-sxm-80gb"}
    assert set(found["baselines"]) == {"6nd_mfu_0.4", "gpu_median_mfu_source_held_out"}


def test_each_publisher_is_predicted_by_a_model_that_has_not_seen_it(tmp_path):
    path = tmp_path / "two.csv"
    columns = ["model", "gpu", "n_gpus", "seq_len", "micro_batch_seqs", "tokens_per_s_per_gpu", "framework", "source"]
    slow = ["Llama 2 7B", "A100 80GB", "128", "4096", "2", "1500", "PyTorch FSDP", "github:slow/one"]
    fast = ["Llama 2 7B", "A100 80GB", "64", "4096", "2", "3900", "PyTorch FSDP", "github:fast/one"]
    with path.open("w", newline="") as lines:
        csv.writer(lines).writerows([columns, slow, fast])
    found = score(path, "--leave-one-publisher-out")
    assert found["leave_one_publisher_out"]
    # The slow one's model has learned from the fast one alone, and the other way round.
    assert found["by_publisher"]["slow/one"]["median_error"] < -0.2
    assert found["by_publisher"]["fast/one"]["median_error"] > 0.1


def test_a_figure_in_two_tables_counts_once(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCH))
    from published_runs import read_runs

    lines = FULL_RUNS.read_text().splitlines()
    few = tmp_path / "few.csv"
    few.write_text("\n".join(lines[:6]))
    runs, reasons = read_runs(few, FULL_RUNS)
    assert len(runs) == len(lines) - 1
    assert reasons["the same figure in another table"] == 5


def test_publishers_weigh_the_same(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    from weighted import publisher_weights, weighted_quantile, weighted_share

    publishers = ["many"] * 98 + ["one", "other"]
    weights = publisher_weights(publishers)
    assert sum(weights) == pytest.approx(1.0)
    assert weighted_quantile([0.01] * 98 + [0.5, 0.6], weights, 0.5) == 0.5
    assert weighted_share([True] * 98 + [False, False], weights) == pytest.approx(1 / 3)
    values = [5.0, 1.0, 3.0, 2.0]
    assert weighted_quantile(values, [1.0] * 4, 0.5) == statistics.median(values)


def test_accuracy_on_committed_facts_holds():
    found = score(FULL_RUNS)
    committed = json.loads((ROOT / "bench" / "results" / "scoreboard_runs.json").read_text())["full_runs"]
    assert found["count"] >= committed["count"]
    assert found["median_abs_error"] <= committed["median_abs_error"] + 0.02
    assert found["p90_abs_error"] <= committed["p90_abs_error"] + 0.05
    assert found["coverage"] >= committed["coverage"] - 0.05
    naive = min(one["median_abs_error"] for one in found["baselines"].values())
    assert found["median_abs_error"] < naive


@pytest.mark.parametrize(
    ("preset", "tokens", "devices", "published"),
    [
        ("llama-7b", 1_000_000_000_000, 128, 82_432),
        ("llama-13b", 1_000_000_000_000, 256, 135_168),
        ("llama-33b", 1_400_000_000_000, 1024, 530_432),
        ("llama-65b", 1_400_000_000_000, 2048, 1_022_362),
    ],
)
def test_gpu_hours_of_llama(preset, tokens, devices, published):
    """GPU-hours on A100-80GB: Touvron et al. 2023 (arXiv:2302.13971), table 15."""
    estimate = fb.estimate_transformer(
        preset, tokens=tokens, seq_len=2048, global_batch_size=2048, hardware="a100-80gb", num_devices=devices,
        sharding="zero3", software="2023",
    )  # fmt: skip
    assert estimate.gpu_hours.low <= published <= estimate.gpu_hours.high
    assert estimate.gpu_hours.mid == pytest.approx(published, rel=0.2)


def test_step_time_of_a_small_model_on_a_node():
    """llm.c trains GPT-2 124M at about 300 ms per 524,288 tokens (github.com/karpathy/llm.c run_gpt2_124M.sh)."""
    estimate = fb.estimate_transformer(
        "gpt2", seq_len=1024, global_batch_size=512, micro_batch_size=64, hardware="a100-80gb", num_devices=8,
        sharding="zero1", framework="megatron", software="llm.c CUDA 2024",
    )  # fmt: skip
    assert estimate.step_time_s.mid == pytest.approx(0.3, rel=0.25)
    assert estimate.step_time_s.low <= 0.3 <= estimate.step_time_s.high
    assert estimate.step_time_s.low > 0.15


def test_more_examples_take_more_time():
    """52,000 examples take several times as long as 9,000 (Guanaco and Alpaca data for QLoRA, arXiv:2305.14314)."""

    def hours(examples):
        return fb.estimate_transformer(
            "llama-33b", tokens=examples * 512, seq_len=512, global_batch_size=16, hardware="a100-80gb",
            lora_rank=64, quantized_base=True, recompute="full", precision="bf16",
        ).gpu_hours.mid  # fmt: skip

    assert hours(52_000) / hours(9_000) == pytest.approx(52 / 9, rel=0.1)
    assert 5 < hours(52_000) < 200
