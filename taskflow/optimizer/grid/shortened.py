"""Shortened: a few layers of a stage, in place of many that are alike, and the steps of one device's passes over them.

Where weights are gathered and gradients are reduced in every pass (ZeRO's stages 2 and 3), how long a pass takes depends on which
operator each collective is beside. A stage's passes are walked through operator by operator, with three of each run of layers
that are alike; each of the others takes as long as the third.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from taskflow.mapper import blocks_of
from taskflow.optimizer.grid.node_table import Array
from taskflow.optimizer.grid.tables import GraphTables
from taskflow.tasks.lower import AHEAD

KEPT = 3  # of the periods that are alike
LONGEST = 4  # layers of a period
ROOM = 2  # weights whose whole gradients a device has at once (``tasks.lower.state``, room_for_gradients)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of periods (a few layers each) that are alike, of which `KEPT` are walked through. ``first``: the number of the first
    kept layer of each of these; ``end``: that after the last; ``more``: how many periods are left out."""

    first: tuple[int, ...]
    end: int
    more: int


def shortened(kinds: Sequence[object]) -> tuple[list[int], list[Run]]:
    """Return the numbers of the layers that are kept, and the runs of those that are left out. ``kinds``: equal for layers that
    are alike."""
    kept: list[int] = []
    runs: list[Run] = []
    at = 0
    while at < len(kinds):
        size, times = 1, 1
        for one in range(1, LONGEST + 1):
            period, n = kinds[at : at + one], 1
            while kinds[at + n * one : at + (n + 1) * one] == period and len(period) == one:
                n += 1
            if (n - KEPT) * one > (times - KEPT) * size:
                size, times = one, n
        if times <= KEPT:
            kept.append(at)
            at += 1
            continue
        begin = len(kept)
        kept.extend(range(at, at + KEPT * size))
        runs.append(Run(tuple(begin + i * size for i in range(KEPT)), len(kept), times - KEPT))
        at += times * size
    return kept, runs


@dataclass(slots=True)
class WalkStep:
    """A task of one operator on a device, forward or (``back``) backward; ``again``: recomputed. ``sends``: the collectives of its
    output or gradient, which begin when it ends; ``begins``: the gathers that may begin then; ``reduces``: the reductions of
    gradients that are complete then; ``waits``: the collectives that it waits for. All are numbered together."""

    node: int
    back: bool = False
    again: bool = False
    sends: list[int] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    reduces: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Walk:
    """Steps of a device: the forward pass of the last layer, a backward pass, and a forward pass. ``ends``: for each of the
    three, the number of the step that ends each kept layer. ``collectives``: of a gather or a reduction the name of its weights,
    of another its read and 0 or (of a gradient) 1; ``names``: the names among them. ``gathers``, ``reductions``: the weights of
    those that wait for steps; the first gathers wait for none. ``complete``: of a reduction, for each part of its weights that
    other devices hold, the step by which its gradients are complete: experts' are before those of the attention."""

    steps: list[WalkStep] = field(default_factory=list)
    collectives: list[str | tuple[int, int]] = field(default_factory=list)
    names: Sequence[str] = ()
    ends: tuple[dict[int, int], ...] = ()
    runs: Sequence[Run] = ()
    gathers: list[str] = field(default_factory=list)
    reductions: list[str] = field(default_factory=list)
    complete: dict[int, tuple[int, ...]] = field(default_factory=dict)


class GraphLists:
    """What walks ask of a graph's tables again and again, as lists. Of each read that is its source; of each node its reads,
    the reads of its outputs, the layers whose weights it has, the blocks that these are gathered with, and whether its
    outputs are kept. ``weights_kept``: whether its backward task reads its weights."""

    def __init__(self, tables: GraphTables) -> None:
        graph = tables.graph
        self.active: list[bool] = tables.active.tolist()
        self.source: list[int] = tables.output_node[tables.read_tensor].tolist()
        self.reader: list[int] = tables.read_node.tolist()
        self.read_kept: list[bool] = tables.read_kept.tolist()
        self.layers = [tuple(dict.fromkeys(parameter.layer for parameter in node.parameters)) for node in graph]
        blocks = blocks_of(graph)
        self.blocks = [tuple(dict.fromkeys(blocks.get(layer, layer) for layer in layers)) for layers in self.layers]
        self.weights_kept = [bool(node.parameters) and node.operator.keeps(node.specs).weights for node in graph]
        self.reads: list[list[int]] = [[] for _ in graph]
        self.readers: list[list[int]] = [[] for _ in graph]
        for read, (source, reader) in enumerate(zip(self.source, self.reader)):
            self.reads[reader].append(read)
            self.readers[source].append(read)
        self.outputs_kept = [False] * len(self.reads)
        for node, kept in zip(tables.output_node.tolist(), tables.output_kept.tolist()):
            self.outputs_kept[node] |= kept


class WalkMaker:
    """Makes the walk of layers, each given by its nodes. ``names``: of each node, the weights that are gathered and reduced
    together: those of a layer, or of a block. ``parts``: of such a name, the nodes of each part that other devices hold.
    ``gathered``, ``reduced``: whether weights of a name are in each pass. ``again``: the nodes whose results are not kept, but
    computed again; ``always``: those that run again before their backward step in any case; ``saves``: those that save something
    for it. ``ahead``: how many names ahead weights are gathered. ``anew``: the reads that are brought again for the backward pass,
    unless they are computed again."""

    def __init__(
        self, lists: GraphLists, layers: Sequence[Sequence[int]], stage: frozenset[int], again: Array, always: Array, saves: Array,
        names: Mapping[int, Sequence[str]], parts: Callable[[str], Sequence[frozenset[int]]], gathered: Callable[[str], bool],
        reduced: Callable[[str], bool], ahead: int, anew: Array,
    ) -> None:
        self.lists, self.layers, self.stage, self.names, self.parts = lists, layers, stage, names, parts
        self.again, self.always, self.saves, self.ahead = again.tolist(), always.tolist(), saves.tolist(), ahead
        self.gathered, self.reduced, self.anew = gathered, reduced, anew.tolist()
        self.built = Walk()
        self.steps = self.built.steps
        self.visits: list[list[int]] = []  # number of a gather, and the step that used its weights last
        self.now: dict[str, int] = {}  # weights -> visit, in this pass
        self.reductions: list[int] = []
        self.sent: dict[tuple[int, int, int], int] = {}  # step, read, direction -> collective

    def walk(self, runs: list[Run]) -> Walk:
        """Return the walk."""
        self.built.ends = (self._forward(self.layers[-1:]), self._backward(), self._forward(self.layers))
        self.built.runs = runs
        self.built.names = tuple(dict.fromkeys(one for one in self.built.collectives if isinstance(one, str)))
        for step in self.steps:
            self.built.gathers += [str(self.built.collectives[number]) for number in step.begins]
            self.built.reductions += [str(self.built.collectives[number]) for number in step.reduces]
        return self.built

    def _forward(self, layers: Sequence[Sequence[int]]) -> dict[int, int]:
        there: dict[int, int] = {}
        ends: dict[int, int] = {}
        for layer, nodes in enumerate(layers):
            for node in nodes:
                step = WalkStep(node)
                for read in self.lists.reads[node]:
                    self._brought(step, read, 0, self.lists.source[read], there)
                there[node] = self._append(step)
            ends[layer] = len(self.steps) - 1
        self.now.clear()
        return ends

    def _backward(self) -> dict[int, int]:
        there: dict[int, int] = {}
        again: dict[int, int] = {}
        ends: dict[int, int] = {}
        last = {
            name: node for nodes in self.layers[::-1] for node in nodes[::-1] if self.lists.active[node]
            for name in self.names[node]
        }
        for layer in reversed(range(len(self.layers))):
            for node in self.layers[layer][::-1]:
                if not self.lists.active[node]:
                    continue
                self._recompute(node, again)
                step = WalkStep(node, back=True)
                for read in self.lists.reads[node]:
                    if self.lists.read_kept[read] and self.lists.source[read] in again:
                        self._brought(step, read, 0, self.lists.source[read], again)
                    elif self.lists.read_kept[read] and self.anew[read] and not self.again[node] and len(self.steps) >= AHEAD:
                        self._brought(step, read, 0, node, {node: len(self.steps) - AHEAD})
                for read in self.lists.readers[node]:
                    self._brought(step, read, 1, self.lists.reader[read], there)
                names = [name for name in self.names[node] if self.reduced(name)]
                if names and len(self.reductions) >= ROOM:
                    step.waits.append(self.reductions[-ROOM])
                there[node] = self._append(step)
                for name in names:
                    if last[name] == node:
                        step.reduces.append(self._collective(name))
                        self.built.complete[step.reduces[-1]] = tuple(
                            max([there[one] for one in part if one in there], default=there[node]) for part in self.parts(name)
                        )
                self.reductions += step.reduces
            ends[layer] = len(self.steps) - 1
        self.now.clear()
        return ends

    def _recompute(self, node: int, again: dict[int, int]) -> None:
        """Append the steps that compute again what a backward step reads, as ``tasks.lower.again`` does."""
        own = self.always[node] or (self.again[node] and (self.saves[node] or self.lists.outputs_kept[node]))
        if not own and not any(self.lists.read_kept[read] for read in self.lists.reads[node]):
            return
        wanted: set[int] = set()
        left = [node]
        while left:
            reader = left.pop()
            if reader != node or own:
                if reader in again or reader in wanted:
                    continue
                wanted.add(reader)
            sources = [self.lists.source[read] for read in self.lists.reads[reader]]
            left += [source for source in sources if self.again[source] and source in self.stage]
        for number in sorted(wanted):
            step = WalkStep(number, again=True)
            for read in self.lists.reads[number]:
                if self.again[self.lists.source[read]]:
                    self._brought(step, read, 0, self.lists.source[read], again)
            again[number] = self._append(step)

    def _brought(self, step: WalkStep, read: int, which: int, source: int, there: dict[int, int]) -> None:
        """Let a step wait for what a collective brings from the step of a node. That of a layer which is left out is taken to
        have just ended; what comes from another stage is no collective."""
        if source not in self.stage:
            return
        at = there.get(source, len(self.steps) - 1)
        if at < 0:
            return
        if (at, read, which) not in self.sent:
            self.sent[at, read, which] = self._collective((read, which))
            self.steps[at].sends.append(self.sent[at, read, which])
        step.waits.append(self.sent[at, read, which])

    def _collective(self, what: str | tuple[int, int]) -> int:
        self.built.collectives.append(what)
        return len(self.built.collectives) - 1

    def _append(self, step: WalkStep) -> int:
        number, reads = len(self.steps), not step.back or self.lists.weights_kept[step.node]
        for name in filter(self.gathered, self.names[step.node]):
            if reads and name not in self.now:
                self.now[name] = len(self.visits)
                before = len(self.visits) - 1 - self.ahead
                gather = self._collective(name)
                if before >= 0:
                    self.steps[self.visits[before][1]].begins.append(gather)
                self.visits.append([gather, number])
            if name in self.now:
                visit = self.visits[self.now[name]]
                visit[1] = number
                step.waits += [visit[0]] * reads
        self.steps.append(step)
        return number
