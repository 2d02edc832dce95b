import pytest

from fastbudget.core import ConfigurationError
from fastbudget.workflow import load_configuration

GOOD = """\
model: mine:build
data: mine:load
budget: {gpu_hours: 0.5}
metrics: [accuracy]
train:
  max_steps: 10
"""


def load(tmp_path, text, **options):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return load_configuration(path, **options)


def test_a_small_file_gets_the_defaults(tmp_path):
    configuration = load(tmp_path, GOOD)
    assert (configuration.name, configuration.loss, configuration.optimizer.name) == ("job", "cross_entropy", "adamw")
    assert (configuration.ranking_metric, configuration.ranking_mode) == ("accuracy", "max")


def test_a_limit_from_the_command_line_replaces_the_files_but_keeps_its_price(tmp_path):
    text = GOOD.replace("{gpu_hours: 0.5}", "{gpu_hours: 0.5, usd_per_device_hour: 2.0}")
    budget = load(tmp_path, text, overrides={"usd": 3.0}).budget.value()
    assert (budget.gpu_hours, budget.usd, budget.usd_per_device_hour) == (None, 3.0, 2.0)


def test_stages_take_the_direction_of_their_targets_from_the_metrics(tmp_path):
    text = (
        GOOD
        + """\
  stages:
    - {name: short, targets: {accuracy: 0.9, mse: 1.5}, budget_share: 0.3, grad_accumulation: 2}
    - {name: long, precision: bf16-mixed, devices: 2}
"""
    )
    first, second = [section.value() for section in load(tmp_path, text).train.stages]
    assert first.is_reached({"accuracy": 0.95, "mse": 1.0}) and not first.is_reached({"accuracy": 0.95, "mse": 2.0})
    assert (first.budget_share, first.grad_accumulation) == (0.3, 2)
    assert (second.precision, second.devices, second.can_end) == ("bf16-mixed", 2, False)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("model: mine:build\n", ""), ["job.yaml:", "'model' is missing", "Required: model, data, budget"]),
        (("budget:", "budegt:"), ["job.yaml:3", "'budegt'", "Did you mean 'budget'?", "Allowed: model, data"]),
        (("  max_steps: 10", "  max_stpes: 10"), ["job.yaml:6", "'train.max_stpes'", "Did you mean 'max_steps'?"]),
        (("max_steps: 10", "max_steps: 0"), ["job.yaml:6", "train.max_steps", "greater than or equal to 1", "got 0"]),
        (("max_steps: 10", "max_steps: ten"), ["job.yaml:6", "train.max_steps", "integer", "'ten'"]),
        (("gpu_hours: 0.5", "gpu_hours: 0"), ["job.yaml:3", "gpu_hours", "above 0", "got 0"]),
        (("gpu_hours: 0.5", "gpu_hours: -1.0"), ["job.yaml:3", "above 0", "-1.0"]),
        (("{gpu_hours: 0.5}", "{usd: 5.0}"), ["job.yaml:3", "usd_per_device_hour"]),
        (("{gpu_hours: 0.5}", "{}"), ["job.yaml:3", "at least one limit"]),
        (("{gpu_hours: 0.5}", "2"), ["job.yaml:3", "budget"]),
        (("[accuracy]", "[acuracy]"), ["job.yaml:4", "'acuracy'", "Did you mean 'accuracy'?"]),
        (("[accuracy]", "[]"), ["job.yaml:4", "at least 1"]),
        (("mine:build", "mine.build"), ["job.yaml:1", "package.module:factory", "'mine.build'"]),
        (("max_steps: 10", "stages: [{name: a}, {name: b}]"), ["job.yaml:6", "train.stages", "'a' never ends"]),
        (("max_steps: 10", "stages: [{name: a, budget_shaer: 1}]"), ["job.yaml:6", "Did you mean 'budget_share'?"]),
        (("max_steps: 10", "stages: [{name: a, targets: {acuracy: 1}}]"), ["job.yaml:6", "Did you mean 'accuracy'?"]),
        (("max_steps: 10", "stages: [{name: a, budget_share: 2}]"), ["job.yaml:6", "less than or equal to 1", "got 2"]),
        (("max_steps: 10", "compile: {mod: max-autotune}"), ["job.yaml:6", "train.compile", "'mode'", "got ['mod']"]),
        (("max_steps: 10", "schedule: cosin"), ["job.yaml:6", "train.schedule", "'cosin'", "'wsd'"]),
        (("train:", "optimizer: {name: adamww}\ntrain:"), ["job.yaml:5", "'adamww'", "Did you mean 'adamw'?"]),
        (("train:", "select_by: f1\ntrain:"), ["job.yaml:5", "select_by", "'f1'"]),
        (("train:", "export: {target: onxx}\ntrain:"), ["job.yaml:5", "export.target", "'onxx'", "onnx"]),
        (("train:", "optimizer: adamw\ntrain:"), ["job.yaml:5", "optimizer must be a mapping with the keys name, lr"]),
        (("train:", "budget: {usd: 1}\ntrain:"), ["job.yaml:5", "'budget' was given on line 3 already"]),
        (("{gpu_hours: 0.5}", "{gpu_hours: 0.5"), ["job.yaml:", "not valid YAML"]),
    ],
)
def test_a_mistake_is_named_with_its_line_and_what_is_allowed(tmp_path, change, expected):
    assert change[0] in GOOD
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, GOOD.replace(*change))
    for text in expected:
        assert text in str(caught.value)


def test_compilation_is_on_off_or_its_options(tmp_path):
    assert load(tmp_path, GOOD).train.compile is False
    assert load(tmp_path, GOOD + "  compile: true\n").train.compile is True
    assert load(tmp_path, GOOD + "  compile: {mode: max-autotune}\n").train.compile == {"mode": "max-autotune"}


def test_exponents_are_numbers_with_and_without_a_dot(tmp_path):
    for text in ("1e-3", "1.0e-3", "1E-3", "0.001"):
        assert load(tmp_path, GOOD + f"optimizer: {{lr: {text}}}\n").optimizer.lr == 0.001


def test_names_are_matched_whatever_their_case(tmp_path):
    with pytest.raises(ConfigurationError, match="Did you mean 'adamw'"):
        load(tmp_path, GOOD + "optimizer: {name: adamW}\n")


def test_several_mistakes_are_all_named(tmp_path):
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, GOOD.replace("model:", "modle:").replace("max_steps: 10", "max_steps: 0"))
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize("text", ["", "- 1\n", "just text\n", "? [a, b]\n: 1\n"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path, text):
    with pytest.raises(ConfigurationError):
        load(tmp_path, text)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nowhere\.yaml"):
        load_configuration(tmp_path / "nowhere.yaml")
