"""Training in stages: short sequences until a target is met, then long ones; the learning rate cools down at the end.

Then the budget is raised: the run goes on from its trunk, the state before the cool-down, and cools down once more.
"""

import tempfile

import torch
from torch import nn
from torch.nn import functional as F

import fastbudget as fb
from fastbudget.training import LearningRateSchedule, Stage

TEXT = torch.arange(30_000) % 97 % 31  # a text with a period that short sequences hardly show


class NextToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(31, 24), nn.GRU(24, 48, batch_first=True), nn.Linear(48, 31)

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0])


def batches(stage):
    """Called as each stage begins: its sequences are as long, and its batches as large, as the stage says."""
    windows = TEXT.unfold(0, stage.seq_len + 1, stage.seq_len)
    data = torch.utils.data.TensorDataset(windows[:, :-1], windows[:, 1:])
    return torch.utils.data.DataLoader(data, batch_size=stage.micro_batch_size, shuffle=True)


def evaluate(model):
    tokens = TEXT[:2001].reshape(1, -1)
    return {"loss": F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).item()}


def trainer(run_dir, max_steps):
    torch.manual_seed(0)
    return fb.Trainer(
        model=NextToken(),
        train_data=batches,
        stages=[
            Stage(name="short", seq_len=8, micro_batch_size=64, targets={"loss": 1.0}, mode="min", budget_share=0.4),
            Stage(name="long", seq_len=64, micro_batch_size=8, grad_accumulation=2),
        ],
        schedule=LearningRateSchedule(shape="wsd", warmup_steps=10),
        loss="cross_entropy",
        optimizer_options={"lr": 3e-3},
        evaluate=evaluate,
        metric="loss",
        mode="min",
        evaluate_every=20,
        max_steps=max_steps,
        budget=fb.Budget(wall_hours=30 / 3600),
        run_dir=run_dir,
    )


run_dir = tempfile.mkdtemp()
small = trainer(run_dir, max_steps=150).fit()
print(f"150 steps: loss {small.best_metrics['loss']:.4f} ({small.stop_reason})")
large = trainer(run_dir, max_steps=250).fit(resume="trunk")
print(f"250 steps from its trunk: loss {large.best_metrics['loss']:.4f}, {large.spend['sessions']} sessions")
