"""What moves between processors, against counting single elements of tensors on random networks under random strategies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
import pytest
from core_cases import Odd, shared
from fast_and_slow import fast_among
from random_networks import network

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig, SyncAlgorithm
from taskflow.mapper.strategy import SUMS
from taskflow.models import build
from taskflow.operators.tensor import Tensor
from taskflow.optimizer.cost.pieces import Pieces
from taskflow.optimizer.evaluate import evaluator as new_evaluator
from taskflow.optimizer.space.decisions import Nearest
from taskflow.optimizer.space.space import SearchSpace, SpaceOptions
from taskflow.optimizer.traffic.additive import Additive
from taskflow.optimizer.traffic.edges import Accesses, common, corners_of, makers, needed, owned, sent
from taskflow.optimizer.traffic.loads import Loads
from taskflow.optimizer.traffic.messages import LOOKS, Links, Messages
from taskflow.regions import Rect
from taskflow.rules import SGD

N = 4  # processors
EVERY = range(24)
SEEDS = fast_among(EVERY, range(10))
Cuts = dict[str, OpConfig]
Table = np.ndarray  # type: ignore[type-arg]  # elements or bytes (source, target)


def case(seed: int) -> tuple[OperatorGraph, Cuts]:
    """A random network with random cuts, some of them uneven."""
    graph, random = network(seed)[0], Random(seed)
    return graph, {node.name: drawn(node, graph, random) for node in graph}


def drawn(node: Node, graph: OperatorGraph, random: Random) -> OpConfig:
    config = SearchSpace(graph, N, SpaceOptions("any", "arbitrary", most_pieces=N))[node].draw(random)
    if random.random() < 0.7:
        return config
    weights = tuple(tuple(random.choice((1.0, 2.0)) for _ in range(d)) if d > 1 else () for d in config.degrees)
    return OpConfig(config.degrees, config.processors, weights)


def points(rect: Rect, tensor: Tensor) -> Table:
    """True at the elements of a Rect."""
    mask = np.zeros(tensor.shape, dtype=bool)
    mask[rect.slices(Rect.of(tensor.shape))] = True
    return mask


def writes(graph: OperatorGraph, tensor: Tensor, configs: Cuts) -> list[tuple[Rect, int]]:
    giver = graph.producer(tensor)
    return [(giver.writes(piece)[tensor.index], p) for piece, p in configs[giver.name].pieces(giver)]


def reads(uses: Sequence[tuple[Node, int]], configs: Cuts) -> list[tuple[Rect, int]]:
    return list({
        (reader.reads(piece).inputs[i], p): None for reader, i in uses for piece, p in configs[reader.name].pieces(reader)
    })


def owners(written: Sequence[tuple[Rect, int]], tensor: Tensor) -> Table:
    """Of each element the processor that has it: the first that computes (a part of) it."""
    table = np.full(tensor.shape, -1)
    for rect, p in written:
        table[points(rect, tensor) & (table < 0)] = p
    return table


def moved(graph: OperatorGraph, tensor: Tensor, uses: Sequence[tuple[Node, int]], configs: Cuts) -> Table:
    """Elements that readers get from owners, element by element."""
    table, of = np.zeros((N, N)), owners(writes(graph, tensor, configs), tensor)
    for rect, target in reads(uses, configs):
        for source in range(N):
            table[source, target] += np.count_nonzero(points(rect, tensor) & (of == source))
    return table


def edges(graph: OperatorGraph) -> Iterator[tuple[Tensor, list[tuple[Node, int]]]]:
    """Each tensor that is read, with its readers."""
    for node in graph:
        for tensor in node.outputs:
            uses = [(reader, i) for reader in graph for i, t in enumerate(reader.inputs) if t is tensor]
            if uses:
                yield tensor, uses


@pytest.mark.parametrize("seed", EVERY)
def test_every_element_that_a_piece_needs_comes_from_its_owner(seed: int) -> None:
    graph, configs = case(seed)
    accesses = Accesses(graph)
    for tensor, uses in edges(graph):
        giver = graph.producer(tensor)
        held = owned(makers(accesses(giver, configs[giver.name]), configs[giver.name], tensor.index))
        read = needed((accesses(r, configs[r.name]), configs[r.name], i) for r, i in uses)
        found = sent(common(read, held), read, held, N)[0].reshape(N, N)
        assert np.array_equal(found, moved(graph, tensor, uses, configs))


def ring(group: Sequence[int], size: float) -> Table:
    """An all-reduce: each of a ring sends all but one of its shares twice."""
    table, order = np.zeros((N, N)), sorted(group)
    for i, p in enumerate(order):
        table[p, order[(i + 1) % len(order)]] += 2 * size * (len(order) - 1) / len(order)
    return table * (1 - np.eye(N))


def summed(graph: OperatorGraph, tensor: Tensor, uses: Sequence[tuple[Node, int]], configs: Cuts, sums: SyncAlgorithm) -> Table:
    """Elements that travel to readers, and to add up partial values. An all-reduce leaves the sum with all who take part, so
    it is done if each of them reads some of it."""
    written, total = writes(graph, tensor, configs), moved(graph, tensor, uses, configs)
    for rect in dict.fromkeys(rect for rect, _ in written):
        group = list(dict.fromkeys(p for other, p in written if other == rect))
        there = points(rect, tensor)
        if len(group) == 1:
            continue
        read = {p: sum(np.count_nonzero(there & points(r, tensor)) for r, q in reads(uses, configs) if q == p) for p in group}
        if sums is SyncAlgorithm.COLLECTIVE and all(read.values()):
            total += ring(group, rect.volume)
            for p in group:
                total[group[0], p] -= read[p]
        else:
            total[group[1:], group[0]] += rect.volume
    return total


def weights(users: Sequence[Node], configs: Cuts) -> Table:
    """Bytes to synchronise what operators share."""
    total = np.zeros((N, N))
    for i, parameter in enumerate(users[0].parameters):
        held: dict[Rect, set[int]] = {}
        for node in users:
            for piece, p in configs[node.name].pieces(node):
                held.setdefault(node.reads(piece).weights[i], set()).add(p)
        for rect, group in held.items():
            total += ring(list(group), rect.volume * parameter.spec.dtype.itemsize)
    return total


def busy(links: dict[int, float], nbytes: Table) -> None:
    """Add the seconds of messages between pairs of processors to those of every link of their routes."""
    machine, costs = shared(N), Odd(2)
    for source, target in np.argwhere(nbytes):
        for link in machine.route(source, target):
            links[link.number] = links.get(link.number, 0.0) + costs.copy(source, target, nbytes[source, target])


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("seed", EVERY)
def test_loads_are_the_seconds_of_all_elements(seed: int, sums: SyncAlgorithm) -> None:
    graph, configs = case(seed)
    evaluator = new_evaluator(graph, shared(N), Odd(2), SGD())
    pieces = Pieces(graph, evaluator.costs, True)
    processors, links = np.zeros(N), dict[int, float]()
    for node in graph:
        for piece, p in configs[node.name].pieces(node):
            processors[p] += sum(pieces.seconds(node, piece, p))
    for tensor, uses in edges(graph):
        nbytes = summed(graph, tensor, uses, configs, sums) * tensor.dtype.itemsize * (1 - np.eye(N))
        busy(links, nbytes)
        if (tensor.node, tensor.index) in pieces.needs_gradient:
            busy(links, nbytes.T)
    for first in {node.parameters[0].name: node for node in graph if node.parameters}.values():
        users = [node for node in graph if node.parameters[:1] == first.parameters[:1]]
        busy(links, weights(users, configs))
    found = Loads(evaluator, sums=sums).of(configs)
    assert found[:N] == pytest.approx(processors, rel=1e-12)  # seconds are added in another order
    assert sorted(s for s in found[N:] if s) == pytest.approx(sorted(links.values()), rel=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_additive_costs_are_the_busiest_links_seconds(seed: int) -> None:
    """Of tensors without partial values; these are sent by all who have one, as `corners_of` says."""
    graph, random = network(seed)[0], Random(seed)
    evaluator = new_evaluator(graph, shared(N), Odd(2), SGD())
    choices = [[drawn(node, graph, random) for _ in range(3)] for node in graph]
    cost, flow = Additive(evaluator, [[node] for node in graph], choices), Pieces(graph, evaluator.costs, True)
    expected: dict[tuple[int, int], Table] = {}
    for node in graph:
        for i, tensor in enumerate(node.inputs):
            giver, ways = graph.producer(tensor), 2 if (tensor.node, tensor.index) in flow.needs_gradient else 1
            table = np.zeros((3, 3))
            for at in np.ndindex(3, 3):
                configs = {giver.name: choices[giver.number][at[0]], node.name: choices[node.number][at[1]]}
                nbytes, written = np.zeros((N, N)), list(dict.fromkeys(writes(graph, tensor, configs)))
                for (rect, p), (other, q) in ((w, r) for w in written for r in reads([(node, i)], configs)):
                    nbytes[p, q] += np.count_nonzero(points(rect, tensor) & points(other, tensor))
                links: dict[int, float] = {}
                busy(links, nbytes * ways * tensor.dtype.itemsize)
                table[at] = max(links.values(), default=0.0)
            key = (giver.number, node.number)
            expected[key] = expected[key] + table if key in expected else table
    assert cost.edges.keys() == expected.keys()
    for key, table in expected.items():
        assert cost.edges[key] == pytest.approx(table, rel=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_nearest_configuration_moves_fewest_bytes(seed: int) -> None:
    graph, random = network(seed)[0], Random(seed)
    accesses = Accesses(graph)
    for node in graph:
        for leader in {graph.producer(tensor) for tensor in node.inputs}:
            for one, other in ((node, leader), (leader, node)):
                several, chosen = [drawn(one, graph, random) for _ in range(6)], drawn(other, graph, random)
                keys = []
                for config in several:
                    configs, nbytes = {one.name: config, other.name: chosen}, np.zeros((N, N))
                    for tensor in leader.outputs:
                        uses = [(node, i) for i, t in enumerate(node.inputs) if t is tensor]
                        nbytes += moved(graph, tensor, uses, configs) * tensor.dtype.itemsize * (1 - np.eye(N))
                    keys.append((nbytes.sum(), nbytes.max(), config.processors[0] != chosen.processors[0]))
                assert Nearest(one, several, other, accesses)(chosen) is several[keys.index(min(keys))]


def met(graph: OperatorGraph, tensor: Tensor, reader: Node, index: int, configs: Cuts) -> list[int]:
    """Of each piece of a reader: from how many Rects that are written it gets an element."""
    written = [points(rect, tensor) for rect in dict.fromkeys(rect for rect, _ in writes(graph, tensor, configs))]
    config = configs[reader.name]
    return [
        sum(bool((points(reader.reads(piece).inputs[index], tensor) & there).any()) for there in written)
        for piece, _ in config.pieces(reader)
    ]


@pytest.mark.parametrize("seed", EVERY)
def test_messages_between_few_pieces_are_counted_one_by_one(seed: int) -> None:
    """All pieces of a reader are looked at if there are fewer than twice LOOKS."""
    assert N < 2 * LOOKS
    graph, configs = case(seed)
    sums = [sum(met(graph, tensor, r, i, configs)) for tensor, uses in edges(graph) for r, i in uses]
    assert Messages(graph).around({}, configs) == 2 * sum(sums)


@pytest.mark.parametrize("seed", range(8))
def test_messages_between_many_pieces_are_counted_by_a_few(seed: int) -> None:
    """Every piece that is looked at stands for as many as there are pieces for each look, so that the count lies between what it
    would be if all met as few, or as many, as any does: neighbours at a border are fewer. Over a network that evens out: these
    counts are 4 % off at most."""
    graph, random = build(("AlexNet", "GPT-2", "NMT", "RNNLM")[seed % 4], preset="small"), Random(seed)
    space, total, exact = SearchSpace(graph, 32), 0, 0
    messages, configs = Messages(graph), dict[str, OpConfig]()
    for node in graph:
        most = [c for c in (space[node].draw(random) for _ in range(20)) if len(c.processors) >= 2 * LOOKS]
        configs[node.name] = most[0] if most else space[node].draw(random)
    for tensor, uses in list(edges(graph))[:40]:
        for reader, i in uses:
            each = met(graph, tensor, reader, i, configs)
            giver = graph.producer(tensor)
            count = messages._count(giver, configs[giver.name], tensor, reader, configs[reader.name], i)
            assert min(each) * len(each) <= count <= max(each) * len(each)
            total, exact = total + count, exact + sum(each)
    assert total == pytest.approx(exact, rel=0.05)


def test_the_rate_of_a_link_is_fitted_once_for_routes_of_a_class() -> None:
    asked = []

    class Counted(Odd):
        def copy(self, source: int, target: int, nbytes: int, runs: tuple[int, int] = (1, 1)) -> float:
            asked.append((source, target))
            return super().copy(source, target, nbytes, runs)

    links = Links(shared(8), Counted(2))
    assert len(asked) == 2 * len({Odd(2).route_class(p, q) for p, q in asked}) == 6
    nbytes, random = np.zeros((3, 64)), Random(0)
    for row in range(3):
        for _ in range(9):
            nbytes[row, random.randrange(64)] = random.randrange(1 << 20)
    for row in nbytes:
        expected: dict[int, float] = {}
        for source, target in np.argwhere(row.reshape(8, 8)):
            for link in shared(8).route(source, target):
                seconds = Odd(2).copy(source, target, row[source * 8 + target])
                expected[link.number] = expected.get(link.number, 0.0) + seconds
        assert sorted(s for s in links.busy(row) if s) == pytest.approx(sorted(expected.values()), rel=1e-9)
        assert links.busiest(row[None])[0] == pytest.approx(max(expected.values()), rel=1e-9)


def test_partial_values_have_an_owner_and_other_makers() -> None:
    graph = build("MLP", preset="small")
    node = next(n for n in graph if n.parameters)
    config = OpConfig(tuple(3 if d.soap.value == "reduction" else 1 for d in node.dims), (2, 0, 1))
    of = makers(Accesses(graph)(node, config), config, 0)
    assert [list(group) for group in of.values()] == [[2, 0, 1]]
    assert list(owned(of).processor) == [2] and list(corners_of(of).processor) == [2, 0, 1]
