"""Layouts written for launchers and read back; accelerate's own loader and launcher read them too."""

import json
import os
import subprocess

import pytest

from fastbudget.core.errors import ConfigurationError, InvalidInputError
from fastbudget.cost.planner.accelerate_files import write_accelerate
from fastbudget.cost.planner.deepspeed_files import write_deepspeed
from fastbudget.cost.planner.launch_reading import read_launch_config
from fastbudget.cost.planner.torchrun_command import nodes_for, write_torchrun
from fastbudget.cost.transformer.training_layout import TrainingLayout


def layout(**changes):
    return TrainingLayout(**{"seq_len": 4096, "global_batch_size": 256, "num_devices": 16, **changes})


ACCELERATE = [
    {"num_devices": 1},
    {"micro_batch_size": 4},
    {"precision": "fp32"},
    {"sharding": "zero3", "recompute": "full", "precision": "fp16-mixed"},
    {"sharding": "zero2", "micro_batch_size": 2},
    {"sharding": "zero3", "offload": "all", "precision": "fp8-mixed"},
    {"sharding": "zero3", "tensor_parallel": 4, "context_parallel": 2},
    {"tensor_parallel": 16},
    {"framework": "deepspeed", "sharding": "zero1"},
    {"framework": "deepspeed", "sharding": "zero3", "offload": "all", "precision": "fp16-mixed"},
    {"framework": "deepspeed", "sharding": "zero2", "offload": "optimizer", "recompute": "full"},
    {"framework": "megatron", "sharding": "zero1", "tensor_parallel": 4, "pipeline_parallel": 2},
    {"framework": "megatron", "recompute": "selective", "pipeline_parallel": 4},
]


@pytest.mark.parametrize("changes", ACCELERATE)
def test_accelerate_round_trip(tmp_path, changes):
    wanted = layout(**changes)
    path = tmp_path / "default_config.yaml"
    notes = write_accelerate(path, wanted)
    found = read_launch_config(path)
    assert found.num_nodes == (1 if wanted.num_devices == 1 else 2)
    # What the file can't hold is said, and passed.
    others = {"seq_len": 4096, "global_batch_size": 256, "micro_batch_size": wanted.micro_batch_size}
    if found.recompute is None and wanted.recompute != "none":
        assert any("recompute" in note for note in notes)
        others["recompute"] = wanted.recompute
    assert found.layout(**others) == wanted
    assert f"# Your script sets: {notes[0]}." in path.read_text()


@pytest.mark.parametrize("changes", ACCELERATE)
def test_accelerate_itself_reads_what_is_written(tmp_path, changes):
    loader = pytest.importorskip("accelerate.commands.config.config_args")
    path = tmp_path / "default_config.yaml"
    wanted = layout(**changes)
    write_accelerate(path, wanted)
    config = loader.load_config_from_file(str(path))
    assert config.num_processes == wanted.num_devices
    # Every key is an option of its launcher.
    launch = pytest.importorskip("accelerate.commands.launch")
    options = vars(launch.launch_command_parser().parse_args(["--config_file", str(path), "train.py"]))
    for name in ("fsdp_config", "parallelism_config", "megatron_lm_config", "deepspeed_config"):
        assert set(getattr(config, name)) <= set(options), name
    checked, _, _ = launch._validate_launch_command(
        launch.launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    )
    assert checked.use_fsdp == ("fsdp_config" in path.read_text())
    assert checked.mixed_precision == {"fp32": "no"}.get(wanted.precision, wanted.precision.removesuffix("-mixed"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"pipeline_parallel": 4}, "pipeline_parallel=4"),
        ({"sharding": "zero1"}, "sharding='zero1'"),
        ({"sharding": "zero3", "recompute": "selective"}, "recompute='selective'"),
        ({"precision": "bf16"}, "precision='bf16'"),
        ({"expert_parallel": 4}, "expert_parallel=4"),
        ({"tensor_parallel": 4}, "only with FSDP"),
        ({"sharding": "zero3", "offload": "optimizer"}, "offload 'all' or 'none'"),
        ({"framework": "deepspeed", "tensor_parallel": 2}, "tensor_parallel=2"),
        ({"framework": "megatron", "sharding": "zero3"}, "sharding='zero3'"),
    ],
)
def test_what_accelerate_can_not_say_is_refused(tmp_path, changes, told):
    path = tmp_path / "config.yaml"
    with pytest.raises(InvalidInputError, match=told):
        write_accelerate(path, layout(**changes))
    assert not path.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "fp32", "num_devices": 1},
        {"sharding": "zero1", "precision": "fp16-mixed"},
        {"sharding": "zero2", "offload": "optimizer", "micro_batch_size": 4},
        {"sharding": "zero3", "offload": "all", "micro_batch_size": 16},
    ],
)
def test_deepspeed_round_trip(tmp_path, changes):
    wanted = layout(framework="deepspeed", **changes)
    write_deepspeed(tmp_path / "ds.json", wanted)
    values = json.loads((tmp_path / "ds.json").read_text())
    devices = wanted.num_devices
    assert (
        values["train_batch_size"]
        == values["train_micro_batch_size_per_gpu"] * values["gradient_accumulation_steps"] * devices
    )
    assert read_launch_config(tmp_path / "ds.json").layout(seq_len=4096) == wanted


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tensor_parallel": 2}, "tensor_parallel=2"),
        ({"pipeline_parallel": 2}, "pipeline_parallel=2"),
        ({"context_parallel": 2}, "context_parallel=2"),
        ({"precision": "fp8-mixed"}, "fp8-mixed"),
        ({"offload": "optimizer"}, "offloads only with sharding"),
        ({"sharding": "zero2", "offload": "all"}, "zero3"),
    ],
)
def test_what_deepspeed_can_not_say_is_refused(tmp_path, changes, told):
    with pytest.raises(InvalidInputError, match=told):
        write_deepspeed(tmp_path / "ds.json", layout(**changes))


def written(tmp_path, values, name="ds.json"):
    path = tmp_path / name
    path.write_text(json.dumps(values))
    return path


def test_auto_values_are_explained_and_filled_by_the_caller(tmp_path):
    path = written(
        tmp_path,
        {
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "bf16": {"enabled": "auto"},
            "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": "auto"},
        },
    )
    found = read_launch_config(path)
    assert found.micro_batch_size is found.precision is None
    assert any("per_device_train_batch_size" in note for note in found.notes)
    assert any("bf16" in note for note in found.notes)
    with pytest.raises(InvalidInputError, match="num_devices"):
        found.layout(seq_len=2048)
    filled = found.layout(seq_len=2048, num_devices=8, micro_batch_size=2, global_batch_size=64)
    assert filled.sharding == "zero2" and filled.offload == "optimizer"
    with pytest.raises(InvalidInputError, match="the file says 'zero2'"):
        found.layout(seq_len=2048, sharding="zero3")


def test_sizes_that_determine_each_other(tmp_path):
    sizes = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
    assert read_launch_config(written(tmp_path, sizes)).num_devices == 8
    # DeepSpeed derives the accumulation from the other two and the devices it finds.
    two = written(tmp_path, {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4})
    assert read_launch_config(two).layout(seq_len=1, num_devices=4).micro_batches == 4
    one = written(tmp_path, {"train_micro_batch_size_per_gpu": 4})
    assert read_launch_config(one).layout(seq_len=1, num_devices=4).global_batch_size == 16


@pytest.mark.parametrize(
    ("zero", "offload"),
    [
        ({"stage": 3, "cpu_offload_param": True}, "all"),
        ({"stage": 2, "cpu_offload": True}, "optimizer"),
        ({"stage": 3, "offload_optimizer": {}}, "none"),  # its device is "none" by default
        ({"stage": 3, "offload_param": {"device": "nvme"}}, "all"),
    ],
)
def test_offload_in_the_ways_deepspeed_reads_it(tmp_path, zero, offload):
    assert read_launch_config(written(tmp_path, {"zero_optimization": zero})).offload == offload


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "disk"}}}, "'disk'"),
        ({"zero_optimization": {"stage": 4}}, "stage must be 0, 1, 2 or 3"),
        ({"train_batch_size": 0}, "train_batch_size must be a whole number"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "both enabled"),
        ({"tensor_parallel": {"autotp_size": 4}}, "autotp_size"),
        (
            {"train_batch_size": 9, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2},
            "must be a multiple",
        ),
        ({"distributed_type": "XLA"}, "'XLA'"),
        ({"distributed_type": "FSDP", "fsdp_config": {"fsdp_sharding_strategy": "HYBRID_SHARD"}}, "HYBRID_SHARD"),
        ({"distributed_type": "NO", "mixed_precision": "bf17"}, "mixed_precision"),
        ({"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "gone.json"}}, "gone.json"),
        ({"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": "many"}}, "stage must be"),
        (
            {
                "distributed_type": "FSDP",
                "fsdp_config": {"fsdp_version": 2},
                "parallelism_config": {"parallelism_config_dp_replicate_size": 2},
            },
            "dp_replicate",
        ),
    ],
)
def test_files_that_make_no_sense_are_refused(tmp_path, values, told):
    with pytest.raises(ConfigurationError, match=told):
        read_launch_config(written(tmp_path, values))


def test_files_that_are_none(tmp_path):
    with pytest.raises(ConfigurationError, match="can't be read"):
        read_launch_config(tmp_path / "gone.json")
    (tmp_path / "torn.json").write_text("{")
    with pytest.raises(ConfigurationError, match="is not JSON"):
        read_launch_config(tmp_path / "torn.json")
    (tmp_path / "other.yaml").write_text("a: 1")
    with pytest.raises(ConfigurationError, match="distributed_type"):
        read_launch_config(tmp_path / "other.yaml")


def test_a_bare_no_is_no_surprise(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("distributed_type: NO\nmixed_precision: no\n")
    found = read_launch_config(path)
    assert (found.num_devices, found.sharding, found.precision) == (1, "none", "fp32")


def test_files_as_accelerate_config_wrote_them_over_the_years(tmp_path):
    first = tmp_path / "fsdp1.yaml"
    first.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config:\n"
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_sharding_strategy: 1\n  fsdp_offload_params: false\n"
        "mixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\nuse_cpu: false\n"
    )
    found = read_launch_config(first)
    assert (found.sharding, found.num_devices, found.precision) == ("zero3", 8, "bf16-mixed")
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 3}, "fp16": {"enabled": True}}))
    second = tmp_path / "ds.yaml"
    second.write_text(
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\nnum_processes: 4\n"
    )
    found = read_launch_config(second)
    assert (found.sharding, found.framework, found.precision, found.num_devices) == (
        "zero3",
        "deepspeed",
        "fp16-mixed",
        4,
    )


def test_torchrun_starts_the_script_and_tells_it_the_layout(tmp_path):
    (tmp_path / "train.py").write_text(
        "import json, os, sys\n"
        "open(f'rank{os.environ[\"RANK\"]}', 'w').write(os.environ['FASTBUDGET_LAYOUT'] + sys.argv[1])\n"
    )
    write_torchrun(tmp_path / "launch.sh", layout(num_devices=2, recompute="full"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(["./launch.sh", "given"], cwd=tmp_path, check=True, env=environment, timeout=120)
    for rank in range(2):
        text = (tmp_path / f"rank{rank}").read_text()
        assert text.endswith("given") and json.loads(text.removesuffix("given"))["recompute"] == "full"


def test_torchrun_on_several_machines(tmp_path):
    write_torchrun(tmp_path / "launch.sh", layout(num_devices=64))
    text = (tmp_path / "launch.sh").read_text()
    assert "--nnodes 8 --nproc-per-node 8" in text and '"${HEAD_NODE:?}:29500"' in text


@pytest.mark.parametrize(("devices", "nodes"), [(1, 1), (8, 1), (9, 3), (12, 2), (64, 8)])
def test_devices_spread_evenly_over_the_fewest_nodes(devices, nodes):
    assert nodes_for(devices, 8) == nodes
