"""Recorder: runs a module once and records what it computes: every layer and every function of torch, with inputs and outputs."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from taskflow.models.pytorch.dropping import probability_of
from taskflow.models.pytorch.experts import is_experts, without_numbers
from taskflow.models.pytorch.places import calling_line
from taskflow.models.pytorch.recipes import LARGE, SAME, Recipe, is_large, plain_name, whole
from taskflow.models.pytorch.refused import more_than_its_class
from taskflow.models.pytorch.repeats import (
    NUMBERED,
    PLAIN,
    Recorded,
    Watched,
    foreign,
    is_simple,
    numbers_of,
    shifted,
    signature,
)
from taskflow.models.pytorch.shadow import Shadow
from taskflow.models.pytorch.site import Unsupported
from taskflow.models.pytorch.steps import Fixed, Ref, TorchRecording, TorchStep, leaves, mapped, name_of

QUERIES = {  # methods that say something about a tensor and change nothing
    "__get__", "__len__", "__format__", "__repr__", "__hash__", "size", "dim", "ndimension", "numel", "nelement", "stride",
    "storage_offset", "is_contiguous", "is_floating_point", "is_complex", "is_signed", "element_size", "get_device", "type",
    "is_same_size", "result_type", "can_cast", "_assert", "promote_types", "is_tensor", "broadcast_shapes", "is_grad_enabled",
}
NEVER = {"_nested_tensor_from_mask_left_aligned"}  # questions about numbers that only choose another way to the same result
STATE = {"grad", "_grad", "_version"}  # properties that say what happened before
ONLY_SHAPES = {  # functions that look at nothing but the shape and the type of their tensor
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_tensor", "new_empty",
}
MOST_TURNS = 600  # of a loop
INDEX_ASSIGNMENT = "__setitem__"
plain_call = nn.Module.__call__


def _numbers(value: Any) -> Any:
    """A tensor of its shape and type that has numbers, whichever; all else as it is."""
    return torch.empty(value.shape, dtype=value.dtype) if isinstance(value, torch.Tensor) else value


def _in_place(target: Any, args: Any, kwargs: Any) -> bool:
    """True if a function is called, or a layer made, with ``inplace``."""
    if isinstance(target, nn.Module):
        return bool(getattr(target, "inplace", False))
    try:
        return bool(inspect.signature(target).bind(*args, **kwargs).arguments.get("inplace"))
    except (TypeError, ValueError):  # built in: those have no such argument
        return False


def tensors_of(nest: Any) -> list[torch.Tensor]:
    """Return the tensors among the leaves of a nest."""
    return [value for value in leaves(nest) if isinstance(value, torch.Tensor)]


def _changes(name: str, kwargs: dict[str, Any]) -> bool:
    """True if a function of this name, called with ``kwargs``, writes into one of its arguments."""
    in_place = name.endswith("_") and not name.startswith("__")
    return in_place or name == INDEX_ASSIGNMENT or kwargs.get("out") is not None


def changes_an_argument(target: Any, args: Any, kwargs: Any) -> bool:
    """True if a function, called so, writes into one of its arguments."""
    return _changes(getattr(target, "__name__", ""), kwargs) or _in_place(target, args, kwargs)


class TorchRecorder(TorchFunctionMode):
    """Recorder of one run of a module on the tensors of a `Shadow`. Functions with only fixed tensors as arguments are computed
    at once. In-place operations replace what they changed, and tensors that share its memory may not be read again. ``repeats``:
    layers that are alike are recorded once."""

    repeats = True

    def __init__(
        self, module: nn.Module, shadow: Shadow, leaf: Callable[[nn.Module], bool],
        observe: Callable[[TorchStep], None] | None = None,
    ) -> None:
        super().__init__()
        self.observe = observe
        self.module, self.shadow, self.leaf = module, shadow, leaf
        self.paths = {id(part): path for path, part in reversed([*module.named_modules()])}
        self.steps: list[TorchStep] = []
        self.refs: dict[int, Ref] = {}
        self.stale: dict[int, str] = {}  # tensors: which step changed the memory that they show
        self.origins: dict[int, Any] = {}  # tensors: what autograd says of them
        self.storages: dict[int, list[torch.Tensor]] = {}
        self.protected: dict[int, str] = {}  # storages of inputs and parameters
        self.made: dict[int, torch.Tensor] = {}  # storages of fixed tensors that were made on the way: a tensor that has it
        self.fixed: dict[int, Fixed] = {}
        self.recipes: dict[int, Recipe] = {}  # of fixed tensors, by identity
        self.names = {id(buffer): path for path, buffer in module.named_buffers()}
        self.of_layers = {id(buffer) for part in module.modules() if leaf(part) for buffer in part.buffers()}
        self.layers: dict[Any, Recorded] = {}  # by what those have in common that are alike
        self.kept: list[torch.Tensor] = []  # so that no other tensor gets their identity
        self.turns: Counter[Any] = Counter()  # steps from one line in one module
        self.inside = ""
        self.error: Exception | None = None
        self.paused = False

    def run(self, examples: Sequence[Any]) -> TorchRecording:
        """Run forward on examples (tensors of the shadow become inputs; everything else is passed unchanged)."""
        forward = type(self.module).forward
        args, kwargs = self._bound(forward, examples)
        nn.Module.__call__ = self._call()  # type: ignore[method-assign]
        try:
            with self.shadow.in_place_of(self.module), torch.enable_grad(), self:
                returned = forward(self.module, *args, **kwargs)
                with self._pause():
                    output = mapped(self._kept, returned)
            if self.error is not None:
                raise self.error
        finally:
            nn.Module.__call__ = plain_call  # type: ignore[method-assign]
        for value in self.fixed.values():
            if value.tensor._version != value.version:
                raise Unsupported(f"a constant of shape {tuple(value.tensor.shape)} is changed after it was used")
        return TorchRecording(self.steps, output)

    def _bound(self, forward: Any, examples: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments of forward: one example after the other, then defaults; arguments by keyword only are given by keyword."""
        left, args, kwargs = list(examples), [], {}
        for parameter in [*inspect.signature(forward).parameters.values()][1:]:
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                args += [self._input(example, f"{parameter.name}{i}") for i, example in enumerate(left)]
                left = []
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                continue
            elif left:
                value = self._input(left.pop(0), parameter.name)
                if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                    kwargs[parameter.name] = value
                else:
                    args.append(value)
            elif parameter.default is inspect.Parameter.empty:
                raise Unsupported(
                    f"{parameter.name}: there is no example for this argument; give its shape, or a tensor like those of the steps"
                )
        if left:
            raise Unsupported(f"forward takes {len(examples) - len(left)} arguments, got {len(examples)} examples")
        return args, kwargs

    def _input(self, example: Any, name: str) -> Any:
        if not isinstance(example, torch.Tensor):
            return example
        self._add("input", name, (), {}, example)
        return example

    def _kept(self, value: Any) -> Any:
        """A leaf of what forward returned, as a reference."""
        return self._reference(value) if isinstance(value, torch.Tensor) else value

    # ---- calls -----------------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        try:
            return self._called("function", func, args, kwargs, func)
        except Exception as error:
            self.error = self.error or error  # the module's own code may catch it and go another way than with numbers
            raise

    def _call(self) -> Callable[..., Any]:
        recorder = self

        def call(part: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if recorder.paused:
                return plain_call(part, *args, **kwargs)
            path = recorder.paths.get(id(part))
            if path is None:  # such as nn.Softmax(-1)(x), or a part of a Sequential: its code is followed
                why = next(more_than_its_class(part), None)
                if why is None and next((p for p in (*part.parameters(False), *part.buffers(False))), None) is not None:
                    why = "is not one of the module's; make it an attribute, or put it into a ModuleList"
                if why is not None:
                    raise Unsupported(f"a {type(part).__name__} that {recorder.inside or 'forward'} calls {why}")
                return plain_call(part, *args, **kwargs)
            if recorder.leaf(part):
                return recorder._called("module", path, args, kwargs, recorder.shadow.copy_of(part))
            before, recorder.inside = recorder.inside, path
            try:
                return recorder._repeated(part, path, args, kwargs)
            finally:
                recorder.inside = before

        return call

    # ---- layers alike ------------------------------------------------------------------------------------------------

    def _repeated(self, part: nn.Module, path: str, args: Any, kwargs: Any) -> Any:
        """Call a module, or write it down as an earlier one that is alike."""
        if not self.repeats or not self.shadow.fake or self.observe is not None or not NUMBERED.search(path):
            return plain_call(part, *args, **kwargs)
        with self._pause():
            own = signature(part)
            given, said = self._given(args, kwargs)
        if own is None or given is None:
            return plain_call(part, *args, **kwargs)
        key = (NUMBERED.sub("", path), own, said)
        if (known := self.layers.get(key)) is not None:
            made = self._written_again(known, part, path, given)
            if made is not None:
                return made[0]
        return self._first(key, part, path, given, args, kwargs)

    def _given(self, args: Any, kwargs: Any) -> tuple[list[torch.Tensor] | None, Any]:
        """The tensors among arguments that depend on inputs or parameters, and what calls alike have in common."""
        tensors: list[torch.Tensor] = []
        said: list[Any] = []
        for leaf in leaves((args, sorted(kwargs.items()))):
            if not isinstance(leaf, torch.Tensor):
                said.append((type(leaf), leaf) if isinstance(leaf, PLAIN) else id(leaf))
            elif id(leaf) in self.refs and id(leaf) not in self.stale:
                same = next((i for i, other in enumerate(tensors) if other is leaf), len(tensors))
                tensors += [leaf] if same == len(tensors) else []
                said.append((same, tuple(leaf.shape), leaf.dtype, leaf.stride(), leaf.requires_grad))
            elif self._tracked(leaf):
                return None, None
            else:
                said.append(id(leaf))
                self.kept.append(leaf)
        return tensors, (tuple(said), torch.is_grad_enabled())

    def _first(self, key: Any, part: nn.Module, path: str, given: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
        """Call a layer, and keep what it does, for those that are alike."""
        watched = [(module, name, value, Watched(value)) for module, name, value in numbers_of(part)]
        start, versions, refs = len(self.steps), [value._version for value in given], tuple(self.refs[id(v)] for v in given)
        parameters = {name: id(p) for name, p in part.named_parameters()}
        for module, name, _, watch in watched:
            vars(module)[name] = watch
        try:
            returned = plain_call(part, *args, **kwargs)
        finally:
            for module, name, value, _ in watched:
                vars(module)[name] = value
        steps = self.steps[start:]
        with self._pause():
            fine = not any(watch.looked for *_, watch in watched) and versions == [value._version for value in given]
            fine = fine and not foreign(steps, start, refs) and not any(id(value) in self.stale for value in given)
            nest = mapped(lambda v: self._reference(v) if isinstance(v, torch.Tensor) else v, returned) if fine else None
        if fine and all(map(is_simple, leaves(nest))) and len(steps) == len(self.steps) - start:
            self.layers[key] = Recorded(path, start, len(self.steps), refs, nest, parameters)
        return returned

    def _written_again(self, known: Recorded, part: nn.Module, path: str, given: list[torch.Tensor]) -> tuple[Any] | None:
        """What a layer returns that is alike; None if it shares parameters with others."""
        own = {id(p) for p in part.parameters()}
        if own & {*known.parameters.values()} or any(id(p) not in self.shadow.paths or id(p) in self.refs for p in part.parameters()):
            return None
        moved = dict(zip(known.given, (self.refs[id(value)] for value in given)))
        with self._pause():
            for step in self.steps[known.start : known.end]:
                number = len(self.steps)
                moved.update({Ref(step.number, i): Ref(number, i) for i in range(len(step.values))})
                made = shifted(step, known, path, number, moved.__getitem__)
                self.steps.append(made)
                if made.kind == "parameter":
                    value = part.get_parameter(made.target[len(path) + 1 :])
                    self.refs[id(value)], self.origins[id(value)] = Ref(number), value.grad_fn
                    self.protected[value.untyped_storage()._cdata] = f"parameter {made.target}"
            return (mapped(lambda value: self._again(value, moved, given, known), known.returned),)

    def _again(self, value: Any, moved: dict[Ref, Ref], given: list[torch.Tensor], known: Recorded) -> Any:
        """A leaf of what a layer returned, as that of the layer alike."""
        if isinstance(value, Fixed):
            return value.tensor
        if not isinstance(value, Ref):
            return value
        if value in known.given:
            return given[known.given.index(value)]
        theirs = self.steps[value.step].values[value.index]
        with self.shadow.mode:
            made = torch.empty_strided(theirs.size(), theirs.stride(), dtype=theirs.dtype)
        made = made.requires_grad_().clone(memory_format=torch.preserve_format) if theirs.requires_grad else made
        self.kept.append(made)
        self.refs[id(made)], self.origins[id(made)] = moved[value], made.grad_fn
        self.storages.setdefault(made.untyped_storage()._cdata, []).append(made)
        return made

    @contextmanager
    def _pause(self) -> Iterator[None]:
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    def _called(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Any) -> Any:
        """Run one layer or function, and write it down if it depends on inputs or parameters."""
        with self._pause():
            if kind == "function" and target is torch.Tensor.__iter__:
                return iter(self._written("function", torch.Tensor.unbind, args, kwargs, torch.Tensor.unbind))
            return self._written(kind, target, args, kwargs, run)

    def _written(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Any) -> Any:
        """Run a step and record it. What depends on fixed tensors only is computed, and what asks about a tensor is answered."""
        name = target if kind == "module" else getattr(target, "__name__", "")
        args, kwargs = mapped(self._in_shadow, args), mapped(self._in_shadow, kwargs)
        given = tensors_of((args, kwargs))
        changes = kind == "function" and _changes(name, kwargs)
        tracked = [value for value in given if self._tracked(value)]
        if kind == "function" and name not in QUERIES:
            self._refuse_buffers_of_layers(given)
        if name in ONLY_SHAPES and tracked:
            return self._fixed(kind, target, mapped(_numbers, args), mapped(_numbers, kwargs), run, changes)
        layer = kind == "module" and (next(run.parameters(), None) is not None or bool(probability_of(run)))
        if not tracked and not layer:
            return self._fixed(kind, target, args, kwargs, run, changes)
        self._refuse_hidden_state(name, target)
        if changes and tracked and not self._tracked(given[0]) and (plain := self._returning(name, given[0])) is not None:
            result = self._written(kind, plain, args, kwargs, plain)
            self.stale[id(given[0])] = name
            self.kept.append(given[0])
            return result
        if name in NEVER:
            return False
        if name in QUERIES:
            result = run(*args, **kwargs)
            if not tensors_of(result):
                return result
        referred, named = mapped(self._reference_in_nest, (args, kwargs))
        self._refuse_arguments(name, given, changes)
        before = [value._version for value in given]
        if kind == "module":
            result = self._run_layer(target, run, args, kwargs)
        elif name not in QUERIES:
            result = run(*args, **kwargs)
        if name == INDEX_ASSIGNMENT:
            result = args[0]
        if not tensors_of(result):
            raise Unsupported(f"{name_of(target)} returns no tensor; it has no counterpart")
        changed = [value for value, version in zip(given, before) if value._version != version]
        if not changed and plain_name(target) in SAME and any(result is value for value in given):
            return result  # such as x.float() of what is float32
        self._forget(changed, kind, target)
        self._add(kind, target, referred, named, result, getattr(run, "training", True))
        return result

    def _returning(self, name: str, into: torch.Tensor) -> Any:
        """The function that returns what one of this name writes into a tensor that was made on the way, such as ``masked_fill``; None
        if there is none, or the tensor is a buffer."""
        fresh = into.untyped_storage()._cdata in self.made and id(into) not in self.fixed
        return getattr(torch.Tensor, name[:-1], None) if fresh and name.endswith("_") and not name.startswith("_") else None

    def _refuse_buffers_of_layers(self, given: Sequence[torch.Tensor]) -> None:
        """A function may not read what a layer keeps, since the layer's operator keeps it elsewhere."""
        for value in given:
            if id(value) in self.of_layers:
                raise Unsupported(f"{self.inside or 'forward'} reads {self._said(value)}, which belongs to a layer")

    def _refuse_hidden_state(self, name: str, target: Any) -> None:
        """Properties that other steps left or will read, and types that depend on where the code stands, are no graph."""
        who = self.inside or "forward"
        if name == "__get__" and name_of(target) in STATE:
            raise Unsupported(f"{who} reads .{name_of(target)} of a tensor, which changes from step to step")
        if name == "__set__":
            what = name_of(getattr(target, "__self__", target))
            raise Unsupported(f"{who} sets .{what} of a tensor, which is not understood")
        if name not in QUERIES and (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
            raise Unsupported(f"{who} uses autocast, which is not understood")

    def _refuse_arguments(self, name: str, given: Sequence[torch.Tensor], changes: bool) -> None:
        """A function that ``changes`` its first argument may not change a constant; and all arguments must have numbers."""
        if changes and not self._tracked(given[0]):
            raise Unsupported(f"{name} writes into {self._said(given[0])}; use an operation that returns a new tensor")
        for value in given:
            if value.is_meta:
                raise Unsupported(f"{self._said(value)} is on the device meta, which keeps no numbers")

    def _run_layer(self, path: str, run: Any, args: Any, kwargs: Any) -> Any:
        state = torch.get_rng_state()
        try:
            if self.shadow.fake and is_experts(run):
                return without_numbers(run, *args, **kwargs)
            return run(*args, **kwargs)
        except Exception as error:  # whatever the layer raises
            raise Unsupported(f"{path}: PyTorch says: {(str(error).splitlines() or [''])[0]}") from error
        finally:  # a layer that drops may draw numbers
            torch.set_rng_state(state)

    def _fixed(self, kind: str, target: Any, args: Any, kwargs: Any, run: Any, changes: bool) -> Any:
        """Compute what depends on nothing but fixed tensors."""
        name = getattr(target, "__name__", str(target))
        given = tensors_of((args, kwargs))
        older = {value.untyped_storage()._cdata for value in given} - self.made.keys()
        if changes or name == "__set__" or _in_place(target if kind == "function" else run, args, kwargs):
            into = kwargs.get("out", args[0] if args else None)
            if isinstance(into, torch.Tensor) and into.untyped_storage()._cdata in older:
                raise Unsupported(f"{name} in {self.inside or 'forward'} changes {self._said(into)}; a graph has no such state")
        result = self._computed(name, run, args, kwargs) if kind == "function" and self.shadow.mode else run(*args, **kwargs)
        for value in leaves(result):
            if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata not in older:
                self.made[value.untyped_storage()._cdata] = value
        return result

    def _computed(self, name: str, run: Any, args: Any, kwargs: Any) -> Any:
        """Compute a fixed tensor, or note only how, if it is large; what is small and follows from large ones is computed."""
        given = tensors_of((args, kwargs))
        large = any(isinstance(value, FakeTensor) for value in given)
        changes = changes_an_argument(run, args, kwargs)
        if large and changes and any(self._shares(args[0], other) for other in self.recipes.values()):
            raise Unsupported(f"{name} in {self.inside or 'forward'} writes into a part of a table of {given[0].numel():,} numbers")
        if name in QUERIES and name != "__get__":
            return run(*args, **kwargs)
        recipe = (run, *mapped(self._recipe, (args, kwargs)))
        if large or (not changes and is_large(run, args, kwargs)):
            with self.shadow.mode:
                result = run(*args, **kwargs)
            small = isinstance(result, torch.Tensor) and result.numel() <= LARGE and not isinstance(result, bool)
            if not tensors_of(result) or (small and not changes):
                result = run(*mapped(whole, recipe[1]), **mapped(whole, recipe[2])) if tensors_of(result) else result
        else:
            result = run(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            if changes and not large:
                self.recipes.pop(id(result), None)
            else:
                self.recipes[id(result)] = Recipe(result, *recipe)
        return result

    def _shares(self, value: Any, other: Recipe) -> bool:
        same = other.tensor is not value and isinstance(other.tensor, FakeTensor)
        return same and other.tensor.untyped_storage()._cdata == value.untyped_storage()._cdata

    def _recipe(self, value: Any) -> Any:
        return self.recipes.get(id(value), value) if isinstance(value, torch.Tensor) else value

    # ---- values ----------------------------------------------------------------------------------------------------

    def _in_shadow(self, value: Any) -> Any:
        """A parameter of the module as the shadow has it; all else as it is."""
        return self.shadow.parameters.get(id(value), value) if isinstance(value, torch.Tensor) else value

    def _tracked(self, value: torch.Tensor) -> bool:
        known = id(value) in self.refs or id(value) in self.stale or id(value) in self.shadow.paths
        if not known and id(value) not in self.recipes and (value.requires_grad or self.shadow.is_foreign(value)):
            raise Unsupported(
                f"{self.inside or 'forward'} uses a tensor {list(value.shape)} that no function of torch has returned: "
                "a custom autograd.Function, or a value that was kept from another call"
            )
        return known

    def _reference_in_nest(self, value: Any) -> Any:
        return self._reference(value) if isinstance(value, torch.Tensor) else value

    def _reference(self, value: torch.Tensor) -> Ref | Fixed:
        if not self._tracked(value):
            if id(value) not in self.fixed or self.fixed[id(value)].version != value._version:
                if id(value) in self.fixed:
                    raise Unsupported(f"a constant of shape {list(value.shape)} is changed after it was used")
                name, recipe = self.names.get(id(value), ""), self.recipes.get(id(value))
                self.fixed[id(value)] = Fixed(value, value._version, name, recipe)
            return self.fixed[id(value)]
        if id(value) in self.stale:
            raise Unsupported(
                f"{self.stale[id(value)]} changes in place what {self.inside or 'forward'} reads again by another view; "
                "use an operation that returns a new tensor"
            )
        if id(value) not in self.refs:
            path = self.shadow.paths[id(value)]
            self._add("parameter", path, (), {}, value)
        ref = self.refs[id(value)]
        if value.grad_fn is not self.origins[id(value)]:
            raise Unsupported(
                f"{self.steps[ref.step].describe()}: a custom autograd.Function around it has a gradient of its own; "
                "write it with functions of torch"
            )
        return ref

    def _add(
        self, kind: str, target: Any, args: Any, kwargs: Any, result: Any, training: bool = True
    ) -> None:
        step = TorchStep(len(self.steps), kind, target, args, kwargs, where=self.inside, training=training)
        step.grad = torch.is_grad_enabled() and name_of(target) != "detach"
        step.line = calling_line()
        self._count(step)
        self.steps.append(step)

        def kept(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            ref = Ref(step.number, len(step.values))
            step.values.append(value)
            self.refs[id(value)], self.origins[id(value)] = ref, value.grad_fn
            self.stale.pop(id(value), None)
            storage = value.untyped_storage()._cdata
            self.storages.setdefault(storage, []).append(value)
            if kind in ("input", "parameter"):
                self.protected[storage] = f"{kind} {target}"
            return ref

        step.result = mapped(kept, result)
        if self.observe is not None:
            self.observe(step)

    def _count(self, step: TorchStep) -> None:
        """Refuse a loop over thousands of steps of a sequence: it would become as many operators."""
        at = (self.inside, step.line, step.target) if step.kind == "function" else None
        self.turns[at] += at is not None
        if self.turns[at] > MOST_TURNS:
            raise Unsupported(
                f"a loop in {self.inside or 'forward'} calls {name_of(step.target)} more than {MOST_TURNS} times: a recurrence that "
                "is written step by step, which would become as many operators, and there is none for such a scan; plan it with shorter "
                "sequences (--set steps=), or write it with nn.LSTM"
            )

    def _forget(self, changed: Sequence[torch.Tensor], kind: str, target: Any) -> None:
        """Forbid reading other views of memory that a step changed in place."""
        name = target if kind == "module" else name_of(target)
        for value in changed:
            storage = value.untyped_storage()._cdata
            if storage in self.protected:
                raise Unsupported(
                    f"{name} in {self.inside or 'forward'} changes the {self.protected[storage]} in place; "
                    "use an operation that returns a new tensor (inplace=False)"
                )
            for view in self.storages.get(storage, ()):
                if view is not value:
                    self.stale[id(view)] = str(name)

    def _said(self, value: torch.Tensor) -> str:
        path = self.names.get(id(value))
        return f"the buffer {path}" if path else f"a tensor {list(value.shape)} that is not computed in this step"
