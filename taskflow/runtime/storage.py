"""Storage: the arrays of one rank: kept ones by name, the others in one arena laid out by the memory plan."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskflow.graph import Node
from taskflow.kernels.device import HOST, Device
from taskflow.operators.operator import Reads
from taskflow.regions import Rect
from taskflow.runtime.schedule import root_of
from taskflow.tasks.memory import MemoryPlan
from taskflow.tasks.task import Part, TaskGraph

Array = Any


class Kept:
    """Arrays that live from step to step (weights, update state, carried state), shared by all programs of a rank."""

    def __init__(self, device: Device = HOST) -> None:
        self.device = device
        self.arrays: dict[str, Array] = {}
        self._starts: dict[str, float] = {}

    def get(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], start: float = 0.0) -> Array:
        """The array of this name, made and filled with ``start`` if it is not there."""
        array = self.arrays.get(name)
        if array is None:
            xp = self.device.xp
            array = self.arrays[name] = xp.full(shape, start, dtype) if start else xp.zeros(shape, dtype)
            self._starts[name] = start
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(f"kept array {name} is {array.dtype}{array.shape}, but {dtype}{shape} is asked for")
        return array

    def restart(self, prefix: str) -> None:
        """Fill the arrays whose names begin so with what they held at first."""
        for name, array in self.arrays.items():
            if name.startswith(prefix):
                array.fill(self._starts[name])

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())


class Storage:
    """Turns buffer numbers and parts into arrays, on the device of ``kept``. ``arena``: the bytes to lay them out in, if they
    are not to be allocated."""

    def __init__(self, graph: TaskGraph, memory: MemoryPlan, kept: Kept, arena: Array | None = None) -> None:
        self.graph = graph
        self.kept = kept
        self.device = kept.device
        self._offsets = memory.offsets
        try:
            self.arena = self.device.xp.empty(memory.nbytes, np.uint8) if arena is None else arena
        except MemoryError as error:
            raise MemoryError(
                f"{self.device.name} has no room for the {memory.nbytes / 1e9:.2f} GB that a step works in beside its weights "
                f"({error}); take a smaller batch or more processors, or start fewer ranks on it"
            ) from error
        self._arrays: dict[int, Array] = {}
        self._touched: dict[tuple[int, Rect], tuple[Reads, tuple[Rect, ...]]] = {}

    def touched(self, node: Node, piece: Rect) -> tuple[Reads, tuple[Rect, ...]]:
        """What a piece of a node reads and writes: asked by its forward and by its backward task."""
        key = node.number, piece
        found = self._touched.get(key)
        if found is None:
            found = self._touched[key] = node.reads(piece), node.writes(piece)
        return found

    def array(self, buffer: int) -> Array:
        """The C-contiguous array of a buffer."""
        if buffer not in self._arrays:
            self._arrays[buffer] = self._make(buffer)
        return self._arrays[buffer]

    def part(self, part: Part) -> Array:
        """A part of a buffer, perhaps strided."""
        array = self.array(part.buffer)
        if part.rect.shape == array.shape:
            return array
        return array[tuple(slice(a, b) for a, b in zip(part.rect.lo, part.rect.hi))]

    def _make(self, number: int) -> Array:
        of = self.graph.buffers[number]
        if of.base is not None and of.part is not None:
            base = self.array(of.base)
            inner = base[tuple(slice(a, b) for a, b in zip(of.part.lo, of.part.hi))]
            view = inner.reshape(of.shape)
            if view.size and not self.device.xp.may_share_memory(view, base):
                raise ValueError(f"{of.name} is not contiguous in {self.graph.buffers[of.base].name}")
            return view
        if of.kept:
            return self.kept.get(of.name, of.shape, of.dtype, of.start)
        if of.nbytes == 0 or number not in self._offsets:
            return self.device.xp.empty(of.shape, of.dtype)
        assert root_of(self.graph, number) is of
        return self.device.carve(self.arena, self._offsets[number], of.shape, of.dtype)
