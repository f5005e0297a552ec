"""Recorder: runs a module once and records what it computes: every layer and every function of torch, with inputs and outputs."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from taskflow.models.pytorch.batch_norms import LayerBuffers
from taskflow.models.pytorch.boolean_indices import indexed_by_places
from taskflow.models.pytorch.calls import (
    AS_ANOTHER,
    INDEX_ASSIGNMENT,
    NEVER,
    OF_FINITE,
    ONLY_SHAPES,
    QUERIES,
    STATE,
    asks_for_gradient,
    by_torchs_names,
    changes_by_name,
    is_in_place,
    numbers_like,
    tensors_of,
    without_shape,
)
from taskflow.models.pytorch.draws import DRAWS, NOT_BY_SAMPLES, drawn
from taskflow.models.pytorch.dropping import probability_of
from taskflow.models.pytorch.own_gradients import functions_followed
from taskflow.models.pytorch.places import calling_line
from taskflow.models.pytorch.placing import taken_or_put
from taskflow.models.pytorch.recipe_book import Recipes
from taskflow.models.pytorch.recipes import SAME, plain_name
from taskflow.models.pytorch.refused import more_than_its_class, replaced
from taskflow.models.pytorch.repeats import RepeatedLayers
from taskflow.models.pytorch.scans import scans_followed
from taskflow.models.pytorch.shadow import Shadow
from taskflow.models.pytorch.site import Unsupported
from taskflow.models.pytorch.steps import Fixed, Ref, TorchRecording, TorchStep, leaves, mapped, name_of, named_leaves
from taskflow.models.pytorch.taken_apart import APART, in_parts
from taskflow.models.pytorch.unread import drop_unread, result_of, without_checks
from taskflow.models.pytorch.without_numbers import run_without_numbers
from taskflow.models.pytorch.writes import Writes

MOST_TURNS = 300  # of a loop
plain_call = nn.Module.__call__


class TorchRecorder(TorchFunctionMode):
    """Recorder of a run of a module on the tensors of a `Shadow`. What depends on fixed tensors alone is computed. Operations in
    place replace what they changed; what shares its memory is not read again. ``repeats``: layers alike are recorded once."""

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
        self.own_storages: dict[int, torch.Tensor] = {}  # storages of fixed tensors that were made on the way: a tensor that has it
        self.fixed: dict[int, Fixed] = {}
        self.recipes = Recipes(shadow.mode, lambda: self.inside)
        self.names = {id(buffer): path for path, buffer in module.named_buffers()}
        self.layers, self.writes, self.buffers = RepeatedLayers(self), Writes(self), LayerBuffers(self, leaf)
        self.kept: list[torch.Tensor] = []  # so that no other tensor gets their identity
        self.turns: Counter[Any] = Counter()  # steps from one line in one module
        self.inside = ""
        self.error: Exception | None = None
        self.paused = self.asked = False

    def run(self, examples: Sequence[Any]) -> TorchRecording:
        """Run forward on examples (tensors of the shadow, also in nests, become inputs; everything else is passed unchanged)."""
        forward = type(self.module).forward
        args, kwargs = self._bound(forward, examples)
        nn.Module.__call__ = self._call()  # type: ignore[method-assign]
        try:
            shadowed = self.shadow.in_place_of(self.module)
            with without_checks(), shadowed, functions_followed(self), scans_followed(self), torch.enable_grad(), self:
                returned = forward(self.module, *args, **kwargs)
                with self.pause():
                    output = mapped(self.reference_in_nest, result_of(returned))
            if self.error is not None:
                raise self.error
        finally:
            nn.Module.__call__ = plain_call  # type: ignore[method-assign]
        for value in self.fixed.values():
            if value.tensor._version != value.version:
                raise Unsupported(f"a constant of shape {tuple(value.tensor.shape)} is changed after it was used")
        drop_unread(self.steps, output, self.writes.steps)
        return TorchRecording(self.steps, output, self.asked)

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
        for path, value in named_leaves(name, example):
            if isinstance(value, torch.Tensor):
                self.add("input", path, (), {}, value)
        return example

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = by_torchs_names(func, kwargs or {})
        if self.paused:
            return func(*args, **kwargs)
        try:
            if func in DRAWS or func in NOT_BY_SAMPLES:
                return drawn(self, func, args, kwargs)
            if func in APART and (result := in_parts(self, func, args, kwargs)) is not NotImplemented:
                return result
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
            if recorder.leaf(part) and not replaced(part):
                return recorder._called("module", path, args, kwargs, recorder.shadow.copy_of(part))
            before, recorder.inside = recorder.inside, path
            try:
                return recorder.layers.call(part, path, args, kwargs)
            finally:
                recorder.inside = before

        return call

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Record nothing within the block."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    def _called(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Any) -> Any:
        """Run one layer or function, and write it down if it depends on inputs or parameters."""
        with self.pause():
            if kind == "function" and target is torch.Tensor.__iter__:
                return iter(self._written("function", torch.Tensor.unbind, args, kwargs, torch.Tensor.unbind))
            return self._written(kind, target, args, kwargs, run)

    def _written(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Any) -> Any:
        """Run a step and record it. What depends on fixed tensors only is computed, and what asks about a tensor is answered."""
        name = target if kind == "module" else getattr(target, "__name__", "")
        args, kwargs = mapped(self.in_shadow, args), mapped(self.in_shadow, kwargs)
        given = tensors_of((args, kwargs))
        changes = kind == "function" and changes_by_name(name, kwargs)
        tracked = [value for value in given if self.tracked(value)]
        if kind == "function" and (rows := taken_or_put(self, name, args)) is not None:
            return rows
        args = indexed_by_places(self, args) if name == "__getitem__" and tracked else args
        if kind == "function" and self.buffers.counts(name, args):
            return args[0]
        if (plain := self.buffers.normalises(target, args, kwargs)) is not None:
            run = plain
        elif kind == "function" and name not in QUERIES:
            self.buffers.require_unread(given)
        if tracked and (name in ONLY_SHAPES or (name in AS_ANOTHER and not self.tracked(given[0]))):
            args, kwargs = mapped(lambda v: numbers_like(v) if any(v is x for x in tracked) else v, (args, kwargs))
            return self._fixed(kind, target, args, kwargs, run, changes)
        layer = kind == "module" and (next(run.parameters(), None) is not None or bool(probability_of(run)))
        if not tracked and not layer:
            return self._fixed(kind, target, args, kwargs, run, changes)
        if asks_for_gradient(name, target, args):
            self.asked = True  # a gradient of the data
            return args[0]
        self._refuse_hidden_state(name, target)
        if changes and tracked and not self.tracked(given[0]) and (plain := self._returning(name, given[0])) is not None:
            result = self._written(kind, plain, args, kwargs, plain)
            self.kept.append(given[0])
            if result.requires_grad:
                self.stale[id(given[0])] = name
            else:  # what is written into stands for the result, too
                self.refs[id(given[0])], self.origins[id(given[0])] = self.refs[id(result)], given[0].grad_fn
            return result
        if name in NEVER:
            return False
        if name in OF_FINITE and kind == "function":
            answer = torch.tensor(OF_FINITE[name]).expand(given[0].shape)
            self.own_storages[answer.untyped_storage()._cdata] = answer
            return answer
        if (without := without_shape(name, args)) is not None:
            raise Unsupported(f"{name_of(target)} in {self.inside or 'forward'} {without}")
        if name in ("copy_", INDEX_ASSIGNMENT) and (into := self.recipes.unset(given[0])) is not None:
            return self.writes.assigned(into, run, args)
        if changes and not kwargs and not self.tracked(given[0]):
            self.writes.into_fixed(name, given[0])
        if not kwargs and self.writes.stands_there(name, args):
            return args[0]
        if not kwargs and (part := self.writes.filled(name, run, args)) is not None:
            return part
        if name in QUERIES:
            result = run(*args, **kwargs)
            if not tensors_of(result):
                return result
        referred, named = mapped(self.reference_in_nest, (args, kwargs))
        self._refuse_arguments(name, given, changes)
        before = [value._version for value in given]
        if kind == "module":
            result = self._run_layer(target, run, args, kwargs)
        elif name not in QUERIES:
            result = run(*args, **kwargs)
        result = args[0] if name == INDEX_ASSIGNMENT else result
        if not tensors_of(result):
            raise Unsupported(f"{name_of(target)} returns no tensor; it has no counterpart")
        changed = [value for value, version in zip(given, before) if value._version != version]
        if not changed and plain_name(target) in SAME and any(result is value for value in given):
            return result  # such as x.float() of what is float32
        self.writes.forget_others(changed, str(target) if kind == "module" else name_of(target))
        self.add(kind, target, referred, named, result, getattr(run, "training", True))
        if any(result is value for value in changed):
            self.writes.carry(result)
        return result

    def _returning(self, name: str, into: torch.Tensor) -> Any:
        """The function that returns what one of this name writes into a tensor that was made on the way, such as ``masked_fill``;
        None if there is none, or the tensor is a buffer."""
        fresh = into.untyped_storage()._cdata in self.own_storages and id(into) not in self.fixed
        return getattr(torch.Tensor, name[:-1], None) if fresh and name.endswith("_") and not name.startswith("_") else None

    def _refuse_hidden_state(self, name: str, target: Any) -> None:
        """Properties that other steps left or will read, and types that depend on where the code stands, are no graph."""
        who = self.inside or "forward"
        if name == "__get__" and name_of(target) in STATE:
            raise Unsupported(f"{who} reads .{name_of(target)} of a tensor, which changes from step to step")
        if name == "__set__":
            what = name_of(getattr(target, "__self__", target))
            raise Unsupported(f"{who} sets .{what} of a tensor, which is not understood")
        if name not in QUERIES and (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
            raise Unsupported(f"{who} stands under autocast from without; call from_torch outside of that block")

    def _refuse_arguments(self, name: str, given: Sequence[torch.Tensor], changes: bool) -> None:
        """Refuse what ``changes`` a constant, its first argument, and arguments without numbers."""
        if changes and not self.tracked(given[0]):
            raise Unsupported(f"{name} writes into {self.named(given[0])}; use an operation that returns a new tensor")
        for value in given:
            if value.is_meta:
                raise Unsupported(f"{self.named(value)} is on the device meta, which keeps no numbers")

    def _run_layer(self, path: str, run: Any, args: Any, kwargs: Any) -> Any:
        state = torch.get_rng_state()
        try:
            return run_without_numbers(run, *args, **kwargs) if self.shadow.fake else run(*args, **kwargs)
        except Exception as error:  # whatever the layer raises
            raise Unsupported(f"{path}: PyTorch says: {(str(error).splitlines() or [''])[0]}") from error
        finally:  # a layer that drops may draw numbers
            torch.set_rng_state(state)

    def _fixed(self, kind: str, target: Any, args: Any, kwargs: Any, run: Any, changes: bool) -> Any:
        """Compute what depends on nothing but fixed tensors."""
        name = getattr(target, "__name__", str(target))
        given = tensors_of((args, kwargs))
        for value in () if name in QUERIES else given:
            self.writes.require_fixed(value)
        older = {value.untyped_storage()._cdata for value in given} - self.own_storages.keys()
        if changes or name == "__set__" or is_in_place(target if kind == "function" else run, args, kwargs):
            into = kwargs.get("out", args[0] if args else None)
            if isinstance(into, torch.Tensor) and into.untyped_storage()._cdata in older:
                return self.writes.into_buffer(name, into, args)
        result = self.recipes.computed(name, run, args, kwargs) if kind == "function" and self.shadow.mode else run(*args, **kwargs)
        for value in leaves(result):
            if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata not in older:
                self.own_storages[value.untyped_storage()._cdata] = value
        return result

    def in_shadow(self, value: Any) -> Any:
        """A parameter of the module as the shadow has it; all else as it is."""
        return self.shadow.parameters.get(id(value), value) if isinstance(value, torch.Tensor) else value

    def tracked(self, value: torch.Tensor) -> bool:
        """True if a tensor depends on inputs or parameters. Raises Unsupported for one from elsewhere."""
        known = id(value) in self.refs or id(value) in self.stale or id(value) in self.shadow.paths
        if not known and not self.recipes.has(value) and (value.requires_grad or self.shadow.is_foreign(value)):
            raise Unsupported(
                f"{self.inside or 'forward'} uses a tensor {list(value.shape)} that no function of torch has returned: "
                "a custom autograd.Function, or a value that was kept from another call"
            )
        return known

    def reference_in_nest(self, value: Any) -> Any:
        """Return what stands for a leaf of a nest."""
        return self.reference(value) if isinstance(value, torch.Tensor) else value

    def reference(self, value: torch.Tensor) -> Ref | Fixed:
        """Return what stands for a tensor in a recording."""
        if not self.tracked(value):
            self.writes.require_fixed(value)
            if id(value) not in self.fixed or self.fixed[id(value)].version != value._version:
                if id(value) in self.fixed:
                    raise Unsupported(f"a constant of shape {list(value.shape)} is changed after it was used")
                name, recipe = self.names.get(id(value), ""), self.recipes.of(value)
                self.fixed[id(value)] = Fixed(value, value._version, name, recipe)
            return self.fixed[id(value)]
        if id(value) in self.stale and not self.writes.again(value):
            raise Unsupported(
                f"{self.stale[id(value)]} changes in place what {self.inside or 'forward'} reads again by another view; "
                "use an operation that returns a new tensor"
            )
        if id(value) not in self.refs:
            path = self.shadow.paths[id(value)]
            self.add("parameter", path, (), {}, value)
        ref = self.refs[id(value)]
        if value.grad_fn is not self.origins[id(value)]:
            raise Unsupported(
                f"{self.steps[ref.step].describe()}: a custom autograd.Function around it has a gradient of its own; "
                "write it with functions of torch"
            )
        return ref

    def add(self, kind: str, target: Any, args: Any, kwargs: Any, result: Any, training: bool = True) -> None:
        """Write down a step, whose result is new from there on."""
        step = TorchStep(len(self.steps), kind, target, args, kwargs, where=self.inside, training=training)
        step.grad = torch.is_grad_enabled() and name_of(target) != "detach"
        step.line = calling_line(TorchRecorder.run.__code__)
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
        self.writes.note(step)
        if self.observe is not None:
            self.observe(step)

    def _count(self, step: TorchStep) -> None:
        """Refuse a loop over thousands of steps of a sequence: it would become as many operators."""
        at = (self.inside, step.line, step.target) if step.kind == "function" else None
        self.turns[at] += at is not None
        if self.turns[at] > MOST_TURNS:
            raise Unsupported(
                f"a loop in {self.inside or 'forward'} calls {name_of(step.target)} more than {MOST_TURNS} times: a recurrence "
                "that is written step by step, which would become as many operators, and there is none for such a scan; plan it "
                "with shorter sequences (--set steps=), or write it with nn.LSTM"
            )

    def named(self, value: torch.Tensor) -> str:
        """Describe a tensor that no step has returned."""
        path = self.names.get(id(value))
        return f"the buffer {path}" if path else f"a tensor {list(value.shape)} that is not computed in this step"
