"""Writes into parts of tensors that forward makes: each is a step that returns the whole."""

from __future__ import annotations

from typing import Any

import torch

from taskflow.models.pytorch.steps import Fixed, Ref, Unset, leaves, mapped


class Writes:
    """Writes of the module of a `TorchRecorder`."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder

    def last_view(self, value: torch.Tensor) -> tuple[torch.Tensor, Any] | None:
        """What a tensor is a part of, with its index, if nobody has read it: the step that has taken it is none."""
        ref = self.recorder.refs.get(id(value))
        step = self.recorder.steps[ref.step] if ref is not None else None
        if step is None or step.target is not torch.Tensor.__getitem__ or len(step.args) != 2:
            return None
        of, index = step.args
        if not isinstance(of, Ref) or any(isinstance(leaf, (Ref, Fixed)) for leaf in leaves(index)):
            return None
        if any(leaf == ref for later in self.recorder.steps[step.number :] for leaf in leaves((later.args, later.kwargs))):
            return None
        step.kind = "unused"
        del self.recorder.refs[id(value)]
        self.recorder.kept.append(value)
        return self.recorder.steps[of.step].values[of.index], index

    def filled(self, name: str, run: Any, args: Any) -> torch.Tensor | None:
        """Fill a part of a tensor that nobody has read, ``x[2:4].zero_()``, with a number; None for another function, or for what
        is no such part of a tensor that was made on the way."""
        fills = (name == "zero_" and len(args) == 1) or (name == "fill_" and len(args) == 2 and isinstance(args[1], (int, float)))
        memory = args[0].untyped_storage()._cdata if fills else None
        if not fills or memory in self.recorder.protected or (view := self.last_view(args[0])) is None:
            return None
        for other in self.recorder.storages.get(memory, ()):
            if other is not view[0] and other is not args[0]:
                self.recorder.stale[id(other)] = name
        return self.assigned(view, lambda *_: run(*args), (args[0], args[1] if name == "fill_" else 0.0))

    def assigned(self, into: tuple[torch.Tensor, Any], run: Any, args: Any) -> torch.Tensor:
        """Write a part of an array that was made without numbers: the whole has a new value from there on."""
        whole, index = into
        index = args[1] if len(args) > 2 else index
        before: Any = self.recorder.reference(whole) if id(whole) in self.recorder.refs else Unset(tuple(whole.shape))
        value = mapped(self.recorder.reference_in_nest, args[2] if len(args) > 2 else args[1])
        run(*args)
        self.recorder.recipes.forget(whole)
        self.recorder.kept += [whole, args[0]]
        self.recorder.add("function", torch.Tensor.__setitem__, (before, index, value), {}, whole)
        return args[0]  # type: ignore[no-any-return]
