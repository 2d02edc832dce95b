import json
import random
import re

import numpy as np
import pytest
import torch

import fastbudget as fb
from fastbudget.evaluation import compare_preprocessing, preprocessing_fingerprint

SAMPLES = [np.full((4, 4, 3), value, np.uint8) for value in (0, 90, 180, 255)]


def scaled(image):
    return torch.from_numpy(image).permute(2, 0, 1).float() / 255


def unscaled(image):
    return torch.from_numpy(image).permute(2, 0, 1).float()


def shifted(image):
    return scaled(image) - 0.02


def flipped(image):
    result = scaled(image)
    return result.flip(-1) * (0.99 + 0.02 * random.random())


def batch_last(image):
    return torch.from_numpy(image).float() / 255


def take(transform, **options):
    return preprocessing_fingerprint(transform, samples=SAMPLES, **options)


def test_the_same_transform_is_consistent():
    report = compare_preprocessing(take(scaled), take(scaled))
    assert report.consistent
    assert report.notes == ()
    assert take(scaled).digest == take(scaled).digest


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        (unscaled, "another scaling"),
        (shifted, "come out differently"),
        (batch_last, r"float32 \[3, 4, 4\] in training and float32 \[4, 4, 3\] in evaluation"),
        (flipped, "evaluation's preprocessing is random"),
    ],
)
def test_differences_that_change_what_the_model_sees(evaluation, message):
    report = compare_preprocessing(take(scaled), take(evaluation))
    assert not report.consistent
    assert any(re.search(message, problem) for problem in report.problems), report.problems
    assert take(scaled).digest != take(evaluation).digest


def test_augmentation_in_training_is_a_note_and_a_wrong_scale_behind_it_a_problem():
    report = compare_preprocessing(take(flipped), take(scaled))
    assert report.consistent
    assert any("augmentation" in note for note in report.notes)
    report = compare_preprocessing(take(flipped), take(unscaled))
    assert any("another scaling" in problem for problem in report.problems)


def test_without_samples_settings_and_code_decide():
    a = preprocessing_fingerprint(scaled, config={"size": 224})
    b = preprocessing_fingerprint(scaled, config={"size": 256})
    assert compare_preprocessing(a, a).consistent
    assert not compare_preprocessing(a, b).consistent
    assert not compare_preprocessing(preprocessing_fingerprint(scaled), preprocessing_fingerprint(unscaled)).consistent


class Pipeline:
    def __init__(self, *steps):
        self.steps = list(steps)

    def __call__(self, image):
        for step in self.steps:
            image = step(image)
        return image


def test_the_code_of_held_transforms_counts():
    assert preprocessing_fingerprint(Pipeline(scaled)).code != preprocessing_fingerprint(Pipeline(unscaled)).code


def test_texts_and_mappings():
    def tokenize(text):
        return {"input_ids": [ord(c) for c in text][:4], "text": text}

    def longer(text):
        return {"input_ids": [ord(c) for c in text][:8], "text": text}

    a, b = (preprocessing_fingerprint(f, samples=["a long text"]) for f in (tokenize, longer))
    report = compare_preprocessing(a, b)
    assert any("[4]" in problem and "[8]" in problem for problem in report.problems)
    json.dumps([a.to_json(), report.to_json()])


def test_the_generators_are_put_back():
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    take(flipped)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected


def test_a_transform_that_fails_is_named():
    with pytest.raises(fb.InvalidInputError, match="fails on a sample: TypeError"):
        preprocessing_fingerprint(lambda x: x + "a", samples=[1])
