import gzip
import json
from pathlib import Path

import numpy as np
import pytest

import fastbudget as fb
from fastbudget.evaluation import read_predictions

CASES = json.loads((Path(__file__).parent / "cases" / "harness_logs.json").read_text())


def write(path, text):
    path.write_text(text)
    return path


def write_lines(path, rows):
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


def test_csv_numbers_become_labels(tmp_path):
    read = read_predictions(write(tmp_path / "a.csv", "id,pred,label\nx,1,0\ny,2,2\n"))
    assert read.ids == ["x", "y"]
    assert read.predictions.tolist() == [1, 2]
    assert read.references.tolist() == [0, 2]
    assert read.predictions.dtype == np.int64
    assert not read.ids_are_rows


def test_a_spreadsheets_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("id,pred,label\r\nx,1,0\r\n".encode("utf-8-sig"))
    assert read_predictions(path).ids == ["x"]


def test_names_that_look_like_numbers_stay_names(tmp_path):
    read = read_predictions(write(tmp_path / "a.csv", "id,prediction,reference\n1,007,008\n2,010,010\n"))
    assert read.predictions == ["007", "010"]


def test_digits_beside_names_are_names(tmp_path):
    read = read_predictions(write(tmp_path / "a.csv", "prediction,reference\n1,one\n2,two\n"))
    assert read.predictions == ["1", "2"]
    assert read.ids == ["0", "1"]
    assert read.ids_are_rows


def test_quoted_text_with_newlines_and_delimiters(tmp_path):
    read = read_predictions(write(tmp_path / "a.csv", 'id,output,target\n1,"a, ""b""\nc",x\n'))
    assert read.predictions == ['a, "b"\nc']


def test_class_scores_become_a_matrix(tmp_path):
    rows = [{"id": 1, "prediction": [0.25, 0.75], "label": 1}, {"id": 2, "prediction": [0.5, 0.5], "label": 0}]
    read = read_predictions(write_lines(tmp_path / "a.jsonl", rows))
    assert read.predictions.shape == (2, 2)
    assert read.ids == ["1", "2"]


def test_several_references_per_example_stay_lists(tmp_path):
    rows = [{"id": 1, "prediction": "a", "references": ["a", "b"]}, {"id": 2, "prediction": "a", "references": ["c"]}]
    assert read_predictions(write_lines(tmp_path / "a.jsonl", rows)).references == [["a", "b"], ["c"]]


def test_parquet_json_and_gzip_hold_the_same(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"id": "a", "pred": 3, "label": 3}, {"id": "b", "pred": 1, "label": 0}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    write(tmp_path / "a.json", json.dumps(rows))
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("a.parquet", "a.json", "a.jsonl.gz"):
        read = read_predictions(tmp_path / name)
        assert (read.ids, read.predictions.tolist(), read.references.tolist()) == (["a", "b"], [3, 1], [3, 0])


def test_shards_merge_by_id_and_padding_counts_once(tmp_path):
    # 12 indices from 3 ranks over 10 samples: what a distributed sampler pads with is there twice.
    shards = [
        write_lines(
            tmp_path / f"{rank}.jsonl",
            [{"id": index % 10, "prediction": index % 10, "label": 0} for index in range(rank, 12, 3)],
        )
        for rank in range(3)
    ]
    read = read_predictions(shards)
    assert sorted(map(int, read.ids)) == list(range(10))
    assert read.num_duplicates == 2


def test_equal_ids_with_different_values_are_refused(tmp_path):
    path = write(tmp_path / "a.csv", "id,pred,label\nx,1,0\nx,2,0\n")
    with pytest.raises(fb.InvalidInputError, match=r"'x' occurs twice .*1 \(row 1\) and 2 \(row 2\)"):
        read_predictions(path)


def test_multiple_choice_logs(tmp_path):
    read = read_predictions(write_lines(tmp_path / "samples_x_2026.jsonl", CASES["multiple_choice"]))
    assert read.predictions.tolist() == [2, 1]
    assert read.references.tolist() == [2, 0]
    assert read.scores["acc"].tolist() == [1.0, 0.0]
    assert read.scores["acc_norm"].tolist() == [0.0, 0.0]
    assert read.content == ["d0-p0-t0", "d1-p1-t1"]
    assert (read.predictions == read.references).tolist() == read.scores["acc"].astype(bool).tolist()


def test_logs_of_several_filters_need_a_choice(tmp_path):
    path = write_lines(tmp_path / "samples_gsm8k_2026.jsonl", CASES["generation"])
    with pytest.raises(fb.InvalidInputError, match="'strict-match', 'flexible-extract'"):
        read_predictions(path)
    read = read_predictions(path, filter="flexible-extract")
    assert read.predictions == ["18"]
    assert read.scores["exact_match"].tolist() == [1.0]
    with pytest.raises(fb.InvalidInputError, match="Did you mean 'strict-match'"):
        read_predictions(path, filter="strict-mach")


def test_logs_without_filters_and_with_corpus_metrics(tmp_path):
    old = read_predictions(write_lines(tmp_path / "old.jsonl", CASES["before_filters"]))
    assert old.predictions.tolist() == [3]
    assert list(old.scores) == ["acc"]
    corpus = read_predictions(write_lines(tmp_path / "corpus.jsonl", CASES["corpus_metric"]))
    assert list(corpus.scores) == ["rougeL"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "id,pred,label\nx,1\n", "line 2: 2 values for 3 columns"),
        ("a.csv", "id,pred,label\nx,,0\ny,1,0\n", "1 of 2 rows have no 'pred', the first is row 1"),
        ("a.csv", "id,id,pred\nx,y,0\n", "same name"),
        ("a.csv", "id,pred,label\n", "there is no example"),
        ("a.csv", "", "there is no example"),
        ("a.csv", "id,wrong\nx,1\n", "no column of predictions"),
        ("a.jsonl", '{"id": 1}\n{"id"\n', "line 2: not JSON"),
        ("a.jsonl", "[1]\n", "line 1: must be a JSON object"),
        ("a.json", '{"id": 1}', "array of objects"),
        ("a.txt", "", "must end in"),
        ("a.parquet", "PAR1", "no readable Parquet"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, name, text, message):
    with pytest.raises(fb.FastbudgetError, match=message):
        read_predictions(write(tmp_path / name, text))


def test_a_misspelt_column_and_a_missing_file(tmp_path):
    path = write(tmp_path / "a.csv", "id,answer_text,label\nx,1,0\n")
    with pytest.raises(fb.InvalidInputError, match="Did you mean 'answer_text'"):
        read_predictions(path, prediction="answer_txt")
    with pytest.raises(fb.DataFileError, match=r"b\.csv can't be read"):
        read_predictions(tmp_path / "b.csv")


def test_scores_may_be_words_and_nan_is_kept(tmp_path):
    read = read_predictions(
        write_lines(tmp_path / "a.jsonl", [{"id": 1, "correct": True}, {"id": 2, "correct": False}])
    )
    assert read.scores["correct"].tolist() == [1.0, 0.0]
    assert read.predictions is None
    read = read_predictions(write(tmp_path / "a.csv", "id,score\n1,nan\n2,0.5\n"))
    assert np.isnan(read.scores["score"][0])
