"""MemoryEstimate: bytes of a step that is not lowered, from what operators' pieces read, write and keep.

It is for what must be decided thousands of times in a search. `MemoryCheck` lowers a step where this does not decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from taskflow.floats import sum_bytes
from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig, ShardedSync, Strategy, SyncAlgorithm, UpdatePlacement
from taskflow.operators.operator import Reads
from taskflow.operators.tensor import Parameter
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.traffic import Accesses, Makers, makers
from taskflow.regions import Rect
from taskflow.tasks import laid_out_bytes
from taskflow.tasks.lower import contiguous, gradient_flow, left_over

CHECKED = 1000  # weights of processors after which the time is looked at


@dataclass(frozen=True, slots=True)
class _OperatorMemory:
    """Memory that an operator's pieces hold: bytes of activations by processor, and Rects of weights: (layer, processor,
    parameter, Rect, bytes). ``gathered``: weights and their gradients, if they are read from several cells. ``used``: of each
    parameter, the Rects that are not empty. ``values``: of the activations those that are kept from forward to backward;
    ``passing``: outputs that are not; ``arriving``: inputs that are not and lie elsewhere. ``laid_out``: (processor, parameter,
    Rect, bytes) of weights that kernels lay out anew. ``outputs`` and ``inputs`` (one for each input): bytes read and written,
    as large as their gradients."""

    activations: dict[int, int]
    gathered: dict[int, int]
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


@dataclass(frozen=True, slots=True)
class _WeightMemory:
    """Bytes by processor of what is kept from step to step, and of gradients of weights that an update uses; by layer and
    processor, of gradients of weights, and of what arrives of others' gradients while the layer is synchronised."""

    kept: list[int]
    updating: list[int]
    gradients: dict[str, dict[int, int]]
    arriving: dict[str, dict[int, int]]


class MemoryEstimate:
    """Estimates for strategies without an order of passes. What it has found of an operator is kept."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.graph: OperatorGraph = evaluator.graph
        self._processors = len(evaluator.machine.processors)
        self._evaluator = evaluator
        self._known: dict[tuple[object, ...], _OperatorMemory] = {}
        self._buffers: dict[tuple[object, ...], dict[int, int]] = {}
        of = evaluator.repetition
        self._repeats = 1 if of is None else of.count
        self._accesses = Accesses(self.graph, None if of is None else of.rects)
        self._owned: dict[tuple[str, OpConfig], list[Makers]] = {}
        self._cuts: dict[tuple[object, ...], list[_Piece]] = {}
        self._unused: dict[tuple[Rect, frozenset[Rect]], tuple[int, Rect | None]] = {}
        self._active, self._wanted, _ = gradient_flow(self.graph)
        keeps = [node.operator.keeps(node.specs) for node in self.graph]
        self._keeps_inputs = [k.inputs for k in keeps]
        self._kept = {(t.node, t.index) for node, k in zip(self.graph, keeps) if k.inputs for t in node.inputs}
        self._kept |= {(t.node, t.index) for node, k in zip(self.graph, keeps) if k.outputs for t in node.outputs}
        readers = {t.node: node.number for node in self.graph for t in node.inputs}  # the last one stays
        self._last_read: dict[int, list[int]] = {}
        for node in self.graph:
            self._last_read.setdefault(readers.get(node.number, node.number), []).append(node.number)
        users: dict[str, int] = {}  # layer -> its first operator, in whose backward pass its gradients are complete
        for node in reversed(self.graph.nodes):
            users.update((parameter.layer, node.number) for parameter in node.parameters)
        self._completes: dict[int, list[str]] = {}
        for layer, number in users.items():
            self._completes.setdefault(number, []).append(layer)

    def at_most(self, strategy: Strategy) -> list[int]:
        """Return bytes by processor that the plan never exceeds: every array that the tasks of a step touch, as if all lived at
        once."""
        total = [0] * self._processors
        for node in self.graph:
            held = self._held(node, strategy)
            for table in (held.activations, held.gathered):
                for processor, nbytes in table.items():
                    total[processor] += nbytes
        for processor, _, _, nbytes in {one for node in self.graph for one in self._held(node, strategy).laid_out}:
            total[processor] += nbytes
        weights = self._weight_bytes(strategy)
        for of_layer in (*weights.gradients.values(), *weights.arriving.values()):
            for processor, nbytes in of_layer.items():
                total[processor] += nbytes
        return [a + b for a, b in zip(total, weights.kept)]

    def likely(self, strategy: Strategy) -> list[int]:
        """Return bytes by processor if every processor runs its tasks in program order. A value lives to the end of the forward
        pass if some backward task needs it, else to its last reader. A gradient lives from the task that makes it to the one
        that uses it, one of weights to the end of the step."""
        count = self._processors
        kept, live, ahead, packed = [0] * count, [0] * count, [0] * count, [0] * count
        last_use = {one: node.number for node in self.graph for one in self._held(node, strategy).laid_out}
        laid_out: set[tuple[int, str, Rect, int]] = set()
        for node in self.graph:
            self._evaluator.checkpoint()
            held = self._held(node, strategy)
            for one in held.laid_out:
                live[one[0]] += one[3] * (one not in laid_out)
            laid_out.update(held.laid_out)
            for table in (held.values, held.gathered if self._gathers(node, strategy) else {}):
                for processor, nbytes in table.items():
                    kept[processor] += nbytes
            for processor, nbytes in held.passing.items():
                live[processor] += nbytes
            for processor, nbytes in self._packs(node, strategy).items():  # in buffers that stay
                packed[processor] += nbytes
            for processor in {*held.values, *held.arriving}:
                ahead[processor] = max(ahead[processor], kept[processor] + live[processor] + held.arriving.get(processor, 0))
            for last in self._last_read.get(node.number, ()):
                for processor, nbytes in self._held(self.graph.nodes[last], strategy).passing.items():
                    live[processor] -= nbytes
            for one in dict.fromkeys(held.laid_out):
                live[one[0]] -= one[3] * (last_use[one] == node.number)
        weights = self._weight_bytes(strategy)
        back = self._backward(strategy, weights, kept)
        return [w + p + max(a, b) for w, p, a, b in zip(weights.kept, packed, ahead, back)]

    def updating(self, strategy: Strategy) -> tuple[list[int], list[int]]:
        """Return bytes by processor of what is kept from step to step, and of the gradients that the update uses. These are of all
        weights that a processor holds, or of its shares where replicas keep shares of gradients (ZeRO's stages 2 and 3)."""
        found = self._weight_bytes(strategy)
        return found.kept, found.updating

    def _backward(self, strategy: Strategy, weights: _WeightMemory, live: list[int]) -> list[int]:
        """Return the most that lives at once in the backward pass, of values ``live`` at its begin."""
        most = [0] * self._processors
        begun: set[str] = set()
        used: dict[int, dict[int, int]] = {}  # node -> processor -> gradients of its outputs that readers have made
        for node in reversed(self.graph.nodes):
            self._evaluator.checkpoint()
            held = self._held(node, strategy)
            for tensor, sizes in zip(node.inputs, held.inputs):
                if (tensor.node, tensor.index) not in self._wanted:
                    continue
                ends = used.setdefault(tensor.node, {})
                for processor, nbytes in sizes.items():
                    live[processor] += nbytes
                    ends[processor] = ends.get(processor, 0) + nbytes
            for layer in dict.fromkeys(parameter.layer for parameter in node.parameters):
                for processor, nbytes in weights.gradients.get(layer, {}).items() if layer not in begun else ():
                    live[processor] += nbytes
                begun.add(layer)
            outputs = held.outputs if node.number in self._active else {}
            for processor, nbytes in outputs.items():  # the sum of the readers' parts, and one that arrives
                most[processor] = max(most[processor], live[processor] + nbytes)
            for layer in self._completes.get(node.number, ()):
                for processor, nbytes in weights.arriving.get(layer, {}).items():
                    most[processor] = max(most[processor], live[processor] + nbytes)
            for table in (used.pop(node.number, {}), held.values):
                for processor, nbytes in table.items():
                    live[processor] -= nbytes
        return most

    def _gathers(self, node: Node, strategy: Strategy) -> bool:
        """True if pieces read weights of several cells, which are gathered from them."""
        held = self._held(node, strategy)
        for parameter, read in zip(node.parameters, held.used):
            unused, _ = self._left_over(parameter.spec.rect, read)
            if sum(rect.volume for rect in read) > parameter.spec.rect.volume - unused:
                return True
        return False

    def _weight_bytes(self, strategy: Strategy) -> _WeightMemory:
        """Weights, the update rule's state and float32 copies of 16-bit weights; their gradients; and what arrives of others'."""
        rects, idle = self._weights(strategy)
        kept, updating = [0] * self._processors, [0] * self._processors
        kept[0] += idle
        holders: dict[str, int] = {}
        alike: Counter[tuple[str, str, Rect]] = Counter()  # how many have all of a Rect, and perhaps others have a part of it
        for i, ((layer, _), sizes) in enumerate(rects.items()):
            if not i % CHECKED:
                self._evaluator.checkpoint()
            holders[layer] = holders.get(layer, 0) + 1
            alike.update((layer, *read) for read in sizes)
        rule, itemsize = self._evaluator.rule, self.graph.dtype.itemsize
        state = rule.state_bytes(itemsize) if rule else 0
        wider = {p.name: _wider(p.spec.dtype.itemsize) * p.trained for p in self.graph.parameters}  # 0: without a gradient
        gradients: dict[str, dict[int, int]] = {}
        arriving: dict[str, dict[int, int]] = {}
        for i, ((layer, processor), sizes) in enumerate(rects.items()):
            if not i % CHECKED:
                self._evaluator.checkpoint()
            sync, count = strategy.sync(layer), holders[layer] * self._repeats
            summed = sum(n * wider[read[0]] for read, n in sizes.items())
            masters = sum(n * wider[read[0]] for read, n in sizes.items() if wider[read[0]] > 1)
            updated = summed  # by others' messages in chunks of 1 MiB and more, which may be all of a layer
            if sync.algorithm is SyncAlgorithm.COLLECTIVE and sync.placement is UpdatePlacement.SHARDED:
                among = {read: alike[layer, read[0], read[1]] * self._repeats for read in sizes}
                shares = {read: -(-n * wider[read[0]] // among[read]) for read, n in sizes.items()}
                updated = sum(shares.values())
                masters = sum(n for read, n in shares.items() if wider[read[0]] > 1)
            kept[processor] += sum(sizes.values()) + updated * state // sum_bytes(itemsize) + masters
            gradients.setdefault(layer, {})[processor] = summed
            updating[processor] += updated if isinstance(sync, ShardedSync) and sync.zero > 1 else summed
            # One owner may receive everybody's gradient at once; a chunk's owner everybody's chunk. Collectives add in place.
            if count > 1 and sync.algorithm is not SyncAlgorithm.COLLECTIVE:
                gathers = sync.algorithm is SyncAlgorithm.OWNER and sync.placement is not UpdatePlacement.SHARDED
                arriving.setdefault(layer, {})[processor] = summed * (holders[layer] - 1 if gathers else 1)
        return _WeightMemory(kept, updating, gradients, arriving)

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
        config, key = strategy[node.name], self._key(node, strategy)
        if key not in self._known:
            self._evaluator.checkpoint()
            activations: dict[int, int] = {}
            gathered: dict[int, int] = {}
            values: dict[int, int] = {}
            passing: dict[int, int] = {}
            arriving: dict[int, int] = {}
            put: dict[int, int] = {}
            got: tuple[dict[int, int], ...] = tuple({} for _ in node.inputs)
            weights: dict[tuple[str, int, str, Rect, int], None] = {}
            laid_out: dict[tuple[int, str, Rect, int], None] = {}
            owned = self._owned_inputs(node, strategy)
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
                arriving[processor] = arriving.get(processor, 0) + (0 if keeps else inputs)
                kept = piece.saved + stays + (inputs if keeps else 0)
                for table, size in zip(got, piece.input_bytes):
                    table[processor] = table.get(processor, 0) + size
                put[processor] = put.get(processor, 0) + outputs
                for parameter, (read, size, room) in zip(node.parameters, piece.weights):
                    if room:
                        laid_out[processor, parameter.name, read, room] = None
                    again = size * (1 + _wider(parameter.spec.dtype.itemsize) * parameter.trained)  # and its gradient
                    gathered[processor] = gathered.get(processor, 0) + again
                    weights[parameter.layer, processor, parameter.name, read, size] = None
                activations[processor] = activations.get(processor, 0) + nbytes
                values[processor] = values.get(processor, 0) + kept
            used = tuple(frozenset(r for _, _, n, r, _ in weights if n == p.name and not r.empty) for p in node.parameters)
            self._known[key] = _OperatorMemory(
                activations, gathered, values, passing, arriving, put, got, tuple(weights), used, tuple(laid_out)
            )
        return self._known[key]

    def _packs(self, node: Node, strategy: Strategy) -> dict[int, int]:
        """Bytes by processor of messages whose part of an array is not contiguous, which are packed on both sides."""
        config, key = strategy[node.name], self._key(node, strategy)
        if key not in self._buffers:
            self._evaluator.checkpoint()
            packed = self._buffers[key] = {}
            owned = self._owned_inputs(node, strategy)
            for processor, reads in zip(config.processors, self._accesses(node, config).reads):
                for tensor, read, own in zip(node.inputs, reads.inputs, owned):
                    both = 2 if (tensor.node, tensor.index) in self._wanted else 1  # its gradient goes back
                    for at, size in _packed(read, processor, own, tensor.spec.dtype.itemsize):
                        packed[at] = packed.get(at, 0) + both * size
        return self._buffers[key]

    def _key(self, node: Node, strategy: Strategy) -> tuple[object, ...]:
        """What the memory of an operator depends on: how it and the makers of its inputs are cut and placed."""
        return node.name, strategy[node.name], *(strategy[self.graph.producer(t).name] for t in node.inputs)

    def _owned_inputs(self, node: Node, strategy: Strategy) -> list[Makers]:
        """By input, which Rects of it lie on which processors."""
        makers_of = [self.graph.producer(t) for t in node.inputs]
        return [self._owns(p, strategy[p.name])[t.index] for p, t in zip(makers_of, node.inputs)]

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


def _packed(read: Rect, processor: int, own: Makers, itemsize: int) -> Iterator[tuple[int, int]]:
    """Processors and bytes of the buffers in which what a piece reads of others is packed."""
    if read.empty or processor in own.get(read, ()):
        return
    for rect, of in own.items():
        if processor in of or not rect.overlaps(read):
            continue
        shared = rect.intersect(read)
        for at, buffer in ((processor, read), (next(iter(of)), rect)):
            if not contiguous(shared.relative_to(buffer), buffer.shape):
                yield at, shared.volume * itemsize


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
