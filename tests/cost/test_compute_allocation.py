import pytest

import fastbudget as fb


def test_chinchilla_budget_gives_chinchilla():
    # Hoffmann et al. 2022: 70e9 parameters and 1.4e12 tokens for 5.76e23 FLOPs.
    found = fb.compute_optimal(flops=5.76e23)
    assert isinstance(found, fb.ComputeAllocation)
    assert found.num_params == pytest.approx(70e9, rel=0.1)
    assert found.tokens == pytest.approx(1.4e12, rel=0.1)
    assert "2404.10102" in found.source


@pytest.mark.parametrize("law", ["besiroglu-2024", "hoffmann-2022"])
def test_no_other_division_has_a_lower_loss(law):
    constants = {
        "besiroglu-2024": (1.8172, 482.01, 2085.43, 0.3478, 0.3658),
        "hoffmann-2022": (1.69, 406.4, 410.7, 0.34, 0.28),
    }
    floor, a, b, alpha, beta = constants[law]
    found = fb.compute_optimal(flops=1e22, law=law)
    assert found.flops == pytest.approx(6 * found.num_params * found.tokens)
    for factor in (0.9, 0.99, 1.01, 1.1):
        params = found.num_params * factor
        loss = floor + a / params**alpha + b / (1e22 / 6 / params) ** beta
        assert loss > found.loss


def test_device_hours_buy_flops():
    by_hours = fb.compute_optimal(gpu_hours=1000, hardware="h100", mfu=0.5)
    assert by_hours.flops == pytest.approx(1000 * 3600 * 0.5 * 989e12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one budget"),
        ({"flops": 1e20, "gpu_hours": 1.0}, "exactly one budget"),
        ({"flops": 0}, "flops must be"),
        ({"flops": float("nan")}, "flops must be"),
        ({"gpu_hours": 10}, "needs hardware"),
        ({"gpu_hours": -1, "hardware": "h100"}, "gpu_hours must be"),
        ({"gpu_hours": 1, "hardware": "h100", "mfu": 40}, "mfu must be"),
        ({"flops": 1e20, "law": "kaplan"}, "law must be one of"),
    ],
)
def test_bad_budgets_are_refused(arguments, message):
    with pytest.raises(fb.InvalidInputError, match=message):
        fb.compute_optimal(**arguments)
