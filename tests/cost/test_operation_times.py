import math

import pytest

import fastbudget as fb
from fastbudget.cost import OperationTimes


def times(**more):
    """Products at 100 GFLOP/s, memory at 10 GB/s."""
    shapes = [(1, m, n, k) for m in (16, 256, 1024) for n in (64, 512) for k in (64, 512)]
    return OperationTimes(
        products={"mm float32": [[*shape, 2 * math.prod(shape) / 1e11] for shape in shapes]},
        passes={
            "mul float32": [[1e4, 1e-6], [1e6, 1e-4]],
            "exp float32": [[1e4, 3e-6], [1e6, 3e-4]],
        },
        **more,
    )


@pytest.mark.parametrize("shape", [(1, 16, 64, 64), (1, 300, 100, 200), (4, 1, 64, 64), (1, 4096, 4096, 4096)])
def test_a_constant_rate_is_found_everywhere(shape):
    assert times().product_seconds("mm", "float32", shape) == pytest.approx(2 * math.prod(shape) / 1e11)


def test_near_shapes_decide():
    rows = [[1, 8, 8, 8, 8**3 * 1e-9], [1, 1024, 1024, 1024, 1024**3 * 1e-11]]
    found = OperationTimes(products={"mm float32": rows})
    assert found.product_seconds("mm", "float32", (1, 8, 8, 8)) == pytest.approx(8**3 * 1e-9, rel=0.01)
    assert found.product_seconds("mm", "float32", (1, 1024, 1024, 1024)) == pytest.approx(1024**3 * 1e-11, rel=0.01)


@pytest.mark.parametrize(("moved", "seconds"), [(1e4, 1e-6), (1e5, 1e-5), (1e6, 1e-4), (1e8, 1e-2), (1e3, 1e-7)])
def test_passes_follow_their_curve_and_go_on_in_proportion(moved, seconds):
    assert times().pass_seconds("mul", "float32", moved) == pytest.approx(seconds)


def test_an_operation_that_was_not_measured_is_like_another():
    found = times()
    assert found.pass_seconds("log", "float32", 1e6) == found.pass_seconds("exp", "float32", 1e6)
    assert found.pass_seconds("anything", "bfloat16", 1e6) == found.pass_seconds("mul", "float32", 1e6)
    assert found.product_seconds("convolution", "float16", (1, 16, 64, 64)) is not None
    assert found.measures("mul", "float32") and not found.measures("log", "float32")


def test_nothing_alike_is_none():
    assert OperationTimes().pass_seconds("mul", "float32", 1e6) is None
    assert OperationTimes().product_seconds("mm", "float32", (1, 1, 1, 1)) is None


def test_scaling():
    double = times(host_s={"forward": 1e-6}).scaled(products={"float32": 2.0}, passes=3.0, host=4.0)
    assert double.fastest_product("float32") == pytest.approx(0.5e11)
    assert double.pass_seconds("mul", "float32", 1e6) == pytest.approx(3e-4)
    assert double.host_s == {"forward": 4e-6}


@pytest.mark.parametrize(
    "tables",
    [
        {"products": {"mm float32": [[1, 1, 1, 1]]}},
        {"passes": {"mul float32": [[1.0, 0.0]]}},
        {"passes": {"mul float32": [[1.0, float("nan")]]}},
        {"passes": {"mul float32": []}},
    ],
)
def test_nonsense_is_refused(tables):
    with pytest.raises(fb.InvalidInputError, match="positive numbers"):
        OperationTimes(**tables)


def test_a_file_keeps_everything(tmp_path):
    calibration = fb.Calibration(
        device="cpu", date="2026-11-30", software="torch", threads=2, operations=times(host_s={"forward": 1e-6})
    )
    calibration.write(tmp_path / "calibration.json")
    assert fb.Calibration.read(tmp_path / "calibration.json") == calibration


def test_a_damaged_file_is_explained(tmp_path):
    path = tmp_path / "calibration.json"
    path.write_text('{"version": 1, "device": "cpu", "date": "", "software": "", "operations": {"wrong": 1}}')
    with pytest.raises(fb.InvalidInputError, match=r"calibration\.json is not a complete calibration"):
        fb.Calibration.read(path)
