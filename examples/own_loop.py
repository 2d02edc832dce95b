"""A loop of your own inside a budget: the guard counts, keeps a reserve, and says when to stop."""

import tempfile

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import fastbudget as fb

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
train, test = order[:-400], order[-400:]

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def accuracy() -> fb.EvaluationRecord:
    with torch.no_grad():
        return fb.evaluate(model, [(x[test], y[test])], ["accuracy"])


def batches():
    while True:
        chosen = train[torch.randint(len(train), (64,))]
        yield x[chosen], y[chosen]


with fb.BudgetGuard(fb.Budget(wall_hours=2 / 3600), run_dir=tempfile.mkdtemp()) as guard:
    for step, (inputs, targets) in enumerate(guard.steps(batches())):
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 200 == 0:
            record = guard.evaluate(accuracy)
            guard.checkpoint({"model": model.state_dict(), "step": step}, {"accuracy": record["accuracy"].value})
    final = guard.evaluate(accuracy)["accuracy"]
    guard.checkpoint({"model": model.state_dict(), "step": step}, {"accuracy": final.value})

spend = guard.spend()
print(f"stopped by {guard.stop_reason} after {step} steps, {spend['device_hours'] * 3600:.2f} of 2 s spent")
print(f"accuracy {final.value:.3f}, 95% interval {final.low:.3f} to {final.high:.3f}")
