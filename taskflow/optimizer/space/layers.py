"""Layers: a graph as a few layers, each of which decides for the operators around it.

The operators that share weights form a layer, led by the first. Operators with few or no weights follow: activations, sums,
concatenations, normalisations, losses, and the states and tokens that a layer reads. A follower is cut where its tensor is cut,
and runs where the tensor is. So a network of hundreds of operators has only as many decisions as layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import Match, OpConfig, by_class, config_like, degrees_like
from taskflow.operators.operator import Soap
from taskflow.regions import Rect

MOST_SPREADS = 20_000  # layers' configurations that are remembered for all their operators


@dataclass(frozen=True, slots=True)
class Layer:
    """Operators that are decided about together. ``leaders``: operators that take the layer's configuration. ``followers``:
    (operator, the operator that it follows, the match of their dimensions), each after the one that it follows. ``weights``:
    the names of its parameters' layers."""

    leaders: tuple[Node, ...]
    followers: tuple[tuple[Node, Node, Match], ...]
    weights: tuple[str, ...]

    @property
    def weight_bytes(self) -> int:
        """Bytes of the leaders' parameters."""
        return sum(p.spec.nbytes for p in {p.name: p for node in self.leaders for p in node.parameters}.values())

    def spread(self, config: OpConfig) -> dict[str, OpConfig]:
        """Return the configurations of all operators of the layer when its leaders have this one. A follower is cut along the
        tensor between it and the one that it follows, and further by its samples if processors would otherwise have no piece."""
        configs = {node.name: config for node in self.leaders}
        for node, source, match in self.followers:
            configs[node.name] = config_like(node.dims, match, configs[source.name], fill=True)
        return configs

    def like(self, other: Layer, degrees: Sequence[int]) -> tuple[int, ...]:
        """Return the degrees of its leaders if it is cut like another layer whose leaders have these."""
        dims = self.leaders[0].dims
        return degrees_like(dims, by_class(dims, other.leaders[0].dims), degrees)


class Spreads:
    """Cache of `Layer.spread`, shared by all layers that are alike."""

    def __init__(self) -> None:
        self._kinds: dict[object, int] = {}
        self._known: dict[str, tuple[int, tuple[str, ...]]] = {}  # by a layer's first operator
        self._spreads: dict[tuple[int, OpConfig], tuple[OpConfig, ...]] = {}

    def __call__(self, layer: Layer, config: OpConfig) -> dict[str, OpConfig]:
        """As ``layer.spread(config)``."""
        first = layer.leaders[0].name
        if first not in self._known:
            self._known[first] = self._describe(layer)
        kind, names = self._known[first]
        if (kind, config) not in self._spreads:
            if len(self._spreads) > MOST_SPREADS:
                self._spreads.clear()
            self._spreads[kind, config] = tuple(layer.spread(config).values())
        return dict(zip(names, self._spreads[kind, config]))

    def _describe(self, layer: Layer) -> tuple[int, tuple[str, ...]]:
        """A number that a layer shares with those in which operators with equal dimensions follow each other alike, and its
        operators' names in the order of `Layer.spread`."""
        places = {node.name: i for i, node in enumerate(layer.leaders)}
        follows = []
        for node, source, match in layer.followers:
            follows.append((node.dims, places[source.name], match))
            places[node.name] = len(places)
        return self._kinds.setdefault((len(layer.leaders), tuple(follows)), len(self._kinds)), tuple(places)


def layers(graph: OperatorGraph) -> tuple[Layer, ...]:
    """Return the layers of a graph, in program order of their leaders. An operator that is connected with no layer is a layer
    itself."""
    group = _leaders(graph)
    follows: dict[int, tuple[Node, Match]] = {}
    order: list[Node] = []
    for node in graph:  # behind a layer: with the largest input
        decided = [i for i, t in enumerate(node.inputs) if t.node in group]
        if node.number not in group and decided:
            index = max(decided, key=lambda i: (node.inputs[i].spec.rect.volume, -i))
            source = graph.producer(node.inputs[index])
            group[node.number], follows[node.number] = group[source.number], (source, _behind(source, node, index))
            order.append(node)
    for node in reversed(graph.nodes):  # before any layer: with the first that reads it
        if node.number not in group:
            readers = [(r, i) for r in graph for i, t in enumerate(r.inputs) if t.node == node.number]
            reader, index = next(((r, i) for r, i in readers if r.number in group), (None, 0))
            if reader is None:
                group[node.number] = ("alone", node.name)
                continue
            back = _behind(node, reader, index)
            match = tuple(back.index(i) if i in back else None for i in range(len(node.dims)))
            group[node.number], follows[node.number] = group[reader.number], (reader, match)
            order.append(node)
    found: dict[object, list[Node]] = {}
    for node in graph:
        if node.number not in follows:
            found.setdefault(group[node.number], []).append(node)
    return tuple(
        Layer(
            tuple(leaders),
            tuple((n, *follows[n.number]) for n in order if group[n.number] == key),
            tuple(dict.fromkeys(p.layer for leader in leaders for p in leader.parameters)),
        )
        for key, leaders in found.items()
    )


def _leaders(graph: OperatorGraph) -> dict[int, object]:
    """Operators with matrices of weights -> what they share. Vectors of weights (normalisations) do not lead."""
    found: dict[int, object] = {}
    for node in graph:
        if any(p.spec.rect.volume > max(p.shape, default=1) for p in node.parameters):
            found[node.number] = (node.parameters[0].name, node.operator, node.specs)
    return found


def _behind(source: Node, target: Node, index: int) -> Match:
    """For each dimension of ``target``, the dimension of ``source`` that cuts the tensor between them (``target``'s input
    number ``index``) along the same axis; contracted dimensions match nothing."""
    output = target.inputs[index].index
    written = [_direction(source, i, lambda piece: source.writes(piece)[output]) for i in range(len(source.dims))]
    return tuple(
        written.index(way)
        if (way := _direction(target, i, lambda piece: target.reads(piece).inputs[index])) is not None and way in written
        else None
        for i in range(len(target.dims))
    )


def _direction(node: Node, i: int, rect_of: Callable[[Rect], Rect]) -> int | None:
    """The dimension in which a tensor's Rect shrinks if the operator's dimension ``i`` is halved."""
    dim = node.dims[i]
    return None if dim.size < 2 or not dim.divisible or dim.soap is Soap.REDUCTION else node.axis(i, rect_of)
