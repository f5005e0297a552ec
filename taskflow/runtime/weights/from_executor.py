"""Shared weights: an Executor that uses the weights of another, in the same memory where that is possible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskflow.regions import Rect
from taskflow.runtime.program import PersistentBuffers, Placement, Program, schedule
from taskflow.runtime.weights.array_layout import ArrayLayout, HeldElements, Memory
from taskflow.tasks.lower import Emitter
from taskflow.wording import some

if TYPE_CHECKING:
    from taskflow.runtime.executor import Executor

Elements = tuple[str, Rect, int]  # name, Rect, offset


class SharedWeights:
    """The weights of ``source`` in the memory of ``user``.

    A memory that holds the same elements in both Executors on the same rank is one array. The others are filled by copies,
    compiled once, that run when the source has changed. Raises ValueError unless the source has every weight of the user, with
    the same shape and type.
    """

    def __init__(self, user: Executor, source: Executor) -> None:
        if user.transport is not source.transport:
            raise ValueError("Executor: one that uses the weights of another must be on the same transport")
        _check(user, source)
        self._user, self._source = user, source
        have, want = _contents(source), _contents(user)
        differing = set()
        for memory, elements in want.items():
            rank = user.placement.rank(memory.processor)
            if have.get(memory) != elements or source.placement.rank(memory.processor) != rank:
                differing.add(memory)
            elif rank == user.transport.rank:
                memory.flat(source.kept)
                user.kept.arrays[memory.name] = source.kept.arrays[memory.name]
        self._copies = self._compile(differing) if differing else None
        self._seen = -1

    @property
    def copied_bytes(self) -> int:
        """Bytes that all ranks together copy each time that the source has changed; 0 if all memory is shared."""
        return 0 if self._copies is None else sum(task.nbytes for task in self._copies.graph)

    def refresh(self) -> None:
        """Update the user's weights from the source. Every rank calls it."""
        self._source.renew()
        if self._copies is not None and self._seen != self._source.changes:
            self._source.close()
            self._user.close()
            self._copies.run()
            self._copies.drain()
        if self._seen != self._source.changes:
            self._seen = self._source.changes
            self._user.changes += 1

    def _compile(self, differing: set[Memory]) -> Program:
        """Copies into the differing memories; ranks take the part of processors, since they are the same for both."""
        user, source = self._user, self._source
        transport, kept = user.transport, PersistentBuffers(user.kernels.device)
        emit, buffers = Emitter(transport.size), {}  # type: ignore[var-annotated]

        def buffer(of: Executor, label: str, memory: Memory) -> int:
            if (label, memory) not in buffers:
                rank = of.placement.rank(memory.processor)
                span = Rect((0,), (Rect.of(memory.shape).volume,))
                number = emit.buffer(f"{label} {memory.name}", span, rank, memory.dtype, kept=True)
                buffers[label, memory] = number
                if rank == transport.rank:
                    kept.arrays[emit.graph.buffers[number].name] = memory.flat(of.kept)
            return buffers[label, memory]

        def shown(of: Executor, label: str, held: HeldElements) -> int:
            part = Rect((held.offset,), (held.offset + held.last - held.first,))
            return emit.alias(buffer(of, label, held.memory), part, label, held.rect)

        for name, holding in user.weight_holdings.items():
            for held in holding.held:
                if held.memory in differing:
                    target = shown(user, "to", held)
                    rank = user.placement.rank(held.memory.processor)
                    for giver in _nearest(source.weight_holdings[name], source.placement, rank):
                        part = giver.rect.intersect(held.rect)
                        if not part.empty:
                            emit.transfer(
                                f"{name}{part}", emit.part(shown(source, "from", giver), part), emit.part(target, part)
                            )
        order = range(len(emit.graph))
        plan = schedule(emit.graph, order, Placement(transport.size, transport.size), transport.rank)
        return Program(emit.graph, plan, transport, user.kernels, user.state, kept)


def _contents(executor: Executor) -> dict[Memory, tuple[Elements, ...]]:
    """Contents of every memory."""
    found: dict[Memory, list[Elements]] = {}
    for holding in executor.weight_holdings.values():
        for held in holding.held:
            found.setdefault(held.memory, []).append((holding.name, held.rect, held.offset))
    return {memory: tuple(sorted(elements)) for memory, elements in found.items()}


def _nearest(holding: ArrayLayout, placement: Placement, rank: int) -> list[HeldElements]:
    """One copy of everything, from this rank where it has it."""
    near = {h.rect: h for h in reversed(holding.held) if placement.rank(h.memory.processor) == rank}
    return [near.get(held.rect, held) for held in holding.distinct()]


def _check(user: Executor, source: Executor) -> None:
    wrong = []
    for name, holding in user.weight_holdings.items():
        there = source.weight_holdings.get(name)
        if there is None:
            wrong.append(f"{name} is not among its weights")
        elif there.spec != holding.spec:
            wrong.append(f"{name} must be {holding.spec}, but there it is {there.spec}")
    if wrong:
        raise ValueError(
            f"Executor: {user.graph.name} cannot use the weights of this other {source.graph.name}: "
            f"{some(wrong, 5, '; ')}"
        )
