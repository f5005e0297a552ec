"""Writes into memory that several tensors share: a write into one is carried to the tensor that it is a part of, and others are
taken anew from there when they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from taskflow.models.pytorch.calls import INDEX_ASSIGNMENT
from taskflow.models.pytorch.parts import indices_of
from taskflow.models.pytorch.recipes import lacks_numbers, plain_name
from taskflow.models.pytorch.site import Unsupported
from taskflow.models.pytorch.steps import Fixed, Ref, TorchStep, Unset, leaves, mapped, name_of

RESHAPED = {
    "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as", "ravel",
}
TURNED = {"transpose", "swapaxes", "swapdims", "t", "T", "mT"}


def as_it_is(value: Any) -> Any:
    """A fixed tensor into which forward writes next."""
    return value


class View(NamedTuple):
    """A tensor in the memory of another, ``base``: what a function makes of it with these other arguments."""

    base: torch.Tensor
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def index(self) -> Any:
        """The index that takes it from its base; None for other functions."""
        return self.args[0] if self.target is torch.Tensor.__getitem__ else None


class Writes:
    """Views and writes of the module of a `TorchRecorder`."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.views: dict[int, View] = {}  # by the view's identity
        self.steps: set[int] = set()  # those that return views
        self.fixed: dict[int, str] = {}  # memory of fixed tensors that is computed from some write on: what wrote

    def note(self, step: TorchStep) -> None:
        """Note which results of a function lie in the memory of its first argument."""
        if step.kind != "function" or not step.args or not isinstance(step.args[0], Ref):
            return
        base, rest = self._value(step.args[0]), step.args[1:]
        if any(isinstance(leaf, (Ref, Fixed)) for leaf in leaves((rest, step.kwargs))):
            return
        several = indices_of(plain_name(step.target), step.values, *rest[:1], **self._divided(step, base)) or ()
        found: list[tuple[Any, Any, tuple[Any, ...], dict[str, Any]]] = []
        found += [(part, torch.Tensor.__getitem__, (index,), {}) for part, index in several]
        if not found and len(step.values) == 1:
            index = _index(name_of(step.target), base.ndim, *rest, **step.kwargs)
            plain = (step.target, rest, step.kwargs) if index is None else (torch.Tensor.__getitem__, (index,), {})
            found.append((step.values[0], *plain))
        for part, target, args, kwargs in found:
            if part is not base and _memory(part) == _memory(base):
                self.views[id(part)] = View(base, target, args, kwargs)
                self.steps.add(step.number)

    def carry(self, written: torch.Tensor) -> None:
        """Carry what was written into a view to the tensors that it is a part of, as far as is known how."""
        while (view := self.views.get(id(written))) is not None:
            new, back = self.recorder.refs[id(written)], _back(view)
            if view.index is not None:
                self._put(view, new)
            elif back is not None:
                above = self.views.get(id(view.base))
                self.recorder.add("function", back[0], (new, *back[1]), {}, view.base)
                self.views.pop(id(view.base), None)  # which is no view of its own view
                self.views |= {} if above is None else {id(view.base): above}
            else:
                return
            written = view.base

    def again(self, value: torch.Tensor) -> bool:
        """Take a view anew from what it is a part of, where that was written into since; False for what is no view."""
        if (view := self.views.get(id(value))) is None:
            return False
        base = self.recorder.reference(view.base)
        self.recorder.add("function", view.target, (base, *view.args), view.kwargs, value)
        return True

    def filled(self, name: str, run: Any, args: Any) -> torch.Tensor | None:
        """Write a number, or another tensor, into a part of a tensor; None for another function, or what is no such part."""
        number = name == "zero_" or (name == "fill_" and len(args) == 2 and isinstance(args[1], (int, float)))
        view = self.views.get(id(args[0])) if number or name == "copy_" else None
        if view is None or view.index is None or _memory(args[0]) in self.recorder.protected:
            return None
        value = mapped(self.recorder.reference_in_nest, args[1] if len(args) > 1 else 0.0)
        self.recorder.reference(view.base)  # as it is now
        run(*args)
        self.forget_others([args[0]], name)
        self._put(view, value)
        self.recorder.stale[id(args[0])] = name
        self.carry(view.base)
        return args[0]  # type: ignore[no-any-return]

    def stands_there(self, name: str, args: Any) -> bool:
        """True for an assignment of a part to where it is, such as the end of ``x[1:] += y``."""
        view = self.views.get(id(args[2])) if name == INDEX_ASSIGNMENT else None
        return view is not None and view.base is args[0] and bool(view.index is not None and _same(view.index, args[1]))

    def into_buffer(self, name: str, into: torch.Tensor, args: Any) -> torch.Tensor:
        """Fill a whole buffer by `copy_` with what follows from sizes and other buffers, before anything reads it: it is the
        module's from then on, as a buffer is that forward registers. Raises Unsupported for every other change of fixed tensors."""
        rec = self.recorder
        owner = next(((part, key) for part in rec.module.modules() for key, b in part._buffers.items() if b is into), None)
        read = rec.recipes.reads(into) or id(into) in rec.fixed
        if name != "copy_" or owner is None or read or lacks_numbers(args[1]) or _memory(args[1]) == _memory(into):
            raise Unsupported(f"{name} in {rec.inside or 'forward'} changes {rec.named(into)}; a graph has no such state")
        new = args[1].detach().to(into.dtype).expand(into.shape).clone()
        if torch.equal(new, into):
            return into
        owner[0]._buffers[owner[1]] = new
        return new

    def into_fixed(self, name: str, into: torch.Tensor) -> None:
        """Let a fixed tensor that was made on the way be computed from here on, as a part of it is written."""
        fresh = _memory(into) in self.recorder.own_storages and id(into) not in self.recorder.fixed
        if name != INDEX_ASSIGNMENT or not fresh or self.recorder.recipes.reads(into) or into._is_view():
            return
        copied = self.recorder._fixed("function", torch.Tensor.clone, (into,), {}, torch.Tensor.clone, False)
        self.fixed[_memory(into)] = name
        self.recorder.add("function", as_it_is, (self.recorder.reference(copied),), {}, into)

    def require_fixed(self, value: torch.Tensor) -> None:
        """Raise Unsupported for a fixed tensor in whose memory something computed was written."""
        if self.fixed and value.layout is torch.strided and _memory(value) in self.fixed and not self.recorder.tracked(value):
            raise Unsupported(
                f"{self.fixed[_memory(value)]} changes in place what {self.recorder.inside or 'forward'} reads again by another "
                "view; use an operation that returns a new tensor"
            )

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

    def forget_others(self, changed: Sequence[torch.Tensor], name: str) -> None:
        """Forbid reading other views of memory that a step changed in place, as they are."""
        for value in changed:
            storage = value.untyped_storage()._cdata
            if storage in self.recorder.protected:
                raise Unsupported(
                    f"{name} in {self.recorder.inside or 'forward'} changes the {self.recorder.protected[storage]} in place; "
                    "use an operation that returns a new tensor (inplace=False)"
                )
            if value.requires_grad and not torch.is_grad_enabled():
                raise Unsupported(
                    f"{name} in {self.recorder.inside or 'forward'} changes a tensor in place where no gradients are recorded, so "
                    "that its gradient is another one than of what it computes; use an operation that returns a new tensor"
                )
            for view in self.recorder.storages.get(storage, ()):
                if view is not value:
                    self.recorder.stale[id(view)] = name

    def _value(self, ref: Ref) -> torch.Tensor:
        return self.recorder.steps[ref.step].values[ref.index]  # type: ignore[no-any-return]

    def _put(self, view: View, value: Any) -> None:
        """A step that writes a value where a view lies."""
        before = self.recorder.refs[id(view.base)]
        self.recorder.add("function", torch.Tensor.__setitem__, (before, view.index, value), {}, view.base)

    @staticmethod
    def _divided(step: TorchStep, base: torch.Tensor) -> dict[str, Any]:
        """The dimension along which a function divides a tensor."""
        dim = step.kwargs.get("dim", step.args[2] if len(step.args) > 2 else 0)
        return {"dim": dim} if plain_name(step.target) != "unbind" or "dim" in step.kwargs else {}


def _memory(value: torch.Tensor) -> int:
    return value.untyped_storage()._cdata


def _index(name: str, rank: int, *args: Any, **options: Any) -> Any:
    """The index that takes what ``select`` and ``narrow`` take; that of an index by slices and whole numbers."""
    if name == "getitem":
        every = args[0] if isinstance(args[0], tuple) else (args[0],)
        plain = all(type(part) is int or part is Ellipsis or isinstance(part, slice) for part in every)
        return args[0] if plain else None
    if name in ("select", "narrow") and not options and type(args[0]) is int:
        part = args[1] if name == "select" else slice(args[1], args[1] + args[2])
        return (*[slice(None)] * (args[0] % rank), part)
    return None


def _back(view: View) -> tuple[Any, tuple[Any, ...]] | None:
    """The function, with its arguments, that makes the base of a view of as many numbers; None for other views."""
    name = name_of(view.target)
    if name in RESHAPED:
        return torch.Tensor.reshape, (tuple(view.base.shape),)
    if name in TURNED:
        return torch.Tensor.transpose, view.args or ((0, 1) if name in ("t", "T") else (-2, -1))
    if name in ("permute", "movedim") and not view.kwargs:
        places = torch.empty((1,) * view.base.ndim).as_strided((1,) * view.base.ndim, (*range(1, view.base.ndim + 1),))
        order = [stride - 1 for stride in view.target(places, *view.args).stride()]
        return torch.Tensor.permute, tuple(sorted(range(len(order)), key=order.__getitem__))
    return None


def _same(one: Any, other: Any) -> bool:
    """True for equal indices."""
    a, b = (index if isinstance(index, tuple) else (index,) for index in (one, other))
    return len(a) == len(b) and all(type(x) is type(y) and bool(x == y) for x, y in zip(a, b))
