"""Propagation: derives the configurations of all operators from annotations of some tensors (GShard, section 3.2).

GSPMD (arXiv 2105.04663, section 3.5) does the same dimension by dimension; here an operator takes one tensor's cut as a whole.
Operators get their cut in this order of preference; within one kind, those nearer to an annotation come first, then program
order:

0. the operator reads a parameter that is annotated;
1. forward: an input is cut, and its dimensions are dimensions of the output;
2. backward: a reader of an output has it cut;
3. forward, where a dimension that is summed over would be cut: partial sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from taskflow.annotations.annotation import Annotation, annotations_of
from taskflow.annotations.links import FREE, MIXED, CutLinks, Known, links
from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig, ranges
from taskflow.operators.operator import Soap
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect

WAYS = ("annotated weight", "forward", "backward", "partial sums")


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of a tensor: the number of pieces along each dimension, and the processor of each piece (the last dimension
    fastest)."""

    degrees: tuple[int, ...]
    processors: tuple[int, ...]

    def __str__(self) -> str:
        cuts = " ".join(f"{dim} in {k}" for dim, k in enumerate(self.degrees) if k > 1) or "whole"
        return f"{cuts} @ {ranges(self.processors)}"


@dataclass(frozen=True, slots=True)
class Reason:
    """Reason why an operator is cut as it is. ``origin``: the annotation that the cut comes from. ``through``: the last tensor
    that passed it on. ``way``: index into `WAYS`. ``hops``: operators between here and the annotation."""

    origin: str
    through: str
    way: int
    hops: int

    def __str__(self) -> str:
        return f"{WAYS[self.way]} from {self.through}, by {self.origin}"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two cuts that reach an operator in the same way: the one that was taken, and the other."""

    operator: str
    taken: Reason
    config: str
    other: Reason
    other_config: str

    def __str__(self) -> str:
        return f"{self.operator}: {self.config} ({self.taken}) was taken, not {self.other_config} ({self.other})"


@dataclass(frozen=True, slots=True)
class TensorRow:
    """Row of a table of tensors: how the tensor is made, how its annotation wants it read (empty: as it is made), and why."""

    tensor: str
    written: str
    read: str
    why: str


@dataclass(slots=True)
class Propagated:
    """Result of `propagate`. ``configs`` and ``reasons``: of the operators that annotations reach. ``conflicts``: operators
    where two annotations meet."""

    graph: OperatorGraph
    annotations: dict[str, Annotation]
    processors: int
    configs: dict[str, OpConfig] = field(default_factory=dict)
    reasons: dict[str, Reason] = field(default_factory=dict)
    conflicts: list[Conflict] = field(default_factory=list)

    @property
    def open(self) -> list[str]:
        """Operators that no annotation reaches. A search or `Annotated` decides about them."""
        return [node.name for node in self.graph if node.name not in self.configs]

    def constraints(self) -> dict[str, dict[str, str]]:
        """Constraints that pin the operators with a configuration, so that a search decides only about the others."""
        return {name: {"pin": config.describe(self.graph.node(name))} for name, config in self.configs.items()}

    def rows(self, found: dict[str, OpConfig] | None = None) -> list[TensorRow]:
        """Return a row for each tensor. ``found``: configurations of a plan, for operators that are open here."""
        rows = []
        for node in self.graph:
            config = self.configs.get(node.name) or (found or {}).get(node.name)
            for tensor in node.outputs:
                note = self.annotations.get(tensor.name)
                why = f"annotated: {note.text}" if note is not None else ""
                reason = self.reasons.get(node.name)
                why += ("; made " if why else "") + (str(reason) if reason is not None else "found" if config else "open")
                read = "" if note is None else "whole" if note.replicated else str(Layout(note.degrees, note.processors))
                rows.append(TensorRow(tensor.name, "" if config is None else config.describe(node), read, why))
        for name, note in self.annotations.items():
            if not any(name == row.tensor for row in rows):
                cut = "whole" if note.replicated else str(Layout(note.degrees, note.processors))
                rows.append(TensorRow(name, cut, "", f"annotated: {note.text}"))
        return rows

    def __str__(self) -> str:
        rows = [("tensor", "made", "read as", "why"), *((r.tensor, r.written, r.read, r.why) for r in self.rows())]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ["  ".join((*(cell.ljust(w) for cell, w in zip(row, widths)), row[3])).rstrip() for row in rows]
        return "\n".join([*lines, *(f"conflict at {conflict}" for conflict in self.conflicts)])


def propagate(graph: OperatorGraph, processors: int, strict: bool = False) -> Propagated:
    """Propagate the annotations of a graph's tensors until nothing changes. Raises ValueError if an annotation names a
    processor that does not exist or if no operator can have it; with ``strict``, also at the first conflict, naming both
    origins."""
    walk = _Propagation(graph, processors)
    walk.run()
    if strict and walk.result.conflicts:
        raise ValueError(f"annotations of {graph.name} contradict each other: {walk.result.conflicts[0]}")
    return walk.result


class _Propagation:
    def __init__(self, graph: OperatorGraph, processors: int) -> None:
        self.graph = graph
        self.result = Propagated(graph, annotations_of(graph), processors)
        self.readers: dict[tuple[int, int], list[tuple[Node, int]]] = {}
        self.known: Known = {}
        self.queue: list[tuple[int, int, int, int]] = []
        self.proposals: list[tuple[OpConfig, Reason]] = []
        for node in graph:
            for number, tensor in enumerate(node.inputs):
                self.readers.setdefault((tensor.node, tensor.index), []).append((node, number))
        for note in self.result.annotations.values():
            if over := [p for p in note.processors if not 0 <= p < processors]:
                raise ValueError(f"{note}: processor {over[0]} does not exist; there are 0 to {processors - 1}")

    def run(self) -> None:
        for node in self.graph:
            for number, parameter in enumerate(node.parameters):
                note = self.result.annotations.get(parameter.name)
                if note is not None and not note.replicated:
                    self._offer(node, "weights", number, Layout(note.degrees, note.processors), str(note), parameter.name, 0, 1)
            for tensor in node.outputs:
                note = self.result.annotations.get(tensor.name)
                if note is not None and not note.replicated:
                    layout = Layout(note.degrees, note.processors)
                    self._to_readers(tensor, layout, str(note), 1)
                    self._offer(node, "outputs", tensor.index, layout, str(note), tensor.name, 2, 1)
        while self.queue:
            _, _, number, at = heappop(self.queue)
            self._take(self.graph.nodes[number], *self.proposals[at])

    def _take(self, node: Node, config: OpConfig, reason: Reason) -> None:
        have = self.result.configs.get(node.name)
        if have is not None:
            before = self.result.reasons[node.name]
            if have != config and before.way == reason.way and before.origin != reason.origin:
                self.result.conflicts.append(Conflict(node.name, before, have.describe(node), reason, config.describe(node)))
            return
        self.result.configs[node.name], self.result.reasons[node.name] = config, reason
        for tensor in node.outputs:
            if tensor.name not in self.result.annotations:
                layout = self._layout(node, config, "outputs", tensor.index, tensor.shape)
                if layout is not None:
                    self._to_readers(tensor, layout, reason.origin, reason.hops + 1)
        for number, tensor in enumerate(node.inputs):
            layout = self._layout(node, config, "inputs", number, tensor.shape)
            if layout is not None and tensor.name not in self.result.annotations:
                maker = self.graph.producer(tensor)
                self._offer(maker, "outputs", tensor.index, layout, reason.origin, tensor.name, 2, reason.hops + 1)

    def _to_readers(self, tensor: Tensor, layout: Layout, origin: str, hops: int) -> None:
        for node, number in self.readers.get((tensor.node, tensor.index), ()):
            self._offer(node, "inputs", number, layout, origin, tensor.name, 1, hops)

    # ---- proposals ---------------------------------------------------------------------------------------------------

    def _offer(
        self, node: Node, group: str, number: int, layout: Layout, origin: str, through: str, way: int, hops: int
    ) -> None:
        """Put a tensor's layout before an operator, if it can be cut so."""
        config = self._config(node, group, number, layout)
        if config is None:
            return
        if way == 1 and any(k > 1 and self._summed(node, i, k) for i, k in enumerate(config.degrees)):
            way = 3
        heappush(self.queue, (way, hops, node.number, len(self.proposals)))
        self.proposals.append((config, Reason(origin, through, way, hops)))

    def _config(self, node: Node, group: str, number: int, layout: Layout) -> OpConfig | None:
        """The operator cut as one of its tensors is; None if none of its dimensions goes with one that is cut, or an annotation
        forbids it."""
        chosen: dict[int, int] = {}  # the tensor's dimension: the operator's
        for axis, degree in enumerate(layout.degrees):
            if degree == 1:
                continue
            fits = [
                i for i, dim in enumerate(node.dims)
                if dim.divisible and dim.size >= degree and i not in chosen.values()
                and getattr(self._links(node, i, degree), group)[number] == axis
            ]
            fits.sort(key=lambda i: node.dims[i].soap is Soap.REDUCTION)
            if not fits or not self._allowed(node, fits[0], degree):
                return None
            chosen[axis] = fits[0]
        if not chosen:
            return None
        order = sorted(chosen, key=chosen.__getitem__)
        table = np.asarray(layout.processors).reshape([k for k in layout.degrees if k > 1])
        cut = [axis for axis, k in enumerate(layout.degrees) if k > 1]
        table = table.transpose([cut.index(axis) for axis in order])
        degrees = [1] * len(node.dims)
        for axis, dim in chosen.items():
            degrees[dim] = layout.degrees[axis]
        return OpConfig(tuple(degrees), tuple(int(p) for p in table.reshape(-1)))

    def _allowed(self, node: Node, dim: int, degree: int) -> bool:
        """True if no tensor that must be whole would be cut."""
        found = self._links(node, dim, degree)
        tensors = [*zip(found.inputs, (t.name for t in node.inputs)), *zip(found.weights, (p.name for p in node.parameters))]
        note = ((axis, self.result.annotations.get(name)) for axis, name in tensors)
        return all(axis == FREE or of is None or not of.replicated for axis, of in note)

    def _layout(self, node: Node, config: OpConfig, group: str, number: int, shape: tuple[int, ...]) -> Layout | None:
        """Layout of a tensor that an operator with this cut makes or reads; None if pieces share it."""
        axes = {}
        for i, degree in enumerate(config.degrees):
            if degree > 1:
                axis = getattr(self._links(node, i, degree), group)[number]
                if axis in (FREE, MIXED) or axis in axes:
                    return None
                axes[axis] = i
        if not axes:
            return None
        cut = [i for i, k in enumerate(config.degrees) if k > 1]
        table = np.asarray(config.processors).reshape([config.degrees[i] for i in cut])
        order = sorted(axes)
        table = table.transpose([cut.index(axes[axis]) for axis in order])
        degrees = tuple(config.degrees[axes[a]] if a in axes else 1 for a in range(len(shape)))
        return Layout(degrees, tuple(int(p) for p in table.reshape(-1)))

    def _summed(self, node: Node, dim: int, degree: int) -> bool:
        return all(axis == FREE for axis in self._links(node, dim, degree).outputs[:1])

    def _links(self, node: Node, dim: int, degree: int) -> CutLinks:
        return links(node, dim, degree, self.known)


def recut(graph: OperatorGraph, configs: dict[str, OpConfig]) -> list[str]:
    """Return the tensors that processors send each other in the forward pass, because some piece reads values that were made on
    another processor."""
    held: dict[tuple[int, int], dict[int, list[Rect]]] = {}
    for node in graph:
        for rect, processor in configs[node.name].pieces(node):
            for index, part in enumerate(node.writes(rect)):
                held.setdefault((node.number, index), {}).setdefault(processor, []).append(part)
    found: dict[str, None] = {}
    for node in graph:
        for rect, processor in configs[node.name].pieces(node):
            for tensor, part in zip(node.inputs, node.reads(rect).inputs):
                own = held[tensor.node, tensor.index].get(processor, [])
                if not part.empty and not any(_inside(part, mine) for mine in own):
                    found[tensor.name] = None
    return list(found)


def _inside(part: Rect, whole: Rect) -> bool:
    return all(a >= b for a, b in zip(part.lo, whole.lo)) and all(a <= b for a, b in zip(part.hi, whole.hi))
