"""Storage: the arrays of one rank: persistent ones by name, the others in one arena laid out by the memory plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from taskflow.graph import Node
from taskflow.kernels import HOST, ArrayDevice
from taskflow.operators.operator import Reads
from taskflow.regions import Rect
from taskflow.runtime.program.schedule import root_of
from taskflow.tasks import MemoryPlan, Part, Task, TaskGraph, Transfer

Array = Any


class PersistentBuffers:
    """Arrays that persist from step to step (weights, update state, carried state), shared by all programs of a rank."""

    def __init__(self, device: ArrayDevice = HOST) -> None:
        self.device = device
        self.arrays: dict[str, Array] = {}
        self._starts: dict[str, float] = {}
        self._common: dict[str, str] = {}  # what a memory that several names, or ranks, share is called -- by name
        self._lent: set[str] = set()  # names of memory that another rank, or another name, counts and fills

    def get(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], start: float = 0.0) -> Array:
        """Return the array of this name, made and filled by ``start`` if it does not exist."""
        array = self.arrays.get(name)
        if array is None:
            xp = self.device.xp
            array = self.arrays[name] = xp.full(shape, start, dtype) if start else xp.zeros(shape, dtype)
            self._starts[name] = start
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(f"kept array {name} is {array.dtype}{array.shape}, but {dtype}{shape} is asked for")
        return array

    def restart(self, prefix: str) -> None:
        """Refill the arrays whose names have this prefix with their first contents."""
        for name, array in self.arrays.items():
            if name.startswith(prefix):
                array.fill(self._starts[name])

    def share(self, key: str, names: Sequence[str], array: Array, own: bool) -> None:
        """Let all these names, here and on other ranks, mean one array. ``own``: this rank counts and fills it. Must be called
        before any of the names is asked for."""
        for i, name in enumerate(names):
            self.arrays[name], self._starts[name], self._common[name] = array, 0.0, key
            if i or not own:
                self._lent.add(name)

    def same(self, one: str, other: str) -> bool:
        """True if two names, perhaps of another rank's array, mean the same memory."""
        return one in self._common and self._common[one] == self._common.get(other)

    def name_elsewhere(self, key: str, names: Iterable[str]) -> None:
        """Add names by which other ranks know a shared memory."""
        self._common.update(dict.fromkeys(names, key))

    def lent(self, name: str) -> bool:
        """True if another rank fills this array, or if it is filled under another name."""
        return name in self._lent

    @property
    def common(self) -> bool:
        """True if any memory is shared with other names or ranks."""
        return bool(self._common)

    @property
    def lent_nbytes(self) -> int:
        """Bytes of shared memory that other ranks count."""
        own = {id(array) for name, array in self.arrays.items() if name not in self._lent}
        return sum({id(a): a.nbytes for n, a in self.arrays.items() if n in self._lent and id(a) not in own}.values())

    @property
    def nbytes(self) -> int:
        """Bytes that this rank counts. Memory that ranks share is counted by the rank that made it."""
        return sum(array.nbytes for name, array in self.arrays.items() if name not in self._lent)


class Storage:
    """Arrays of buffers and their parts, on the device of ``kept``. ``arena``: bytes to lay them out in, instead of allocating."""

    def __init__(self, graph: TaskGraph, memory: MemoryPlan, kept: PersistentBuffers, arena: Array | None = None) -> None:
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
        """Return what a piece of a node reads and writes; both its forward and its backward task ask."""
        key = node.number, piece
        found = self._touched.get(key)
        if found is None:
            found = self._touched[key] = node.operator.reads(node.specs, piece), node.writes(piece)
        return found

    def array(self, buffer: int) -> Array:
        """Return the C-contiguous array of a buffer."""
        if buffer not in self._arrays:
            self._arrays[buffer] = self._make(buffer)
        return self._arrays[buffer]

    def room(self, buffer: int, nbytes: int) -> Array | None:
        """Return the bytes that the plan reserves for prepacking weight ``buffer``; None if it reserves none."""
        if ~buffer not in self._offsets:
            return None
        return self.device.carve(self.arena, self._offsets[~buffer], (nbytes,), np.dtype(np.uint8))

    def part(self, part: Part) -> Array:
        """Return a part of a buffer, perhaps strided."""
        array = self.array(part.buffer)
        if part.rect.shape == array.shape:
            return array
        return array[tuple(slice(a, b) for a, b in zip(part.rect.lo, part.rect.hi))]

    def is_there(self, task: Task) -> bool:
        """True if a copy's source and target are the same memory, so that nothing has to move."""
        if not isinstance(task.work, Transfer) or task.work.add or not self.kept.common:
            return False
        source, target = (root_of(self.graph, part.buffer).name for part in (task.work.source, task.work.target))
        return self.kept.same(source, target)

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
