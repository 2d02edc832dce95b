"""The main job in this process, on the user's own files."""

import json
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
    assert not (tmp_path / "run" / "checkpoints").exists()


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
        ({"model": "biuld"}, "'biuld' does not exist.*Did you mean 'build'"),
        ({"model": "not_a_function"}, "'not_a_function' is not a function"),
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
