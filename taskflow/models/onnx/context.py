"""Context of an import: what is known of every name of the file, and an account of where each initializer's numbers went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.operators.operator import Init
from taskflow.operators.tensor import Parameter, Tensor

LARGEST = 1e30  # an array with numbers beyond is a mask, and not trained


class Unknown(ValueError):
    """Error for a node that has no counterpart; the message says why."""


@dataclass(frozen=True, slots=True)
class ArrayPart:
    """How a layer's array lies in an initializer. ``first``: which element of the first dimension, if there are several layers. Of
    that the rows from ``low`` to ``high``, in ``shape``. ``order``: of the elements of the first dimension then, if it changes."""

    shape: tuple[int, ...]
    first: int | None = None
    low: int = 0
    high: int | None = None
    order: tuple[int, ...] | None = None

    def of(self, array: Any) -> Any:
        """Return the layer's array."""
        array = (array if self.first is None else array[self.first])[self.low : self.high].reshape(self.shape)
        return array if self.order is None else array[list(self.order)]


def read_as(array: Any, turned: bool | ArrayPart) -> Any:
    """Return an initializer as a layer reads it: whole, transposed, or in part."""
    return turned.of(array) if isinstance(turned, ArrayPart) else array.T if turned else array


@dataclass(frozen=True, slots=True)
class LayerWeight:
    """Trained array of the file that a layer has. ``name``: the initializer (or a Constant's output), and ``turned`` if it is
    read transposed, or in part; ``array`` as it is read."""

    name: str
    array: Any
    turned: bool | ArrayPart = False

    def part(self, part: ArrayPart) -> LayerWeight:
        """Return a part of what is whole."""
        if self.turned is not False:
            raise Unknown(f"{self.name} is read transposed by a layer that has several arrays in it")
        return LayerWeight(self.name, part.of(self.array), part)


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """Truth values that a node makes, as zeros and ones."""

    tensor: Tensor


@dataclass(frozen=True, slots=True)
class Account:
    """Where each initializer of a file went, by name. ``parameters``: to which of ours, and whether transposed; several have a
    copy each of a vector. ``states``: to which lasting states. ``constants``: those that became part of the graph. ``unused``:
    those that no operator needs."""

    parameters: dict[str, tuple[tuple[Parameter, bool | ArrayPart], ...]]
    states: dict[str, tuple[str, ...]]
    constants: frozenset[str]
    unused: tuple[str, ...]


@dataclass(slots=True)
class Context:
    """State of an import. ``arrays``: initializers, and values computed from constants. ``values``: tensors by ONNX's names.
    ``truth``: those of them that stand for truth values, as zeros and ones. ``also``: other names of initializers, and whether
    transposed. ``owned``: our parameters by initializer. ``left_out``: outputs of nodes without a counterpart."""

    onnx: Any
    graph: OperatorGraph
    opset: int
    arrays: dict[str, Any]
    initial: frozenset[str] = frozenset()
    values: dict[str, Tensor] = field(default_factory=dict)
    truth: set[str] = field(default_factory=set)
    also: dict[str, tuple[str, bool]] = field(default_factory=dict)
    owned: dict[str, tuple[tuple[Parameter, bool | ArrayPart], ...]] = field(default_factory=dict)
    together: dict[tuple[tuple[str, bool | ArrayPart], ...], tuple[Parameter, ...]] = field(default_factory=dict)
    states: dict[str, tuple[str, ...]] = field(default_factory=dict)
    constants: set[str] = field(default_factory=set)
    left_out: dict[str, str] = field(default_factory=dict)
    made_by: dict[str, Any] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)  # by the node that is followed now
    moving: bool = False  # that node moves truth values about

    def __post_init__(self) -> None:
        self.initial = frozenset(self.arrays)

    # ---- what a node says ------------------------------------------------------------------------------------------------

    def attributes(self, node: Any, **defaults: Any) -> dict[str, Any]:
        """Return a node's attributes, with defaults for those that are absent. Raises Unknown for any other attribute."""
        given = {a.name: self.onnx.helper.get_attribute_value(a) for a in node.attribute}
        given = {k: v.decode(errors="backslashreplace") if isinstance(v, bytes) else v for k, v in given.items()}
        if other := sorted(given.keys() - defaults.keys()):
            raise Unknown(f"attribute {other[0]}={given[other[0]]!r} is not understood")
        return defaults | given

    @staticmethod
    def has(node: Any, number: int) -> bool:
        """True if a node has this input (an optional one may be absent, or have an empty name)."""
        return number < len(node.input) and bool(node.input[number])

    def _named(self, node: Any, number: int) -> str:
        if not self.has(node, number):
            raise Unknown(f"input {number} is missing")
        return str(node.input[number])

    # ---- the ways of reading an input: each is entered into the account --------------------------------------------------

    def constant(self, node: Any, number: int) -> Any:
        """Return the numbers of an input that must be constant; None if the node has no such input."""
        if not self.has(node, number):
            return None
        name = node.input[number]
        if name not in self.arrays:
            raise Unknown(f"input {number} must be a constant")
        self._fixed(name)
        return self.arrays[name]

    def number(self, node: Any, number: int) -> float | None:
        """Return an input that is a constant of one number; None for any other."""
        array = self.arrays.get(node.input[number]) if self.has(node, number) else None
        return None if array is None or array.size != 1 else float(self.constant(node, number).reshape(-1)[0])

    def shape(self, node: Any, number: int) -> tuple[int, ...] | None:
        """Return the shape of an input, known or computed, without reading it; None if the node has no such input."""
        name = node.input[number] if self.has(node, number) else ""
        if name in self.values:
            return self.values[name].shape
        known = self.weight_at(name)
        return tuple(known.array.shape) if known is not None else None

    def tensor(self, node: Any, number: int) -> Tensor:
        """Return an input as a tensor: a trained initializer as a parameter of its own, any other array as a constant."""
        name = self._named(node, number)
        if name in self.truth and not self.moving:
            raise Unknown(f"input {number} ({name}) is a mask, for Cast, Where, And, Or, Not and what moves elements")
        self.read.add(name)
        if name in self.values:
            return self.values[name]
        if self.is_parameter(name):
            weight = self.weight_at(name)
            assert weight is not None, "an initializer has numbers"
            return self.parameter(weight)
        self._fixed(name)
        array = self.arrays[name]
        if array.dtype.kind == "f" and array.dtype != np.dtype(self.graph.dtype):
            raise Unknown(f"input {number} ({name}) is {array.dtype}; one float type in the whole network, please")
        if array.dtype.kind not in "fiu":
            raise Unknown(f"input {number} ({name}) is {array.dtype}, which no operator here reads")
        result = ops.constant(self.graph, array.reshape(array.shape or (1,)), name=f"{name_of(node)}.constant")
        return result if array.shape else ops.reshape(result, ())

    def is_truth(self, node: Any, number: int) -> bool:
        """True if an input is truth values."""
        name = self._named(node, number)
        return name in self.truth or (name in self.arrays and self.arrays[name].dtype.kind == "b")

    def mask(self, node: Any, number: int) -> Tensor:
        """Return truth values as zeros and ones."""
        if not self.is_truth(node, number):
            raise Unknown(f"input {number} must be truth values")
        name = node.input[number]
        self.read.add(name)
        if name in self.values:
            return self.values[name]
        self._fixed(name)
        array = self.arrays[name].astype(self.graph.dtype)
        return ops.constant(self.graph, array.reshape(array.shape or (1,)), name=f"{name_of(node)}.constant")

    def weight(self, node: Any, number: int) -> LayerWeight:
        """Return an input that a layer trains: an initializer, also transposed, or a Constant. Raises Unknown if it is computed."""
        name = self._named(node, number)
        found = self.weight_at(name)
        if found is None:
            raise Unknown(f"input {number} ({name}) must be an initializer, as a layer's weight is here")
        if found.array.dtype != np.dtype(self.graph.dtype):
            raise Unknown(f"input {number} ({name}) is {found.array.dtype}; only {self.graph.dtype}")
        self.read.add(name)
        return found

    def weight_at(self, name: str) -> LayerWeight | None:
        """Return what is known under a name, an initializer's or another name of it; None for what is computed."""
        if name in self.also:
            original, turned = self.also[name]
            array = self.arrays[original]
            return LayerWeight(original, array.T if turned else array, turned)
        return LayerWeight(name, self.arrays[name]) if name in self.arrays else None

    def is_parameter(self, name: str) -> bool:
        """True for a float initializer that is trained by itself: one of several numbers, all of them of a usual size."""
        name = self.also[name][0] if name in self.also else name
        array = self.arrays.get(name)
        if array is None or name not in self.initial or array.dtype.kind != "f" or array.size <= 1:
            return False
        return float(np.abs(array).max()) < LARGEST  # False for NaN as well

    def _fixed(self, name: str) -> None:
        self.read.add(name)
        self.constants.add(name)

    # ---- parameters ------------------------------------------------------------------------------------------------------

    def tied(self, weight: LayerWeight) -> tuple[Parameter, bool | ArrayPart] | None:
        """Return the parameter that stands for a matrix already, and whether it is transposed. Vectors are not shared: exporters
        merge those that are equal, such as biases of zeros."""
        return self.owned[weight.name][0] if weight.name in self.owned and weight.array.ndim > 1 else None

    def owners(self, *weights: LayerWeight) -> Sequence[Parameter] | None:
        """Return the parameters of another layer with these arrays; None if there is none. Raises Unknown if it has only some of
        them, or has one the other way round."""
        if all(self.tied(weight) is None for weight in weights):
            return None
        key = tuple((weight.name, weight.turned) for weight in weights)
        if key not in self.together:
            raise Unknown(f"shares {weights[0].name} with a node that has other weights beside it, or reads it transposed")
        return self.together[key]

    def own(self, result: Tensor, *weights: LayerWeight) -> Tensor:
        """Enter a layer's parameters, in the order of ``weights``, into the account."""
        parameters = self.graph.parameters_of(result)
        if [p.shape for p in parameters] != [w.array.shape for w in weights]:
            shapes = ", ".join(f"{w.name} {list(w.array.shape)}" for w in weights)
            raise Unknown(f"its weights are {shapes}, but {', '.join(str(list(p.shape)) for p in parameters)} are needed")
        self.together.setdefault(tuple((weight.name, weight.turned) for weight in weights), parameters)
        for parameter, weight in zip(parameters, weights):
            self.together.setdefault(((weight.name, weight.turned),), (parameter,))
            there = self.owned.get(weight.name, ())
            if all(parameter != other for other, _ in there):
                self.owned[weight.name] = (*there, (parameter, weight.turned))
        return result

    def build(self, builder: Callable[..., Tensor], weights: Sequence[LayerWeight], *args: Any, **options: Any) -> Tensor:
        """Add an operator by its builder, of arguments and of trained arrays: those of another layer if it has them."""
        return self.own(builder(*args, **options, parameters=self.owners(*weights)), *weights)

    def parameter(self, weight: LayerWeight) -> Tensor:
        """Return a trained array as a tensor by itself."""
        held = self.tied(weight)
        kept = weight.turned if held is None else held[1]
        own = weight if kept == weight.turned else LayerWeight(weight.name, weight.array.T, kept)
        shape = own.array.shape
        result = self.build(ops.expand_weight, [own], self.graph, shape, shape, init=started(own.array), name=own.name)
        return result if own is weight else ops.transpose(result, 0, 1, name=f"{own.name}.turned")

    def with_parameter(self, builder: Callable[..., Tensor], x: Tensor, weight: LayerWeight) -> Tensor:
        """Combine a tensor and a trained array that is broadcast to its shape, as one operator."""
        return self.build(builder, [weight], x, weight.array.shape, init=started(weight.array), name=weight.name)

    def hold(self, tensor: Tensor, weight: LayerWeight) -> None:
        """Enter a lasting state, which begins with an array of the file, into the account."""
        if tensor.shape != weight.array.shape:
            raise Unknown(f"{weight.name} is {list(weight.array.shape)}, but {list(tensor.shape)} is needed")
        self.states[weight.name] = (*self.states.get(weight.name, ()), self.graph.nodes[tensor.node].name)

    def account(self) -> Account:
        """Return where every initializer went."""
        known = {*self.owned, *self.states, *self.constants}
        unused = tuple(name for name in self.arrays if name in self.initial and name not in known)
        return Account(self.owned, self.states, frozenset(self.constants & self.initial), unused)


Handler = Callable[[Context, Any], Any]
HANDLERS: dict[str, Handler] = {}


def says(*names: str) -> Callable[[Handler], Handler]:
    """Decorator that registers a function for these operators of ONNX."""

    def add(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return add


def name_of(node: Any) -> str:
    """Return a node's name, or its output's."""
    return str(node.name or next(filter(None, node.output), node.op_type))


def started(array: Any) -> Init:
    """Return how a parameter begins that has no numbers of a file: with some like these."""
    return Init("normal", float(array.std()) or 0.02)
