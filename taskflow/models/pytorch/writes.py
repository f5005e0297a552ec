"""Writes into parts of tensors that forward makes: each is a step that returns the whole."""

from __future__ import annotations

from typing import Any

import torch

from taskflow.models.pytorch.calls import INDEX_ASSIGNMENT
from taskflow.models.pytorch.steps import Fixed, Ref, Unset, leaves, mapped

IN_PLACE = {
    f"{before}{name}{after}": f"{around}{name}{around}" for name in ("add", "sub", "mul")
    for before, after, around in (("__i", "__", "__"), ("", "_", ""))
}
"""Functions that change a tensor in place, and those that return the new one."""


def _indices(index: Any) -> tuple[Any, ...]:
    """Of each axis, but for those that an ellipsis stands for."""
    every = index if isinstance(index, tuple) else (index,)
    return tuple(one for one in every if one is not Ellipsis)


class Writes:
    """Writes of the module of a `TorchRecorder`."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.done: dict[int, tuple[torch.Tensor, Any]] = {}  # parts that were changed in place, by identity: of what, where

    def last_view(self, value: torch.Tensor, again: bool = False) -> tuple[torch.Tensor, Any] | None:
        """What a tensor is a part of, with its index, if nobody has read it: the step that has taken it is none, but where it is
        read ``again``."""
        ref = self.recorder.refs.get(id(value))
        step = self.recorder.steps[ref.step] if ref is not None else None
        if step is None or step.target is not torch.Tensor.__getitem__ or len(step.args) != 2:
            return None
        of, index = step.args
        if not isinstance(of, Ref) or any(isinstance(leaf, (Ref, Fixed)) for leaf in leaves(index)):
            return None
        if any(leaf == ref for later in self.recorder.steps[step.number :] for leaf in leaves((later.args, later.kwargs))):
            return None
        if again:
            return self.recorder.steps[of.step].values[of.index], index
        step.kind = "unused"
        del self.recorder.refs[id(value)]
        self.recorder.kept.append(value)
        return self.recorder.steps[of.step].values[of.index], index

    def of_part(self, name: str, run: Any, args: Any) -> torch.Tensor | None:
        """Write into a part of a tensor, and return what the function of that name returns; None for another function."""
        if name == INDEX_ASSIGNMENT and self._is_done(args):
            return args[0]  # type: ignore[no-any-return]
        part = self._filled(name, run, args)
        return self._changed(name, run, args) if part is None else part

    def _filled(self, name: str, run: Any, args: Any) -> torch.Tensor | None:
        """Fill a part of a tensor that nobody has read, ``x[2:4].zero_()``, with a number; None for another function, or for what
        is no such part of a tensor that was made on the way."""
        fills = (name == "zero_" and len(args) == 1) or (name == "fill_" and len(args) == 2 and isinstance(args[1], (int, float)))
        memory = args[0].untyped_storage()._cdata if fills else None
        if not fills or memory in self.recorder.protected or (view := self.last_view(args[0])) is None:
            return None
        self._forget(view[0], args[0], name)
        return self.assigned(view, lambda *_: run(*args), (args[0], args[1] if name == "fill_" else 0.0))

    def _changed(self, name: str, run: Any, args: Any) -> torch.Tensor | None:
        """Change a part of a tensor in place, ``x[1:] += y``, where nobody has read the part: a new part is written into the whole.
        None for what is no such change of a tensor that was made on the way."""
        plain = getattr(torch.Tensor, IN_PLACE.get(name, ""), None)
        if plain is None or not isinstance(args[0], torch.Tensor):
            return None
        memory = args[0].untyped_storage()._cdata
        if memory in self.recorder.protected or (view := self.last_view(args[0], True)) is None or view[0].shape == args[0].shape:
            return None
        if any(not isinstance(one, slice) or one.step not in (None, 1) for one in _indices(view[1])):
            return None  # no part that can be written into the whole
        result = self.recorder._written("function", plain, args, {}, plain)
        self._forget(view[0], args[0], name)
        part = self.assigned(view, lambda *_: run(*args), (args[0], result))
        self.recorder.refs[id(part)], self.recorder.origins[id(part)] = self.recorder.refs[id(result)], part.grad_fn
        self.done[id(part)] = view
        return part

    def _is_done(self, args: Any) -> bool:
        """True for an assignment of what stands there already: the end of ``x[1:] += y``."""
        whole, index = self.done.get(id(args[2]), (None, None))
        return whole is args[0] and bool(index == args[1])

    def _forget(self, whole: torch.Tensor, part: torch.Tensor, name: str) -> None:
        """Forbid reading other views of memory that is written into."""
        for other in self.recorder.storages.get(part.untyped_storage()._cdata, ()):
            if other is not whole and other is not part:
                self.recorder.stale[id(other)] = name

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
