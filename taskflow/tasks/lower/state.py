"""Lowering: the state that the forward, backward and synchronisation passes share while they emit one step's tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from taskflow.collector import quick
from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import CopyRequest, Exchange, Strategy
from taskflow.operators.operator import Reads
from taskflow.operators.tensor import Parameter, Tensor
from taskflow.regions import Rect
from taskflow.tasks.lower.emit import Copying, Emitter
from taskflow.tasks.lower.exchange import Held, Wanted, exchange_values
from taskflow.tasks.lower.in_shares import bring_whole
from taskflow.tasks.lower.owners import Owners
from taskflow.tasks.lower.parameters import ParameterLayout
from taskflow.tasks.lower.part import NotAlikeError, StepPart
from taskflow.tasks.lower.recut import Members, Recut, bring_recut, members_of
from taskflow.tasks.lower.shards import Shards
from taskflow.tasks.lower.weight_gathers import WeightGathers
from taskflow.tasks.task import Bundle, Cell
from taskflow.tasks.topic import Purpose, Topic

TensorKey = tuple[int, int]  # (node, output)
ReaderKey = tuple[int, Rect]  # (processor, Rect read)
Given = tuple[int, Rect, tuple[int, ...]]  # a gradient: processor, Rect, and which processors have the same (none: no other)

TaskBuffers = tuple[tuple[int | None, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Inputs, weights, outputs and what is saved of a piece's tasks. None: an input that its backward task, which runs first, does not
need."""

SourceSelector = Callable[[CopyRequest], int]


@quick
@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of one operator: its processor, and the Rects that it touches."""

    node: Node
    index: int
    rect: Rect
    processor: int
    reads: Reads
    writes: tuple[Rect, ...]
    of_all: int | None = None  # its number among all of the operator's, where only some are lowered
    copies: tuple[int, ...] = ()  # the processors that run the same, its own among them; empty if it is the only one
    local: bool = False
    """It is one of several that compute the same of weights alone. Each takes the gradients of those that read its own result, so
    that only the gradients of weights are summed between them."""

    @property
    def first(self) -> bool:
        """True if it is no copy, or the first one, which alone computes gradients of weights."""
        return not self.copies or self.processor == self.copies[0]

    @property
    def name(self) -> str:
        return f"{self.node.name}[{self.index}]"

    def of(self, node: Node) -> Piece:
        """Return the same piece of another node, which is like this one's."""
        return replace(self, node=node)


@dataclass(slots=True)
class Lowering:
    """State that the passes have established so far."""

    graph: OperatorGraph
    strategy: Strategy
    emit: Emitter
    pieces: list[list[Piece]]  # by node, in piece order
    layout: ParameterLayout
    active: set[int]  # nodes whose backward runs
    needs_gradient: set[TensorKey]  # tensors whose gradient somebody needs
    select_source: SourceSelector | None = None
    prefix: str = ""  # of kept buffers that are not parameters
    needed: set[int] | None = None  # the nodes that evaluation runs; None: all, in training
    shards: Mapping[str, Shards] = field(default_factory=dict)  # of bundles that are kept as shares
    owners: dict[TensorKey, Owners] = field(default_factory=dict)
    readers: dict[TensorKey, dict[ReaderKey, int]] = field(default_factory=dict)
    reads: dict[TensorKey, dict[Rect, list[ReaderKey]]] = field(default_factory=dict)
    """Of a tensor that is `forgettable`, by owning piece, the instances in ``readers`` that share elements with it."""
    holders: dict[TensorKey, list[tuple[Rect, int, int]]] = field(default_factory=dict)
    weight_uses: dict[tuple[str, int, Rect], int] = field(default_factory=dict)
    flat_weights: dict[tuple[str, int], int] = field(default_factory=dict)
    gradients: dict[TensorKey, dict[Given, int]] = field(default_factory=dict)
    """Of a tensor, the buffers of gradients that readers have put, in the order in which they came."""
    weight_gradients: dict[tuple[str, int, Rect], int] = field(default_factory=dict)
    flat_gradients: dict[tuple[str, int], int] = field(default_factory=dict)
    filled_cells: dict[tuple[str, int], set[Cell]] = field(default_factory=dict)
    forward_buffers: dict[tuple[int, int], TaskBuffers] = field(default_factory=dict)
    outputs: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)  # (node, piece) -> buffers
    writers: dict[TensorKey, dict[Rect, list[Piece]]] = field(default_factory=dict)
    """Of an output, by Rect, the pieces that write it, partial values of it if there are several."""
    computed: dict[int, set[int]] = field(default_factory=dict)  # by node, the pieces whose forward tasks are emitted
    forgettable: set[TensorKey] = field(init=False)  # tensors that are computed or brought again for the backward pass
    brought: dict[TensorKey, set[Rect]] = field(default_factory=dict)  # of tensors, the owning pieces that were brought again
    again: dict[int, set[int]] = field(default_factory=dict)  # by node, the pieces that were recomputed
    gathered: dict[TensorKey, dict[tuple[Rect, int], int]] = field(default_factory=dict)
    """Of an output, (Rect, processor) -> buffer of its gradient, as far as it has come together."""
    part: StepPart | None = None  # what of the step is lowered; None: all
    checkpoint: Callable[[], object] = lambda: None  # called now and then; what it raises ends the lowering
    hides_sums: bool = False  # a tensor group sums gradients while those of weights are computed (`late_weights`)
    chained: bool = False  # a processor runs its operators' tasks in the order in which they are emitted
    last: dict[int, int] = field(default_factory=dict)  # by processor the task before, if chained
    arrived: Mapping[int, list[int]] = field(default_factory=dict)  # by processor, more tasks after which its next ones come
    recent: dict[int, list[int]] = field(default_factory=dict)  # by processor the last few backward tasks of the pass
    ended: dict[int, int] = field(default_factory=dict)  # by processor the last operator's task of all passes that are over
    wanted: list[Wanted] = field(default_factory=list)  # instances that `bring` is to fill
    recut: list[Recut] = field(default_factory=list)  # the same of what all replicas write
    reading: dict[TensorKey, set[int]] = field(default_factory=dict)
    """Of a tensor, the processors that have wanted some of it since the last `bring`; only with `by_collectives`."""
    by_collectives: bool = field(init=False)  # what is cut anew within a group of processors goes as collectives
    ring: bool = field(init=False)  # and whole pieces that several of them read go from neighbour to neighbour
    gathers: WeightGathers = field(init=False)  # of the weights that are kept as shares
    gradient_shares: dict[tuple[str, int], int] = field(default_factory=dict)  # of those gradients, as flat_gradients
    sharded_layers: dict[str, list[Bundle]] = field(default_factory=dict)  # their bundles, by layer or block
    across: frozenset[str] = frozenset()  # layers of weights that several stages of a pipeline share
    scattered: dict[int, list[int]] = field(default_factory=dict)
    """By processor, for each layer and pass, the task after which a whole gradient is no longer needed there."""
    losses: frozenset[TensorKey] = field(init=False)
    topics: list[Topic] = field(init=False)  # of copies of a node's outputs, by node
    _users: dict[TensorKey, list[tuple[Node, int]]] = field(default_factory=dict)  # tensor -> (reader, which input)

    def __post_init__(self) -> None:
        self.topics = [Topic(Purpose.OUTPUT, node.name) for node in self.graph]
        self.losses = frozenset((loss.node, loss.index) for loss in self.graph.losses)
        again = self.strategy.again.computed, self.strategy.again.fetched
        self.forgettable = {
            (t.node, t.index) for node in self.graph if any(again)
            for tensors, names in zip((node.outputs, node.inputs), again) if node.name in names for t in tensors
        }
        # A mapper that picks sources says for each copy where it is from.
        self.by_collectives = self.strategy.exchange is not Exchange.COPIES and self.select_source is None
        self.ring = self.by_collectives and self.strategy.exchange is Exchange.RING
        self.gathers = WeightGathers(self.emit, self.shards, self.layout)
        for bundle in self.layout.bundles if self.shards else ():
            if bundle.name in self.shards:
                self.sharded_layers.setdefault(bundle.unit, []).append(bundle)

    def chain(self, processor: int) -> tuple[int, ...]:
        """Return the task after which the next task of an operator on a processor comes, whether or not it needs that task's
        results."""
        before = (self.last[processor],) if self.chained and processor in self.last else ()
        return (*before, *self.arrived.get(processor, ()))

    def written_since(self, first: int) -> dict[int, list[int]]:
        """Return, by processor, the tasks from the given one on that write there."""
        found: dict[int, list[int]] = {}
        graph = self.emit.graph
        for task in graph.tasks[first:]:
            for processor in dict.fromkeys(graph.buffers[part.buffer].processor for part in task.writes):
                found.setdefault(processor, []).append(task.number)
        return found

    def forget(self, tensor: Tensor, rects: Collection[Rect]) -> None:
        """Forget the instances of these elements, given by Rects that pieces write, so that later readers get new ones."""
        key = tensor.node, tensor.index
        readers, reads, owners = self.readers.get(key, {}), self.reads.get(key, {}), self.owners[key]
        for owned in [owned for rect in rects for owned, _ in owners.of(rect)]:
            for reader in reads.pop(owned, ()):
                readers.pop(reader, None)
        if key in self.holders:
            self.holders[key] = [h for h in self.holders[key] if not any(h[0].overlaps(rect) for rect in rects)]

    def users(self, tensor: Tensor) -> list[tuple[Rect, int]]:
        """Return the Rects of a tensor that operators' pieces read in the forward pass, each with the piece's processor."""
        return [
            (piece.reads.inputs[i], piece.processor) for node, i in self._readers_of(tensor) for piece in self.pieces[node.number]
        ]

    def _readers_of(self, tensor: Tensor) -> Sequence[tuple[Node, int]]:
        if not self._users:
            for node in self.graph if self.needed is None else [self.graph.nodes[n] for n in sorted(self.needed)]:
                for i, read in enumerate(node.inputs):
                    self._users.setdefault((read.node, read.index), []).append((node, i))
        return self._users.get((tensor.node, tensor.index), ())

    def read(self, tensor: Tensor, rect: Rect, processor: int) -> int:
        """Return the instance from which a task on ``processor`` reads ``rect`` of ``tensor``; it is made and filled if it does
        not exist."""
        buffer = self.want(tensor, rect, processor)
        self.bring()
        return buffer

    def bring(self) -> None:
        """Emit the collectives and copies that fill the instances made by `want`."""
        wanted, reading = self.wanted, self.reading
        self.wanted, self.reading = [], {}
        if self.recut:
            self.recut, recut = [], self.recut
            bring_recut(self.emit, recut, self.topics)
        if self.by_collectives and wanted:
            by_tensor: dict[TensorKey, list[Wanted]] = {}
            for one in wanted:
                by_tensor.setdefault((one.tensor.node, one.tensor.index), []).append(one)
            wanted = []
            for key, some in by_tensor.items():
                self.emit.topic = self.topics[key[0]]
                if self.strategy.pipeline is not None and not self.graph.nodes[key[0]].of_weights:
                    some = bring_whole(self.emit, some)  # what is made of weights alone lies on all replicas
                wanted += exchange_values(self.emit, some, reading[key], self.ring)
        copies: list[Copying] = [
            (
                f"{one.tensor.name}{shared}", self.emit.part(source, shared), self.emit.part(one.buffer, shared),
                self.topics[one.tensor.node],
            )
            for one in wanted for shared, _, source in one.sources
        ]
        self.emit.transfers(copies)

    def want(self, tensor: Tensor, rect: Rect, processor: int) -> int:
        """Return an instance as `read` does, but let `bring` emit what fills it, together with everything else that is wanted
        by then. If the mapper picks sources, it is emitted at once, since the instance may be the source of the next one."""
        of, key = (tensor.node, tensor.index), (processor, rect)
        readers = self.readers.setdefault(of, {})
        if self.by_collectives:
            self.reading.setdefault(of, set()).add(processor)
        if (known := readers.get(key)) is not None:
            return known
        name = tensor.name
        if rect.empty:
            buffer = self.emit.buffer(name, rect, processor, tensor.dtype)
            readers[key] = buffer
            return buffer
        of_tensor = self.owners[of]
        members = self._members(tensor, rect, processor)
        pieces = of_tensor.overlapping(rect)
        near = [of_tensor.nearest(*piece, processor) for piece in pieces]
        if of in self.forgettable:
            reads = self.reads.setdefault(of, {})
            for owned, *_ in pieces:
                reads.setdefault(owned, []).append(key)
        if members is None and len(near) == 1 and near[0][0] == processor:
            view = self.emit.view(near[0][1], name, rect)
            if view is not None:
                readers[key] = view
                return view
        buffer = self.emit.buffer(name, rect, processor, tensor.dtype)
        if members is not None:
            self.recut.append(Recut(tensor, members, of_tensor.pieces[members.own.lo], (rect, processor, buffer)))
            readers[key] = buffer
            return buffer
        sources: list[Held] = []
        for (owned, *_), (giver, source) in zip(pieces, near):
            shared = rect if owned == rect else owned.intersect(rect)
            giver_buffer = self._source(tensor, shared, giver, source, processor, of_tensor.summed.get(owned, {}))
            sources.append((shared, giver, giver_buffer))
        self.wanted.append(Wanted(tensor, rect, processor, buffer, tuple(sources)))
        if self.select_source is not None:
            self.bring()
        if self.select_source is not None:
            self.holders.setdefault(of, []).append((rect, processor, buffer))
        readers[key] = buffer
        return buffer

    def _members(self, tensor: Tensor, rect: Rect, processor: int) -> Members | None:
        """Among whom a tensor is cut anew of which a processor reads ``rect``, if it takes processors that are not lowered."""
        owners, part = self.owners[tensor.node, tensor.index], self.part
        if part is None or not part.spread or not self.by_collectives or rect.empty:
            return None
        if (processor, rect) not in owners.recut and not owners.lowered(rect):
            owners.recut[processor, rect] = self._cut_anew(part, tensor, rect, processor)
        return owners.recut.get((processor, rect))

    def _cut_anew(self, part: StepPart, tensor: Tensor, rect: Rect, processor: int) -> Members:
        node, pipeline = self.graph.nodes[tensor.node], self.strategy.pipeline
        wrote = self.owners[tensor.node, tensor.index].shared(rect)
        if not wrote:
            wrote = part.written(node, self.strategy[node.name], pipeline, tensor.index, rect)
        return members_of(processor, wrote, self.read_by(tensor, rect, processor, wrote))

    def read_by(self, tensor: Tensor, rect: Rect, processor: int, group: Iterable[int] | None) -> dict[int, Rect]:
        """Return what processors in all replicas (None: all of the micro-batch) read of a tensor, as one of them reads ``rect``.
        NotAlikeError if some read nothing."""
        assert self.part is not None
        for node, i in self._readers_of(tensor):
            for piece in self.pieces[node.number]:
                if piece.processor == processor and piece.reads.inputs[i] == rect and piece.of_all is not None:
                    return self.part.read(node, self.strategy[node.name], self.strategy.pipeline, piece.of_all, i, group)
        raise NotAlikeError(f"{rect} of {tensor.name} is read, of which not all pieces are lowered")

    def _source(
        self, tensor: Tensor, rect: Rect, owner: int, buffer: int, target: int, summed: Mapping[int, int]
    ) -> int:
        """The buffer to copy from: the owner's, unless the mapper picks another processor that holds the Rect (``summed``: by
        processor, the buffers in which an all-reduce has left it)."""
        if self.select_source is None or owner == target:
            return buffer
        held = {owner: buffer, **summed}
        for other, processor, copy in self.holders.get((tensor.node, tensor.index), ()):
            if other.contains(rect):
                held.setdefault(processor, copy)
        request = CopyRequest(
            tensor.name, rect, target, tuple(held), rect.volume * tensor.dtype.itemsize
        )
        choice = self.select_source(request)
        if choice not in held:
            raise ValueError(
                f"mapper: select_task_sources chose processor {choice} for {tensor.name}{rect} -> {target}; "
                f"only {sorted(held)} hold it"
            )
        return held[choice]

    def weight(self, parameter: Parameter, rect: Rect, processor: int) -> int:
        """Return the instance from which a task on ``processor`` reads ``rect`` of a parameter: the cell itself, or gathered
        cells."""
        key = (parameter.name, processor, rect)
        if key in self.weight_uses:
            return self.weight_uses[key]
        cells = self.layout.covering(parameter, rect) if not rect.empty else []
        if any(bundle.name in self.gathers for bundle, _ in cells):
            self.gathers.uses.append(key)
        if len(cells) == 1:
            bundle, cell = cells[0]
            buffer = self.emit.alias(
                self._flat(bundle, processor),
                Rect((cell.offset,), (cell.offset + rect.volume,)), parameter.name, rect,
            )
        else:
            buffer = self.emit.buffer(parameter.name, rect, processor, parameter.spec.dtype)
            topic = Topic(Purpose.GATHERED, parameter.layer)
            for bundle, cell in cells:
                flat = self._flat(bundle, processor)
                shown = self.emit.alias(
                    flat, Rect((cell.offset,), (cell.offset + cell.rect.volume,)), parameter.name, cell.rect
                )
                self.emit.transfer(
                    f"{parameter.name}{cell.rect}", self.emit.whole(shown), self.emit.part(buffer, cell.rect), topic=topic
                )
        self.weight_uses[key] = buffer
        return buffer

    def weights_again(self, piece: Piece, before: tuple[int, ...]) -> tuple[int, ...]:
        """Return the instances of weights that a backward task reads: those of ``before``, its forward task, unless they were
        gathered."""
        if not self.sharded_layers:
            return before
        return tuple(self.weight(p, rect, piece.processor) for p, rect in zip(piece.node.parameters, piece.reads.weights))

    def room_for_gradients(self, node: Node, processor: int) -> tuple[tuple[int, ...], tuple[int, int | None] | None]:
        """Return the tasks for which a backward task waits, so that whole gradients of at most two layers (or blocks) exist at
        once: one that is being computed and one that is being summed. If that is to be found later: how many sums back, and
        before which one (`Turn`)."""
        done = self.scattered.get(processor, ())
        units = [unit for unit in map(self.layout.unit, node.parameters) if unit in self.sharded_layers]
        if not units:
            return (), None
        if self.gathers.later(bundle for unit in units for bundle in self.sharded_layers[unit]):
            return (), (2, len(done))
        return ((done[-2],), None) if len(done) >= 2 else ((), (2 - len(done), None))

    def _flat(self, bundle: Bundle, processor: int) -> int:
        if bundle.name in self.gathers:
            return self.gathers.weights(bundle, processor)
        self.gathers.arrive(bundle, self.flat_weights, processor)
        return self.flat_weights[bundle.name, processor]
