"""Fewer layers: finds layers of a network that are alike, and makes the network with fewer of them.

Of consecutive layers in one stage that are alike, the first, second, third and last are kept. All between the third and the last
are like the third, which waits for the second as the fourth does for the third. A stage may have several such runs: layers that
are recomputed, and then layers that are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import Strategy, block_of, units_of
from taskflow.operators.tensor import Tensor

KEPT = 4
"""Layers that are kept of those that are alike."""

Label = tuple[int, int]  # a group of layers, and which of the four that are kept


@dataclass(frozen=True, slots=True)
class FewerLayers:
    """``graph`` and ``strategy`` without the layers that equal others. ``labels``: for the remaining operators in a group of
    layers, for the layers of weights that they declare, and for what these are gathered with, their group and which kept layer they
    are in. ``copies``: by group,
    the number of layers that its third one stands for. ``whole``: for each node, the node in the whole graph. ``stands_for``: of
    operators of these third layers, and of what their weights are gathered with, those that they stand for, the own one first."""

    graph: OperatorGraph
    strategy: Strategy
    labels: Mapping[str, Label]
    copies: tuple[int, ...]
    whole: tuple[Node, ...]
    stands_for: Mapping[str, tuple[str, ...]]


def fewer_layers(graph: OperatorGraph, strategy: Strategy) -> FewerLayers | None:
    """Return the network without the layers that equal others; None if there are none."""
    if graph.carries:
        return None
    layers: dict[tuple[int, str], dict[str, list[Node]]] = {}  # by stage and by name without number
    apart = _constants_of_others(graph)
    for node in graph:
        if (block := block_of(node.name)) and node.number not in apart:
            stage = 0 if strategy.pipeline is None else strategy.pipeline.stage(node.name)
            family = block.rstrip("0123456789")
            layers.setdefault((stage, family), {}).setdefault(block, []).append(node)
    units = units_of(graph, strategy)
    groups = [group for of in layers.values() for group in _groups(graph, strategy, _in_units(list(of.values()), units), units)]
    if not groups:
        return None
    return _without(graph, strategy, groups, units)


def _in_units(layers: Sequence[list[Node]], units: Mapping[str, str]) -> list[list[Node]]:
    """Return the layers, with those that share a bucket of weights as one."""
    found: list[list[Node]] = []
    before: set[str] = set()
    for layer in layers:
        own = {units[p.layer] for node in layer for p in node.parameters if p.layer in units}
        if found and not own.isdisjoint(before):
            found[-1] = [*found[-1], *layer]
            before |= own
        else:
            found.append(layer)
            before = own
    return found


def _groups(
    graph: OperatorGraph, strategy: Strategy, layers: list[list[Node]], units: Mapping[str, str]
) -> list[_LayerGroup]:
    """Return groups of layers that are alike, or else of pairs of layers, as where every other one has experts."""
    for step in (1, 2):
        together = [[node for layer in layers[i : i + step] for node in layer] for i in range(0, len(layers) - step + 1, step)]
        if len(together) > KEPT and len(layers) % step == 0:
            found = [group for group in _LayerGroup(graph, strategy, together, units).runs() if group.may_be_left_out()]
            if found:
                return found
    return []


def every_layer(graph: OperatorGraph, strategy: Strategy) -> FewerLayers:
    """Return the whole network."""
    return FewerLayers(graph, strategy, {}, (), tuple(graph), {})


def _constants_of_others(graph: OperatorGraph) -> set[int]:
    """Return the numbers of constants, and of what is made of weights alone, that other layers read, too: they are in no layer.
    Tables of positions are such, and biases by distance; they have the name of the first layer that reads them."""
    found: set[int] = set()
    for node in graph:
        own = block_of(node.name)
        for tensor in node.inputs:
            of = graph.nodes[tensor.node]
            if not of.of_weights and (of.inputs or of.parameters or of.operator.kind == "input"):
                continue
            if block_of(of.name) not in ("", own):
                found.add(of.number)
    return found


class _LayerGroup:
    """Layers of one stage, in order."""

    def __init__(
        self, graph: OperatorGraph, strategy: Strategy, layers: Sequence[Sequence[Node]], units: Mapping[str, str]
    ) -> None:
        self.graph, self.strategy, self.layers, self.units = graph, strategy, layers, units
        self.place = {node.number: (i, k) for i, layer in enumerate(layers) for k, node in enumerate(layer)}
        self.names = [{node.name for node in layer} for layer in layers]
        self.losses = {loss.node: loss.index for loss in graph.losses}
        weights = [[p.layer for node in layer for p in node.parameters] for layer in layers]
        self.own_units = [{units[name] for name in of if name in units} for of in weights]
        self.firsts = [_firsts(of, units) for of in weights]

    def runs(self) -> Iterator[_LayerGroup]:
        """Yield the longest groups of consecutive layers in which all but the first and the last have the same operators, cut,
        placed and recomputed in the same way, which read the same values of the previous layer. The last layer of the stage may
        be unlike those before it, but the weights of all are kept in the same way. The first and last gathers and sums of a pass
        go with other passes. So they must not be those of a layer that stands for several."""
        signs = [[self._sign(i, node) for node in layer] for i, layer in enumerate(self.layers)]
        first = 0
        while first + KEPT < len(signs):
            if self._sharded(first) != self._sharded(first + 1):
                first += 1
                continue
            end = first + 2  # of those that are like the one after the first
            while end < len(signs) and None not in signs[end] and signs[end] == signs[first + 1]:
                end += 1
            end += end == len(signs) - 1 and self._sharded(end) == self._sharded(end - 1)
            if end - first > KEPT:
                yield _LayerGroup(self.graph, self.strategy, self.layers[first:end], self.units)
            first = end

    def _sharded(self, layer: int) -> list[int]:
        """The stages of ZeRO at which the weights of a layer are kept, one for each that it declares."""
        return [self.strategy.sync(p.layer).zero for node in self.layers[layer] for p in node.parameters]

    def _sign(self, layer: int, node: Node) -> object:
        """Key that is equal for another layer's node if the two are alike; None if no other is like it."""
        reads: list[object] = []
        for tensor in node.inputs:
            at = self.place.get(tensor.node)
            if at is None:
                reads.append((None, tensor.node, tensor.index))
            elif layer - at[0] in (0, 1):
                reads.append((layer - at[0], at[1], tensor.index))
            else:
                return None
        own = self.names[layer]
        if any(parameter.layer not in own for parameter in node.parameters):
            return None
        strategy, firsts = self.strategy, self.firsts[layer]
        return (
            node.operator, node.specs, node.dims, strategy[node.name],
            strategy.again.of(node.name),
            tuple(reads), self.losses.get(node.number),
            tuple((p.spec, strategy.sync(p.layer), p.layer == node.name, firsts.get(p.layer)) for p in node.parameters),
        )

    def may_be_left_out(self) -> bool:
        """True if each layer that would be left out is read only by the next one, and the last layer reads no others of these. What
        layers minimise themselves, each the same, is of their own. Nor does any share a bucket of weights with what stays."""
        low, high = 2, len(self.layers) - 2  # the third, and those that are like it
        inner = {units: layer for layer in range(1, high + 1) for units in self.own_units[layer]}
        for weights, unit in self.units.items():
            if unit in inner and weights not in self.names[inner[unit]]:
                return False
        for node in self.graph:
            own = self.place.get(node.number)
            for tensor in node.inputs:
                at = self.place.get(tensor.node)
                if at is not None and low <= at[0] <= high and (own is None or own[0] not in (at[0], at[0] + 1)):
                    return False
        return True

    @property
    def left_out(self) -> set[int]:
        """The numbers of the nodes of all layers between the third and the last."""
        return {node.number for layer in self.layers[KEPT - 1 : -1] for node in layer}

    @property
    def kept(self) -> list[Sequence[Node]]:
        return [*self.layers[: KEPT - 1], self.layers[-1]]


def _firsts(weights: Sequence[str], units: Mapping[str, str]) -> dict[str, int]:
    """By layer of weights that shares a bucket or a block, the place of the first one of these that is in the same."""
    first: dict[str, int] = {}
    return {name: first.setdefault(units[name], place) for place, name in enumerate(weights) if name in units}


def _without(
    graph: OperatorGraph, strategy: Strategy, groups: Sequence[_LayerGroup], units: Mapping[str, str]
) -> FewerLayers:
    left_out: set[int] = set().union(*(group.left_out for group in groups))
    instead = {  # of nodes of the last layer but one: the third one's
        old.number: new.number for group in groups for old, new in zip(group.layers[-2], group.layers[KEPT - 2])
    }
    found = OperatorGraph(graph.dtype, graph.name)
    numbers: dict[int, int] = {}

    def tensor(of: Tensor) -> Tensor:
        return found.nodes[numbers[instead.get(of.node, of.node)]].outputs[of.index]

    whole = [node for node in graph if node.number not in left_out]
    for node in whole:
        number = numbers[node.number] = len(found.nodes)
        outputs = tuple(Tensor(found, number, t.index, t.name, t.spec) for t in node.outputs)
        found.nodes.append(replace(node, number=number, inputs=tuple(map(tensor, node.inputs)), outputs=outputs))
    used = {parameter.name for node in whole for parameter in node.parameters}
    found.parameters = [parameter for parameter in graph.parameters if parameter.name in used]
    found.losses = [tensor(loss) for loss in graph.losses if loss.node not in left_out]
    names = {node.name for node in whole}
    pipeline = strategy.pipeline
    labels = {node.name: (g, c) for g, group in enumerate(groups) for c, layer in enumerate(group.kept) for node in layer}
    labels |= {unit: labels[layer] for layer, unit in units.items() if layer in labels}
    return FewerLayers(
        found,
        replace(
            strategy, configs={node.name: strategy[node.name] for node in whole}, again=strategy.again.among(names),
            pipeline=None if pipeline is None else replace(
                pipeline, stages={name: stage for name, stage in pipeline.stages.items() if name in names}
            ),
        ),
        labels,
        tuple(len(group.layers) - KEPT + 1 for group in groups),
        tuple(whole),
        {names[0]: names for group in groups for names in zip(*(_names(layer, units) for layer in group.layers[KEPT - 2 : -1]))},
    )


def _names(layer: Sequence[Node], units: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of a layer's operators, and of the blocks or buckets of its weights."""
    own = dict.fromkeys(units[p.layer] for node in layer for p in node.parameters if p.layer in units)
    return *(node.name for node in layer), *own
