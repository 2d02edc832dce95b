"""Human ratings, agreement, and drops under perturbations."""

import csv
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fastbudget as fb
from fastbudget import metrics


def test_fleiss_kappa_of_the_published_example():
    # https://en.wikipedia.org/wiki/Fleiss%27_kappa: 10 items, 14 raters, 5 categories, kappa 0.210.
    counts = [
        [0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1],
        [7, 7, 0, 0, 0], [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7],
    ]  # fmt: skip
    ratings = [[c for c, times in enumerate(row) for _ in range(times)] for row in counts]
    assert metrics.fleiss_kappa(ratings) == pytest.approx(0.210, abs=5e-4)


def test_krippendorff_alpha_of_the_published_example():
    # Krippendorff (2011), section C: four observers, twelve units, missing data.
    observers = [
        "1 2 3 3 2 1 4 1 2 . . .",
        "1 2 3 3 2 2 4 1 2 5 . 3",
        ". 3 3 3 2 3 4 2 2 5 1 .",
        "1 2 3 3 2 4 4 1 2 5 1 .",
    ]
    units = [[None if r == "." else int(r) for r in unit] for unit in zip(*(o.split() for o in observers), strict=True)]
    assert metrics.krippendorff_alpha(units) == pytest.approx(0.743, abs=1e-3)
    assert metrics.krippendorff_alpha(units, "ordinal") == pytest.approx(0.815, abs=1e-3)
    assert metrics.krippendorff_alpha(units, "interval") == pytest.approx(0.849, abs=1e-3)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=2, max_size=30))
def test_two_raters_agree_as_scikit_learn_says(pairs):
    from sklearn.metrics import cohen_kappa_score

    a, b = map(list, zip(*pairs, strict=True))
    if len({*a, *b}) < 2:
        with pytest.raises(fb.InvalidInputError, match="undefined"):
            metrics.cohen_kappa(a, b)
        return
    assert metrics.cohen_kappa(a, b) == pytest.approx(cohen_kappa_score(a, b), abs=1e-12)


def test_agreement_refuses_what_it_cannot_rate():
    for call in (
        lambda: metrics.cohen_kappa([1], [1, 2]),
        lambda: metrics.fleiss_kappa([[1, 2], [1]]),
        lambda: metrics.fleiss_kappa([[1, 1], [1, 1]]),
        lambda: metrics.krippendorff_alpha([[1, None], [None, 2]]),
        lambda: metrics.krippendorff_alpha([[1, 2]], "ratio"),
    ):
        with pytest.raises(fb.InvalidInputError):
            call()


def fill(sheet, filled, rate):
    with sheet.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["rating"] = rate(row)
    with filled.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return rows


def test_a_sheet_is_blind_and_its_ratings_come_back(tmp_path):
    inputs = [f"question {i}" for i in range(20)]
    outputs = {"base": [f"answer {i}" for i in range(20)], "tuned": [f"better {i}" for i in range(20)]}
    sheet = tmp_path / "sheet.csv"
    key = metrics.write_rating_sheet(sheet, inputs, outputs, sample=12, seed=3)
    assert "tuned" not in sheet.read_text() and "base" not in sheet.read_text()
    rows = fill(sheet, tmp_path / "ann.csv", lambda row: "4" if row["output"].startswith("better") else "3")
    assert len(rows) == 24 and [row["item"] for row in rows] == sorted(row["item"] for row in rows)
    systems = [json.loads(key.read_text())["items"][row["item"]]["system"] for row in rows]
    assert systems != sorted(systems) and systems[::2] != ["base"] * 12  # shuffled
    fill(sheet, tmp_path / "ben.csv", lambda row: "" if row["item"] == "00001" else "3,5")
    ratings = metrics.read_ratings({"ann": tmp_path / "ann.csv", "ben": tmp_path / "ben.csv"}, key)
    assert len(ratings) == 47 and {rating.rater for rating in ratings} == {"ann", "ben"}
    preference = metrics.paired_preference(ratings, "tuned", "base")
    assert (preference.wins, preference.losses, preference.ties) == (12, 0, 11)
    assert preference.share == 1.0 and 0.7 < preference.low < 0.8 and preference.high == 1.0
    table = metrics.rating_table(ratings)
    assert len(table) == 24 and sum(value is None for row in table for value in row) == 1
    again = metrics.write_rating_sheet(tmp_path / "again.csv", inputs, outputs, sample=12, seed=3)
    assert again.read_text() == key.read_text()


def test_a_page_escapes_what_models_wrote_and_a_spreadsheet_runs_no_formula(tmp_path):
    page, sheet = tmp_path / "sheet.html", tmp_path / "sheet.csv"
    outputs = {"m": ["<script>alert(1)</script>"]}
    metrics.write_rating_sheet(page, ["=1+1"], outputs)
    metrics.write_rating_sheet(sheet, ["=1+1"], outputs)
    assert "<script>alert" not in page.read_text() and "&lt;script&gt;" in page.read_text()
    assert "'=1+1" in sheet.read_text()


def test_damaged_sheets_name_the_line(tmp_path):
    sheet = tmp_path / "s.csv"
    key = metrics.write_rating_sheet(sheet, ["a", "b"], {"m": ["x", "y"]})
    for text, message in (
        ("item,rating\n00001,good\n", "s.csv, line 2: the rating 'good' is no number"),
        ("item,rating\n00001,1\n00001,2\n", "line 3: item '00001' comes twice"),
        ("item,rating\n00009,1\n", "not in the key"),
        ("a,b\n1,2\n", "needs the columns item and rating"),
    ):
        sheet.write_text(text)
        with pytest.raises(fb.InvalidInputError, match=message):
            metrics.read_ratings({"ann": sheet}, key)
    for arguments in (([], {"m": []}), (["a"], {"m": []}), (["a"], {})):
        with pytest.raises(fb.InvalidInputError):
            metrics.write_rating_sheet(tmp_path / "t.csv", *arguments)
    with pytest.raises(fb.InvalidInputError, match=r"\.csv or \.html"):
        metrics.write_rating_sheet(tmp_path / "t.txt", ["a"], {"m": ["b"]})


# -- robustness ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["noise", "blur", "shift", "brightness"])
@pytest.mark.parametrize("kind", ["float", "uint8", "torch"])
def test_perturbed_images_keep_kind_shape_and_range(name, kind):
    generator = np.random.default_rng(0)
    images = generator.random((5, 3, 12, 10))
    if kind == "uint8":
        images = (images * 255).astype(np.uint8)
    elif kind == "torch":
        images = torch.from_numpy(images).float()
    changed = metrics.perturb(images, name, seed=1)
    assert type(changed) is type(images) and changed.dtype == images.dtype and changed.shape == images.shape
    assert changed.max() <= images.max() and changed.min() >= images.min()
    assert not np.array_equal(np.asarray(changed), np.asarray(images))
    assert np.array_equal(np.asarray(metrics.perturb(images, name, seed=1)), np.asarray(changed))


def test_a_blur_is_an_average_of_neighbors():
    image = np.zeros((1, 9, 9))
    image[0, 4, 4] = 1.0
    blurred = metrics.perturb(image, "blur")
    assert blurred.sum() == pytest.approx(1.0, abs=1e-9) and blurred.argmax() == 40 and blurred[0, 4, 4] < 0.2


def test_perturbed_texts(tmp_path):
    texts = ["The quick brown fox jumps over the lazy dog"] * 30
    typos = metrics.perturb(texts, "typos", strength=2)
    assert typos != texts and metrics.perturb(texts, "typos", strength=2) == typos
    assert [text.lower() for text in metrics.perturb(texts, "case")] == [text.lower() for text in texts]
    assert [" ".join(text.split()) for text in metrics.perturb(texts, "whitespace")] == texts
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps({"text": texts[0], "paraphrase": "A fox leaps"}) + "\n")
    assert metrics.perturb(texts[:2], str(file)) == ["A fox leaps"] * 2
    with pytest.raises(fb.InvalidInputError, match="lacks 1 of 1 texts"):
        metrics.perturb(["other"], str(file))
    with pytest.raises(fb.InvalidInputError, match="Did you mean 'typos'"):
        metrics.perturb(texts, "typo")
    with pytest.raises(fb.InvalidInputError, match="changes images"):
        metrics.perturb(texts, "noise")
    with pytest.raises(fb.InvalidInputError, match="changes texts"):
        metrics.perturb(np.zeros((2, 3, 3)), "typos")


def test_a_drop_comes_with_an_interval_for_metrics_of_examples_and_of_sets():
    generator = np.random.default_rng(0)
    references = generator.integers(0, 2, 200)
    images = references[:, None, None] + generator.normal(0, 0.3, (200, 4, 4))

    def predict(inputs):
        return (inputs[:, 0, 0] > 0.5).astype(np.int64)

    for name in ("accuracy", "f1_macro"):
        results = metrics.measure_robustness(predict, images, references, name, ["noise", "brightness"], strength=3)
        assert [result.perturbation for result in results] == ["noise", "brightness"]
        for result in results:
            assert result.drop == pytest.approx(result.clean - result.perturbed)
            assert result.low <= result.drop <= result.high and result.low > 0
    lower = metrics.measure_robustness(lambda texts: texts, ["a b c"] * 9, ["a b c"] * 9, "wer", ["case"])
    assert lower[0].perturbed > 0 and lower[0].drop == pytest.approx(lower[0].perturbed)
