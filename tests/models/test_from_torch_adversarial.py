"""from_torch understands a module or refuses it: no module of many that are easily misread trains differently without a word."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fast_and_slow import fast_among

import taskflow
from taskflow.checkpoint.weights import load_weights
from taskflow.models.pytorch import from_torch, weights_of
from taskflow.models.pytorch.draws import SameDraws
from taskflow.models.pytorch.trial import without_dropout
from taskflow.operators.tensor import Tensor

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
import torch_cases_apart  # noqa: E402, F401
import torch_cases_choices  # noqa: E402, F401
import torch_cases_complex  # noqa: E402  they fill CASES
import torch_cases_draws  # noqa: E402, F401
import torch_cases_fourier  # noqa: E402, F401
import torch_cases_gradients  # noqa: E402, F401
import torch_cases_images  # noqa: E402, F401
import torch_cases_integers  # noqa: E402, F401
import torch_cases_layers  # noqa: E402, F401
import torch_cases_masks  # noqa: E402, F401
import torch_cases_memory  # noqa: E402, F401
import torch_cases_modules  # noqa: E402, F401
import torch_cases_more  # noqa: E402, F401
import torch_cases_numbers  # noqa: E402, F401
import torch_cases_places  # noqa: E402, F401
import torch_cases_running  # noqa: E402, F401
import torch_cases_state  # noqa: E402, F401
import torch_cases_values  # noqa: E402, F401
import torch_cases_writes  # noqa: E402, F401
from torch_cases import CASES, Case  # noqa: E402

pytestmark = pytest.mark.torch
STEPS, LR = 3, 0.05
CLOSE = {"rtol": 1e-7, "atol": 1e-9}
ROUNDED = {"rtol": 1e-5, "atol": 1e-7}  # of cases that compute a part of themselves in float32
IN_FLOAT32 = {"sum_of_another_type", "dtype_cast"}


def tensors(value: Any, kind: type) -> Iterator[Any]:
    """The tensors in what a module returns, in order."""
    if isinstance(value, kind):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ():
        yield from tensors(part, kind)


def ours_of(result: Any) -> Tensor:
    """A loss out of all that the module returns, so that nothing goes unseen."""
    total = None
    for y in tensors(result, Tensor):
        part = taskflow.mean(taskflow.mul(y, taskflow.shift(y, 0.3)))
        total = part if total is None else taskflow.add(total, part)
    assert total is not None
    return total


def outcome(case: Case, verify: bool) -> tuple[str, str]:
    """ "equal", "refused" or "wrong", and why. Independent of the import's own verification."""
    torch.manual_seed(7)
    module = case.make()
    module = module.double() if case.name != "parameters_of_two_types" else module
    if case.name == "parameters_of_two_types":
        module.a.double()
    arguments = case.arguments()
    results: list[Any] = []
    lazy = any(torch.nn.parameter.is_lazy(p) for p in module.parameters())
    before = {} if lazy else copy.deepcopy(module.state_dict())
    flags = [part.training for part in module.modules()]
    states = torch.get_rng_state()

    def loss(result: Any) -> Tensor:
        results.extend(tensors(result, Tensor))
        return ours_of(result)

    try:
        graph = from_torch(module, *arguments, loss=loss, verify=verify)
    except ValueError as error:
        same = all(torch.equal(value, module.state_dict()[name]) for name, value in before.items())
        return ("refused", str(error)) if same else ("wrong", "the module was changed")
    finally:
        assert torch.equal(states, torch.get_rng_state()), "the import drew random numbers"
    assert flags == [part.training for part in module.modules()], "the import changed a training flag"
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), f"the import changed {name}"
    assert all(p.grad is None for p in module.parameters()), "the import left a gradient"
    if any(node.operator.kind == "noise" for node in graph):
        without_dropout(graph)
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(1))[0], taskflow.SGD(lr=LR))
    load_weights(run, weights_of(module))
    fed = tensors(arguments, torch.Tensor)
    names = [node.name for node in graph if node.operator.kind == "input"]
    feeds = {name: value.numpy().copy() for name, value in zip(names, fed)}
    ours = [run.train(feeds) for _ in range(STEPS)]
    rule, theirs = torch.optim.SGD(module.parameters(), lr=LR), []
    for _ in range(STEPS):
        rule.zero_grad()
        total = sum((y * (y + 0.3)).mean() for y in tensors(called(module, arguments), torch.Tensor))
        total.backward()
        rule.step()
        theirs.append(total.item())
    assert np.isfinite(theirs).all(), "the case diverges"
    close = ROUNDED if case.name in IN_FLOAT32 else CLOSE
    if not np.allclose(ours, theirs, **close):
        return "wrong", f"losses {ours} instead of {theirs}"
    wanted, found = weights_of(module), run.weights()
    for name in wanted:
        if not np.allclose(found[name], wanted[name], **close):
            return "wrong", f"{name} differs by {np.abs(found[name] - wanted[name]).max()} after {STEPS} steps"
    with torch.no_grad():
        module.eval()
        expected = list(tensors(called(module, arguments), torch.Tensor))
    got = run.evaluate_with(feeds, results)[1]
    for number, (tensor, value) in enumerate(zip(results, expected)):
        if not np.allclose(got[tensor.name], value.numpy(), **close):
            return "wrong", f"output {number} differs in evaluation"
    return "equal", ""


def called(module: Any, arguments: tuple[Any, ...]) -> Any:
    """What forward makes of arguments, which it may write into; those by keyword only are given so."""
    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
    parameters = inspect.signature(type(module).forward).parameters.values()
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    place = len(copies) - len(named)
    with SameDraws():
        return module(*copies[:place], **dict(zip(named, copies[place:])))


@pytest.mark.parametrize("name", CASES)
def test_rules_alone_understand_or_refuse(name: str) -> None:
    """Without verification."""
    word, why = outcome(CASES[name], verify=False)
    assert word == CASES[name].word, why


@pytest.mark.parametrize("name", fast_among([*CASES][::4], [*CASES][::8]))
def test_verification_agrees(name: str) -> None:
    """With verification the same are understood: nothing that is equal is refused. (A quarter of them.)"""
    word, why = outcome(CASES[name], verify=True)
    assert word == CASES[name].word, why


@pytest.mark.parametrize("name", torch_cases_complex.KINDS)
def test_rotary_positions_become_operators_where_a_table_is_a_rotation(name: str) -> None:
    case = CASES[name]
    graph = from_torch(case.make().double(), *case.arguments(), loss=None)
    assert [node.operator.kind for node in graph].count("rotary") == torch_cases_complex.KINDS[name]


@pytest.mark.parametrize("name, blocks", [
    ("attention_with_sinks", 1), ("attention_with_sinks_of_all_keys", 1), ("attention_with_sinks_and_a_bias", 0),
])
def test_attention_with_sinks_keeps_no_scores_where_its_mask_is_a_rule(name: str, blocks: int) -> None:
    case = CASES[name]
    kinds = [node.operator.kind for node in from_torch(case.make().double(), *case.arguments(), loss=None)]
    assert kinds.count("attention_blocks") == blocks and ("softmax" in kinds) == (not blocks)


@pytest.mark.parametrize("name", ["gradient_that_is_summed", "own_gradient_that_is_clipped"])
def test_a_gradient_that_is_no_derivative_is_named_without_verification(name: str) -> None:
    why = r"forward calls \w+, a custom autograd.Function, whose backward is not the derivative of its forward"
    with pytest.raises(ValueError, match=why):
        from_torch(CASES[name].make().double(), *CASES[name].arguments(), loss=None, verify=False)
