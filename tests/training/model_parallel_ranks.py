"""What two ranks of a test do: `python -m torch.distributed.run --nproc-per-node 2 this.py out.json`."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import fastbudget as fb

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Linear(32, 5))


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.layers = nn.Linear(8, 16), nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])
        self.head = nn.Linear(16, 5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(inputs)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def batches(sizes: tuple[int, ...]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    made = []
    for size in sizes:
        targets = torch.randint(5, (size,), generator=generator)
        targets[: size // 3] = -100  # micro-batches count unequal numbers of targets
        made.append((torch.randn(size, 8, generator=generator), targets.flip(0)))
    return made


def difference(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    assert found.keys() == wanted.keys()
    return max(float((found[name] - value).abs().max()) for name, value in wanted.items())


report: dict[str, object] = {}
for schedule, factory, options in (
    ("1f1b", network, {}),
    ("gpipe", network, {"balance": "flops", "example_inputs": torch.randn(8, 8)}),
    ("1f1b", Named, {"blocks": ["embed", "layers", "head"]}),
):
    whole = factory()
    model = fb.training.ModelParallel(
        factory(), loss=F.cross_entropy, num_micro_batches=4, schedule=schedule, **options
    )
    optimizers = [torch.optim.AdamW(part.parameters(), lr=0.01) for part in (whole, model)]
    losses = []
    for inputs, targets in batches((12, 12, 24, 12)):
        expected = F.cross_entropy(whole(inputs), targets)
        expected.backward()
        found = model.step(inputs, targets)
        losses.append(abs(float(found) - float(expected)))
        norms = float(nn.utils.clip_grad_norm_(whole.parameters(), 0.5)), float(model.clip_grad_norm_(0.5))
        assert abs(norms[0] - norms[1]) < 1e-6, norms
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    state = model.state_dict()
    again = fb.training.ModelParallel(
        factory(), loss=F.cross_entropy, num_micro_batches=4, **{**options, "balance": [1, len(model.stages[0]) +
                                                                 len(model.stages[1]) - 1]}
    )  # fmt: skip
    again.load_state_dict(state)
    probe = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))
    report[f"{schedule} {factory.__name__}"] = {
        "loss": max(losses), "weights": difference(state, whole.state_dict()), "stages": model.stages,
        "outputs": float((again.eval()(probe) - whole(probe)).abs().max()),
    }  # fmt: skip

tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
tied[1].weight = tied[0].weight
common = {"loss": F.mse_loss, "num_micro_batches": 2}
tried = (
    ("blocks", lambda: fb.training.ModelParallel(nn.Sequential(nn.Linear(4, 4)), **common)),
    ("ties", lambda: fb.training.ModelParallel(tied, **common)),
    ("chain", lambda: fb.training.ModelParallel(Named(), **common)),
    ("outside", lambda: fb.training.ModelParallel(Named(), blocks=["embed", "head"], **common)),
    ("few", lambda: fb.training.ModelParallel(network(), loss=F.mse_loss, num_micro_batches=1)),
    ("batch", lambda: model.step(torch.randn(10, 8), torch.zeros(10, dtype=torch.long))),
)  # fmt: skip
errors = {}
for name, refused in tried:
    try:
        refused()
    except fb.InvalidInputError as error:
        errors[name] = str(error)
if rank == 0:
    Path(sys.argv[1]).write_text(json.dumps({"report": report, "errors": errors}))
dist.destroy_process_group()
