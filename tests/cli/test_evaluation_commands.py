"""`fastbudget eval`, `compare` and `store` on files, records and models."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fastbudget as fb
from fastbudget.cli.main import app

runner = CliRunner()
MODULE = """
import numpy as np

N = 1200
LABELS = np.arange(N) % 4


class Data:
    def __len__(self):
        return N

    def __getitem__(self, index):
        return np.array([index]), int(LABELS[index])


def data():
    return Data()


ready = Data()
number = 5


def wrong_every(k):
    def predict(inputs):
        answers = LABELS[inputs[:, 0]] + (inputs[:, 0] % k == 0)
        return np.eye(4)[answers % 4]
    return predict


good, bad = wrong_every(10), wrong_every(4)
"""


def write(path: Path, wrong: Any, count: int = 200, names: bool = False) -> Path:
    classes = ["ant", "bee", "cat"] if names else [0, 1, 2]
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "prediction", "label"])
        for index in range(count):
            rows.writerow([f"x{index}", classes[(index + (index in wrong)) % 3], classes[index % 3]])
    return path


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    name = f"models_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    return name


def run(*arguments: Any, code: int = 0) -> Any:
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def run_json(*arguments: Any, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code).stdout)


@pytest.mark.parametrize("names", [False, True])
def test_a_predictions_file(tmp_path: Path, names: bool) -> None:
    path = write(tmp_path / "p.csv", range(0, 200, 10), names=names)
    text = run("eval", path, "--metric", "accuracy", "--metric", "f1_macro").stdout
    assert "accuracy  0.9000  (95%: 0.8506 to 0.9343; Wilson)" in text and "f1_macro  0.9000" in text
    assert "200 of 200 examples (all)" in text
    found = run_json("eval", path)
    assert found["accuracy"]["value"] == 0.9 and found["num_examples"] == found["population_size"] == 200


def test_references_and_columns(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps({"key": i, "said": i % 2}) for i in range(50)))
    (tmp_path / "r.csv").write_text("key,truth\n" + "\n".join(f"{i},{i % 2 if i else 1}" for i in reversed(range(50))))
    found = run_json("eval", tmp_path / "p.jsonl", "--references", tmp_path / "r.csv", "--id", "key", "--prediction",
                     "said", "--reference", "truth")  # fmt: skip
    assert found["accuracy"]["value"] == 0.98
    run("eval", tmp_path / "p.jsonl", "--id", "key", "--prediction", "said", code=2)
    (tmp_path / "scores.csv").write_text("id,score\n" + "\n".join(f"{i},{i % 4 != 0:d}" for i in range(40)))
    assert run_json("eval", tmp_path / "scores.csv")["score"]["value"] == 0.75


def test_padding_in_a_file_counts_once(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", [3], count=10)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[1], lines[2]]))
    assert run_json("eval", path)["num_examples"] == 10
    path.write_text("\n".join([*lines, lines[1].replace("x0,0", "x0,1")]))
    assert "x0" in run("eval", path, code=2).stderr


def test_a_model_by_tier_threshold_and_store(models: str, tmp_path: Path) -> None:
    options = ("--data", f"{models}:data", "--store", "evals.db", "--batch-size", "50")
    quick = run_json("eval", f"{models}:good", *options, "--tier", "quick")
    assert (quick["num_examples"], quick["population_size"], quick["decided"]) == (400, 1200, False)
    full = run_json("eval", f"{models}:good", "--data", f"{models}:ready", "--store", "evals.db")
    assert full["num_cached"] == 400 and full["accuracy"]["value"] == 0.9
    text = run("eval", f"{models}:good", *options).stdout
    assert "1,200 of 1,200 examples (all)" in text and "1,200 of them from the store" in text and "Record 3" in text
    decided = run_json("eval", f"{models}:good", *options, "--threshold", "accuracy=0.8")
    assert decided["decisions"] == {"accuracy": "above"} and decided["num_examples"] < 1000
    below = run("eval", f"{models}:bad", *options, "--threshold", "accuracy=0.9", code=4)
    assert "accuracy  below 0.9" in below.stdout


def test_comparing_files(tmp_path: Path) -> None:
    main, worse = write(tmp_path / "a.csv", range(20)), write(tmp_path / "b.csv", range(21))
    found = run_json("compare", main, worse, code=4)
    assert found["decision"] == "worse" and found["passed"] is False and found["difference"]["mid"] == -0.005
    assert found["generalization"]["p_value"] == 1.0 and found["num_examples"] == 200
    accepted = run("compare", main, worse, "--margin", "0.005").stdout
    assert "not worse by more than 0.005: accuracy -0.0050" in accepted and "Beyond this data" in accepted
    assert "McNemar" in accepted
    assert run_json("compare", worse, main)["decision"] == "better"
    assert run_json("compare", main, main)["decision"] == "equal"
    other = write(tmp_path / "c.csv", range(20), count=199)
    assert "different data sets" in run("compare", main, other, code=2).stderr


def test_metrics_of_the_whole_set_are_compared_as_such(tmp_path: Path) -> None:
    """The mean of single sentences' BLEU isn't BLEU; macro-F1 has no values of single examples."""
    texts = ["the cat sat on the mat today", "a dog ran in the park", "birds fly high in the blue sky"] * 10
    good, bad = ([text if index % k else "nothing alike" for index, text in enumerate(texts)] for k in (7, 3))
    for name, predictions in (("good", good), ("bad", bad)):
        rows = [
            {"id": i, "prediction": p, "reference": t} for i, (p, t) in enumerate(zip(predictions, texts, strict=True))
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    paths = [str(tmp_path / f"{name}.jsonl") for name in ("good", "bad")]
    result = runner.invoke(app, ["compare", *paths, "--metric", "bleu", "--json"])
    report = json.loads(result.stdout)
    truth = fb.metrics.get("bleu")
    assert result.exit_code == 4 and report["decision"] == "worse"
    assert report["difference"]["mid"] == pytest.approx(truth(bad, texts) - truth(good, texts))
    beyond = report["generalization"]
    assert beyond["low"] < report["difference"]["mid"] < beyond["high"] and 0 < beyond["p_value"] < 1
    assert "approximate" in beyond["method"]

    labels = [str(write(tmp_path / f"{name}.csv", wrong)) for name, wrong in (("a", range(0)), ("b", range(40)))]
    result = runner.invoke(app, ["compare", *labels, "--metric", "f1_macro", "--json"])
    assert result.exit_code == 4 and json.loads(result.stdout)["difference"]["mid"] == pytest.approx(-0.2, abs=0.01)


def test_json_has_no_nan(tmp_path: Path) -> None:
    path = tmp_path / "constant.csv"
    path.write_text("id,prediction,label\n" + "\n".join(f"{i},1.5,{i}" for i in range(10)))
    result = runner.invoke(app, ["eval", str(path), "--metric", "pearson", "--json"])
    assert result.exit_code == 0 and json.loads(result.stdout, parse_constant=pytest.fail)["pearson"]["value"] is None


def test_nan_scores_of_a_file_are_refused_or_counted_as_wrong(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("id,score\n1,0.5\n2,nan\n3,1\n")
    result = runner.invoke(app, ["eval", str(path)])
    assert result.exit_code == 2 and "NaN" in result.stderr and "example 1" in result.stderr
    report = json.loads(runner.invoke(app, ["eval", str(path), "--nan", "wrong", "--json"]).stdout)
    assert report["score"]["value"] == 0.5 and report["num_nan"] == 1 and report["num_examples"] == 3


@pytest.mark.parametrize("options", [("--margin", "nan"), ("--margin=-1",), ("--alpha", "2"), ("--alpha", "nan")])
def test_a_gate_without_a_bound_is_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    paths = [str(write(tmp_path / f"{name}.csv", wrong)) for name, wrong in (("a", range(0)), ("b", range(40)))]
    result = runner.invoke(app, ["compare", *paths, *options])
    assert result.exit_code == 2 and options[0].partition("=")[0].strip("-") in result.stderr


def test_a_gate_with_an_approved_record(models: str) -> None:
    run("eval", f"{models}:good", "--data", f"{models}:data", "--store", "evals.db", "--name", "good")
    gate = ("compare", "evals.db:1", f"{models}:bad", "--data", f"{models}:data", "--store", "evals.db")
    refused = run(*gate, "--require-approved", code=4)
    assert "is 'draft', not approved" in refused.stderr
    assert run_json(*gate, "--require-approved", code=4)["error"]["type"] == "NotApproved"
    run("store", "approve", "evals.db", "1", "--by", "Ada", code=2)  # not reviewed yet
    run("store", "approve", "evals.db", "1", "--by", "Ada", "--status", "reviewed", "--note", "checked")
    assert "is approved" in run("store", "approve", "evals.db", "1", "--by", "Grace").stdout
    found = run_json(*gate, "--require-approved", code=4)
    assert found["decision"] == "worse" and found["num_examples"] < 900
    assert run_json(*gate, "--require-approved", code=4)["num_predicted"] == 0  # from the store
    same = run_json("compare", "evals.db:1", f"{models}:good", "--data", f"{models}:data")
    assert same["decision"] == "equal" and same["num_predicted"] == 0
    assert "needs a baseline from a store" in run("compare", "x.csv", "y.csv", "--require-approved", code=2).stderr


def test_looking_into_a_store(models: str, tmp_path: Path) -> None:
    for name in ("good", "bad"):
        run("eval", f"{models}:{name}", "--data", f"{models}:data", "--store", "evals.db", "--name", name)
    listed = run_json("store", "ls", "evals.db")
    assert [(r["id"], r["name"], r["status"], r["num_examples"]) for r in listed["records"]] == [
        (1, "good", "draft", 1200), (2, "bad", "draft", 1200)
    ]  # fmt: skip
    assert [r["id"] for r in run_json("store", "ls", "evals.db", "--name", "bad")["records"]] == [2]
    assert "good" in run("store", "ls", "evals.db").stdout
    run("store", "approve", "evals.db", "2", "--by", "Ada", "--status", "reviewed", "--note", "odd")
    shown = run("store", "show", "evals.db", "2").stdout
    assert "accuracy 0.7500" in shown and "reviewed by Ada: odd" in shown
    assert run_json("store", "show", "evals.db", "2")["sign_offs"][0]["note"] == "odd"
    assert run_json("store", "export", "evals.db", "2", "--out", "bad.csv")["examples"] == 1200
    with Path("bad.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1200 and np.mean([float(row["accuracy"]) for row in rows]) == 0.75
    run("store", "export", "evals.db", "1", "--out", "good.jsonl")
    assert json.loads(Path("good.jsonl").read_text().splitlines()[0]).keys() == {"example", "accuracy", "margin"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("eval", "nowhere.csv"), "neither a predictions file"),
        (("eval", "MODELS:good"), "needs --data"),
        (("eval", "MODELS:goood", "--data", "MODELS:data"), "Did you mean 'good'"),
        (("eval", "MODELS:number", "--data", "MODELS:data"), "not a function"),
        (("eval", "MODELS:good", "--data", "MODELS:data", "--threshold", "accuracy"), "METRIC=NUMBER"),
        (("eval", "MODELS:good", "--data", "MODELS:data", "--tier", "fast"), "tier must be"),
        (("eval", "MODELS:good", "--data", "MODELS:data", "--metric", "acuracy"), "Did you mean 'accuracy'"),
        (("compare", "nowhere.csv", "b.csv"), "neither a predictions file"),
        (("store", "ls", "nowhere.db"), "There is no file"),
        (("store", "show", "evals.db", "9"), "holds no record 9"),
        (("store", "export", "evals.db", "1", "--out", "x.txt"), "must end in"),
    ],
)
def test_wrong_use_is_told(models: str, arguments: tuple[str, ...], message: str) -> None:
    run("eval", f"{models}:good", "--data", f"{models}:data", "--store", "evals.db")
    arguments = tuple(argument.replace("MODELS", models) for argument in arguments)
    assert message in " ".join(run(*arguments, code=2).stderr.split())
    assert message in run_json(*arguments, code=2)["error"]["message"]


def test_a_foreign_store_fails_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_text("mine, and long enough for a header")
    assert "isn't an SQLite file" in run("store", "ls", path, code=1).stderr
    assert path.read_text().startswith("mine")


@pytest.mark.parametrize("command", ["eval", "compare", "store ls", "store show", "store export", "store approve"])
def test_help_shows_an_example(command: str) -> None:
    shown = run(*command.split(), "--help").stdout
    assert "Example" in shown and "--json" in shown
