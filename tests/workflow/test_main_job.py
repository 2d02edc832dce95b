"""The main job in this process, on the user's own files."""

import json
import os
import sys
from pathlib import Path

import pytest

import fastbudget as fb
from fastbudget.checkpoint import CheckpointStore
from fastbudget.workflow import read_run_record

CODE = """\
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Linear(4, 2)

def batches(count, classes=2):
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, 16, 4, generator=generator)
    y = (x.sum(-1) > 0).long() * (classes - 1)
    return list(zip(x, y))

def build_misfit():
    return nn.Linear(3, 2)

class Peeks(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (1.0 if x.sum().item() < 1e9 else 0.0)

def build_peeking():
    return Peeks(4, 2)

def build_regressor():
    return nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))

def load_regression():
    return tuple([(x, x.sum(-1)) for x, _ in batches(count)] for count in (8, 3, 4))

from fastbudget.metrics import register
from fastbudget.metrics.regression import MeanAbsoluteError
import fastbudget as fb
if "my_largest_error" not in fb.metrics.list():
    register("my_largest_error", task="regression")(MeanAbsoluteError)

def load():
    return batches(8), batches(3), batches(4)

def load_two():
    return batches(8), batches(3)

def load_one_class():
    return batches(8, classes=1), batches(3, classes=1)

def load_nothing():
    return [], batches(3)

def load_generator():
    return (batch for batch in batches(8)), batches(3)

def load_mapping_with_typo():
    return {"train": batches(8), "valid": batches(3)}

def load_with_a_bad_batch():
    train = batches(60)
    train[44][0][3, 2] = float("nan")
    return train, batches(3)

def build_raising():
    return {}["no such key"]

def build_number():
    return 3

def build_frozen():
    return nn.Linear(4, 2).requires_grad_(False)

not_a_function = 3
"""

YAML = """\
model: {module}:{model}
data: {module}:{data}
budget: {{wall_hours: 0.02}}
metrics: [accuracy, f1_macro]
optimizer: {{lr: 0.05}}
train: {{max_steps: 60, evaluate_every: 20}}
"""


@pytest.fixture
def job(tmp_path, request):
    """Return a function that writes a configuration beside a module of its own and returns its path."""
    module = f"mine_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{module}.py").write_text(CODE)

    def write(model="build", data="load", extra=""):
        path = tmp_path / "job.yaml"
        path.write_text(YAML.format(module=module, model=model, data=data) + extra)
        return path

    yield write
    sys.modules.pop(module, None)
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path.resolve())]


def test_the_whole_job_leaves_records_of_every_stage(job, tmp_path):
    record = fb.run(job(), run_dir=tmp_path / "run")
    assert record.train["stop_reason"] == "completed" and record.train["steps"] == 60
    assert record.plan["num_params"] == 10
    # One linear layer, forward + weight gradient (its input needs none): 2 × 2 × 16 × 4 × 2.
    assert record.plan["forward_flops"] == 2 * 16 * 4 * 2 and record.plan["step_flops"] == 2 * 2 * 16 * 4 * 2
    assert record.evaluate["split"] == "test" and record.evaluate["num_examples"] == 64
    accuracy = record.evaluate["accuracy"]
    assert accuracy["low"] <= accuracy["value"] <= accuracy["high"] and accuracy["value"] > 0.9
    assert record.export["max_abs_diff"] < 1e-5 and record.export["same_predictions"] == 1.0
    assert 0 < record.train["spent_device_hours"] < record.train["budget_device_hours"]
    assert read_run_record(tmp_path / "run") == record
    assert (tmp_path / "run" / "report.html").stat().st_size > 5000
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sorted(set(steps)) == list(range(61))


def test_stages_and_a_cool_down_come_from_the_file(job, tmp_path):
    path = job()
    train = """train:
  max_steps: 40
  evaluate_every: 10
  schedule: wsd
  cool_down_share: 0.5
  stages:
    - {name: low, targets: {accuracy: 0.1}, grad_accumulation: 2}
    - {name: high}
"""
    path.write_text(path.read_text().replace("train: {max_steps: 60, evaluate_every: 20}\n", train))
    record = fb.run(path, run_dir=tmp_path / "run", export_model=False)
    assert record.train["stop_reason"] == "completed" and record.train["steps"] == 40
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (moved,) = [line for line in lines if "stage" in line]
    assert (moved["stage_ended"], moved["stage"], moved["reason"]) == ("low", "high", "targets")
    rates = [line["lr"] for line in lines if "loss" in line]
    assert rates[:20] == [0.05] * 20 and rates[-1] < 0.01
    assert (tmp_path / "run" / "report.html").stat().st_size > 5000
    path.write_text(path.read_text().replace("{name: high}", "{name: high, devices: 2}"))
    with pytest.raises(fb.ConfigurationError, match=r"'high' wants 2 devices.*fastbudget train"):
        fb.run(path, run_dir=tmp_path / "run", resume=True)


def test_two_splits_work_and_are_called_optimistic(job, tmp_path):
    record = fb.run(job(data="load_two"), run_dir=tmp_path / "run", export_model=False)
    assert record.evaluate["split"] == "validation" and record.export is None
    assert any("optimistic" in message for message in record.messages)


def test_a_taken_directory_is_refused_unless_told_otherwise(job, tmp_path):
    path, run_dir = job(), tmp_path / "run"
    fb.run(path, run_dir=run_dir, export_model=False)
    before = {file: file.read_bytes() for file in run_dir.rglob("*") if file.is_file()}
    with pytest.raises(fb.RunDirectoryError, match=r"--resume.*--overwrite"):
        fb.run(path, run_dir=run_dir)
    assert before == {file: file.read_bytes() for file in run_dir.rglob("*") if file.is_file()}
    again = fb.run(path, run_dir=run_dir, overwrite=True, export_model=False)
    assert again.train["sessions"] == 1


def test_a_directory_that_is_no_run_is_never_overwritten(job, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(fb.RunDirectoryError, match="is not a run"):
            fb.run(job(), run_dir=tmp_path / "thesis", **options)
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"


def test_a_mistake_in_the_file_costs_no_old_run(job, tmp_path):
    fb.run(job(), run_dir=tmp_path / "run", export_model=False)
    with pytest.raises(fb.ConfigurationError):
        fb.run(job(model="build_raising"), run_dir=tmp_path / "run", overwrite=True)
    assert read_run_record(tmp_path / "run").train is not None


def test_resuming_a_complete_run_exports_without_training_again(job, tmp_path):
    first = fb.run(job(), run_dir=tmp_path / "run", export_model=False)
    second = fb.run(job(), run_dir=tmp_path / "run", resume=True)
    assert second.train == first.train and second.export is not None


def test_resuming_nothing_is_refused(job, tmp_path):
    with pytest.raises(fb.RunDirectoryError, match="no run to resume"):
        fb.run(job(), run_dir=tmp_path / "run", resume=True)


def test_a_budget_too_small_for_one_step_is_refused_before_training(job, tmp_path):
    with pytest.raises(fb.BudgetTooSmallError, match=r"One step .* one save .* one evaluation .* Nothing was trained"):
        fb.run(job(), run_dir=tmp_path / "run", budget={"gpu_hours": 1e-9})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options", [{"budget": {"gpu_hours": 1e-9}}, {"broken": True}])
def test_an_old_run_is_only_replaced_by_one_that_works_and_fits(job, tmp_path, options):
    fb.run(job(), run_dir=tmp_path / "run", export_model=False)
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    path = job(model="build_misfit") if options.pop("broken", False) else job()
    with pytest.raises(fb.FastbudgetError):
        fb.run(path, run_dir=tmp_path / "run", overwrite=True, **options)
    assert before == {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}


def test_a_first_try_that_failed_does_not_take_the_directory(job, tmp_path):
    with pytest.raises(fb.InvalidInputError, match="The model fails on the first training batch"):
        fb.run(job(model="build_misfit"), run_dir=tmp_path / "run")
    assert fb.run(job(), run_dir=tmp_path / "run", export_model=False).train["steps"] == 60


def test_resuming_with_more_steps_goes_on(job, tmp_path):
    path = job()
    fb.run(path, run_dir=tmp_path / "run", export_model=False)
    path.write_text(path.read_text().replace("max_steps: 60", "max_steps: 90"))
    record = fb.run(path, run_dir=tmp_path / "run", resume=True, export_model=False)
    assert record.train["steps"] == 90 and record.train["sessions"] == 2
    assert any("changed configuration: train" in message for message in record.messages)


def test_a_model_that_reads_values_trains_without_counts(job, tmp_path):
    record = fb.run(job(model="build_peeking"), run_dir=tmp_path / "run", export_model=False)
    assert record.plan["num_params"] == 10 and record.plan["step_flops"] is record.plan["peak_memory_bytes"] is None
    assert record.train["steps"] == 60 and any("FLOPs and peak memory are unknown" in text for text in record.messages)


def test_a_directory_in_use_is_refused(job, tmp_path):
    from fastbudget.workflow.run_directory import locked

    with locked(tmp_path / "run"), pytest.raises(fb.RunDirectoryError, match=f"in use by process {os.getpid()}"):
        fb.run(job(), run_dir=tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".lock")] == []
    fb.run(job(), run_dir=tmp_path / "run", export_model=False)


def test_a_run_directory_below_a_file_is_refused(job, tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "run", tmp_path / "file"):
        with pytest.raises(fb.RunDirectoryError):
            fb.run(job(), run_dir=place)


def test_regression_with_a_metric_of_the_user_s_own(job, tmp_path):
    path = job(model="build_regressor", data="load_regression")
    text = path.read_text().replace("[accuracy, f1_macro]", "[mse, my_largest_error]")
    path.write_text(text + "loss: mse\n")
    record = fb.run(path, run_dir=tmp_path / "run", export_model=False)
    assert record.evaluate["mse"]["value"] < 0.5 and record.evaluate["my_largest_error"]["value"] > 0
    assert record.train["ranked_by"] == "mse" and record.train["best_metrics"]["mse"] < 0.5


def test_a_nan_loss_stops_at_its_step_and_keeps_the_last_good_checkpoint(job, tmp_path):
    with pytest.raises(fb.NonFiniteLossError, match="The loss is nan at step 45"):
        fb.run(job(data="load_with_a_bad_batch"), run_dir=tmp_path / "run")
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    assert store.latest().name == "step_000000000040"
    assert all(value.isfinite().all() for value in store.load().state["model"].values())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"data": "load_one_class"}, r"train split holds a single class \(0\)"),
        ({"data": "load_nothing"}, "train yields no batch"),
        ({"data": "load_generator"}, "train can be iterated only once"),
        ({"data": "load_mapping_with_typo"}, r"train, validation and optionally test .* got keys \['train', 'valid'\]"),
        ({"model": "build_raising"}, r"raised KeyError: 'no such key' \(.*mine_\d+\.py:\d+\)"),
        ({"model": "build_number"}, "must return a torch.nn.Module, got a int"),
        ({"model": "build_frozen"}, "no trainable parameter"),
        ({"model": "biuld"}, r"'biuld' does not exist in 'mine_\d+' \(.*mine_\d+\.py\)\. Did you mean 'build'"),
        ({"model": "not_a_function"}, r"'not_a_function' in 'mine_\d+' is a int, not a function"),
        (
            {"model": "build_misfit"},
            r"model fails on the first training batch: RuntimeError: mat1.*float32 \[16, 4\]",
        ),
        ({"model": "Peeks"}, "is called without arguments"),
    ],
)
def test_bad_factories_and_data_are_explained(job, tmp_path, options, expected):
    with pytest.raises(fb.FastbudgetError, match=expected):
        fb.run(job(**options), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_module_that_does_not_exist_is_named(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(YAML.format(module="no_such_module", model="build", data="load"))
    with pytest.raises(fb.ConfigurationError, match="no module named 'no_such_module'"):
        fb.run(path, run_dir=tmp_path / "run")


def test_an_unknown_workload_is_named_with_the_known_ones():
    with pytest.raises(fb.InvalidInputError, match=r"Unknown workload 'digit'.*'digits'.*'pydocs'"):
        fb.run("digit")


def test_the_example_configuration_runs(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "tumors.yaml"
    record = fb.run(example, run_dir=tmp_path / "run")
    assert record.evaluate["accuracy"]["value"] > 0.9
    assert record.train["spent_device_hours"] <= record.train["budget_device_hours"]
