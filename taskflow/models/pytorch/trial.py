"""Trial: a copy of a module with random numbers, its graph, and a comparison of what both compute."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from taskflow import operators as ops
from taskflow.checkpoint import StoredWeights, load_weights
from taskflow.graph import OperatorGraph
from taskflow.machine import host
from taskflow.mapper import choose
from taskflow.models.pytorch.calls import all_arguments
from taskflow.models.pytorch.draws import SameDraws
from taskflow.models.pytorch.dropping import probability_name
from taskflow.models.pytorch.experts import is_experts
from taskflow.models.pytorch.follow import WATCHING, Followed, Watch, follow
from taskflow.models.pytorch.idle import as_written, sparse_tables
from taskflow.models.pytorch.steps import TorchStep, leaves, mapped
from taskflow.models.pytorch.unread import result_of
from taskflow.models.pytorch.weights import weights_of
from taskflow.operators.flash_attention import FlashAttention
from taskflow.operators.masked_scatter import MaskedScatter
from taskflow.operators.noise import Noise
from taskflow.operators.operator import Init
from taskflow.operators.tensor import Tensor
from taskflow.rules import SGD
from taskflow.runtime import Executor

Array = np.ndarray[Any, Any]
LOW = -3e4  # and below stands for minus infinity in masks
ZERO = Init("constant", 0.0)
TOLERANCES = {"float64": (1e-7, 1e-9), "float32": (1e-2, 1e-4)}  # of the largest number; of the largest of all gradients


@dataclass(frozen=True, slots=True)
class Trial:
    """A copy of the module with random numbers, its examples, and its graph without dropout. ``dtype``: the narrowest type in which
    it computes, to which results must agree. ``own_integers``: it is given the integers of its examples."""

    module: nn.Module
    examples: list[Any]
    followed: Followed
    dtype: str
    own_integers: bool = False

    def follow(self, watch: Watch) -> Followed:
        """Return its graph, with additions by ``watch``."""
        followed = follow(self.module, self.examples, self.followed.graph.name, watch)
        without_dropout(followed.graph)
        return followed


def random_copy(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy with random numbers near the module's own, even where those are zeros or ones, which would hide mistakes; of a
    module without numbers like those with which layers begin."""
    numbers = torch.Generator().manual_seed(1)
    memo: dict[int, Any] = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        with torch.no_grad():
            value = torch.zeros(tensor.shape, dtype=tensor.dtype) if tensor.is_meta else tensor.detach().cpu().clone()
            value = value.to(dtype) if value.is_floating_point() else value
            if isinstance(tensor, nn.Parameter) and value.is_complex():
                wide = value.to(torch.complex128 if dtype == torch.float64 else torch.complex64)
                wide += 0.1 * torch.randn(value.shape, dtype=torch.complex128, generator=numbers).to(wide.dtype)
                memo[id(tensor)] = nn.Parameter(wide, tensor.requires_grad)
                continue
            noise = torch.randn(value.shape, dtype=torch.float64, generator=numbers)
            if isinstance(tensor, nn.Parameter) and not tensor.requires_grad:  # what is equal stays equal: it is one constant
                noise = torch.randn(value.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
            if isinstance(tensor, nn.Parameter) and value.is_floating_point() and tensor.is_meta:
                # as layers begin, so that no part's gradients are lost beside another's
                spread, middle = (value.shape[-1] ** -0.5, 0.0) if value.ndim > 1 else (0.1, float(not name.endswith("bias")))
                value += (middle + spread * noise).to(value.dtype)
            elif isinstance(tensor, nn.Parameter) and value.is_floating_point():
                value += (noise * 0.1 * (value.abs().double().mean() + 0.1)).to(value.dtype)
            elif name.endswith("running_mean"):
                value += (0.1 * noise).to(value.dtype)
            elif name.endswith("running_var"):
                value = (value + tensor.is_meta) * (1 + 0.5 * noise.tanh()).to(value.dtype)
        memo[id(tensor)] = nn.Parameter(value, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else value
    try:
        copied = copy.deepcopy(module, memo)
    except Exception as error:  # whatever the module holds
        raise ValueError(
            f"from_torch: {type(module).__name__} cannot be copied to be verified ({type(error).__name__}: {error}); "
            "pass verify=False"
        ) from error
    for part in sparse_tables(copied):
        copied.get_submodule(part).sparse = False  # the same numbers, in arrays that can be compared
    if dtype is torch.float64 and hasattr(copied, "set_experts_implementation") and any(map(is_experts, copied.modules())):
        copied.set_experts_implementation("eager")  # PyTorch's product of groups has no such type
    return copied


def without_dropout(graph: OperatorGraph) -> None:
    """Disable dropout and stochastic depth in a graph; all that draws draws the same numbers."""
    for number, node in enumerate(graph.nodes):
        if node.operator.kind in ("dropout", "stochastic_depth"):
            graph.nodes[number] = replace(node, operator=type(node.operator)(0.0))  # type: ignore[call-arg]
        elif isinstance(node.operator, Noise):
            graph.nodes[number] = replace(node, operator=replace(node.operator, alike=True))
        elif isinstance(node.operator, FlashAttention):
            graph.nodes[number] = replace(node, operator=replace(node.operator, dropout=0.0))


DROPPING = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)


class _NoDropout(TorchFunctionMode):
    """Functions leave out nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = all_arguments(func, dict(kwargs or {}))
        if func in DROPPING:
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:
            args, kwargs = args[:4] + (0.0,) * (len(args) > 4) + args[5:], kwargs | ({"dropout_p": 0.0} if len(args) < 5 else {})
        return func(*args, **kwargs)


@contextmanager
def no_dropout(module: nn.Module) -> Iterator[None]:
    """Disable dropout of the module within the block, in which what is drawn is what graphs without dropout draw."""
    before: list[tuple[Any, str, float]] = []
    for part in module.modules():
        if (name := probability_name(part)) is not None:
            before.append((part, name, getattr(part, name)))
        elif isinstance(part, (nn.MultiheadAttention, nn.LSTM, nn.GRU)):
            before.append((part, "dropout", part.dropout))
    try:
        for part, name, _ in before:
            setattr(part, name, 0.0)
        with _NoDropout(), SameDraws():
            yield
    finally:
        for part, name, value in before:
            setattr(part, name, value)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore PyTorch's generator after the block."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def feeds_of(trial: Trial, among: Sequence[float] = (), least: int = 0) -> list[Any]:
    """Return examples with random numbers, the same each time: floats ``among`` these, if there are any; integers from ``least`` on
    and below the limit of the operators that read them, or the examples' own."""
    graph, numbers = trial.followed.graph, np.random.default_rng(0)
    inputs = iter(node for node in graph if node.operator.kind == "input")

    def drawn(example: Any) -> Any:
        if not isinstance(example, torch.Tensor):
            return example
        (tensor,) = next(inputs).outputs
        if trial.own_integers and not example.is_floating_point():
            return example
        if example.is_floating_point():
            array: Any = numbers.choice(among, tensor.shape) if among else numbers.standard_normal(tensor.shape)
        else:
            readers = [n.operator.integers_below(n.specs) for n in graph if tensor in n.inputs]
            highest = min((below for below in readers if below is not None), default=2)
            array = numbers.integers(min(least, highest - 1), highest, tensor.shape)
            _place(array, tensor, graph, numbers)
        return torch.from_numpy(np.asarray(array)).to(example.dtype)

    return [*mapped(drawn, trial.examples)]


def _place(array: Array, tensor: Tensor, graph: OperatorGraph, numbers: np.random.Generator) -> None:
    """Give each sample of integers the tokens whose places rows are for, as many as there are rows, somewhere."""
    for node in graph:
        if isinstance(node.operator, MaskedScatter) and node.inputs[1] is tensor:
            array[array == node.operator.token] = max(0, node.operator.token - 1)
            for sample in array:
                places = numbers.choice(len(sample), min(len(sample), node.inputs[2].shape[1]), replace=False)
                sample[places] = node.operator.token


# ---- comparing -------------------------------------------------------------------------------------------------------


def watched(step: TorchStep, index: int, ours: Any) -> Any:
    """Add a trained array of zeros to a value: its gradient is the value's."""
    if not isinstance(ours, Tensor) or not ours.spec.differentiable or not ours.shape:
        return ours
    return ops.add_weight(ours, ours.shape, init=ZERO, name=f"{WATCHING}{step.number}.{index}")


def watch_inputs(step: TorchStep, index: int, ours: Any) -> Any:
    """Watch inputs only."""
    return watched(step, index, ours) if step.kind == "input" else ours


def projections(outputs: Sequence[Tensor]) -> list[Array]:
    """Return random numbers in the shapes of outputs, by which they are multiplied: the sum is a loss that depends on every
    element."""
    numbers = np.random.default_rng(2)
    return [np.asarray(numbers.standard_normal(y.shape) / max(1, y.spec.rect.volume) ** 0.5, y.dtype) for y in outputs]


def outputs_of(result: Any) -> list[Tensor]:
    """Return the float tensors in what the module returns."""
    return [leaf for leaf in leaves(result) if isinstance(leaf, Tensor) and leaf.spec.differentiable]


def minimised(followed: Followed) -> list[Tensor]:
    """Make the graph minimise the sum of its outputs times their `projections`; return the outputs."""
    outputs, graph = outputs_of(followed.result), followed.graph
    for number, (y, factors) in enumerate(zip(outputs, projections(outputs))):
        whole = ops.reshape(y, y.shape or (1,), name=f"{WATCHING}whole{number}")
        table = ops.constant(graph, factors.reshape(whole.shape), name=f"{WATCHING}factors{number}")
        graph.minimize(ops.sum(ops.mul(whole, table, name=f"{WATCHING}product{number}"), name=f"{WATCHING}loss{number}"))
    return outputs


def executor(trial: Trial, followed: Followed, fetch: Sequence[Tensor]) -> Executor:
    """Return an Executor of the graph on one processor, with the module's numbers."""
    graph = followed.graph
    run = Executor(graph, choose("data", graph, host(1))[0], SGD(lr=1.0), fetch=fetch)
    load_weights(run, _with_zeros(trial, graph))
    return run


def _with_zeros(trial: Trial, graph: OperatorGraph) -> Any:
    """The module's weights, and zeros for what verification added."""
    stored = weights_of(trial.module)
    shapes = dict(stored.shapes) | {p.name: p.shape for p in graph.parameters if p.name.startswith(WATCHING)}
    return StoredWeights("the module", shapes, lambda name: stored[name] if name in stored else np.zeros(shapes[name]))


def fed(followed: Followed, feeds: Sequence[Any]) -> dict[str, Array]:
    """Return the feeds of a step of the graph."""
    names = [node.name for node in followed.graph if node.operator.kind == "input"]
    tensors = (value for value in leaves(list(feeds)) if isinstance(value, torch.Tensor))
    return {name: value.detach().numpy().copy() for name, value in zip(names, tensors)}


def loss_of(returned: Any, factors: Sequence[Array]) -> Any:
    """Return the same loss as `minimised`, computed by PyTorch."""
    outputs = [v for v in leaves(returned) if isinstance(v, torch.Tensor) and v.is_floating_point()]
    return sum((y * torch.from_numpy(f)).sum() for y, f in zip(outputs, factors))


def close(ours: Array | None, theirs: Array, dtype: str, least: float = 0.0) -> bool:
    """True if two arrays are equal up to rounding; ``least``: an absolute difference that never counts."""
    if ours is None:  # on another rank
        return True
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.shape != theirs.shape:
        return False
    if not theirs.size:
        return True
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs)) | (np.isneginf(theirs) & (ours <= LOW))
    with np.errstate(invalid="ignore"):
        off = np.where(same, 0.0, np.abs(ours - theirs))
    return bool(off.max() <= TOLERANCES[dtype][0] * largest_of(theirs) + least)


def largest_of(numbers: Array) -> float:
    """Return the largest absolute value of the finite numbers."""
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))


def call(module: nn.Module, feeds: Sequence[Any]) -> Any:
    """Call a module on copies of the arguments; keyword-only arguments are passed by keyword."""
    copies = mapped(lambda f: f.clone().requires_grad_(f.requires_grad) if isinstance(f, torch.Tensor) else f, list(feeds))
    parameters = inspect.signature(type(module).forward).parameters.values()
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY][: max(0, len(copies))]
    free = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    place = len(copies) if any(p.kind is p.VAR_POSITIONAL for p in free) else min(len(copies), len(free) - 1)
    with as_written():
        return result_of(module(*copies[:place], **dict(zip(named, copies[place:]))))
