"""Memory check: whether a strategy fits the devices' memory, decided cheaply, since a search asks for every new best plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from taskflow.floats import sum_bytes
from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import OpConfig, Strategy, SyncAlgorithm, UpdatePlacement
from taskflow.operators.operator import Reads
from taskflow.operators.tensor import Parameter
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.evaluate.folded import folded_use
from taskflow.optimizer.memory import MemoryUse, explain, memory_use
from taskflow.optimizer.traffic import Accesses, Makers, makers
from taskflow.regions import Rect
from taskflow.tasks import laid_out_bytes
from taskflow.tasks.lower import left_over

MOST_TASKS = 2000  # of a step that is lowered and planned exactly (about a second)
MOST_PLANNED = 20_000  # pieces of a folded step that is planned whole if it may just fit (some seconds)
CHECKED = 1000  # weights of processors after which the time is looked at
SPARE = 0.1  # share of the memory that the estimate in program order leaves free; random cuts were up to 17 % above it in tests
RULE = f"a plan of more than {MOST_TASKS} tasks is estimated, and {SPARE:.0%} of the memory is kept spare for it"


@dataclass(frozen=True, slots=True)
class _OperatorMemory:
    """Memory that an operator's pieces hold: bytes of activations by processor, and Rects of weights: (layer, processor,
    parameter, Rect, bytes). ``used``: of each parameter, the Rects that are not empty. ``values``: of the activations those
    that are kept from forward to backward; ``passing``: outputs that are not; ``arriving``: inputs that are not and lie
    elsewhere. ``laid_out``: (processor, parameter, Rect, bytes) of weights that kernels lay out anew. ``outputs`` and
    ``inputs`` (one for each input): bytes read and written, as large as their gradients."""

    activations: dict[int, int]
    values: dict[int, int]
    passing: dict[int, int]
    arriving: dict[int, int]
    outputs: dict[int, int]
    inputs: tuple[dict[int, int], ...]
    weights: tuple[tuple[str, int, str, Rect, int], ...]
    used: tuple[frozenset[Rect], ...]
    laid_out: tuple[tuple[int, str, Rect, int], ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes that one piece of an operator reads, writes and saves; of its weights also those for laying them out."""

    input_bytes: tuple[int, ...]
    output_bytes: tuple[int, ...]
    saved: int
    weights: tuple[tuple[Rect, int, int], ...]


class MemoryCheck:
    """Check of plans: a call with a strategy returns what memory it lacks, empty if it fits. Search, commands and reports all
    use it, so that they agree on which plans fit.

    First comes a cautious estimate: every array that the tasks of a step touch, as if all lived at once. If that exceeds a
    processor's memory and the step is small, the step is lowered and its memory planned as the runtime does. A larger step is
    estimated more closely (`in_order`), with `SPARE` of the memory left free. So a search on many devices may refuse plans that
    would just fit.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self.graph: OperatorGraph = evaluator.graph
        self.machine: Machine = evaluator.machine
        self._evaluator = evaluator
        self._planned: tuple[Strategy, tuple[MemoryUse, ...]] | None = None  # the last one
        self._live: tuple[Strategy, tuple[MemoryUse, ...] | None] | None = None
        self._estimated: tuple[Strategy, list[int]] | None = None
        self._known: dict[tuple[object, ...], _OperatorMemory] = {}
        of = evaluator.repetition
        self._repeats = 1 if of is None else of.count
        self._accesses = Accesses(self.graph, None if of is None else of.rects)
        self._owned: dict[tuple[str, OpConfig], list[Makers]] = {}
        self._cuts: dict[tuple[object, ...], list[_Piece]] = {}
        self._unused: dict[tuple[Rect, frozenset[Rect]], tuple[int, Rect | None]] = {}
        keeps = [node.operator.keeps(node.specs) for node in self.graph]
        self._keeps_inputs = [k.inputs for k in keeps]
        self._kept = {(t.node, t.index) for node, k in zip(self.graph, keeps) if k.inputs for t in node.inputs}
        self._kept |= {(t.node, t.index) for node, k in zip(self.graph, keeps) if k.outputs for t in node.outputs}
        readers = {t.node: node.number for node in self.graph for t in node.inputs}  # the last one stays
        self._last_read: dict[int, list[int]] = {}
        for node in self.graph:
            self._last_read.setdefault(readers.get(node.number, node.number), []).append(node.number)

    def __call__(self, strategy: Strategy) -> str:
        """Return what memory a strategy lacks; empty if it fits."""
        lacks = self._lacks(strategy)
        return f"{lacks}{_advice(strategy)}" if lacks else ""

    def _lacks(self, strategy: Strategy) -> str:
        if not strategy.ordered:
            most = self.at_most(strategy)
            lacking = [(n, p) for n, p in zip(most, self.machine.processors) if n > p.memory_bytes]
            if not lacking:
                return ""
        if self._plannable(strategy):
            return explain(self.machine, self._plan(strategy))
        folded = self._folded(strategy)
        likely = self._estimate(strategy) if folded is None else [use.nbytes for use in folded]
        lacking = [(n, p) for n, p in zip(likely, self.machine.processors) if n > (1 - SPARE) * p.memory_bytes]
        if not lacking:
            return ""
        if folded is not None and _pieces(strategy) <= MOST_PLANNED and all(n <= p.memory_bytes for n, p in lacking):
            return explain(self.machine, self._plan(strategy))  # it may just fit
        nbytes, worst = max(lacking, key=lambda pair: pair[0] - pair[1].memory_bytes)
        return (
            f"{len(lacking)} of {len(likely)} processors may lack memory; processor {worst.number} ({worst.kind}) has "
            f"{worst.memory_bytes / 1e9:.3g} GB, its arrays take about {nbytes / 1e9:.3g} GB ({RULE})"
        )

    def peaks(self, strategy: Strategy) -> tuple[list[int], bool]:
        """Return bytes by processor, and whether they are planned as the runtime plans them (else estimated)."""
        if self._plannable(strategy):
            return [use.nbytes for use in self._plan(strategy)], True
        if (folded := self._folded(strategy)) is not None:
            return [use.nbytes for use in folded], False
        return self._estimate(strategy), False

    def spare(self, strategy: Strategy) -> list[float]:
        """Return bytes by processor that an ordered plan leaves of what it may use; negative if it needs more."""
        peaks, planned = self.peaks(strategy)
        share = 1.0 if planned else 1 - SPARE
        return [share * p.memory_bytes - nbytes for nbytes, p in zip(peaks, self.machine.processors)]

    def _plannable(self, strategy: Strategy) -> bool:
        if self._repeats > 1:  # whose plans are not lowered
            return False
        if strategy.ordered:  # the estimates know no order; its evaluator has lowered it as well
            return self._folded(strategy) is None
        # Of most pieces a task forward and one backward.
        # The evaluator's tasks may be those of the plan before this one.
        return max(self._evaluator.tasks, _pieces(strategy)) <= MOST_TASKS

    def _folded(self, strategy: Strategy) -> tuple[MemoryUse, ...] | None:
        """Return what lives at once under a strategy of which only a part is lowered; None if all is."""
        if self._live is None or self._live[0] is not strategy:
            step = self._evaluator.folded(strategy)
            self._live = strategy, None if step is None else folded_use(step, self._evaluator.checkpoint)
        return self._live[1]

    def _plan(self, strategy: Strategy) -> tuple[MemoryUse, ...]:
        if self._planned is None or self._planned[0] is not strategy:
            tasks, timeline = self._evaluator.evaluated(strategy)
            self._planned = strategy, memory_use(tasks, timeline.begun(tasks))
        return self._planned[1]

    def _estimate(self, strategy: Strategy) -> list[int]:
        if self._estimated is None or self._estimated[0] is not strategy:
            self._estimated = strategy, self.in_order(strategy)
        return self._estimated[1]

    def at_most(self, strategy: Strategy) -> list[int]:
        """Return the cautious estimate: bytes by processor."""
        total = [0] * len(self.machine.processors)
        for node in self.graph:
            for processor, nbytes in self._held(node, strategy).activations.items():
                total[processor] += nbytes
        return self._with_weights(strategy, total)

    def in_order(self, strategy: Strategy) -> list[int]:
        """Return bytes by processor if every processor runs its tasks in program order. A value lives to the end of the forward
        pass if some backward task needs it, else to its last reader. A gradient lives from the task that makes it to the one
        that uses it."""
        count = len(self.machine.processors)
        kept, live, most = [0] * count, [0] * count, [0] * count
        for node in self.graph:
            self._evaluator.checkpoint()
            held = self._held(node, strategy)
            for processor, nbytes in held.values.items():
                kept[processor] += nbytes
            for processor, nbytes in held.passing.items():
                live[processor] += nbytes
            for processor, nbytes in held.arriving.items():
                most[processor] = max(most[processor], kept[processor] + live[processor] + nbytes)
            for last in self._last_read.get(node.number, ()):
                for processor, nbytes in self._held(self.graph.nodes[last], strategy).passing.items():
                    live[processor] -= nbytes
        live = kept
        used: dict[int, dict[int, int]] = {}  # node -> processor -> gradients of its outputs that readers have made
        for node in reversed(self.graph.nodes):
            self._evaluator.checkpoint()
            held = self._held(node, strategy)
            for tensor, sizes in zip(node.inputs, held.inputs):
                if not tensor.spec.differentiable:
                    continue
                ends = used.setdefault(tensor.node, {})
                for processor, nbytes in sizes.items():
                    live[processor] += nbytes
                    ends[processor] = ends.get(processor, 0) + nbytes
            for processor, nbytes in held.outputs.items():  # the sum of the readers' parts, and one that arrives
                most[processor] = max(most[processor], live[processor] + 2 * nbytes)
            for processor, nbytes in used.pop(node.number, {}).items():
                live[processor] -= nbytes
        return self._with_weights(strategy, most)

    def _with_weights(self, strategy: Strategy, total: list[int]) -> list[int]:
        """Adds weights, what they are laid out in, their gradients, the update rule's state, float32 copies of 16-bit weights and
        what arrives of the others' gradients."""
        laid_out = {one for node in self.graph for one in self._held(node, strategy).laid_out}  # once for all that share a weight
        for processor, _, _, nbytes in laid_out:
            total[processor] += nbytes
        rects, idle = self._weights(strategy)
        total[0] += idle
        holders: dict[str, int] = {}
        alike: Counter[tuple[str, str, Rect]] = Counter()  # how many have all of a Rect, and perhaps others have a part of it
        for i, ((layer, _), sizes) in enumerate(rects.items()):
            if not i % CHECKED:
                self._evaluator.checkpoint()
            holders[layer] = holders.get(layer, 0) + 1
            alike.update((layer, *read) for read in sizes)
        buffers = self._evaluator.rule.buffers if self._evaluator.rule else 0
        wider = {p.name: _wider(p.spec.dtype.itemsize) for p in self.graph.parameters}
        for i, ((layer, processor), sizes) in enumerate(rects.items()):
            if not i % CHECKED:
                self._evaluator.checkpoint()
            size, sync = sum(sizes.values()), strategy.sync(layer)
            summed = sum(n * wider[read[0]] for read, n in sizes.items())
            masters = summed - sum(n for read, n in sizes.items() if wider[read[0]] == 1)
            updated = summed  # by others' messages in chunks of 1 MiB and more, which may be all of a layer
            if sync.travel is SyncAlgorithm.COLLECTIVE and sync.place is UpdatePlacement.SHARDED:
                among = {read: alike[layer, read[0], read[1]] * self._repeats for read in sizes}
                shares = {read: -(-n * wider[read[0]] // among[read]) for read, n in sizes.items()}
                updated = sum(shares.values())
                masters = sum(n for read, n in shares.items() if wider[read[0]] > 1)
            # One owner may receive everybody's gradient at once; a chunk's owner everybody's chunk.
            gathers = sync.travel is SyncAlgorithm.OWNER and sync.place is not UpdatePlacement.SHARDED
            total[processor] += size + summed * (1 + (holders[layer] if gathers else 2)) + updated * buffers + masters
        return total

    def _weights(self, strategy: Strategy) -> tuple[dict[tuple[str, int], dict[tuple[str, Rect], int]], int]:
        """By layer and processor, the bytes of each Rect of a parameter that is held; what of a parameter no task uses stands
        there as all of the parameter. And the bytes of parameters of which nothing is used: processor 0 has them, without
        gradients."""
        rects: dict[tuple[str, int], dict[tuple[str, Rect], int]] = {}
        used: dict[Parameter, set[Rect]] = {}
        for node in self.graph:
            self._evaluator.checkpoint()
            held = self._held(node, strategy)
            for parameter, read in zip(node.parameters, held.used):
                used.setdefault(parameter, set()).update(read)
            for layer, processor, name, rect, nbytes in held.weights:
                rects.setdefault((layer, processor), {})[name, rect] = nbytes
        idle = 0
        for parameter, some in used.items():
            count, first = self._left_over(parameter.spec.rect, frozenset(some))
            nbytes = count * parameter.spec.dtype.itemsize
            if first is None:
                idle += nbytes
            elif count:
                for (layer, _), sizes in rects.items():
                    if layer == parameter.layer and any(n == parameter.name and r.contains(first) for n, r in sizes):
                        sizes[parameter.name, parameter.spec.rect] = nbytes
        return rects, idle

    def _left_over(self, whole: Rect, used: frozenset[Rect]) -> tuple[int, Rect | None]:
        if (whole, used) not in self._unused:
            self._unused[whole, used] = left_over(whole, used)
        return self._unused[whole, used]

    def _held(self, node: Node, strategy: Strategy) -> _OperatorMemory:
        config = strategy[node.name]
        producers = [self.graph.producer(t) for t in node.inputs]
        key = (node.name, config, *(strategy[p.name] for p in producers))
        if key not in self._known:
            self._evaluator.checkpoint()
            activations: dict[int, int] = {}
            values: dict[int, int] = {}
            passing: dict[int, int] = {}
            arriving: dict[int, int] = {}
            put: dict[int, int] = {}
            got: tuple[dict[int, int], ...] = tuple({} for _ in node.inputs)
            weights: dict[tuple[str, int, str, Rect, int], None] = {}
            laid_out: dict[tuple[int, str, Rect, int], None] = {}
            owned = [self._owns(p, strategy[p.name])[t.index] for p, t in zip(producers, node.inputs)]
            keeps = self._keeps_inputs[node.number]
            access = self._accesses(node, config)
            for processor, reads, piece in zip(config.processors, access.reads, self._pieces(node, config)):
                # What the processor owns anyway is read in place; else a copy, its gradient, and both packed to be sent.
                inputs = sum(
                    nbytes for nbytes, r, own in zip(piece.input_bytes, reads.inputs, owned)
                    if processor not in own.get(r, ())
                )
                outputs = sum(piece.output_bytes)
                # Outputs: value, gradient, a part of the gradient that arrives.
                nbytes = 3 * outputs + 4 * inputs + piece.saved
                stays = sum(n for n, t in zip(piece.output_bytes, node.outputs) if (t.node, t.index) in self._kept)
                passing[processor] = passing.get(processor, 0) + outputs - stays
                # What is sent is packed by its sender, and arrives so.
                arriving[processor] = arriving.get(processor, 0) + (1 if keeps else 2) * inputs
                kept = piece.saved + stays + (inputs if keeps else 0)
                for table, size in zip(got, piece.input_bytes):
                    table[processor] = table.get(processor, 0) + size
                put[processor] = put.get(processor, 0) + outputs
                for parameter, (read, size, again) in zip(node.parameters, piece.weights):
                    if again:
                        laid_out[processor, parameter.name, read, again] = None
                    held = size * (1 + _wider(parameter.spec.dtype.itemsize))  # gathered from several cells, and its gradient
                    nbytes += held
                    kept += held
                    weights[parameter.layer, processor, parameter.name, read, size] = None
                activations[processor] = activations.get(processor, 0) + nbytes
                values[processor] = values.get(processor, 0) + kept
            used = tuple(frozenset(r for _, _, n, r, _ in weights if n == p.name and not r.empty) for p in node.parameters)
            self._known[key] = _OperatorMemory(
                activations, values, passing, arriving, put, got, tuple(weights), used, tuple(laid_out)
            )
        return self._known[key]

    def _owns(self, node: Node, config: OpConfig) -> list[Makers]:
        """By output, which Rects lie on which processors."""
        key = (node.name, config)
        if key not in self._owned:
            access = self._accesses(node, config)
            self._owned[key] = [makers(access, config, i) for i in range(len(node.outputs))]
        return self._owned[key]

    def _pieces(self, node: Node, config: OpConfig) -> list[_Piece]:
        """The pieces of a cut, looked at once for all equal operators."""
        key = (node.operator, node.specs, tuple(p.spec for p in node.parameters), config.degrees, config.weights)
        if key not in self._cuts:
            access = self._accesses(node, config)
            self._cuts[key] = [_piece(node, *piece) for piece in zip(access.pieces, access.reads, access.writes)]
        return self._cuts[key]


def _advice(strategy: Strategy) -> str:
    """What else to try for a plan that does not fit, for the end of the message; empty if nothing is known."""
    pipeline = strategy.pipeline
    if pipeline is None or not pipeline.schedule.weights_apart or not strategy.recompute or pipeline.ranks == 1:
        return ""
    return (
        f"; under schedule={pipeline.schedule.value}, what the pass for inputs computes again is kept until the pass for weights, "
        f"for up to {min(pipeline.ranks - 1, pipeline.micro_batches)} micro-batches: schedule=1f1b needs less"
    )


def _pieces(strategy: Strategy) -> int:
    return sum(len(config.processors) for config in strategy.configs.values())


def _wider(itemsize: int) -> int:
    """Return how many times as large a weight's gradient is."""
    return sum_bytes(itemsize) // itemsize


def _piece(node: Node, rect: Rect, reads: Reads, writes: Sequence[Rect]) -> _Piece:
    again = laid_out_bytes(node, rect)
    return _Piece(
        tuple(r.volume * t.dtype.itemsize for t, r in zip(node.inputs, reads.inputs)),
        tuple(r.volume * t.dtype.itemsize for t, r in zip(node.outputs, writes)),
        sum(s.nbytes for s in node.operator.saves(node.specs, rect)),
        tuple(
            (r, r.volume * p.spec.dtype.itemsize, again.get(i, 0))
            for i, (p, r) in enumerate(zip(node.parameters, reads.weights))
        ),
    )
