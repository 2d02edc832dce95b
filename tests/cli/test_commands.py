"""The console scripts in this process: help, JSON, exit codes."""

import json

import pytest
from typer.testing import CliRunner

from fastbudget.cli.export import app as export_app
from fastbudget.cli.main import app

runner = CliRunner()


@pytest.mark.parametrize("command", [[], ["run"], ["env"], ["estimate"], ["hardware"]])
def test_help_shows_an_example(command):
    result = runner.invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert not command or ("Example" in result.stdout and "--json" in result.stdout)


def test_export_help_shows_examples():
    result = runner.invoke(export_app, ["--help"])
    assert result.exit_code == 0 and "Examples:" in result.stdout and "--json" in result.stdout


def test_version_is_the_package_s():
    import fastbudget

    assert runner.invoke(app, ["--version"]).stdout.strip() == fastbudget.__version__


def test_env_reports_the_build_and_the_versions():
    found = json.loads(runner.invoke(app, ["env", "--json"]).stdout)
    assert isinstance(found["native"]["compiled_with_cuda"], bool)
    assert found["packages"]["torch"] and found["python"].startswith("3.")
    assert set(found["onnxruntime"]) == {"onnxruntime", "onnxruntime-gpu"}
    assert set(found["tensorrt"]) == {"tensorrt", "tensorrt_rtx"}
    if found["native"]["compiled_with_cuda"]:
        assert found["native"]["driver_needed"] in ("450", "525", "580")
    text = runner.invoke(app, ["env"]).stdout
    assert "compiled module" in text and "onnxruntime" in text


def test_both_onnxruntimes_are_called_a_problem(monkeypatch):
    from fastbudget.hardware import environment

    monkeypatch.setattr(environment, "_version", lambda name: "1.0")
    assert "overwrite each other" in environment.describe_environment().onnxruntime_problem


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["run", "digit"], 2, "Did you mean 'digits'?"),
        (["run", "nowhere.yaml"], 2, "nowhere.yaml can't be read"),
        (["run", "digits", "--max-gpu-hours", "0"], 2, "above 0"),
        (["run", "digits", "--max-gpu-hours", "-1"], 2, "above 0"),
        (["run", "digits", "--max-usd", "1"], 2, "usd_per_device_hour"),
        (["run", "digits", "--max-gpu-hours", "1e-8"], 3, "Nothing was trained"),
    ],
)
def test_errors_are_messages_with_an_exit_code_and_a_json_document(tmp_path, arguments, code, expected):
    result = runner.invoke(app, [*arguments, "--run-dir", str(tmp_path / "run"), "--json"])
    assert result.exit_code == code, result.stderr
    document = json.loads(result.stdout)
    assert expected in document["error"]["message"] and document["exit_code"] == code
    assert expected in result.stderr.replace("\n", " ")


def test_wrong_usage_of_the_command_line_exits_with_2():
    assert runner.invoke(app, ["run"]).exit_code == 2
    assert runner.invoke(app, ["run", "digits", "--max-gpu-hours", "many"]).exit_code == 2
    assert runner.invoke(app, ["rnu"]).exit_code == 2
    assert runner.invoke(app, ["run", "digits", "--resume", "--overwrite"]).exit_code == 2
    assert runner.invoke(export_app, ["module:factory", "--out", "x"]).exit_code == 2


def test_exporting_what_is_no_run_is_refused(tmp_path):
    result = runner.invoke(export_app, [str(tmp_path), "--out", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 2 and "holds no run" in json.loads(result.stdout)["error"]["message"]


def test_a_fault_of_the_code_leaves_a_json_document_and_its_traceback(capsys):
    from fastbudget.cli.outcomes import reported

    with pytest.raises(ZeroDivisionError), reported(as_json=True):
        1 / 0  # noqa: B018
    document = json.loads(capsys.readouterr().out)
    assert document == {"error": {"type": "ZeroDivisionError", "message": "division by zero"}, "exit_code": 1}
