"""Verification of an import: runs module and graph on small random numbers, in training and in evaluation, and compares
everything; and if functions with corners are among the operators, once more where these corners are (`corners`)."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn

from taskflow.graph import OperatorGraph
from taskflow.models.pytorch.corners import at_corners
from taskflow.models.pytorch.draws import SameDraws
from taskflow.models.pytorch.exported import ExportedModule, difference_to_program
from taskflow.models.pytorch.follow import WATCHING, Followed, follow
from taskflow.models.pytorch.locate import located
from taskflow.models.pytorch.mixers import is_mixer
from taskflow.models.pytorch.scans import TARGETS
from taskflow.models.pytorch.site import Unsupported
from taskflow.models.pytorch.steps import Fixed, leaves, mapped
from taskflow.models.pytorch.trial import (
    TOLERANCES,
    Array,
    Trial,
    call,
    close,
    executor,
    fed,
    feeds_of,
    generators_kept,
    largest_of,
    loss_of,
    minimised,
    no_dropout,
    projections,
    random_copy,
    watch_inputs,
    without_dropout,
)
from taskflow.models.pytorch.weights import weights_of
from taskflow.operators.tensor import Tensor
from taskflow.runtime import Executor, LossError

MOST_PARAMETERS = 50_000_000  # of what is verified: half a dozen copies of them are in memory then
MOST_IN_DOUBLE = 30_000_000  # of what is verified in double precision whatever the module's own is
MOST_FLOPS = 5e10  # of one forward pass of what is verified: some ten seconds in double precision on two cores
FEW_FLOPS = 1e9  # what costs no more is verified with the batch that is given
BATCH = 2  # of what costs more, where the batch can be made smaller
SIDE = 64  # of images then, in rows and columns


def verified(module: nn.Module, examples: Sequence[Any], followed: Followed) -> None:
    """Raise ValueError that names the first operator in which graph and module differ. Warns if both are too large to be run."""
    title = followed.graph.name
    count = sum(p.numel() for p in module.parameters())
    small, flops = _smaller(module, examples, followed)
    if count > MOST_PARAMETERS or flops > MOST_FLOPS:
        warnings.warn(
            f"from_torch: {title} was not verified: {count:,} parameters and {flops:.2g} operations a step are more than "
            f"{MOST_PARAMETERS:,} or {MOST_FLOPS:.2g}; verify a smaller one of its kind, or pass verify=False", stacklevel=4,
        )
        return
    with generators_kept():
        trial = _trial(module, small, followed)
        if isinstance(trial.module, ExportedModule):
            why = difference_to_program(copy.deepcopy(trial.module), feeds_of(trial))
            if why is not None:
                raise ValueError(f"from_torch: {title}: {why}")
        outputs, why, where = minimised(trial.followed), None, None
        first = _finite_feeds(trial) if outputs else None
        runs = () if first is None else chain([first], at_corners(module, first[0]))
        for number, (one, feeds) in enumerate(runs):
            try:
                with np.errstate(all="ignore") if number else nullcontext():
                    why = _difference(one, outputs, feeds)
            except (LossError, RuntimeError) as error:
                if number:
                    continue  # such as 1 / 0, or a target that is no probability: nothing can be compared there
                if isinstance(error, LossError):
                    none = "is no number for the random inputs with which it would be verified: pass verify=False"
                    raise ValueError(f"from_torch: {title}: what it returns {none}") from error
                raise
            if why is not None:
                with suppress(Unsupported):  # of what is only understood without numbers
                    where = located(one, feeds)
                break
        if why is None:
            return
    raise ValueError(
        f"from_torch: {title}: the graph does not compute what the module computes: {where or why}. Write that part in another "
        "way, or pass verify=False to import it all the same"
    )


# ---- what to run ---------------------------------------------------------------------------------------------------------------


def _smaller(module: nn.Module, examples: Sequence[Any], followed: Followed) -> tuple[list[Any], float]:
    """Examples of a smaller batch, and of smaller images, if the given ones cost much and the operators stay the same; and the
    operations of a forward pass."""
    flops = _flops(followed.graph)
    tensors = [example for example in leaves(list(examples)) if isinstance(example, torch.Tensor) and example.ndim]
    if flops <= FEW_FLOPS or not tensors:
        return list(examples), flops
    samples = tensors[0].shape[0]
    for side in (SIDE, None):
        fewer = mapped(partial(_part, samples, side), list(examples))
        try:
            graph = follow(module, fewer, followed.graph.name).graph
        except ValueError:
            continue
        if _alike(graph, followed.graph):
            return fewer, _flops(graph)
    return list(examples), flops


def _part(samples: int, side: int | None, example: Any) -> Any:
    """`BATCH` of an example's samples; of images (N, C, H, W) no more than ``side`` rows and columns. What is no tensor is as it
    is."""
    if not isinstance(example, torch.Tensor):
        return example
    part = example[:BATCH] if example.ndim and example.shape[0] == samples else example
    return part[..., :side, :side] if part.ndim == 4 and part.is_floating_point() else part


def _flops(graph: OperatorGraph) -> float:
    return float(sum(node.operator.flops(node.specs, node.space) for node in graph))


NO_WORK = ("cast", "constant")
SHARES = tuple(number / 20 for number in range(1, 20))
"""Numbers between 0 and 1."""


def _alike(a: OperatorGraph, b: OperatorGraph) -> bool:
    """True if the operators have the same names and kinds, but for what verification adds, for other types, and for constants, of
    which those with equal numbers are one."""

    def lines(graph: OperatorGraph) -> list[tuple[str, str]]:
        return [(n.name, n.operator.kind) for n in graph if not n.name.startswith(WATCHING) and n.operator.kind not in NO_WORK]

    return lines(a) == lines(b)


def _rounds(module: nn.Module, followed: Followed, kind: torch.dtype) -> bool:
    """True if some step of a module in this type has floats of a narrower one, such as norms in float32 in double precision."""
    scans = any(step.target in TARGETS for step in followed.recording.steps)
    if kind.itemsize > 4 and (scans or any(map(is_mixer, module.modules()))):
        return True
    values = (
        value.tensor if isinstance(value, Fixed) else value for step in followed.recording.steps
        for value in (*step.values, *leaves((step.args, step.kwargs))) if isinstance(value, (torch.Tensor, Fixed))
    )
    return any(v.is_floating_point() and v.ndim > 0 and v.element_size() < kind.itemsize for v in values)


def _trial(module: nn.Module, examples: Sequence[Any], followed: Followed) -> Trial:
    """A trial in double precision if the module's code allows it, else in its own precision, or in float32 for 16 bits."""
    own = str(followed.graph.dtype)
    few = followed.graph.parameter_count <= MOST_IN_DOUBLE
    for dtype in dict.fromkeys(("float64", own) if few else (own,)):
        dtype = dtype if dtype in TOLERANCES else "float32"
        kind = getattr(torch, dtype)
        copied = random_copy(module, kind)
        given = mapped(partial(_as_type, kind), list(examples))
        try:
            result = follow(copied, given, followed.graph.name, watch_inputs)
        except ValueError:
            if dtype == own:
                raise
            continue
        if dtype != own and _rounds(copied, result, kind):
            continue
        if _alike(result.graph, followed.graph):
            without_dropout(result.graph)
            found = Trial(copied, given, result, "float32" if _rounds(copied, result, kind) else dtype)
            if dtype == own or not _gives_no_numbers(found):
                return found
    raise ValueError(
        f"from_torch: {followed.graph.name}: a copy of the module becomes another graph; it cannot be verified (verify=False)"
    )


def _as_type(kind: torch.dtype, example: Any) -> Any:
    return example.to(kind) if isinstance(example, torch.Tensor) and example.is_floating_point() else example


def _finite_feeds(trial: Trial) -> tuple[Trial, list[Any]]:
    """Random feeds for which PyTorch gives numbers: if those with zeros do not, as they stand for padding, others; or floats
    between 0 and 1, as of probabilities and logarithms. If it takes no random integers, such as where parts of a row begin, or
    masks of which places are counted, those of the examples. Raises what PyTorch raises if it takes none of these."""
    own = (replace(trial, own_integers=True), ())
    if any(map(_begins_bags, trial.examples)) and any(isinstance(part, nn.EmbeddingBag) for part in trial.module.modules()):
        return own[0], feeds_of(own[0])  # of other places PyTorch says nothing, and returns something
    found: tuple[Trial, list[Any]] | None = None  # for which it gives something
    failure: Exception = ValueError()
    for one, among, least in ((trial, (), 0), (trial, (), 1), (trial, SHARES, 0), (*own, 0)):
        feeds = feeds_of(one, among, least)
        try:
            result = _returned(one, feeds)
        except (RuntimeError, IndexError) as error:
            failure = error
            continue
        if all(bool(torch.isfinite(value).all()) for value in result):
            return one, feeds
        found = found or (one, feeds) if least else found
    if found is None:
        raise failure
    return found


def _gives_no_numbers(trial: Trial) -> bool:
    """True if PyTorch returns NaN, as where code multiplies a float32 mask by the lowest number of double precision: NaN on both
    sides would verify nothing."""
    with suppress(RuntimeError):
        return any(bool(torch.isnan(value).any()) for value in _returned(trial, feeds_of(trial, least=1)))
    return False


def _begins_bags(example: Any) -> bool:
    """True for places at which bags of rows may begin: ascending integers from 0 on."""
    whole = isinstance(example, torch.Tensor) and example.ndim == 1 and not example.is_floating_point() and not example.is_meta
    return bool(whole and example.numel() > 1 and example[0] == 0 and example[-1] > 0 and (example.diff() >= 0).all())


def _returned(trial: Trial, feeds: list[Any]) -> list[torch.Tensor]:
    with no_dropout(trial.module), torch.no_grad():
        return [value for value in leaves(call(copy.deepcopy(trial.module), feeds)) if isinstance(value, torch.Tensor)]


def _difference(trial: Trial, outputs: Sequence[Tensor], feeds: Sequence[Any]) -> str | None:
    """The difference, in one line; None if there is none."""
    followed = trial.followed
    flags = [(part, part.training) for part in trial.module.modules()]
    run = executor(trial, followed, outputs)
    before = run.weights() or {}
    ours = run.train(fed(followed, feeds))
    after = run.weights() or {}
    values = [run.fetched(y) for y in outputs]
    module = copy.deepcopy(trial.module)
    for part, (_, flag) in zip(module.modules(), flags):
        part.__dict__["training"] = flag
    if not module.training:
        module.train()
    own = followed.recording.asked  # a module asks only for gradients of data that has none
    inputs = list(feeds)
    for value in leaves(inputs):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value.requires_grad_(not own)
    with no_dropout(module), torch.enable_grad():
        given = mapped(lambda f: f * 1 if isinstance(f, torch.Tensor) and f.requires_grad else f, inputs)
        returned = call(module, given)
        loss = loss_of(returned, projections(outputs))
        if loss.requires_grad:
            _backward(loss, followed.graph.name)
    theirs = [v.detach().numpy() for v in leaves(returned) if isinstance(v, torch.Tensor) and v.is_floating_point()]
    if len(theirs) != len(values):
        return f"the module returns {len(theirs)} tensors in training, the graph {len(values)}"
    for number, (a, b) in enumerate(zip(values, theirs)):
        if not close(a, b, trial.dtype, 1e-12):
            return f"output {number} differs in training"
    if ours is not None and not close(np.array(ours), loss.detach().numpy(), trial.dtype, TOLERANCES[trial.dtype][0]):
        return f"the loss is {ours} instead of {loss.item()}"
    why = _trained_alike(trial, followed, before, after, module, inputs)
    if why is not None:
        return why
    return _evaluated_alike(trial, run, followed, outputs, feeds, module)


def _backward(loss: torch.Tensor, title: str) -> None:
    """Run PyTorch's backward pass. Raises ValueError for a module that PyTorch cannot train either, as it overwrites in place what
    that pass reads."""
    try:
        loss.backward()
    except RuntimeError as error:
        why = str(error).partition(". Hint:")[0]
        raise ValueError(f"from_torch: {title}: PyTorch itself cannot train it: {why}") from error


def _trained_alike(
    trial: Trial, followed: Followed, before: dict[str, Array], after: dict[str, Array], module: nn.Module, inputs: Sequence[Any]
) -> str | None:
    """The difference of gradients and running statistics after a step; None if there is none. The module's parameters take the
    step, too."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad)
    stored = weights_of(module)
    wanted = {name: stored[name] for name in stored}
    floats = iter([f for f in leaves(list(inputs)) if isinstance(f, torch.Tensor)])
    for step in followed.recording.steps:
        if step.kind == "input":
            fed_in = next(floats)
            if all(other.grad for other in followed.recording.steps) and fed_in.requires_grad:
                gradient = np.zeros(fed_in.shape) if fed_in.grad is None else fed_in.grad.numpy()
                wanted[f"{WATCHING}{step.number}.0"] = -gradient
    moved = {name: (after[name] - before[name], value - before[name]) for name, value in wanted.items() if name in after}
    largest = max((largest_of(b) for _, b in moved.values()), default=0.0)
    for name, (a, b) in moved.items():
        rounding = 1e-14 if trial.dtype == "float64" else 1e-6
        least = TOLERANCES[trial.dtype][1] * largest + rounding * float(np.abs(before[name]).max(initial=0.0))
        if not close(a, b, trial.dtype, least):
            what = "the gradient of an input" if name.startswith(WATCHING) else name
            return f"{what} differs after a training step"
    return None


def _evaluated_alike(
    trial: Trial, run: Executor, followed: Followed, outputs: Sequence[Tensor], feeds: Sequence[Any], module: nn.Module
) -> str | None:
    """The difference in evaluation, after the training step; None if there is none."""
    run.set_parameters({p.name: np.zeros(p.shape) for p in followed.graph.parameters if p.name.startswith(WATCHING)})
    found = run.evaluate_with(fed(followed, feeds), outputs)[1] or {}
    module.eval()
    with SameDraws(), torch.enable_grad():  # without, PyTorch's transformer layers leave out padding
        returned = call(module, [f.detach() if isinstance(f, torch.Tensor) else f for f in feeds])
    theirs = [v.detach().numpy() for v in leaves(returned) if isinstance(v, torch.Tensor) and v.is_floating_point()]
    for number, (y, b) in enumerate(zip(outputs, theirs if len(theirs) == len(outputs) else theirs[:1])):
        if not close(found[y.name], b, trial.dtype, 1e-12):
            return f"output {number} differs in evaluation"
    return None
