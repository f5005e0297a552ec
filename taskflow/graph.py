"""OperatorGraph: a network as operators and the tensors between them, in the order in which model code added them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from taskflow.drawing import table
from taskflow.floats import float_type, is_narrow
from taskflow.operators.frozen import frozen
from taskflow.operators.operator import Dim, Operator, Reads, Soap, Spec
from taskflow.operators.tensor import Parameter, Tensor
from taskflow.regions import Rect
from taskflow.wording import some

AXES = 1 << 16  # that are kept
ALONG = (Soap.SAMPLE, Soap.ATTRIBUTE)  # dimensions that cut no weights
MOST_ROWS = 200  # of the table that a notebook shows
MOST_NAMES = 8  # of layers in a message
MOST_ELEMENTS = 2**50  # of an array: no cluster has memory for more, and sums over all arrays stay below 2**63 bytes


class FrameworkCall(NamedTuple):
    """The call of a framework's code that some operators do together: its number, and the name of the layer's class or function."""

    number: int
    what: str


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operator applied to given tensors. ``dims`` is its iteration space; a strategy says how it is cut. ``of_weights``: it is
    made of weights and constants alone, such as a table of positions, and has no samples: all samples share what it makes."""

    number: int
    name: str
    operator: Operator
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    parameters: tuple[Parameter, ...]
    specs: tuple[Spec, ...]  # of the inputs
    dims: tuple[Dim, ...]
    of_weights: bool = False

    @property
    def space(self) -> Rect:
        """The whole iteration space."""
        return Rect.of([dim.size for dim in self.dims])

    def reads(self, piece: Rect) -> Reads:
        """Return the Rects of inputs and parameters that the task of ``piece`` reads in training."""
        return self.operator.reads_in(self.specs, piece, training=True)

    def writes(self, piece: Rect) -> tuple[Rect, ...]:
        """Return the Rect of each output that the task of ``piece`` writes; its values may be partial sums."""
        return self.operator.writes(self.specs, piece)

    def axis(self, dim: int, rect_of: Callable[[Rect], Rect]) -> int | None:
        """Return the axis along which a Rect of a piece, such as its part of a weight, shrinks when dimension ``dim`` is halved;
        None if there is none, or the dimension has one point."""
        if self.dims[dim].size < 2:
            return None
        high = list(self.space.hi)
        high[dim] = self.dims[dim].size // 2
        whole, half = rect_of(self.space), rect_of(Rect(self.space.lo, tuple(high)))
        return next((k for k, (a, b) in enumerate(zip(whole.shape, half.shape)) if b < a), None)

    def read_axis(self, dim: int, index: int) -> int | None:
        """Return the `axis` of what a piece reads of an input."""
        return _read_axis(self.operator, self.specs, self.dims, dim, index)

    def written_axis(self, dim: int, index: int) -> int | None:
        """Return the `axis` of what a piece writes of an output."""
        return _written_axis(self.operator, self.specs, self.dims, dim, index)

    def __str__(self) -> str:
        dims = " ".join(f"{d.name}:{d.size}{d.soap.value[0] if d.divisible else ''}" for d in self.dims)
        return f"{self.name} = {self.operator.kind}({', '.join(t.name for t in self.inputs)}) {dims}"


# Networks have many operators that are alike, and every plan asks for the same axes again.
@lru_cache(AXES)
def _read_axis(operator: Operator, specs: tuple[Spec, ...], dims: tuple[Dim, ...], dim: int, index: int) -> int | None:
    node = Node(0, operator.kind, operator, (), (), (), specs, dims)
    return node.axis(dim, lambda piece: node.reads(piece).inputs[index])


@lru_cache(AXES)
def _written_axis(operator: Operator, specs: tuple[Spec, ...], dims: tuple[Dim, ...], dim: int, index: int) -> int | None:
    node = Node(0, operator.kind, operator, (), (), (), specs, dims)
    return node.axis(dim, lambda piece: node.writes(piece)[index])


class OperatorGraph:
    """Operators and the tensors between them, as model code builds them. ``taskflow.input(graph, ...)`` makes the first tensor;
    builder functions such as ``taskflow.linear(x, 10)`` find the graph through their tensors.

    Nodes are in program order, which is a topological order. ``dtype`` is the type of float inputs and parameters: float32,
    float64, or one of 16 bits, bfloat16 or float16. For 16-bit parameters training keeps and updates a float32 copy.
    """

    def __init__(self, dtype: str | np.dtype[Any] = "float32", name: str = "model") -> None:
        try:
            self.dtype = float_type(dtype)
        except ValueError as error:
            raise ValueError(f"OperatorGraph: {error}") from None
        self.name = name
        self.nodes: list[Node] = []
        self.parameters: list[Parameter] = []
        self.losses: list[Tensor] = []
        self.calls: dict[str, FrameworkCall] = {}  # by operator's name, for a network that was read from a framework's code
        self.carries: list[tuple[Tensor, Tensor]] = []  # (state, the tensor that it becomes in the next step)
        self._names: dict[str, int] = {}
        self._twins: dict[str, tuple[Parameter, ...]] = {}  # within `again`: parameters of the operators of a layer, by their names
        self._shared: set[int] = set()  # the nodes that are `Node.of_weights`
        self._samples_at: dict[tuple[int, int], int] = {}  # axis of the samples of (node, output), where that is not the first
        self._perhaps: set[int] = set()  # nodes made of constants whose first size is that of the samples, until they are read

    def apply(
        self,
        operator: Operator,
        inputs: Sequence[Tensor] = (),
        *,
        name: str | None = None,
        parameters: Sequence[Parameter] | None = None,
    ) -> tuple[Tensor, ...]:
        """Add a node and return its outputs; ``parameters`` shares those of an earlier node instead of making new ones."""
        twin, name = self._twins.get(name or operator.kind, ()), self._fresh(name or operator.kind)
        for tensor in inputs:
            if tensor.graph is not self:
                raise ValueError(f"{name}: input {tensor.name} belongs to another graph")
        specs = tuple(tensor.spec for tensor in inputs)
        outputs = operator.output(specs)
        wanted = operator.weights(specs)
        for shape in (*(s.shape for s in outputs), *(w.shape for w in wanted)):
            if prod(map(int, shape)) > MOST_ELEMENTS:
                raise ValueError(f"{name}: an array {list(shape)} has more than 2**50 elements, which no machine holds")
        parameters = twin or None if parameters is None else parameters
        if parameters is None:
            dtype = next((s.dtype for s in outputs if s.differentiable), self.dtype)
            parameters = tuple(
                Parameter(f"{name}.{w.name}" if w.name else name, name, Spec(w.shape, dtype), w.init) for w in wanted
            )
            self.parameters.extend(parameters)
        elif [p.shape for p in parameters] != [w.shape for w in wanted]:
            raise ValueError(
                f"{name}: needs parameters of shapes {[w.shape for w in wanted]}, "
                f"got {[p.shape for p in parameters]} to share"
            )
        if parameters and not any(parameter.trained for parameter in parameters):
            operator = frozen(operator)
        number = len(self.nodes)
        tensors = tuple(
            Tensor(self, number, i, name if len(outputs) == 1 else f"{name}.{i}", spec)
            for i, spec in enumerate(outputs)
        )
        dims = operator.dims(specs)
        constant = parameters or operator.kind == "constant" or inputs
        if constant and self._is_shared(inputs, dims):
            self._shared.add(number)
            dims = _without_samples(dims)
        elif constant and all(tensor.node in self._shared | self._perhaps for tensor in inputs):
            self._perhaps.add(number)
        elif (along := self._along_samples(operator, inputs, specs, dims)) is not None:
            dims = tuple(
                replace(dim, soap=Soap.SAMPLE if i == along else Soap.ATTRIBUTE) if dim.soap in ALONG else dim
                for i, dim in enumerate(dims)
            )
            axes = (_written_axis(operator, specs, dims, along, i) for i in range(len(outputs)))
            self._samples_at |= {(number, i): axis for i, axis in enumerate(axes) if axis}
        node = Node(number, name, operator, tuple(inputs), tensors, tuple(parameters), specs, dims, number in self._shared)
        self.nodes.append(node)
        if number not in self._perhaps and self._perhaps:
            self._decide(node)
        return tensors

    @contextmanager
    def again(self, layer: str) -> Iterator[None]:
        """Within the block an operator has the parameters of the one that is already there under the same name, of a layer whose
        operators' names are ``layer``, or begin with it and a point."""
        self._twins = {n.name: n.parameters for n in self.nodes if f"{n.name}.".startswith(f"{layer}.")}
        try:
            yield
        finally:
            self._twins = {}

    def _along_samples(
        self, operator: Operator, inputs: Sequence[Tensor], specs: tuple[Spec, ...], dims: tuple[Dim, ...]
    ) -> int | None:
        """The dimension of an operator that cuts the samples of its inputs. Mostly it is the one that the operator takes for them,
        but not where it is given them behind another dimension. None if none does."""
        first = next((i for i, dim in enumerate(dims) if dim.soap is Soap.SAMPLE), None)
        given = [
            (k, self._samples_at.get((t.node, t.index), 0)) for k, t in enumerate(inputs)
            if t.shape and t.node not in self._shared and t.node not in self._perhaps
        ]
        if first is None or not given:
            return None
        others = (i for i, dim in enumerate(dims) if dim.soap is Soap.ATTRIBUTE and dim.divisible)
        cuts = (i for i in (first, *others) if dims[i].size > 1)
        return next((i for i in cuts if any(_read_axis(operator, specs, dims, i, k) == axis for k, axis in given)), None)

    def _decide(self, node: Node) -> None:
        """Take the sample dimension from what is made of constants and happens to be as large as there are samples, if ``node``
        reads all of it for a part of its samples, as it does a table of positions."""
        part = next((i for i, dim in enumerate(node.dims) if dim.soap is Soap.SAMPLE and dim.size > 1), None)
        whole: list[int] = []
        for k, tensor in enumerate(node.inputs):
            if part is None or tensor.node not in self._perhaps:
                continue
            if node.read_axis(part, k) == 0:
                self._perhaps.discard(tensor.node)
            else:
                whole.append(tensor.node)
        while whole:
            number = whole.pop()
            if number in self._perhaps:
                self._perhaps.discard(number)
                self._shared.add(number)
                dims = _without_samples(self.nodes[number].dims)
                self.nodes[number] = replace(self.nodes[number], dims=dims, of_weights=True)
                whole += [tensor.node for tensor in self.nodes[number].inputs]
                # What is made of nothing else has none either.
                whole += [n for n in self._perhaps if n > number and all(t.node in self._shared for t in self.nodes[n].inputs)]

    def _is_shared(self, inputs: Sequence[Tensor], dims: Sequence[Dim]) -> bool:
        """True for an operator without samples, such as a table of positions: it is made of constants and weights alone, and is not
        repeated for each sample. Then its first dimension is no dimension of samples. One that is as large as there are samples
        is taken for samples until somebody reads it (`_decide`)."""
        if any(tensor.node not in self._shared for tensor in inputs):
            return False
        first = self.nodes[0] if self.nodes else None
        samples = next(iter(first.outputs[0].shape), None) if first is not None and first.operator.kind == "input" else None
        size = next((dim.size for dim in dims if dim.soap is Soap.SAMPLE), 1)
        if size == 1 or samples is None:
            return size == 1
        return size != samples or any(tensor.shape[:1] == (size,) for tensor in inputs)

    def parameters_of(self, tensor: Tensor) -> tuple[Parameter, ...]:
        """Return the parameters of the node that produces ``tensor``, to be shared with another node."""
        return self.nodes[tensor.node].parameters

    def freeze(self, *patterns: str) -> int:
        """Train nothing of the parameters whose name or layer matches one of ``patterns`` (as of file names: ``encoder.*``), once
        the network is there. Returns their number of scalars. Raises ValueError for a pattern that matches nothing, and as
        `freeze_parameters`."""
        names: set[str] = set()
        for pattern in patterns:
            some = {p.name for p in self.parameters if fnmatchcase(p.name, pattern) or fnmatchcase(p.layer, pattern)}
            if not some:
                raise ValueError(f"freeze: {pattern!r} matches no parameter of {self.name}; its layers are {self._some_layers()}")
            names |= some
        return self.freeze_parameters(names)

    def freeze_parameters(self, names: Collection[str]) -> int:
        """Train nothing of the parameters of these names. Returns their number of scalars. Raises ValueError for an operator of
        which only a part is trained then, such as a layer's bias alone."""
        chosen = {p: replace(p, trained=False) for p in self.parameters if p.trained and p.name in names}
        for node in self.nodes:
            trained = [p for p in node.parameters if p.trained and p not in chosen]
            if trained and len(trained) < len(node.parameters):
                raise ValueError(
                    f"freeze: of {node.name}'s parameters {', '.join(p.name for p in trained)} would be trained and others not; "
                    "an operator is trained whole or not at all: freeze all of them or none"
                )
        self.parameters = [chosen.get(p, p) for p in self.parameters]
        for i, node in enumerate(self.nodes):
            if any(p in chosen for p in node.parameters):
                parameters = tuple(chosen.get(p, p) for p in node.parameters)
                self.nodes[i] = replace(node, operator=frozen(node.operator), parameters=parameters)
        return sum(p.spec.rect.volume for p in chosen)

    def _some_layers(self) -> str:
        names = list(dict.fromkeys(p.layer for p in self.parameters))
        return some(names, MOST_NAMES)

    def minimize(self, *losses: Tensor) -> None:
        """Set the loss that training minimises: the sum of these scalars."""
        for loss in losses:
            if is_narrow(loss.spec.dtype):
                raise ValueError(
                    f"minimize: a loss must be in float32, got {loss.spec} of {loss.name}; such as cross_entropy and mse_loss give"
                )
            if loss.spec.rect.volume != 1 or not loss.spec.differentiable:
                raise ValueError(f"minimize: {loss.name} must be a float scalar, got {loss.spec}")
        self.losses.extend(losses)

    def carry(self, state: Tensor, becomes: Tensor) -> None:
        """Carry state between steps: ``state`` (a `taskflow.state`) starts the next step with the value that ``becomes`` has in
        this one, in place of what has carried it before."""
        if self.nodes[state.node].operator.kind != "state":
            raise ValueError(f"carry: {state.name} must come from taskflow.state, not {self.nodes[state.node].operator.kind}")
        if state.spec != becomes.spec:
            raise ValueError(f"carry: {state.name} is {state.spec} but {becomes.name} is {becomes.spec}")
        self.carries = [pair for pair in self.carries if pair[0] is not state] + [(state, becomes)]

    def carried(self, state: Tensor) -> Tensor:
        """Return what a state starts the next step with, as it is carried so far: itself if nothing carries it."""
        return next((becomes for carried, becomes in self.carries if carried is state), state)

    def node(self, name: str) -> Node:
        """Return the node of this name. Raises KeyError with the names that exist."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(f"no operator {name!r} in {self.name}; there are {', '.join(n.name for n in self.nodes)}")

    def producer(self, tensor: Tensor) -> Node:
        """Return the node whose output ``tensor`` is."""
        return self.nodes[tensor.node]

    @property
    def parameter_count(self) -> int:
        """Return the number of scalars of all parameters; shared ones count once."""
        return sum(p.spec.rect.volume for p in self.parameters)

    @property
    def trained_count(self) -> int:
        """Return how many of these are trained."""
        return sum(p.spec.rect.volume for p in self.parameters if p.trained)

    def fingerprint(self) -> str:
        """Return sixteen hex digits that change when an operator, a shape, a type or an edge changes."""
        text = "\n".join(
            f"{n.name}|{n.operator!r}|{[(t.node, t.index) for t in n.inputs]}|{n.specs}|{[p.name for p in n.parameters]}"
            for n in self.nodes
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        some = f" ({self.trained_count:,} trained)" if self.trained_count < self.parameter_count else ""
        return f"{self.name}: {len(self.nodes)} operators, {self.parameter_count:,} parameters{some}, {self.dtype}"

    def _repr_html_(self) -> str:
        rows = [
            (n.name, n.operator.kind, ", ".join(t.name for t in n.inputs), ", ".join(str(t.spec) for t in n.outputs),
             sum(p.spec.rect.volume for p in n.parameters))
            for n in self.nodes[:MOST_ROWS]
        ]
        left = len(self.nodes) - len(rows)
        head = ("operator", "kind", "inputs", "outputs", "parameters")
        return f"<div>{table(head, rows, repr(self))}{f'<div>and {left} more operators</div>' if left else ''}</div>"

    def _fresh(self, name: str) -> str:
        """``name``, or ``name_1``, ``name_2``, ... if it is taken."""
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return name if count == 0 else self._fresh(f"{name}_{count}")


def integers_of_data(graph: OperatorGraph) -> set[int]:
    """Return the numbers of the operators whose results are integers that depend on inputs of integers alone: no weights, and no
    gradients, flow into them."""
    found: set[int] = set()
    for node in graph:
        made_of = all(tensor.node in found for tensor in node.inputs) if node.inputs else node.operator.kind == "input"
        if made_of and not node.parameters and not any(tensor.spec.differentiable for tensor in node.outputs):
            found.add(node.number)
    return found


def _without_samples(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    return tuple(replace(dim, soap=Soap.ATTRIBUTE) if dim.soap is Soap.SAMPLE else dim for dim in dims)
