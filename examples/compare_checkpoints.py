"""Is the new checkpoint better? Evaluated on as few examples as the answer needs, and never on the same one twice.

Run: python examples/compare_checkpoints.py
"""

import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import fastbudget as fb
from fastbudget.evaluation import read_record

torch.manual_seed(0)
digits = load_digits()
generator = torch.Generator().manual_seed(0)


def noisy(rows, copies):
    """Many versions of each image, so that there is something to save."""
    images = torch.tensor(digits.data[rows] / 16, dtype=torch.float32).repeat(copies, 1)
    labels = torch.tensor(digits.target[rows]).repeat(copies)
    return images + 0.3 * torch.randn(images.shape, generator=generator), labels


x, y = noisy(slice(0, 1200), 4)
test_set = TensorDataset(*noisy(slice(1200, 1797), 8))  # test_set[i] -> (input, reference)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), 2e-3)


def train(epochs):
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()


@torch.no_grad()
def predict(inputs):
    return model(inputs)


with tempfile.TemporaryDirectory() as directory, fb.EvaluationStore(Path(directory) / "evals.db") as store:
    train(2)
    baseline = fb.evaluate(predict, test_set, ["accuracy", "f1_macro"], store=store, model_key=model, name="epoch 2")
    accuracy = baseline["accuracy"]
    print(f"baseline: accuracy {accuracy.value:.4f} on all {baseline.n:,} examples")

    train(6)
    quick = fb.evaluate(predict, test_set, tier="quick", store=store, model_key=model, name="epoch 8")
    print(
        f"quick:    accuracy {quick['accuracy'].low:.4f} to {quick['accuracy'].high:.4f}, from {quick.n} of {quick.N:,}"
    )
    verdict = fb.compare(baseline, predict, test_set, store=store, model_key=model)
    print(f"epoch 8:  {verdict.decision} by {verdict.difference.low:+.4f} to {verdict.difference.high:+.4f}, ", end="")
    print(f"from {verdict.n} of {verdict.N:,} examples, {verdict.num_predicted} of them run now")

    gate = fb.compare(baseline, predict, test_set, margin=0.01, store=store, model_key=model)
    print(f"gate:     {gate.decision}, {gate.num_predicted} examples run: the others were in the store")

    again = fb.compare(read_record(store, quick.store_id), predict, test_set, model_key=model)
    print(f"itself:   {again.decision}, {again.num_predicted} examples run: {again.reason}")
    assert verdict.passed and gate.passed and again.num_predicted == 0
