"""Forward pass of lowering: one task for each piece, the copies that bring its inputs, and the sums of partial outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from taskflow.graph import Node
from taskflow.mapper import SyncAlgorithm
from taskflow.operators.state import State
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect, covers
from taskflow.tasks.lower.emit import Emitter
from taskflow.tasks.lower.exchange import Held, Places, reduce
from taskflow.tasks.lower.owners import Owners
from taskflow.tasks.lower.part import NotAlikeError, StepPart
from taskflow.tasks.lower.ring_pass import as_they_arrive
from taskflow.tasks.lower.state import Lowering, Piece
from taskflow.tasks.task import Compute, Kind, Part
from taskflow.tasks.topic import Purpose, Topic

LASTING = "lasting:"  # the prefix of kept buffers that training and evaluation share


def forward(state: Lowering, node: Node, pieces: Sequence[Piece] | None = None) -> None:
    """Emit the forward tasks of a node's pieces (None: of all). If it is called several times for a node, each piece must come
    once; partial values are added when the last of them is emitted."""
    every = state.pieces[node.number]
    if pieces is not None:
        place_outputs(state, node)
    some = every if pieces is None else pieces
    run_pieces(state, node, some, Topic(Purpose.FORWARD, node.name))
    if pieces is None:
        _own(state, node)
    done = state.computed.setdefault(node.number, set())
    done.update(piece.index for piece in some)
    add_partial_values(state, node, some, done)


def place_outputs(state: Lowering, node: Node) -> None:
    """Say where the outputs of all pieces of a node will lie, before some or any of them run; not if it is known."""
    every = state.pieces[node.number]
    if (node.number, every[0].index) not in state.outputs:
        for piece in every:
            state.outputs[node.number, piece.index] = output_buffers(state, piece)
        _own(state, node)


def run_pieces(state: Lowering, node: Node, pieces: Sequence[Piece], topic: Topic) -> None:
    """Fetch the inputs of pieces, and emit their tasks."""
    kept = isinstance(node.operator, State)
    if state.ring:
        pieces = as_they_arrive(state, pieces)
    inputs = [() if kept else _inputs(state, piece) for piece in pieces]
    state.bring()
    state.emit.topic = topic
    for piece, instances in zip(pieces, inputs):
        place = node.number, piece.index
        if place not in state.outputs:
            state.outputs[place] = output_buffers(state, piece)
        if not kept:
            _task(state, piece, instances, state.outputs[place])


def output_buffers(state: Lowering, piece: Piece) -> tuple[int, ...]:
    """Return new buffers for what a piece writes."""
    operator, prefix, start = piece.node.operator, "", 0.0
    kept = isinstance(operator, State)
    if isinstance(operator, State):
        # What lasts is one buffer for training and evaluation, so its name does not say which.
        prefix, start = LASTING if operator.lasting else state.prefix, operator.start
    return tuple(
        state.emit.buffer(f"{prefix}{t.name}", rect, piece.processor, t.dtype, kept=kept, start=start)
        for t, rect in zip(piece.node.outputs, piece.writes)
    )


def _own(state: Lowering, node: Node) -> None:
    """Say where the outputs of a node lie: with the first of the pieces that write the same Rect."""
    for tensor in node.outputs:
        key = node.number, tensor.index
        writers = state.writers[key] = {}
        for piece in state.pieces[node.number]:
            writers.setdefault(piece.writes[tensor.index], []).append(piece)
        table = partial_values(state, tensor)
        owners = state.owners[key] = Owners(
            tensor.spec, [(rect, *parts[0]) for rect, parts in table.items()], state.part is None
        )
        owners.copied.update(rect for rect in table if (writers[rect][0].copies or writers[rect][0].local) and not rect.empty)
        owners.summed.update((rect, dict(table.pop(rect))) for rect in owners.copied)
        if state.part is not None and not state.part.alone:
            owners.crossing.update(_crossing(state, state.part, tensor, table))
        if state.by_collectives:
            state.owners[key] = _divide(state, tensor, table, owners)
            place_shares(state, tensor, state.owners[key].shares)
        else:
            owners.summed.update(_summed_everywhere(state, tensor, table, owners))
        if owners.crossing.keys() - owners.summed.keys() - state.owners[key].among.keys():
            raise NotAlikeError(f"partial values of {tensor.name} are summed by one of several replicas")


def place_shares(state: Lowering, tensor: Tensor, written: Collection[Rect]) -> None:
    """Make buffers for the shares of sums of partial values, for those of the Rects ``written`` that have shares."""
    owners = state.owners[tensor.node, tensor.index]
    for rect in written if owners.shares else ():
        owners.place(rect, {
            p: state.emit.buffer(tensor.name, share, p, tensor.dtype) for p, (share, *_) in owners.shares.get(rect, {}).items()
        })


def partial_values(
    state: Lowering, tensor: Tensor, written: Collection[Rect] | None = None
) -> dict[Rect, list[tuple[int, int]]]:
    """Return the partial values of an output by Rect (those ``written``; None: all): processor and buffer of each piece's
    values."""
    writers = state.writers[tensor.node, tensor.index]
    return {
        rect: [(piece.processor, state.outputs[tensor.node, piece.index][tensor.index]) for piece in writers[rect]]
        for rect in (writers if written is None else written)
    }


def add_partial_values(state: Lowering, node: Node, pieces: Sequence[Piece], ready: set[int]) -> None:
    """Sum the partial values of what these pieces write, where all pieces that write it are among the numbers ``ready``."""
    state.emit.topic = Topic(Purpose.PARTIAL, node.name)
    for tensor in node.outputs:
        owners, writers = state.owners[node.number, tensor.index], state.writers[node.number, tensor.index]
        partial = {
            rect: (f"sum {tensor.name}{rect}", [
                (piece.processor, state.emit.whole(state.outputs[node.number, piece.index][tensor.index]))
                for piece in writers[rect]
            ])
            for rect in dict.fromkeys(piece.writes[tensor.index] for piece in pieces)
            if (len(writers[rect]) > 1 or rect in owners.crossing) and rect not in owners.copied
            and ready.issuperset(p.index for p in writers[rect])
        }
        everywhere = [rect for rect in partial if rect in owners.summed]
        all_reduce_all(state.emit, [partial[rect] for rect in everywhere], [owners.crossing.get(rect) for rect in everywhere])
        reduce_scatter_all(state.emit, [
            (rect, *group, owners.shares[rect], owners.places(rect)) for rect, group in partial.items() if rect in owners.shares
        ])
        rest = [group for rect, group in partial.items() if rect not in owners.summed and rect not in owners.shares]
        reduce_all(state.emit, rest)  # in the first part's buffer


def _crossing(
    state: Lowering, part: StepPart, tensor: Tensor, table: Mapping[Rect, Sequence[tuple[int, int]]]
) -> dict[Rect, tuple[int, ...]]:
    """The Rects of a tensor of which other replicas compute partial values too, each with all that do."""
    found: dict[Rect, tuple[int, ...]] = {}
    node = state.graph.nodes[tensor.node]
    config, pipeline, divided = state.strategy[node.name], state.strategy.pipeline, node.name in part.spread
    image = part.image(node, config, pipeline)
    for piece in state.pieces[node.number] if image is not None or divided else ():
        rect = piece.writes[tensor.index]
        if rect in found or rect.empty:
            continue
        assert piece.of_all is not None
        if image is not None and node.writes(image(piece.of_all))[tensor.index].overlaps(rect):
            found[rect] = part.everywhere({processor for processor, _ in table[rect]})
        elif divided and len(group := part.written(node, config, pipeline, tensor.index, rect)) > len(table[rect]):
            if set(group.values()) != {rect} or not group.keys() >= {processor for processor, _ in table[rect]}:
                raise NotAlikeError(f"partial values of {tensor.name} overlap")
            found[rect] = tuple(group)
        else:
            break  # nor do those of other pieces
    return found


def _summed_everywhere(
    state: Lowering, tensor: Tensor, table: Mapping[Rect, Sequence[tuple[int, int]]], owners: Owners
) -> dict[Rect, dict[int, int]]:
    """The Rects of a tensor whose partial values an all-reduce sums, each with the buffers of the sum by processor. Those are
    they of which every processor that has computed a part also reads some: were only one of them to need the sum, as of a
    loss, sending it to the others would be for nothing."""
    if state.strategy.sums is not SyncAlgorithm.COLLECTIVE:
        return {}
    found = _apart(table, owners.crossing)
    reading = _readers(state, tensor, owners) if found else {}
    return {rect: held for rect, held in found.items() if reading.get(rect, {}).keys() >= held.keys()}


def _divide(
    state: Lowering, tensor: Tensor, table: Mapping[Rect, Sequence[tuple[int, int]]], owners: Owners
) -> Owners:
    """Return who owns a tensor whose partial values collectives sum, if what is cut anew within a group goes as collectives too. A
    reduce-scatter leaves every processor that computed a part with what it reads of the sum. Where these overlap, and of losses, an
    all-reduce leaves all with all. Where as many others read one share each, as on the next stage of a pipeline, each leaves it to
    one of them; and where others read it otherwise, the first gets the sum alone."""
    if state.strategy.sums is not SyncAlgorithm.COLLECTIVE or tensor.dtype.kind in "iub":
        return owners
    reading = _readers(state, tensor, owners) if (found := _apart(table, owners.crossing)) else {}
    shares: dict[Rect, dict[int, Rect]] = {}
    for rect, held in found.items():
        readers = reading.get(rect, {})
        own = {p: next(iter(reads)) for p, reads in readers.items() if len(reads) == 1}
        elsewhere = readers.keys().isdisjoint(held)
        if rect in owners.crossing and rect.ndim:
            owners.among[rect] = _shares_of_all(state, tensor, rect, own, owners.crossing[rect], elsewhere)
            shares[rect] = {p: owners.among[rect][p] for p in held} if elsewhere else own
            continue
        if not rect.ndim or readers.keys() > held.keys():
            owners.summed[rect] = held
        elif elsewhere and len(own) == len(readers) == len(held) and _tile(list(own.values()), rect):
            shares[rect] = dict(zip(sorted(held), [own[p] for p in sorted(own)]))
        elif not readers or not readers.keys() <= held.keys():
            shares[rect] = {owners.pieces[rect.lo][1]: rect}
        elif len(own) == len(readers) and _tile(list(own.values()), rect):
            shares[rect] = own
        else:
            owners.summed[rect] = held
    if not shares:
        return owners
    try:
        return owners.divide(tensor.spec, shares)
    except ValueError:  # no grid, as where two micro-batches are read in other shares
        owners.summed.update({rect: found[rect] for rect in shares})
        return owners


def _tile(shares: Sequence[Rect], whole: Rect) -> bool:
    """True if shares are disjoint and together the whole."""
    return sum(share.volume for share in shares) == whole.volume and covers(shares, whole)


def _shares_of_all(
    state: Lowering, tensor: Tensor, rect: Rect, own: Mapping[int, Rect], group: Sequence[int], elsewhere: bool
) -> dict[int, Rect]:
    """What each processor of a group reads of a Rect, of which some (``own``) are lowered; if others read it (``elsewhere``), what
    each leaves to one of them. NotAlikeError unless these are equal shares."""
    if not own:
        raise NotAlikeError(f"partial values of {tensor.name} are summed across replicas")
    (processor, read), *_ = own.items()
    every = state.read_by(tensor, read, processor, None if elsewhere else group)
    found = {p: part for p, one in every.items() if not (part := one.intersect(rect)).empty}
    if elsewhere and len(found) == len(group):
        found = dict(zip(group, found.values()))
    volumes = {one.volume for one in found.values()}
    if found.keys() != set(group) or len(volumes) > 1 or not _tile(list(found.values()), rect):
        raise NotAlikeError(f"partial values of {tensor.name} are read in other shares by other replicas")
    return found


def _apart(
    table: Mapping[Rect, Sequence[tuple[int, int]]], crossing: Collection[Rect]
) -> dict[Rect, dict[int, int]]:
    """The Rects of which several processors have partial values (those ``crossing`` on other replicas): by processor, its first
    buffer."""
    found: dict[Rect, dict[int, int]] = {}
    for rect, parts in table.items():
        held: dict[int, int] = {}
        for processor, buffer in parts:
            held.setdefault(processor, buffer)
        if (len(held) > 1 or rect in crossing) and not rect.empty:
            found[rect] = held
    return found


def _readers(state: Lowering, tensor: Tensor, owners: Owners) -> dict[Rect, dict[int, set[Rect]]]:
    """Return, of each owning piece of a tensor, the processors that read it in the forward pass, and what of it."""
    reading: dict[Rect, dict[int, set[Rect]]] = {}
    for read, processor in state.users(tensor):
        for rect, *_ in owners.overlapping(read) if not read.empty else ():
            reading.setdefault(rect, {}).setdefault(processor, set()).add(read.intersect(rect))
    return reading


def _inputs(state: Lowering, piece: Piece) -> tuple[int, ...]:
    """The instances that a piece reads; `Lowering.bring` fills them."""
    return tuple(state.want(t, r, piece.processor) for t, r in zip(piece.node.inputs, piece.reads.inputs))


def _task(state: Lowering, piece: Piece, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
    emit, node = state.emit, piece.node
    weights = tuple(state.weight(p, r, piece.processor) for p, r in zip(node.parameters, piece.reads.weights))
    saved = tuple(
        emit.buffer(f"{node.name}.saved{i}", Rect.of(spec.shape), piece.processor, spec.dtype)
        for i, spec in enumerate(node.operator.saves(node.specs, piece.rect))
    )
    state.forward_buffers[node.number, piece.index] = (inputs, weights, outputs, saved)
    state.last[piece.processor] = emit.emit(
        Kind.FORWARD,
        f"{piece.name} {emit.topic.purpose.value}",
        piece.processor,
        Compute(node, piece.rect, False, inputs, weights, outputs, saved),
        [emit.whole(b) for b in (*inputs, *weights)],
        [emit.whole(b) for b in (*outputs, *saved)],
        flops=node.operator.flops(node.specs, piece.rect),
        also_after=state.chain(piece.processor),
    )
    state.gathers.ran(node, piece.processor, state.last[piece.processor])


HeldPart = tuple[int, Part]  # (processor, its part)


def reduce_all(emit: Emitter, groups: Sequence[tuple[str, Sequence[HeldPart]]]) -> None:
    """Sum each named group of parts (equal shapes) into its first part, in a fixed order: everybody sends to that part's
    processor, which adds in the order given. Parts of one processor are added there before anything is sent. Messages of all
    groups are emitted together, so that groups with different owners do not delay each other.
    """
    copies: list[tuple[str, Part, Part]] = []
    sums: list[tuple[str, list[Part], Part]] = []
    for name, parts in groups:
        (owner, target), *others = _local_first(emit, name, parts)
        arrived = [_staging(emit, name, owner, target) for _ in others]
        copies += [(name, part, staging) for (_, part), staging in zip(others, arrived)]
        if arrived:
            sums.append((name, arrived, target))
    emit.transfers(copies)
    for name, arrived, target in sums:
        emit.sum(name, arrived, target)


def all_reduce_all(
    emit: Emitter, groups: Sequence[tuple[str, Sequence[HeldPart]]], among: Sequence[Sequence[int] | None]
) -> None:
    """All-reduce each named group of parts (equal shapes, on two or more processors) by one collective; the sum is in the
    buffer of each processor's first part. Parts of one processor are added there first. ``among``: by group, the participants,
    if not only the parts' processors."""
    for (name, parts), members in zip(groups, among):
        emit.all_reduce(name, [part for _, part in _local_first(emit, name, parts)], members)


def reduce_scatter_all(
    emit: Emitter, groups: Sequence[tuple[Rect, str, Sequence[HeldPart], Mapping[int, Held], Places | None]]
) -> None:
    """Reduce-scatter each group by one collective. A group is the Rect that all parts are of, its name, and its parts, on two
    or more processors. Each processor's share of the sum, if it has one, goes to the given buffer. Parts of one processor are
    added there first. The last: all participants and their places, if some are not lowered."""
    for rect, name, parts, shares, places in groups:
        reduce(emit, name, rect, dict(_local_first(emit, name, parts)), shares, places)


def _staging(emit: Emitter, name: str, owner: int, like: Part) -> Part:
    dtype = emit.graph.buffers[like.buffer].dtype
    return emit.whole(emit.buffer(f"{name} arriving", Rect.of(like.rect.shape), owner, dtype))


def _local_first(emit: Emitter, name: str, parts: Sequence[HeldPart]) -> list[HeldPart]:
    """One part a processor: parts that are on the same one are added there, in order."""
    kept: dict[int, Part] = {}
    more: dict[int, list[Part]] = {}
    for processor, part in parts:
        if processor in kept:
            more.setdefault(processor, []).append(part)
        else:
            kept[processor] = part
    for processor, extra in more.items():
        emit.sum(name, extra, kept[processor])
    return list(kept.items())
