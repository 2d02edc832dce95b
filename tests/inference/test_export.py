from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastbudget as fb
from fastbudget.inference import exporter


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


class Cnn(torch.nn.Module):
    """With what behaves differently in training."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
        )
        self.head = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 5))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images))


class Two(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 4)

    def forward(self, tokens: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        embedded = self.embedding(tokens).mean(1)
        return embedded * scale, embedded.sum(1)


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, inputs: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return inputs * self.weight * factor


class Undecided(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if inputs.sum() > 0:
            return self.layer(inputs)
        return -self.layer(inputs)


def seeded(model: type[torch.nn.Module]) -> torch.nn.Module:
    torch.manual_seed(0)
    return model()


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, fb.Artifact]:
    model = seeded(Mlp)
    return model, fb.export(model, torch.randn(4, 6), tmp_path_factory.mktemp("mlp") / "out")


def same(expected: Any, actual: Any) -> bool:
    return np.allclose(expected.detach().numpy(), actual, rtol=1e-4, atol=1e-5)


def test_an_mlp_at_any_batch_size(mlp: tuple[torch.nn.Module, fb.Artifact]) -> None:
    model, artifact = mlp
    run = artifact.load(threads=1)
    for size in (1, 2, 3, 4, 33, 4096):
        inputs = torch.randn(size, 6)
        assert same(model(inputs), run(inputs)) and same(model(inputs), run(inputs.numpy()))
    wide = torch.randn(5, 12)[:, ::2]
    assert same(model(wide), run(wide)) and same(model(wide), run(wide.numpy()))
    verification = artifact.manifest["verification"]
    assert verification["max_abs_diff"] < 1e-4 and verification["same_predictions"] == 1.0
    assert verification["batch_sizes"] == [1, 2, 3, 4] and verification["latency_ratio"] > 0
    assert artifact.manifest["num_params"] == sum(p.numel() for p in model.parameters())


def test_an_artifact_opens_again(mlp: tuple[torch.nn.Module, fb.Artifact]) -> None:
    model, artifact = mlp
    again = fb.load_artifact(artifact.path)
    assert again.manifest == artifact.manifest == json.loads((artifact.path / "manifest.json").read_text())
    assert sorted(path.name for path in artifact.path.iterdir()) == ["manifest.json", "model.onnx"]
    assert [path.name for path in artifact.path.parent.iterdir()] == ["out"]
    inputs = torch.randn(2, 6)
    assert same(model(inputs), again.load()(inputs))


def test_a_model_left_in_training_mode_is_exported_in_eval_mode(tmp_path: Path) -> None:
    model = seeded(Cnn)
    for _ in range(5):
        model(torch.randn(16, 1, 8, 8) * 3 + 1)  # running statistics worth having
    model.train()
    model.body[1].eval()  # a frozen batch norm
    modes = {name: module.training for name, module in model.named_modules()}
    artifact = fb.export(model, torch.randn(4, 1, 8, 8), tmp_path / "out")
    assert {name: module.training for name, module in model.named_modules()} == modes
    inputs = torch.randn(7, 1, 8, 8)
    first, second = artifact.load()(inputs), artifact.load()(inputs)
    assert np.array_equal(first, second), "dropout is still active"
    model.eval()
    assert same(model(inputs), first)


def test_two_inputs_and_two_outputs(tmp_path: Path) -> None:
    model = seeded(Two)
    artifact = fb.export(model, (torch.randint(0, 10, (3, 5)), torch.rand(3, 1)), tmp_path / "out")
    run = artifact.load()
    tokens, scale = torch.randint(0, 10, (6, 5)), torch.rand(6, 1)
    expected, actual = model(tokens, scale), run(tokens, scale)
    assert isinstance(actual, tuple) and len(actual) == 2
    assert all(same(want, got) for want, got in zip(expected, actual, strict=True))
    with pytest.raises(fb.InvalidInputError, match="takes 2 inputs, got 1"):
        run(tokens)
    with pytest.raises(fb.InvalidInputError, match="'input_0' must be int64, got int32"):
        run(tokens.int(), scale)


def test_a_transformer_layer_with_two_dynamic_axes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    artifact = fb.export(
        model, torch.randn(3, 5, 16), tmp_path / "out", dynamic={0: {0: (1, 8), 1: (2, 32)}},
        check_inputs=[(torch.randn(3, 5, 16),), (torch.randn(2, 9, 16),)],
    )  # fmt: skip
    run = artifact.load()
    model.eval()
    for batch, length in ((1, 2), (2, 7), (8, 32), (3, 5)):
        inputs = torch.randn(batch, length, 16)
        assert same(model(inputs), run(inputs)), (batch, length)
    for batch, length, axis in ((9, 5, 0), (2, 33, 1), (2, 1, 1)):
        with pytest.raises(fb.InvalidInputError, match=f"dimension {axis}"):
            run(torch.randn(batch, length, 16))


def test_a_number_as_an_input(tmp_path: Path) -> None:
    model = seeded(Scaled)
    artifact = fb.export(model, (torch.randn(4, 3), torch.tensor(2.0)), tmp_path / "out", dynamic={0: {0: (1, 64)}})
    inputs = torch.randn(9, 3)
    assert same(model(inputs, torch.tensor(-3.0)), artifact.load()(inputs, torch.tensor(-3.0)))
    assert same(model(inputs, torch.tensor(-3.0)), artifact.load()(inputs, np.float32(-3.0)))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.randn(2, 6).double(), "must be float32, got float64"),
        (torch.ones(2, 6, dtype=torch.long), "must be float32, got int64"),
        (torch.randn(2, 5), "dimension 1 must be 6, got 5"),
        (torch.randn(6), "must have 2 dimensions, got 1"),
        (torch.randn(1, 2, 6), "must have 2 dimensions, got 3"),
        (torch.randn(0, 6), "dimension 0 must be 1 to 4096, got 0"),
        (torch.randn(4097, 6), "dimension 0 must be 1 to 4096, got 4097"),
    ],
)
def test_the_runner_refuses_what_was_not_verified(
    mlp: tuple[torch.nn.Module, fb.Artifact], inputs: torch.Tensor, message: str
) -> None:
    run = mlp[1].load(threads=1)
    for value in (inputs, inputs.numpy()):
        with pytest.raises(fb.InvalidInputError, match=message):
            run(value)


# -- damage and mistakes -------------------------------------------------------------------------------------------


def test_a_changed_model_is_refused(tmp_path: Path) -> None:
    artifact = fb.export(seeded(Mlp), torch.randn(2, 6), tmp_path / "out")
    file = artifact.path / "model.onnx"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(fb.RunDirectoryError, match="has changed"):
        artifact.load()
    with pytest.raises(fb.RunDirectoryError, match="has changed"):
        fb.load_artifact(artifact.path).load()
    file.unlink()
    with pytest.raises(fb.RunDirectoryError, match=r"model\.onnx"):
        fb.load_artifact(artifact.path).load()


@pytest.mark.parametrize(
    "content", [None, "", "{", "[]", "{}", '{"format": "other"}', '{"format": "fastbudget-artifact", "version": 2}']
)
def test_what_is_no_artifact_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(fb.RunDirectoryError):
        fb.load_artifact(tmp_path)


@pytest.mark.parametrize("name", ["notes.txt", "manifest.json", "model.onnx"])
def test_a_directory_of_something_else_is_left_alone(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text('{"manifest_version": 3}')
    (out / "work.txt").write_text("a year of work")
    with pytest.raises(fb.RunDirectoryError, match="is not an artifact"):
        fb.export(seeded(Mlp), torch.randn(2, 6), out)
    assert sorted(path.name for path in out.iterdir()) == sorted({name, "work.txt"})
    assert (out / "work.txt").read_text() == "a year of work"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_artifact_with_something_beside_it_is_left_alone(tmp_path: Path) -> None:
    artifact = fb.export(seeded(Mlp), torch.randn(2, 6), tmp_path / "out")
    (artifact.path / "notes.txt").write_text("mine")
    with pytest.raises(fb.RunDirectoryError, match=r"notes\.txt"):
        fb.export(seeded(Mlp), torch.randn(2, 6), tmp_path / "out")
    assert (artifact.path / "notes.txt").read_text() == "mine"


def test_a_file_in_the_way_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(fb.RunDirectoryError, match="is not an artifact"):
        fb.export(seeded(Mlp), torch.randn(2, 6), tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


def test_an_artifact_and_an_empty_directory_are_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    fb.export(seeded(Mlp), torch.randn(2, 6), out)
    model = seeded(Cnn)
    artifact = fb.export(model, torch.randn(2, 1, 8, 8), out)
    model.eval()
    inputs = torch.randn(3, 1, 8, 8)
    assert same(model(inputs), artifact.load()(inputs))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_control_flow_that_depends_on_values(tmp_path: Path) -> None:
    model = seeded(Undecided).train()
    with pytest.raises(fb.InvalidInputError, match=r"torch\.where or torch\.cond"):
        fb.export(model, torch.randn(2, 4), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    assert model.training


def test_a_failed_export_keeps_the_old_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = seeded(Mlp)
    old = fb.export(model, torch.randn(2, 6), tmp_path / "out")

    def differs(*args: Any, **kwargs: Any) -> Any:
        raise fb.InvalidInputError("differs")

    monkeypatch.setattr(exporter, "verify", differs)
    with pytest.raises(fb.InvalidInputError, match="differs"):
        fb.export(model, torch.randn(2, 6), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert fb.load_artifact(old.path).manifest == old.manifest
    old.load()


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (torch.randn(1, 6), {}, "batch of at least 2"),
        (torch.tensor(1.0), {}, "batch of at least 2"),
        ((), {}, "tensor or a tuple of tensors"),
        ({"inputs": torch.randn(2, 6)}, {}, "got dict"),
        ((torch.randn(2, 6), 3), {}, "tuple of tensors"),
        (torch.randn(2, 6), {"target": "tensorflow"}, "target must be one of 'onnx'"),
        (torch.randn(2, 6), {"dynamic": {1: {0: (1, 8)}}}, "dynamic"),
        (torch.randn(2, 6), {"dynamic": {0: {2: (1, 8)}}}, "dynamic"),
        (torch.randn(2, 6), {"dynamic": {0: {0: (8, 1)}}}, "dynamic"),
        (torch.randn(2, 6), {"dynamic": {0: {0: (3, 8)}}}, "dynamic"),
    ],
    ids=[
        "batch of one", "scalar", "nothing", "mapping", "number", "target", "no such input", "no such axis", "reversed",
        "example outside",
    ],
)  # fmt: skip
def test_arguments_are_checked(tmp_path: Path, inputs: Any, options: Any, message: str) -> None:
    with pytest.raises(fb.InvalidInputError, match=message):
        fb.export(seeded(Mlp), inputs, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []
