"""An accelerate loop inside a budget: accelerate prepares and moves, the guard counts and says when to stop."""

import sys
import tempfile

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import fastbudget as fb

try:
    from accelerate import Accelerator
except ImportError:
    print("skipped: accelerate is not installed (pip install accelerate)")
    sys.exit()

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
train, test = order[:-400], order[-400:]

accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=32, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)


def endless():
    while True:
        yield from loader


def accuracy() -> float:
    model.eval()
    with torch.no_grad():
        correct = model(x[test].to(accelerator.device)).argmax(1).cpu() == y[test]
    model.train()
    return correct.float().mean().item()


def state() -> dict:
    return {"model": accelerator.unwrap_model(model).state_dict(), "optimizer": optimizer.state_dict()}


# Under `accelerate launch` every rank makes the same guard, and all stop at the same step.
with fb.BudgetGuard(fb.Budget(wall_hours=2 / 3600), run_dir=tempfile.mkdtemp()) as guard:
    for step, (inputs, targets) in enumerate(guard.steps(endless())):
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        guard.log(loss=loss.item())
        if step % 200 == 0 and guard.may_evaluate(then_save=True, keep_reserve=True):
            guard.checkpoint(state(), {"accuracy": guard.evaluate(accuracy)})
    final = guard.evaluate(accuracy)
    guard.checkpoint(state(), {"accuracy": final})

spend = guard.spend()
print(f"stopped by {guard.stop_reason} after {step} micro-batches, {spend['device_hours'] * 3600:.2f} of 2 s spent")
print(f"accuracy {final:.3f}")
