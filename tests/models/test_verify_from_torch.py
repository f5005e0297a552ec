"""from_torch's verification finds what is wrong, names the first operator that differs, and leaves the module alone."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import taskflow
from taskflow.models.pytorch import from_torch, weights_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
from taskflow.models.pytorch import arithmetic, modules, verify  # noqa: E402
from taskflow.models.pytorch.registry import FUNCTIONS  # noqa: E402
from taskflow.operators.unary import Sigmoid, Unary  # noqa: E402

nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.torch


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)
        self.drop, self.flow = nn.Dropout(0.4), nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        h = self.drop(torch.tanh(self.norm(self.first(x))))
        return self.last(F.dropout(torch.sigmoid(self.flow(h)), 0.3, self.training))


def test_it_passes_with_dropout_in_either_type() -> None:
    for module in (Small(), Small().double()):
        graph = from_torch(module, (4, 6))
        assert {n.operator.p for n in graph if n.operator.kind == "dropout"} == {0.4, 0.3}


def wrong(monkeypatch: pytest.MonkeyPatch, target: Any, change: Callable[[Any], Any]) -> None:
    """Make what stands for a function or a layer wrong."""
    table: Any = modules.LAYERS if isinstance(target, type) else FUNCTIONS
    right = table[target]
    monkeypatch.setitem(table, target, lambda *args, **kwargs: change(right(*args, **kwargs)))


@pytest.mark.parametrize(
    "target, change, said",
    [
        (
            torch.tanh, lambda y: taskflow.add(y, taskflow.scale(taskflow.mul(y, y), 1e-4)),
            r"tanh is the first that returns something else, by .* \(function\)",
        ),
        (nn.LayerNorm, lambda y: taskflow.shift(y, 1e-4), r"flow is the first .* \(LayerNorm\)"),
        (nn.Linear, lambda y: taskflow.relu(y), r"first is the first .* \(Linear\)"),
        (torch.sigmoid, lambda y: taskflow.add(y, taskflow.shift(y, -0.5)), r"sigmoid is the first"),
    ],
)
def test_the_first_operator_that_differs_is_named(monkeypatch: Any, target: Any, change: Any, said: str) -> None:
    wrong(monkeypatch, target, change)
    module = Small()
    with pytest.raises(ValueError, match=f"from_torch: Small: the graph does not compute what .*: {said}"):
        from_torch(module, (4, 6))
    assert from_torch(module, (4, 6), verify=False).parameter_count == sum(p.numel() for p in module.parameters())


def test_a_wrong_gradient_is_named(monkeypatch: Any) -> None:
    right = Unary.__dict__.get("backward", None) or Sigmoid.backward

    def backward(self: Any, call: Any) -> None:
        right(self, call)
        if call.grad_inputs[0] is not None and self.kind == "sigmoid":
            call.grad_inputs[0].array *= 1.001

    monkeypatch.setattr(Sigmoid, "backward", backward)
    with pytest.raises(ValueError, match=r"the gradient of what flow returns differs; it is read by sigmoid"):
        from_torch(Small(), (4, 6))


def test_wrong_running_statistics_are_named(monkeypatch: Any) -> None:
    def build(site: Any, m: Any, x: Any) -> Any:
        return site.own(taskflow.batch_norm(x, m.eps, 0.2, name=site.name), m.weight, m.bias)

    monkeypatch.setitem(modules.LAYERS, nn.BatchNorm1d, build)
    with pytest.raises(ValueError, match=r"norm\.running_(mean|var) differs after a training step"):
        from_torch(Small(), (4, 6))


def test_a_small_epsilon_counts() -> None:
    """In single precision nobody would see it: the copy that is compared has double precision."""

    def build(site: Any, m: Any, x: Any) -> Any:
        return site.own(taskflow.layer_norm(x, m.eps * 1.5, name=site.name), m.weight, m.bias)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(ValueError, match="flow is the first"):
        patch.setitem(modules.LAYERS, nn.LayerNorm, build)
        from_torch(Small(), (4, 6))


def test_the_module_is_left_as_it_was() -> None:
    module = Small()
    module.first.weight.grad = torch.ones_like(module.first.weight)
    module.drop.eval()
    before, flags = copy.deepcopy(module.state_dict()), [part.training for part in module.modules()]
    parts = {name: list(vars(part)) for name, part in module.named_modules()}
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    from_torch(module, (4, 6))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert flags == [part.training for part in module.modules()]
    assert parts == {name: list(vars(part)) for name, part in module.named_modules()}
    assert torch.equal(states[0], torch.get_rng_state()) and (states[1] == np.random.get_state()[1]).all()  # noqa: NPY002
    assert torch.equal(module.first.weight.grad, torch.ones(8, 6)) and module.last.weight.grad is None
    assert all(type(p) is nn.Parameter for p in module.parameters()) and nn.Module.__call__.__module__.startswith("torch.")


def test_networks_that_cost_much_are_run_with_less(monkeypatch: Any) -> None:
    seen: list[Any] = []
    difference = verify._difference
    monkeypatch.setattr(verify, "_difference", lambda *run: (seen.append(run[0].examples[0].shape), difference(*run))[1])
    monkeypatch.setattr(verify, "FEW_FLOPS", 10)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    from_torch(module, (16, 3, 80, 100))
    from_torch(nn.Sequential(nn.Flatten(), nn.Linear(3 * 70 * 70, 2)), (16, 3, 70, 70))  # its images cannot be smaller
    assert [tuple(shape) for shape in seen] == [(2, 3, 64, 64), (2, 3, 70, 70)]


def test_too_large_networks_are_not_verified_and_that_is_said(monkeypatch: Any) -> None:
    monkeypatch.setattr(verify, "MOST_PARAMETERS", 50)
    with pytest.warns(UserWarning, match=r"Small was not verified: \d+ parameters"):
        from_torch(Small(), (4, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_torch(Small(), (4, 6), verify=False)


def test_modules_without_numbers_are_verified_with_some() -> None:
    with torch.device("meta"):
        module = Small()
    graph = from_torch(module, (4, 6))
    assert graph.parameter_count == sum(shape.numel() for shape in (p.shape for p in module.parameters()))
    with torch.device("meta"):
        large = nn.Linear(60_000, 60_000)
    with pytest.warns(UserWarning, match="was not verified"):
        from_torch(nn.Sequential(large), (4, 60_000))
    with pytest.raises(ValueError, match="mask is on the device meta, which keeps no numbers"):
        from_torch(_times(torch.ones(6, device="meta")), (4, 6))


def _times(mask: Any) -> Any:
    class Times(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 6)
            self.register_buffer("mask", mask)

        def forward(self, x: Any) -> Any:
            return self.a(x) * self.mask

    return Times()


def test_code_that_needs_single_precision_is_compared_in_it() -> None:
    class Casts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 6)

        def forward(self, x: Any) -> Any:
            return self.a(x).float() * torch.ones(6, dtype=torch.float32)

    assert from_torch(Casts(), (4, 6)).dtype == np.float32
    assert set(weights_of(Casts())) == {"a.weight", "a.bias"}


def test_what_pytorch_cannot_train_either_is_one_sentence() -> None:
    class Overwrites(Small):
        def forward(self, x: Any) -> Any:
            h = self.flow(self.first(x))
            h += h * h
            return self.last(h * h)

    with pytest.raises(ValueError, match=r"Overwrites: PyTorch itself cannot train it: one of the variables"):
        from_torch(Overwrites(), (4, 6))


def test_results_without_a_counterpart_are_named() -> None:
    class Weights(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.last = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 5)

        def forward(self, x: Any) -> Any:
            y, weights = self.mix(x, x, x)
            return self.last(y * weights.mean())

    with pytest.raises(ValueError, match=r"mean: result 1 of mix has no counterpart here \(line"):
        from_torch(Weights(), (2, 5, 6))


def leaky_of_two(site: Any, m: Any, x: Any) -> Any:
    """leaky_relu made of relu: right but at 0, where its derivative is 0 and not the slope."""
    below = taskflow.scale(taskflow.relu(taskflow.scale(x, -1.0)), m.negative_slope)
    return taskflow.sub(taskflow.relu(x), below, name=site.name)


@pytest.mark.parametrize("zeros, said", [
    (True, r"the gradient of what 0 returns differs; it is read by 1"), (False, r"the gradient of what input returns differs"),
])
def test_zeros_and_bounds_are_tried(monkeypatch: Any, zeros: bool, said: str) -> None:
    """Layers that begin as zeros, and inputs that are zeros here and there."""
    first = nn.Linear(4, 6)
    nn.init.zeros_(first.weight)
    nn.init.zeros_(first.bias)
    module = nn.Sequential(first, nn.LeakyReLU(0.2), nn.Linear(6, 3)) if zeros else nn.Sequential(nn.LeakyReLU(0.2), first)
    from_torch(module, (5, 4))
    monkeypatch.setitem(modules.LAYERS, nn.LeakyReLU, leaky_of_two)
    with pytest.raises(ValueError, match=said):
        from_torch(module, (5, 4))


@pytest.mark.parametrize("function", [
    lambda x: torch.clamp(x, -1.0, 3.0), lambda x: torch.clamp(x, min=0.5), lambda x: x.clamp(max=2.0), F.relu6,
    lambda x: F.hardtanh(x, -3.0, 3.0), F.hardswish, F.hardsigmoid, torch.abs, lambda x: x**2, lambda x: torch.relu(x) - x,
    lambda x: F.leaky_relu(x, 0.1), lambda x: torch.sqrt(torch.abs(x)), lambda x: 1 / x,
])
def test_functions_with_corners_pass(function: Any) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(8, 3)

        def forward(self, x: Any) -> Any:
            return self.last(function(x))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_torch(Net(), (16, 8))


def test_pooling_does_not_choose_among_means_that_are_equal_up_to_rounding() -> None:
    pools = (nn.AvgPool2d(3), nn.AdaptiveAvgPool2d(3), nn.MaxPool2d(2, 2, 1))
    from_torch(nn.Sequential(*pools, nn.Flatten(1), nn.Linear(16, 5)), (4, 4, 8, 7))


def test_a_clamp_whose_gradient_at_its_bounds_is_another_is_found(monkeypatch: Any) -> None:
    other = not arithmetic.clamp_stops_at_bounds()
    monkeypatch.setattr(arithmetic, "clamp_stops_at_bounds", lambda: other)

    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.clamp(x, -1.0, 3.0)

    with pytest.raises(ValueError, match="the gradient of what x returns differs; it is read by clamp"):
        from_torch(Net(), (16, 8))


def test_what_the_module_has_as_zeros_is_tried_but_not_of_norms() -> None:
    from taskflow.models.pytorch import corners, trial

    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU())
    nn.init.zeros_(module[0].bias)
    copied = trial.random_copy(module, torch.float64)
    assert copied[0].bias.abs().min() > 0 and copied[1].bias.abs().min() > 0
    made: Any = corners._with_its_zeros(module, copied)
    assert corners._with_its_zeros(nn.Linear(2, 2), nn.Linear(2, 2)) is None
    assert not made[0].bias.any() and made[0].weight.all() and made[1].bias.all() and copied[0].bias.all()
