"""Location of errors: finds the first operator in which a module and its graph differ, value by value forward, then gradient by
gradient backward."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from taskflow.models.pytorch.follow import WATCHING
from taskflow.models.pytorch.modules import is_leaf
from taskflow.models.pytorch.recorder import TorchRecorder
from taskflow.models.pytorch.shadow import Shadow
from taskflow.models.pytorch.steps import Ref, TorchStep, leaves
from taskflow.models.pytorch.trial import (
    Array,
    Trial,
    close,
    executor,
    fed,
    largest_of,
    loss_of,
    minimised,
    no_dropout,
    outputs_of,
    projections,
    watched,
)


def located(trial: Trial, feeds: Sequence[Any]) -> str | None:
    """Return in one line which layer or function differs first; None if none does in training by itself."""
    followed = trial.follow(watched)
    outputs = minimised(followed)
    steps = followed.recording.steps
    seen = {ref: ours for ref, ours in followed.values.items() if getattr(ours, "node", None) is not None}
    run = executor(trial, followed, [*outputs, *seen.values()])
    names = fed(followed, feeds)
    before = run.weights() or {}
    run.train(names)
    after = run.weights() or {}
    values, gradients = _recorded(trial, feeds, outputs_of(followed.result))
    for step in steps:
        for ref in (leaf for leaf in leaves(step.result) if isinstance(leaf, Ref)):
            if ref in seen and ref in values and not close(run.fetched(seen[ref]), values[ref], trial.dtype, 1e-12):
                off = np.abs(np.asarray(run.fetched(seen[ref])) - values[ref]).max()
                return f"{step.describe()} is the first that returns something else, by {off:.2g} at most ({_what(trial, step)})"
    largest = max((largest_of(np.asarray(g)) for g in gradients.values()), default=0.0)
    for step in reversed(steps):
        for ref in (leaf for leaf in leaves(step.result) if isinstance(leaf, Ref)):
            name = f"{WATCHING}{ref.step}.{ref.index}"
            if name not in after or ref not in gradients:
                continue
            if not close(before[name] - after[name], gradients[ref], trial.dtype, 1e-9 * largest):
                readers = [s.describe() for s in steps if ref in [*leaves((s.args, s.kwargs))]] or ["the output"]
                return f"the gradient of what {step.describe()} returns differs; it is read by {', '.join(readers[:3])}"
    return None


def _what(trial: Trial, step: TorchStep) -> str:
    """The class of a layer; that it is a function."""
    return type(trial.module.get_submodule(step.target)).__name__ if step.kind == "module" else step.kind


def _recorded(trial: Trial, feeds: Sequence[Any], outputs: Sequence[Any]) -> tuple[dict[Ref, Array], dict[Ref, Array]]:
    """PyTorch's value of every step, and its gradient, of one step in training."""
    values: dict[Ref, Array] = {}
    gradients: dict[Ref, Array] = {}

    def keep(ref: Ref, gradient: torch.Tensor) -> None:
        gradients[ref] = gradients.get(ref, 0) + gradient.detach().numpy().copy()

    def observe(step: TorchStep) -> None:
        for index, value in enumerate(step.values):
            ref = Ref(step.number, index)
            if not value.is_floating_point():
                continue
            values[ref] = value.detach().numpy().copy()
            if value.requires_grad:
                value.register_hook(partial(keep, ref))  # type: ignore[no-untyped-call]

    if not trial.module.training:
        trial.module.train()
    with no_dropout(trial.module), torch.enable_grad():
        shadow = Shadow(trial.module, lambda tensor: tensor, False, trial.followed.holds_frozen)
        run = TorchRecorder(trial.module, shadow, is_leaf, observe).run(list(feeds))
        found = [
            run.steps[leaf.step].values[leaf.index] for leaf in leaves(run.output) if isinstance(leaf, Ref)
        ]
        loss = loss_of(found, projections(outputs))
        if getattr(loss, "requires_grad", False):
            loss.backward()
    return values, gradients
