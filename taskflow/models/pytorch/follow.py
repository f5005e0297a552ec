"""Follows a recording of a PyTorch module, and adds the operators that compute the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from taskflow import operators as ops
from taskflow.collector import paused_collector
from taskflow.floats import is_narrow
from taskflow.graph import FrameworkCall, Node, OperatorGraph
from taskflow.models.pytorch import (  # noqa: F401  they fill the registry
    arithmetic,
    assigning,
    batch_norms,
    converting,
    fourier,
    indexing,
    neural,
    reducing,
    shaping,
)
from taskflow.models.pytorch.complex_numbers import OF_COMPLEX, Complex, complex_call, held_pair, is_complex_call
from taskflow.models.pytorch.converting import computed_in, narrowed, type_of, widened
from taskflow.models.pytorch.convolving import as_planes
from taskflow.models.pytorch.draws import standard
from taskflow.models.pytorch.experts import layout_of
from taskflow.models.pytorch.fused import fusions_of
from taskflow.models.pytorch.idle import memory_savers
from taskflow.models.pytorch.joined_masks import given
from taskflow.models.pytorch.look import Fusion
from taskflow.models.pytorch.masks import OF_MASKS, Mask, Side, makes_mask, masked_call
from taskflow.models.pytorch.mixers import is_mixer
from taskflow.models.pytorch.modules import IN_EITHER_ORDER, STATEFUL, is_leaf, layer_of
from taskflow.models.pytorch.places import place_text, raising_line
from taskflow.models.pytorch.recording import ATTENTION, record_both
from taskflow.models.pytorch.refused import cannot_follow, require_plain
from taskflow.models.pytorch.registry import (
    FUNCTIONS,
    RAW,
    SWAPPED,
    Lazy,
    Stacked,
    constant_of,
    in_order,
    name_of_type,
    origin_tensor,
    tensor_of,
)
from taskflow.models.pytorch.shadow import Shadow, StandIns
from taskflow.models.pytorch.site import Held, Site, Unsupported, require, require_shape
from taskflow.models.pytorch.steps import Fixed, Ref, TorchRecording, TorchStep, beside, leaves, mapped
from taskflow.models.pytorch.weights import shapes_of
from taskflow.operators.operator import Init
from taskflow.operators.tensor import Parameter, Tensor
from taskflow.wording import some

MOST_NAMED = 8  # of what has no counterpart
WATCHING = "verify."  # names of what verification adds begin so
NO_GRADIENT = "complex numbers through which PyTorch lets no gradient (detach, no_grad), but parameters lie before them"
Watch = Callable[[TorchStep, int, Any], Any]  # what stands for a step's tensor (`Tensor`, `Later`, `Stacked`), in place of it


@dataclass(slots=True)
class Followed:
    """A module's graph without a loss. ``result``: what stands for the module's output. ``values``: what stands for the tensors of
    the recording's steps. ``savers``: how forward saves memory for activations, which a graph does not say. ``holds_frozen``:
    whether parameters that are not trained, outside of layers, are parameters of the graph; else they are constants."""

    graph: OperatorGraph
    result: Any
    recording: TorchRecording
    values: dict[Ref, Any] = field(default_factory=dict)
    savers: tuple[str, ...] = ()
    holds_frozen: bool = True


@paused_collector()
def follow(module: Any, examples: Sequence[Any], title: str, watch: Watch | None = None) -> Followed:
    """The graph of a module, called ``title``; arguments and errors as `from_torch` has them. ``examples``: as `examples_of`
    returns them. Parameters that are not trained become constants if code does with them what parameters are not made for."""
    frozen = isinstance(module, nn.Module) and not all(p.requires_grad for p in module.parameters())
    if frozen:
        with suppress(ValueError):
            return _follow(module, examples, title, watch, True)
    return _follow(module, examples, title, watch, False)


def _follow(module: Any, examples: Sequence[Any], title: str, watch: Watch | None, frozen: bool) -> Followed:
    try:
        require_plain(module)
        with memory_savers() as savers:
            recording = record_both(module, examples, lambda: Shadow(module, StandIns(), True, frozen), is_leaf)
        dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
        dtype = dtype or next((e.dtype for e in examples if isinstance(e, torch.Tensor) and e.is_floating_point()), torch.float32)
        graph = OperatorGraph(str(dtype).removeprefix("torch."), title)
        found = _Following(graph, module, recording, watch).followed()
        return replace(found, savers=tuple(sorted(savers)), holds_frozen=frozen)
    except Unsupported as error:
        raise ValueError(f"from_torch: {title}: {error}{place_text(raising_line(error.__traceback__))}") from error
    except Exception as error:  # whatever the module's code raises when it meets what has no numbers
        if isinstance(error, ValueError) and str(error).startswith("from_torch: "):
            raise
        raise ValueError(f"{cannot_follow(title, error)}{place_text(raising_line(error.__traceback__))}") from error


class _Following:
    """One walk over the steps of a recording. ``given``: what stands for an input, by its step, where the graph has it already;
    then a recording does not tell where gradients go."""

    def __init__(self, graph: OperatorGraph, module: nn.Module, recording: TorchRecording, watch: Watch | None) -> None:
        self.graph, self.module, self.recording, self.watch, self.known = graph, module, recording, watch, dict[int, Parameter]()
        self.stateful: dict[int, str] = {}  # parameters of layers that share none: the layer's path
        self.values: dict[Ref, Any] = {}
        self.given: dict[int, Tensor] = {}
        self.frozen: set[str] = set()  # parameters that are not trained
        self.trained: set[int] = set()  # nodes whose outputs depend on one that is
        self.seen = 0  # nodes that were looked at
        self.parameters = dict(module.named_parameters())
        self.aliases = dict(module.named_parameters(remove_duplicate=False))
        self.names = {id(parameter): path for path, parameter in self.parameters.items()}
        self.paths = {name for name, _ in (*module.named_modules(), *module.named_parameters(), *module.named_buffers())}

    def followed(self) -> Followed:
        """Raises ValueError that lists what has no counterpart, or says what is not supported, and where."""
        result = self.walked()
        self._add_unused()
        self.graph.freeze_parameters({p.name for p in self.graph.parameters if p.name in self.frozen or self._is_fixed(p.name)})
        return Followed(self.graph, result, self.recording, self.values)

    def walked(self) -> Any:
        """Add the operators of all steps, and return what stands for the result. Raises as `followed` does."""
        fusions = fusions_of(self.recording, self.module)
        inside = {number for fusion in fusions.values() for number in fusion.inside}
        self._require_counterparts(inside)
        for step in self.recording.steps:
            before = len(self.graph.nodes)
            try:
                if step.number in fusions:
                    self._fuse(step, fusions[step.number])
                elif step.number not in inside and step.kind != "unused":
                    self._settle(step, self._value(step))
            except (ValueError, TypeError) as error:  # of what is not supported, of operators, of arguments that a function has not
                why = str(error).replace("built()", step.name)
                raise ValueError(f"from_torch: {self.graph.name}: {step.describe()}: {why}{place_text(step.line)}") from error
            self._remember(step, self.graph.nodes[before:])
        return mapped(self._result, self.recording.output)

    def recorded(self, module: nn.Module, examples: Sequence[Any], given: Sequence[Tensor], where: str) -> Any:
        """Add what a module without parameters computes of tensors of the graph, under names that begin with ``where``."""
        recording = record_both(module, examples, lambda: Shadow(module, StandIns(), True, False), is_leaf)
        require(all(step.grad for step in recording.steps), f"{where} lets no gradient through")
        within = _Following(self.graph, module, recording, None)
        within.given.update(zip((step.number for step in recording.steps if step.kind == "input"), given))
        for step in recording.steps:
            step.where = where
        return within.walked()

    def _remember(self, step: TorchStep, nodes: Sequence[Node]) -> None:
        """Keep which operators one layer or function became."""
        if step.kind in ("module", "function"):
            what = type(self.module.get_submodule(step.target)).__name__ if step.kind == "module" else step.name
            for node in nodes:
                self.graph.calls.setdefault(node.name, FrameworkCall(step.number, what))

    def _require_counterparts(self, fused: Set[int]) -> None:
        """Raise ValueError that lists what has no counterpart, but for steps that are ``fused`` with others."""
        missing: dict[tuple[str, str], list[str]] = {}  # what it is: where
        lines: dict[tuple[str, str], str] = {}
        for step in self.recording.steps:
            if step.kind == "module":
                part = self.module.get_submodule(step.target)
                if layer_of(part) is None:
                    missing.setdefault((type(part).__name__, ""), []).append(step.target)
                    lines.setdefault((type(part).__name__, ""), place_text(step.line))
            elif step.kind == "function" and step.number not in fused and not _is_known(step.target):
                own = hasattr(torch.Tensor, getattr(step.target, "__name__", "")) and step.target not in vars(torch).values()
                kind = "a tensor's method" if own else "a function"
                missing.setdefault((kind, step.name), []).append(step.name)
                lines.setdefault((kind, step.name), f"{f' in {step.where}' if step.where else ''}{place_text(step.line)}")
        if missing:
            times = {kind: f", {len(places)} times" if len(places) > 1 else "" for kind, places in missing.items()}
            named = [f"{places[0]} ({kind[0]}{times[kind]}){lines[kind]}" for kind, places in missing.items()]
            raise ValueError(
                f"from_torch: {self.graph.name}: no counterpart for {some(named, MOST_NAMED, of='kinds')}; replace it in the "
                "module by what docs/guide/pytorch.md lists, or build the network with taskflow's operators"
            )

    # ---- steps -----------------------------------------------------------------------------------------------------

    def _fuse(self, step: TorchStep, fusion: Fusion) -> None:
        """Build what stands for several steps, of which this is the last; or each of them by itself."""
        name = self._free(f"{step.where}.{step.name}" if step.where else step.name)
        keep = Lazy if fusion.takes_later else ()
        given = [value if isinstance(value, keep) else in_order(value) for value in map(self._given, fusion.needs)]
        output = fusion.build(name, *given)
        if output is not None:
            self._settle(step, narrowed(output, step.values, name))
            return
        self._require_counterparts(set())
        for number in sorted(fusion.inside):
            inner, before = self.recording.steps[number], len(self.graph.nodes)
            self._settle(inner, self._value(inner))
            self._remember(inner, self.graph.nodes[before:])

    def _value(self, step: TorchStep) -> Any:
        if step.kind == "input":
            if step.number in self.given:
                return self.given[step.number]
            return given(self.graph, step.values[0], self._free(step.target))
        if step.kind == "parameter":
            held = self.parameters[step.target]
            self._require_type(held, step.target, torch.float32)  # functions are given what PyTorch gives them
            self._require_alone(held, step.target)
            if not held.requires_grad:
                self.frozen.add(step.target)
            owner, _, own = step.target.rpartition(".")
            planes = as_planes(type(self.module.get_submodule(owner)), tuple(held.shape)) if own == "weight" else held.shape
            site, kept = Site(step.target, self.graph, self.known, names=self.names), None if planes == held.shape else planes
            return held_pair(site, held) if held.is_complex() else Held(site, held, kept)
        args, kwargs = mapped(self._given, step.args), mapped(self._given, step.kwargs)
        if step.kind == "module":
            return self._layer(step, args, kwargs)
        args, kwargs = mapped(self._named_at(step.where), args), mapped(self._named_at(step.where), kwargs)
        name = self._free(f"{step.where}.{step.name}" if step.where else step.name)
        widen = widened(computed_in(step, (args, kwargs)), self.graph, name)
        args, kwargs = mapped(widen, args), mapped(widen, kwargs)
        if step.target is not ATTENTION and makes_mask(step.target, args, kwargs):
            return masked_call(step.target, name, self.graph, args, kwargs)
        if is_complex_call(step.target, args, kwargs):
            return complex_call(step.target, name, self.graph, args, kwargs)
        args = (self.graph, *args) if step.target is standard else args
        handler = FUNCTIONS[step.target]
        if handler not in SWAPPED:
            convert = self._tensor(name) if handler not in RAW else in_order
            args, kwargs = mapped(convert, args), mapped(convert, kwargs)
        return narrowed(handler(name, *args, **kwargs), step.values, name)

    def _layer(self, step: TorchStep, args: Any, kwargs: Any) -> Any:
        part = self.module.get_submodule(step.target)
        require(not any(isinstance(value, Complex) for value in leaves((args, kwargs))), "of complex numbers")
        parameters, build = dict(part.named_parameters()), layer_of(part)
        assert build is not None, "layers without counterparts are refused before"
        fixed = [name for name, parameter in parameters.items() if not parameter.requires_grad]
        if fixed and len(fixed) < len(parameters):
            raise Unsupported(
                f"{fixed[0]} has requires_grad=False and {next(n for n in parameters if n not in fixed)} has not; a layer is "
                "trained whole or not at all"
            )
        for name, parameter in parameters.items():
            given = next((found for value in leaves((args, kwargs)) if (found := type_of(value)) is not None), None)
            self._require_type(parameter, name, given)
            self._require_alone(parameter, step.target)
            if isinstance(part, STATEFUL) or any(map(layout_of, part.modules())) or is_mixer(part):
                if (twice := self.stateful.get(id(parameter)) == step.target) and isinstance(part, STATEFUL):
                    continue
                require(not twice, "is called twice, which such a layer cannot be: hand it the samples of both calls at once (cat)")
                require(id(parameter) not in self.known, f"shares its {name} with another layer, which it cannot")
                self.stateful[id(parameter)] = step.target
        swapped = (*Lazy, Stacked, *(() if isinstance(part, nn.MultiheadAttention) else (Fixed,))) if (
            isinstance(part, IN_EITHER_ORDER)
        ) else ()
        convert = self._tensor(step.target)
        args = mapped(lambda value: value if isinstance(value, swapped) else convert(value), args)
        own = (Fixed, Mask, *swapped)  # what a layer looks at itself
        kwargs = {key: value if isinstance(value, own) else mapped(convert, value) for key, value in kwargs.items()}
        name, before = self._home(step.target, part), len(self.graph.parameters)
        with self.graph.again(name) if isinstance(part, STATEFUL) else nullcontext():
            output = build(Site(name, self.graph, self.known, step.training, self.names, self.recorded), part, *args, **kwargs)
        if fixed:
            self.frozen.update(p.name for p in self.graph.parameters[before:])
        return narrowed(output, step.values, name)

    def _home(self, path: str, part: nn.Module) -> str:
        """The module that a layer is named by: the first of those that have its parameters (another if they are shared)."""
        own = [(name, p) for name, p in part.named_parameters(recurse=False)]
        if not own or any(id(p) in self.known for _, p in own):
            return path
        homes = {self.names[id(p)].removesuffix(f".{name}") for name, p in own if self.names[id(p)].endswith(f".{name}")}
        return homes.pop() if len(homes) == 1 and len(own) == len({self.names[id(p)] for _, p in own}) else path

    def _require_type(self, parameter: Any, name: str, given: torch.dtype | None = None) -> None:
        """Require the network's type; in one of 16 bits float32 is fine, too, where what the parameter meets is ``given`` so."""
        dtype, own = name_of_type(parameter.dtype.to_real()), str(self.graph.dtype)
        wide = is_narrow(self.graph.dtype) and parameter.dtype is given is torch.float32
        require(dtype == own or wide, f"{name} is {dtype}, but the first parameter is {own}: one float type for all, please")

    def _require_alone(self, parameter: Any, path: str) -> None:
        other = self.stateful.get(id(parameter), path)
        require(other == path, f"shares a parameter with {other}, which cannot share any")

    def _given(self, value: Any) -> Any:
        if not isinstance(value, Ref):
            return value
        step = self.recording.steps[value.step]
        if isinstance(self.values[value], partial):  # a result that few read, which is built for them
            self.values[value] = self.values[value]()
        require(self.values[value] is not None, f"result {value.index} of {step.describe()} has no counterpart here")
        return self.values[value]

    def _named_at(self, where: str) -> Callable[[Any], Any]:
        """A parameter that an operator has already, by the name that it has in the module whose code stands there."""

        def found(value: Any) -> Any:
            if not isinstance(value, Held) or not value.site.has(value.tensor):
                return value
            other = f"{where}.{value.site.name.rpartition('.')[2]}"
            return replace(value, site=replace(value.site, name=other)) if self.aliases.get(other) is value.tensor else value

        return found

    def _tensor(self, name: str) -> Callable[[Any], Any]:
        return lambda value: tensor_of(value, self.graph, name)

    def _settle(self, step: TorchStep, value: Any) -> None:
        """Keep what a step became, having compared its shape, its type and whether a gradient flows with PyTorch's."""
        found = beside(step.result, value)
        for ref, theirs in zip((leaf for leaf in leaves(step.result) if isinstance(leaf, Ref)), step.values):
            ours = found.get(ref)
            if isinstance(ours, Side):
                require_shape(theirs, ours.shape)
            elif isinstance(ours, Mask):
                fits = ours.tensor.shape == tuple(theirs.shape) and not theirs.requires_grad
                require(fits, f"returns {theirs.dtype} {list(theirs.shape)} in PyTorch, but a mask {list(ours.tensor.shape)} here")
            elif isinstance(ours, Complex):
                require_shape(theirs, ours.shape)
                flows = any(map(self._depends_on_parameters, (ours.real, ours.imag)))
                require(theirs.is_complex() and (theirs.requires_grad or not flows), NO_GRADIENT)
            elif isinstance(ours, (Stacked, *Lazy)):
                require_shape(theirs, ours.shape)
                if not theirs.requires_grad and any(map(self._flows, ours.parts if isinstance(ours, Stacked) else (ours,))):
                    ours = self._compared(step, theirs, self._tensor(f"{step.where}.{step.name}".strip("."))(ours))
                if self.watch is not None:
                    ours = self.watch(step, ref.index, ours)
            elif isinstance(ours, Tensor):
                ours = self._compared(step, theirs, ours)
                if self.watch is not None:
                    ours = self.watch(step, ref.index, ours)
            self.values[ref] = ours

    def _compared(self, step: TorchStep, theirs: torch.Tensor, ours: Tensor) -> Tensor:
        """Ours, having compared it; behind `detach` where PyTorch lets no gradient through (detach, no_grad)."""
        dtype = name_of_type(theirs.dtype)
        require_shape(theirs, ours.shape)
        integers = ours.dtype.kind in "iu" and theirs.dtype in (torch.int32, torch.int64)
        require(str(ours.dtype) == dtype or integers, f"returns {dtype} in PyTorch, but {ours.dtype} here")
        if theirs.requires_grad or self.given or not self._depends_on_parameters(ours):
            return ours
        return ops.detach(ours, name=f"{ours.name}.detached")

    def _flows(self, value: Any) -> bool:
        """True if a gradient flows to what a value that is made later is made of."""
        return self._depends_on_parameters(of) if isinstance(of := origin_tensor(value), Tensor) else isinstance(of, Held)

    def _depends_on_parameters(self, ours: Tensor) -> bool:
        for node in self.graph.nodes[self.seen :]:
            if node.operator.stops_gradient:
                continue
            own = any(p.name not in self.frozen and not p.name.startswith(WATCHING) for p in node.parameters)
            if own or any(t.node in self.trained and t.spec.differentiable for t in node.inputs):
                self.trained.add(node.number)
        self.seen = len(self.graph.nodes)
        return ours.node in self.trained and ours.spec.differentiable

    def _result(self, value: Any) -> Any:
        if isinstance(value, Ref):
            require(not isinstance(self.values[value], Complex), "it returns complex numbers; return torch.view_as_real of them")
            return self._tensor("output")(self._given(value))
        return constant_of(value, self.graph, "output") if isinstance(value, Fixed) else value

    def _add_unused(self) -> None:
        """Parameters and running statistics that forward does not use are in the graph, too: files of weights have them."""
        have = {p.name for p in self.graph.parameters} | {n.name for n in self.graph if n.operator.kind == "state"}
        wanted = shapes_of(self.module)
        for name, shape in ((name, wanted[name]) for name in wanted if name not in have):
            if name.rpartition(".")[2] in ("running_mean", "running_var"):
                ops.state(self.graph, shape, lasting=True, name=name)
            else:
                ops.expand_weight(self.graph, shape, tuple(shape) or (1,), init=Init("constant", 0.0), name=name)
        wrong = [p.name for p in self.graph.parameters if p.name not in wanted and not p.name.startswith(WATCHING)]
        require(not wrong, f"{', '.join(wrong)}: no parameter of the module is called so; put it into a module of its own")

    def _is_fixed(self, name: str) -> bool:
        """True for a parameter of the module's that it does not train."""
        return name in self.parameters and not self.parameters[name].requires_grad

    def _free(self, name: str) -> str:
        """A name for what is no layer: weights are found by layers' names."""
        return f"{name}_in" if name in self.paths else name


def _is_known(function: Any) -> bool:
    """True for a function of torch that has a counterpart."""
    return any(function in known for known in (FUNCTIONS, OF_MASKS, OF_COMPLEX))
