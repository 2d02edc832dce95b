import numpy as np
import pytest
import torch

import fastbudget as fb
from fastbudget.evaluation import as_examples

ROWS = [
    {"text": [0.0, 1.0], "other": [2.0], "label": 1, "key": "a"},
    {"text": [1.0, 0.0], "other": [3.0], "label": 0, "key": "b"},
]


def predict(inputs):
    return np.asarray(inputs).argmax(1)


def test_hugging_face_data_sets():
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list(ROWS)
    examples = as_examples(table, input="text", reference="label", id="key")
    assert len(examples) == 2
    assert examples[1] == ([1.0, 0.0], 0)
    assert examples.ids == ["a", "b"]
    assert fb.evaluate(predict, examples)["accuracy"].value == 1.0
    several = as_examples(table, input=["text", "other"], reference="label")
    assert several[0] == ({"text": [0.0, 1.0], "other": [2.0]}, 1)
    with pytest.raises(fb.InvalidInputError, match="give one split"):
        as_examples(datasets.DatasetDict(test=table), input="text", reference="label")
    with pytest.raises(fb.InvalidInputError, match="A stream can't be sampled"):
        as_examples(table.to_iterable_dataset(), input="text", reference="label")


def test_torch_data_sets():
    data = torch.utils.data.TensorDataset(torch.eye(3), torch.arange(3))
    examples = as_examples(data)
    assert examples.ids is None
    assert fb.evaluate(lambda x: x, examples)["accuracy"].value == 1.0


def test_lists_of_mappings():
    examples = as_examples(ROWS, input="text", reference="label", id="key")
    assert examples[0] == ([0.0, 1.0], 1)
    assert examples.ids == ["a", "b"]


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ([], {}, "no example"),
        (ROWS, {}, "Give input= and reference="),
        (ROWS, {"input": "txt", "reference": "label"}, "no column 'txt'.*Did you mean 'text'"),
        ([*ROWS, ROWS[0]], {"input": "text", "reference": "label", "id": "key"}, "1 of them repeat"),
        ([(1, 2)], {"input": "text", "reference": "label"}, "name columns"),
        ([(1, 2, 3)], {}, "a pair"),
        (iter([1]), {}, "must have a length"),
    ],
)
def test_data_that_cannot_be_viewed(data, options, message):
    with pytest.raises(fb.InvalidInputError, match=message):
        as_examples(data, **options)
