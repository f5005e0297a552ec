"""Array layout: which elements of a network's arrays are where, so that whole arrays can be gathered and distributed again.

The arrays are the parameters and lasting states (running statistics), by the names that a user knows. For checkpoints they
include what training keeps beside them: the update rule's arrays and carried state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskflow.floats import sums_in
from taskflow.graph import OperatorGraph
from taskflow.operators.operator import Spec
from taskflow.operators.state import State
from taskflow.regions import Rect
from taskflow.runtime.program import PersistentBuffers
from taskflow.tasks import Buffer, Bundle, Cell, TaskGraph, Update
from taskflow.tasks.lower import LASTING, CutGraph

TRAINING = "training/"  # how the names begin of what only training needs


@dataclass(frozen=True, slots=True)
class Memory:
    """Persistent array on one processor."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    processor: int
    start: float = 0.0

    def flat(self, kept: PersistentBuffers) -> Any:
        """The array as one dimension."""
        return kept.get(self.name, self.shape, self.dtype, self.start).reshape(-1)


@dataclass(frozen=True, slots=True)
class HeldElements:
    """Elements ``first`` to ``last`` (counted row by row) of the Rect ``rect`` of an array, stored at ``offset`` of a memory."""

    rect: Rect
    memory: Memory
    offset: int
    first: int
    last: int

    @property
    def count(self) -> int:
        """The number of its elements."""
        return self.last - self.first

    def view(self, kept: PersistentBuffers) -> Any:
        """Return the elements as one dimension, as they are in memory."""
        return self.memory.flat(kept)[self.offset : self.offset + self.last - self.first]


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """One whole array and everything that processors hold of it, replicas included."""

    name: str
    spec: Spec
    held: tuple[HeldElements, ...]

    def distinct(self) -> list[HeldElements]:
        """Return one copy of everything: that of the lowest processor."""
        best: dict[tuple[Rect, int, int], HeldElements] = {}
        for held in self.held:
            key = held.rect, held.first, held.last
            if key not in best or held.memory.processor < best[key].memory.processor:
                best[key] = held
        return list(best.values())

    def put(self, kept: PersistentBuffers, local: Iterable[HeldElements], value: Any) -> None:
        """Copy the elements that ``local`` holds from the whole array."""
        for held in local:
            part = value[held.rect.slices(self.spec.rect)].reshape(-1)
            kept.device.upload(part[held.first : held.last], held.view(kept))

    def is_whole(self, held: HeldElements) -> bool:
        """True if nothing of the array is outside of ``held``."""
        return held.count == self.spec.rect.volume

    def room(self, array: Any | None) -> Any | None:
        """Return the memory of ``array`` as one dimension if this array fits there as it is; else None."""
        fits = array is not None and array.dtype == self.spec.dtype and array.shape == self.spec.shape
        return array.reshape(-1) if array is not None and fits and array.flags.c_contiguous else None

    def assemble(self, parts: Iterable[tuple[HeldElements, Any]], room: Any | None = None) -> Any:
        """Return the whole array from its parts, which are copies: one that is whole as it is, else a new array, or one in ``room``
        (see there). Elements that nobody holds are 0, as in an update rule's array of a weight that is not trained."""
        parts = list(parts)
        if len(parts) == 1 and self.is_whole(parts[0][0]):
            return parts[0][1].reshape(self.spec.shape)
        whole = np.zeros(self.spec.shape, self.spec.dtype) if room is None else room.reshape(self.spec.shape)
        if room is not None:
            room[...] = 0
        for held, values in parts:
            where: Any = (*held.rect.slices(self.spec.rect), ...)  # a view, also of an array without dimensions
            into = whole[where]
            if held.last - held.first == held.rect.volume:
                into[...] = values.reshape(held.rect.shape)
            else:
                flat = into.reshape(-1)  # a copy where the Rect is strided
                flat[held.first : held.last] = values
                into[...] = flat.reshape(held.rect.shape)
        return whole


def weights_of(graph: OperatorGraph, cut: CutGraph) -> dict[str, ArrayLayout]:
    """Return the parameters and the lasting states by name, in the order in which the model made them."""
    held: dict[str, list[HeldElements]] = {p.name: [] for p in graph.parameters}
    for bundle in cut.layout.bundles:
        for processor in bundle.group:
            span = cut.kept(bundle, processor)
            memory, current = flat_memory(bundle, processor, span), cut.current(bundle, processor)
            for parameter, rect, offset in elements_of(bundle, current):
                held[parameter].append(HeldElements(rect, memory, offset + current.lo[0] - span.lo[0], 0, rect.volume))
    found = {p.name: ArrayLayout(p.name, p.spec, tuple(held[p.name])) for p in graph.parameters}
    return found | _states(graph, cut, LASTING, "", lasting=True)


def masters_of(graph: OperatorGraph, cut: CutGraph, tasks: TaskGraph) -> dict[str, ArrayLayout]:
    """Return the float32 copies of 16-bit parameters, by the parameters' names. The processor that updates an element holds it."""
    specs = {p.name: Spec(p.shape, sums_in(p.spec.dtype)) for p in graph.parameters}
    held: dict[str, list[HeldElements]] = {}
    for update, bundle, span in _updates(cut, tasks):
        if update.master is not None:
            for cell, elements in _held_of(bundle, span, tasks.buffers[update.master]):
                held.setdefault(cell.parameter, []).append(elements)
    return {name: ArrayLayout(name, specs[name], tuple(parts)) for name, parts in held.items()}


def training_state_of(graph: OperatorGraph, cut: CutGraph, tasks: TaskGraph, prefix: str) -> dict[str, ArrayLayout]:
    """Return what training keeps beside the weights, by names that begin with ``training/``: the update rule's arrays, such as
    ``training/adam0/conv1.weight``, and carried state, such as ``training/carried/lstm.h0``."""
    shapes = {p.name: p.shape for p in graph.parameters}
    held: dict[tuple[str, str], list[HeldElements]] = {}
    for update, bundle, span in _updates(cut, tasks):
        for i, number in enumerate(update.state):
            kind = f"{TRAINING}{type(update.rule).__name__.lower()}{i}/"
            for cell, elements in _held_of(bundle, span, tasks.buffers[number]):
                held.setdefault((kind, cell.parameter), []).append(elements)
    found = {
        kind + p: ArrayLayout(kind + p, Spec(shapes[p], parts[0].memory.dtype), tuple(parts)) for (kind, p), parts in held.items()
    }
    return found | _states(graph, cut, prefix, f"{TRAINING}carried/", lasting=False)


def carried_of(graph: OperatorGraph, cut: CutGraph, prefix: str) -> dict[str, ArrayLayout]:
    """Return the states that are carried from step to step under a mode's ``prefix``, by name."""
    return _states(graph, cut, prefix, "", lasting=False)


def flat_memory(bundle: Bundle, processor: int, span: Rect) -> Memory:
    """Return the elements ``span`` of a bundle's flat weights on a processor."""
    return Memory(f"{bundle.name}{span} @ {processor}", span.shape, bundle.dtype, processor)


def elements_of(bundle: Bundle, span: Rect) -> Iterator[tuple[str, Rect, int]]:
    """Return what the elements ``span`` of a bundle's flat weights are: Rects of parameters, each with its offset in the span."""
    for cell, (first, last) in _cells_in(bundle.cells, span):
        offset = cell.offset + first - span.lo[0]
        for rect in rects_of(cell.rect, first, last):
            yield cell.parameter, rect, offset
            offset += rect.volume


def _states(graph: OperatorGraph, cut: CutGraph, prefix: str, show: str, *, lasting: bool) -> dict[str, ArrayLayout]:
    """The states that last, or those that do not: kept under ``prefix``, shown under ``show``."""
    found: dict[str, ArrayLayout] = {}
    for node in graph:
        if not isinstance(node.operator, State) or node.operator.lasting != lasting:
            continue
        (tensor,) = node.outputs
        parts = []
        for piece in cut.pieces[node.number]:
            (rect,) = piece.writes
            name = f"{prefix}{tensor.name}{rect} @ {piece.processor}"
            memory = Memory(name, rect.shape, tensor.dtype, piece.processor, node.operator.start)
            parts.append(HeldElements(rect, memory, 0, 0, rect.volume))
        found[show + tensor.name] = ArrayLayout(show + tensor.name, tensor.spec, tuple(parts))
    return found


def _updates(cut: CutGraph, tasks: TaskGraph) -> Iterable[tuple[Update, Bundle, Rect]]:
    """Every update of a step, the bundle of its weights, and which elements of that it changes."""
    bundles = {bundle.name: bundle for bundle in cut.layout.bundles}
    for task in tasks:
        if isinstance(task.work, Update):
            flat, part = tasks.buffers[task.work.weights.buffer], task.work.weights.rect
            (first,) = flat.rect.lo  # of weights that are kept as shares
            yield task.work, bundles[flat.region], Rect((part.lo[0] + first,), (part.hi[0] + first,))


def _held_of(bundle: Bundle, span: Rect, buffer: Buffer) -> Iterable[tuple[Cell, HeldElements]]:
    """Parts of parameters within an array that belong to the elements ``span`` of a bundle."""
    memory = Memory(buffer.name, buffer.shape, buffer.dtype, buffer.processor)
    for cell, (first, last) in _cells_in(bundle.cells, span):
        yield cell, HeldElements(cell.rect, memory, cell.offset + first - span.lo[0], first, last)


def _cells_in(cells: Sequence[Cell], span: Rect) -> Iterable[tuple[Cell, tuple[int, int]]]:
    """The cells that a range of their bundle's flat buffer meets, and which elements of each."""
    for cell in cells:
        first, last = max(0, span.lo[0] - cell.offset), min(cell.rect.volume, span.hi[0] - cell.offset)
        if first < last:
            yield cell, (first, last)


def rects_of(rect: Rect, first: int, last: int) -> list[Rect]:
    """Return elements ``first`` to ``last`` - 1 of ``rect`` as consecutive Rects: at most two for each dimension, less one."""
    if first >= last:
        return []
    if (first, last) == (0, rect.volume):
        return [rect]
    row = rect.volume // rect.shape[0]
    (begin, skipped), (end, left) = divmod(first, row), divmod(last, row)
    if begin == end:
        return _in_row(rect, begin, skipped, left)
    found = _in_row(rect, begin, skipped, row) if skipped else []
    whole = begin + bool(skipped)
    if whole < end:
        found.append(Rect((rect.lo[0] + whole, *rect.lo[1:]), (rect.lo[0] + end, *rect.hi[1:])))
    return found + (_in_row(rect, end, 0, left) if left else [])


def _in_row(rect: Rect, row: int, first: int, last: int) -> list[Rect]:
    at = rect.lo[0] + row
    return [
        Rect((at, *part.lo), (at + 1, *part.hi)) for part in rects_of(Rect(rect.lo[1:], rect.hi[1:]), first, last)
    ]
