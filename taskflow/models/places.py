"""with_places: a network whose experts have places for a stated number of tokens, so that plans can deal the experts.

Without a capacity ("dropless") only the data say how many tokens an expert gets, and plans are made before there are data. A
factor says how many the busiest device is planned for. The simulator, folded steps, closed forms and memory all follow from that.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf

import numpy as np

from taskflow.graph import Node, OperatorGraph
from taskflow.operators.binary import Add, Binary
from taskflow.operators.cast import Cast
from taskflow.operators.combine import CombineExperts
from taskflow.operators.combine_weights import CombineWeights
from taskflow.operators.constant import ConstantArray
from taskflow.operators.dispatch import Dispatch
from taskflow.operators.einsum import Einsum
from taskflow.operators.elementary import Log, Power, Rsqrt, Sqrt
from taskflow.operators.embedding import Embedding
from taskflow.operators.expert_linear import ExpertLinear
from taskflow.operators.expert_places import ExpertPlaces
from taskflow.operators.free_weight import expand_weight
from taskflow.operators.operator import Operator
from taskflow.operators.reduce import Reduce
from taskflow.operators.reshape import reshape
from taskflow.operators.routed_linear import RoutedLinear
from taskflow.operators.swiglu import SwiGLU
from taskflow.operators.tensor import Tensor
from taskflow.operators.top_k_routing import TopKRouting
from taskflow.operators.unary import Unary

Key = tuple[int, int]  # a tensor: its node's number, and which output it is


def is_dropless(graph: OperatorGraph) -> bool:
    """True for networks with experts that have no places: every token is served where it is."""
    return any(isinstance(node.operator, RoutedLinear) for node in graph)


def has_experts(graph: OperatorGraph) -> bool:
    """True for networks with experts."""
    return any(isinstance(node.operator, (RoutedLinear, ExpertLinear, TopKRouting)) for node in graph)


def with_places(graph: OperatorGraph, imbalance: float = 1.0) -> OperatorGraph:
    """Return the network with places for ``imbalance`` times as many tokens of each expert as routing provides for.

    Of experts without a capacity that is so many times the mean: S k / E of the S tokens of a group, each of which chooses k of E
    experts. Their layers become `dispatch`, `expert_linear` and `combine`, with the same names and weights, so a plan's ``eN`` can
    deal them. Tokens beyond the places add nothing; with ``imbalance`` E / k there are none, and results are the same. Experts
    with a capacity get so many times their places. Raises ValueError for a factor below 1 or not finite, for a network without
    experts, and for one that does with its experts' outputs what cannot be done at their places.
    """
    if not 1 <= imbalance < inf:
        raise ValueError(f"expert imbalance: must be a number of at least 1 (1: all experts get as many tokens), got {imbalance}")
    if not has_experts(graph):
        raise ValueError(f"expert imbalance: {graph.name} has no experts (expert_linear, routed_linear); leave it out")
    if not is_dropless(graph) and imbalance == 1:
        return graph
    return _WithPlaces(graph, imbalance).graph


class _WithPlaces:
    """A network as it is built again. ``placed``: tensors (G, S, k, ...) of the old one, and what the experts' places hold."""

    def __init__(self, old: OperatorGraph, imbalance: float) -> None:
        self.old, self.imbalance = old, imbalance
        self.graph = OperatorGraph(old.dtype, old.name)
        self.graph.parameters, self.graph.calls = list(old.parameters), dict(old.calls)
        self.new: dict[Key, Tensor] = {}
        self.placed: dict[Key, tuple[Tensor, Tensor]] = {}  # with the slots of its tokens
        self.slots: dict[Key, Tensor] = {}
        self.sent: dict[tuple[Key, Key], Tensor] = {}
        self.biases = _biases(old)
        for node in old:
            self._add(node)
        self.graph.losses = [self.new[_key(loss)] for loss in old.losses]
        self.graph.carries = [(self.new[_key(state)], self.new[_key(becomes)]) for state, becomes in old.carries]

    def _add(self, node: Node) -> None:
        if isinstance(node.operator, RoutedLinear):
            self._multiply(node, node.operator)
        elif any(_key(tensor) in self.placed for tensor in node.inputs):
            self._follow(node)
        elif node.outputs and _key(node.outputs[0]) in self.biases:
            return  # added where the experts' outputs are placed
        else:
            inputs = [self.new[_key(tensor)] for tensor in node.inputs]
            self._keep(node, self.graph.apply(self._larger(node.operator), inputs, name=node.name, parameters=node.parameters))

    def _keep(self, node: Node, result: tuple[Tensor, ...]) -> None:
        self.new.update((_key(old), tensor) for old, tensor in zip(node.outputs, result))

    def _larger(self, operator: Operator) -> Operator:
        """An operator with more places, if it has any."""
        if not isinstance(operator, (TopKRouting, Dispatch, CombineWeights)) or operator.capacity is None:
            return operator
        return replace(operator, capacity=ceil(operator.capacity * self.imbalance))

    def _multiply(self, node: Node, operator: RoutedLinear) -> None:
        """A layer of experts, over their places."""
        x, chosen = node.inputs
        held = self.placed.get(_key(x))
        if held is None:
            if len(x.shape) != 3:
                raise self._cannot(node, f"reads {x.name}, a row for each choice of a token, which no layer of experts made")
            slots = self._slots_of(node, chosen, operator.experts)
            held = self._sent(node, x, chosen, slots), slots
        (result,) = self.graph.apply(ExpertLinear(operator.out_features), (held[0],), name=node.name, parameters=node.parameters)
        self.placed[_key(node.outputs[0])] = result, held[1]

    def _slots_of(self, node: Node, chosen: Tensor, experts: int) -> Tensor:
        if (key := _key(chosen)) not in self.slots:
            _, tokens, choices = chosen.shape
            capacity = min(tokens, ceil(self.imbalance * tokens * choices / experts))
            (self.slots[key],) = self.graph.apply(
                ExpertPlaces(experts, capacity), (self.new[key],), name=self._called(node, f"{node.name}.places")
            )
        return self.slots[key]

    def _sent(self, node: Node, x: Tensor, chosen: Tensor, slots: Tensor) -> Tensor:
        if (key := (_key(x), _key(chosen))) not in self.sent:
            places = self.graph.producer(slots).operator
            assert isinstance(places, ExpertPlaces)
            inputs, name = (self.new[_key(x)], slots), self._called(node, f"{node.name}.dispatch")
            (self.sent[key],) = self.graph.apply(Dispatch(places.experts, places.capacity), inputs, name=name)
        return self.sent[key]

    def _called(self, node: Node, name: str) -> str:
        """The name of one more operator, which the same call of a framework's code does."""
        if (call := self.old.calls.get(node.name)) is not None:
            self.graph.calls[name] = call
        return name

    def _follow(self, node: Node) -> None:
        """What reads experts' outputs: does the same at their places, or adds them up for each token."""
        held = [self.placed.get(_key(tensor)) for tensor in node.inputs]
        first = next(one for one in held if one is not None)
        if isinstance(node.operator, Einsum) and len(held) == 2 and (weights := _weights_of(node, node.operator)) is not None:
            rows, slots = self.placed[_key(node.inputs[1 - weights])]
            inputs = rows, self.new[_key(node.inputs[weights])], slots
            self._keep(node, self.graph.apply(CombineExperts(), inputs, name=node.name))
            return
        if isinstance(node.operator, Reduce) and _adds_choices(node.operator):
            rows, slots = first
            ones = ConstantArray.of(np.ones(slots.shape, rows.dtype))
            (equal,) = self.graph.apply(ones, (), name=self._called(node, f"{node.name}.weights"))
            self._keep(node, self.graph.apply(CombineExperts(), (rows, equal, slots), name=node.name))
            return
        if isinstance(node.operator, Add) and (bias := next((b for t in node.inputs if (b := self.biases.get(_key(t)))), None)):
            self._bias(node, bias, first)
            return
        if any(one is None or one[1] is not first[1] for one in held) or not _by_element(node):
            raise self._cannot(node, f"({node.operator.kind}) is not known to do the same with them where they are placed")
        result = self.graph.apply(
            node.operator, [one[0] for one in held if one is not None], name=node.name, parameters=node.parameters
        )
        self.placed.update((_key(old), (tensor, first[1])) for old, tensor in zip(node.outputs, result))

    def _bias(self, node: Node, table: Node, held: tuple[Tensor, Tensor]) -> None:
        """Add each expert's bias, a row of a table that tokens chose, at all of its places."""
        rows, slots = held
        (parameter,) = table.parameters
        shape = parameter.shape
        whole = expand_weight(self.graph, shape, shape, init=parameter.init, name=table.name, parameters=table.parameters)
        each = reshape(whole, (1, shape[0], 1, shape[1]), name=self._called(node, f"{table.name}.each"))
        (result,) = self.graph.apply(Add(), (rows, each), name=node.name)
        self.placed[_key(node.outputs[0])] = result, slots

    def _cannot(self, node: Node, why: str) -> ValueError:
        return ValueError(
            f"expert imbalance: experts of {self.old.name} cannot have places: {node.name} {why}; leave eN and the factor out"
        )


def _biases(graph: OperatorGraph) -> dict[Key, Node]:
    """Tables whose rows tokens choose as they choose experts, to add them to what these give, by what is chosen."""
    chosen = {_key(node.inputs[1]) for node in graph if isinstance(node.operator, RoutedLinear)}
    experts = {_key(node.outputs[0]) for node in graph if isinstance(node.operator, RoutedLinear)}
    found = {
        _key(node.outputs[0]): node for node in graph if isinstance(node.operator, Embedding) and _key(node.inputs[0]) in chosen
    }
    for node in graph:
        if not isinstance(node.operator, Add) or not any(_key(tensor) in experts for tensor in node.inputs):
            for tensor in node.inputs:
                found.pop(_key(tensor), None)
    return found


def _key(tensor: Tensor) -> Key:
    return tensor.node, tensor.index


def _by_element(node: Node) -> bool:
    """True for operators that do the same with every number, wherever it lies, and have a gradient at the zeros of empty places."""
    same = isinstance(node.operator, (Unary, Binary, SwiGLU, Cast)) and not isinstance(node.operator, (Log, Sqrt, Rsqrt, Power))
    return same and all(spec.shape == node.specs[0].shape for spec in node.specs)


def _adds_choices(operator: Reduce) -> bool:
    """True for the sum of rows (G, S, k, M) over the choices, as where experts read what is weighted already (Llama 4)."""
    return not operator.mean and not operator.keepdim and tuple(operator.over) == (2,)


def _weights_of(node: Node, operator: Einsum) -> int | None:
    """Which operand has the weights of choices, if an einsum adds up rows (G, S, k, M) with weights (G, S, k) to (G, S, M)."""
    operands, out = operator.equation.split("->")
    letters = operands.split(",")
    for weights, rows in ((1, 0), (0, 1)):
        if len(letters[weights]) == 3 and letters[rows][:3] == letters[weights] and out == letters[rows][:2] + letters[rows][3:]:
            return weights
    return None
