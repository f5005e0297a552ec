"""Schedules against their formulas and against PyTorch's schedulers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskflow.training import Constant, Cosine, InverseSqrt, Schedule, StepDecay, ZarembaDecay


def torch_rates(make, count: int, lr: float) -> list[float]:
    """What a torch scheduler answers for ``count`` steps; ``make(schedulers, optimizer)`` builds it."""
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = make(torch.optim.lr_scheduler, optimizer)
    rates = []
    for _ in range(count):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_constant() -> None:
    assert {Constant(0.3).at(step, step // 7) for step in range(50)} == {0.3}


@pytest.mark.torch
@pytest.mark.parametrize("by", ["epoch", "step"])
def test_step_decay_like_torch(by: str) -> None:
    expected = torch_rates(lambda s, o: s.StepLR(o, 4, 0.3), 20, 0.5)
    schedule = StepDecay(0.5, 4, 0.3, by)
    ours = [schedule.at(k, 0) if by == "step" else schedule.at(99, k) for k in range(20)]
    assert ours == pytest.approx(expected, rel=1e-12)


@pytest.mark.torch
def test_cosine_like_torch() -> None:
    expected = torch_rates(lambda s, o: s.CosineAnnealingLR(o, 30, 0.01), 31, 0.5)
    assert [Cosine(0.5, 30, floor=0.01).at(k, 0) for k in range(31)] == pytest.approx(expected, rel=1e-9)


@pytest.mark.torch
def test_cosine_with_warmup_like_torch() -> None:
    def make(schedulers, optimizer):  # type: ignore[no-untyped-def]
        rise = schedulers.LinearLR(optimizer, 1 / 10, 1.0, 9)
        fall = schedulers.CosineAnnealingLR(optimizer, 30)
        return schedulers.SequentialLR(optimizer, [rise, fall], [10])

    expected = torch_rates(make, 41, 0.5)
    assert [Cosine(0.5, 40, warmup=10).at(k, 0) for k in range(41)] == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_cosine_stays_at_its_floor() -> None:
    assert Cosine(1.0, 10, 2, 0.1).at(10, 0) == pytest.approx(0.1)
    assert Cosine(1.0, 10, 2, 0.1).at(10**9, 0) == pytest.approx(0.1)


def test_inverse_sqrt_is_the_formula_of_vaswani() -> None:
    width, warmup = 512, 40
    schedule = InverseSqrt(width**-0.5 * warmup**-0.5, warmup)
    for number in range(1, 200):
        formula = width**-0.5 * min(number**-0.5, number * warmup**-1.5)
        assert schedule.at(number - 1, 0) == pytest.approx(formula, rel=1e-12)


def test_zaremba_medium_and_large() -> None:
    medium = [ZarembaDecay().at(0, epoch) for epoch in range(39)]
    assert medium[:6] == [1.0] * 6
    assert medium[6] == pytest.approx(1 / 1.2)
    assert medium[38] == pytest.approx(1.2**-33)
    large = ZarembaDecay(1.0, 14, 1.15)
    assert large.at(0, 13) == 1.0
    assert large.at(0, 14) == pytest.approx(1 / 1.15)


@given(
    st.sampled_from([Cosine(0.7, 100, 13), InverseSqrt(0.7, 13), ZarembaDecay(0.7, 3), StepDecay(0.7, 5, 0.5)]),
    st.integers(0, 300),
)
def test_never_above_the_peak_and_never_rising_after_warmup(schedule: Schedule, step: int) -> None:
    here, after = schedule.at(step, step // 10), schedule.at(step + 1, (step + 1) // 10)
    assert 0 <= here <= 0.7 + 1e-12
    if step >= 13:
        assert after <= here + 1e-12
    assert math.isfinite(after)


@pytest.mark.parametrize("make", [
    lambda: Constant(-1), lambda: Constant(math.nan), lambda: StepDecay(0.1, 0), lambda: StepDecay(0.1, 2, by="day"),
    lambda: Cosine(0.1, 5, 5), lambda: Cosine(0.1, 0), lambda: InverseSqrt(0.1, 0), lambda: ZarembaDecay(factor=0),
])  # fmt: skip
def test_refuses_nonsense(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="must be"):
        make()
