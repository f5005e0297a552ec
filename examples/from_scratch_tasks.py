"""taskflow from scratch, the other half: from pieces to tasks. Begin with `taskflow_from_scratch.py`.

A network is a list of operators, each of which says what a piece of it reads and writes. A strategy says how each is cut and
where its pieces are. Out of these comes the program of one training step: tasks, copies, and what waits for what.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from taskflow_from_scratch import Operator

# ---- 5. Regions and partitions: what is cut, and how -----------------------------------------------------------------

class Rect(NamedTuple):
    """A box of points, half-open: Rect((0, 2), (4, 6)) is rows 0 to 3 of columns 2 to 5. A scalar's is Rect((), ())."""
    lo: tuple[int, ...]
    hi: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(h - l for l, h in zip(*self))

    def overlaps(self, other: Rect) -> bool:
        return all(max(a, b) < min(c, d) for a, b, c, d in zip(self.lo, other.lo, self.hi, other.hi))

    def intersect(self, other: Rect) -> Rect:
        return Rect(tuple(map(max, self.lo, other.lo)), tuple(map(min, self.hi, other.hi)))

    def relative_to(self, other: Rect) -> Rect:
        return Rect(*(tuple(x - o for x, o in zip(corner, other.lo)) for corner in self))

class Instance(NamedTuple):
    """``rect`` of some region in the memory of one processor, where it lies in the array ``memory``, at ``within``."""
    rect: Rect
    processor: int
    memory: np.ndarray
    within: Rect

    @property
    def array(self) -> np.ndarray:
        return self.memory[(..., *map(slice, *self.within))].reshape(self.rect.shape)  # a view: the same memory

    def part(self, rect: Rect) -> Instance:
        return self._replace(rect=rect, within=rect.relative_to(self.rect))

def instance(rect: Rect, processor: int, dtype: object = float) -> Instance:
    return Instance(rect, processor, np.zeros(rect.shape, dtype), rect.relative_to(rect))

def tile(sizes: list[int], degrees: list[int]) -> list[Rect]:
    """A partition: the box of these sizes in ``degrees[i]`` pieces along dimension i, which differ by at most one."""
    cuts = [[i * (s // d) + min(i, s % d) for i in range(d + 1)] for s, d in zip(sizes, degrees)]
    colors = product(*map(range, degrees))  # the last dimension counts fastest
    return [Rect(*(tuple(c[i + end] for c, i in zip(cuts, color)) for end in (0, 1))) for color in colors]

# How one operator is cut and placed: pieces along each dimension of its iteration space, and the processor of each piece. A
# strategy has one for every operator, by name.
OpConfig = tuple[tuple[int, ...], tuple[int, ...]]

# ---- 6. Lower: graph + strategy -> tasks, copies, and what waits for what --------------------------------------------

class Task(NamedTuple):
    """What a processor does, or the link between two (a copy). ``after``: the tasks that must end before it starts."""
    number: int
    kind: str
    name: str
    processor: int
    source: int  # the processor that sends a copy; of other tasks the same as ``processor``
    after: set[int]
    flops: int
    nbytes: int
    run: partial

class Program:
    """The tasks of one training step, found by going through the network once forward and once backward."""

    def __init__(self, graph: list[Operator], strategy: dict[str, OpConfig], lr: float = 0.1) -> None:
        self.pieces = {op.name: list(zip(tile(op.space, strategy[op.name][0]), strategy[op.name][1])) for op in graph}
        # pending: transfers that `bring` will emit. later: additions, which it emits after them. bundles: (layer, {processor:
        # (weights, gradients)}).
        self.tasks, self.pending, self.later, self.bundles = [], [], [], []
        # owners: tensor -> its disjoint pieces, each where it was computed. readers: (tensor, Rect, processor) -> the instance that
        # tasks there read. gradients: tensor -> (Rect, processor) -> what its readers have put. kept: forward's instances, for
        # backward. touched: memory -> (task, Rect, does it write?). flat: gradients of a weight's Rects, within their bundle.
        self.owners, self.readers, self.gradients, self.kept, self.touched, self.flat = {}, {}, {}, {}, {}, {}
        self.lay_out_weights(graph)
        for op in graph:
            self.forward(op)
        self.loss = self.read(graph[-1].name, Rect((), ()), 0)
        self.bring()
        for op in reversed([op for op in graph if op.name in self.gradients]):
            self.backward(op, last=op is graph[-1])
        self.synchronise(lr)

    def emit(self, kind: str, name: str, at: int, run: partial, reads: list, writes: list, flops: int = 0, sender: int = 0):
        """Add a task. The rule is Legion's: it waits for every earlier task that touches a point that it touches, where one of
        the two writes. Tasks say nothing else about each other."""
        number, after = len(self.tasks), set()
        for it, mine in [(r, False) for r in reads] + [(w, True) for w in writes]:
            history = self.touched.setdefault(id(it.memory), [])
            after |= {t for t, rect, wrote in history if t != number and (mine or wrote) and rect.overlaps(it.within)}
            history.append((number, it.within, mine))
        nbytes = sum(i.array.nbytes for i in ([*reads, *writes] if kind != "copy" else writes))  # a copy's move once
        self.tasks.append(Task(number, kind, name, at, sender if kind == "copy" else at, after, flops, nbytes, run))

    def transfer(self, name: str, source: Instance, target: Instance) -> Instance:
        """Where reader and owner differ: a copy between processors, or a move within one. To be emitted by `bring`."""
        self.pending.append((name, source, target))
        return target

    def bring(self) -> None:
        """Emit what is pending in rounds, in which pairs of processors meet, neighbours apart: in the readers' order all of them
        would ask the first owner first. (For numbers of processors that are no power of two, taskflow has other rounds.)"""
        self.pending.sort(key=lambda t: (t[1].processor ^ t[2].processor, f"{t[2].processor:032b}"[::-1]))
        for name, source, target in self.pending:
            kind, run = "move" if source[1] == target[1] else "copy", partial(np.copyto, target.array, source.array)
            self.emit(kind, name, target.processor, run, [source], [target], sender=source.processor)
        for addition in self.later:
            self.add(*addition)
        self.pending, self.later = [], []

    def add(self, name: str, sources: list[Instance], target: Instance) -> None:
        """Always in the order of the sources, so that a rerun gives the same bits."""
        total, values = target.array, [source.array for source in sources]
        self.emit("sum", name, target.processor, lambda: [np.add(total, value, out=total) for value in values],
                  [*sources, target], [target], len(sources) * total.size)

    def reduce(self, name: str, parts: list[Instance]) -> Instance:
        """Add partial values: those of one processor there, and then what each processor has, at that of the first."""
        first, more = {}, {}
        for part in parts:
            (more if part.processor in first else first).setdefault(part.processor, []).append(part)
        for processor, extra in more.items():
            self.add(name, extra, *first[processor])
        owner, *others = (part for part, in first.values())
        if others:
            self.later.append((name, [self.transfer(name, o, instance(o.rect, owner.processor)) for o in others], owner))
        return owner

    def lay_out_weights(self, graph: list[Operator]) -> None:
        """A processor holds only the Rects of a weight that its tasks read. Those of a layer that the same processors hold make
        up a bundle: one flat array of weights and one of gradients on each of them, so that one message serves all."""
        for layer, op in enumerate(op for op in graph if op.weight):
            held = [(op.reads(piece)[-1], processor) for piece, processor in self.pieces[op.name]]
            holders = {rect: {p for other, p in held if other == rect} for rect, _ in held}
            for index, group in enumerate(dict.fromkeys(tuple(sorted(h)) for h in holders.values())):
                cells = [rect for rect, holding in holders.items() if holding == set(group)]
                flat, turn = Rect((0,), (sum(prod(c.shape) for c in cells),)), (layer + index) % len(group)
                # The first of the group will update the bundle; who that is takes turns.
                self.bundles.append((op.name, {p: (instance(flat, p), instance(flat, p)) for p in group[turn:] + group[:turn]}))
                starts = np.cumsum([0, *(prod(c.shape) for c in cells)]).tolist()
                for cell, start, end in zip(cells, starts, starts[1:]):
                    for p, (weights, gradients) in self.bundles[-1][1].items():
                        here, key = Instance(cell, p, weights.memory, Rect((start,), (end,))), (f"{op.name}.weight", cell, p)
                        self.readers[key], self.flat[key] = here, here._replace(memory=gradients.memory)
        for op in graph:  # gradients are needed of weights, and of what lies behind a weight
            if op.weight or any(i in self.gradients for i in op.inputs):
                self.gradients |= {op.name: {}, f"{op.name}.weight": {}}

    def read(self, tensor: str, rect: Rect, at: int) -> Instance:
        """Where a task on processor ``at`` reads ``rect`` of a tensor. Its own piece, if that holds it in one stretch; else an
        instance that all tasks there share, filled by one copy from every owner: a halo, a broadcast, a transposition."""
        if (tensor, rect, at) not in self.readers:
            owned = [own for own in self.owners[tensor] if own.rect.overlaps(rect)]
            here = owned[0].part(rect)
            if len(owned) > 1 or here.processor != at or not here.array.flags.c_contiguous:
                here = instance(rect, at, owned[0].memory.dtype)
                for own in owned:
                    self.transfer(tensor, own.part(shared := own.rect.intersect(rect)), here.part(shared))
            self.readers[tensor, rect, at] = here
        return self.readers[tensor, rect, at]

    def forward(self, op: Operator) -> None:
        written: dict[Rect, list[Instance]] = {}
        reads = [[self.read(t, rect, at) for t, rect in zip([*op.inputs, f"{op.name}.weight"], op.reads(piece))]
                 for piece, at in self.pieces[op.name]]
        self.bring()
        for number, ((piece, at), read) in enumerate(zip(self.pieces[op.name], reads)):
            out = instance(op.writes(piece), at, op.dtype)
            saved = [instance(r.rect, at, r.memory.dtype) for r in read if op.keeps == "saved"]
            run = partial(op.forward, *(i.array for i in [*read, out, *saved]))
            self.emit("forward", f"{op.name}[{number}]", at, run, read, [out, *saved], op.flops[0] * prod(piece.shape))
            written.setdefault(out.rect, []).append(out)
            self.kept[op.name, number] = read, out, saved
        self.owners[op.name] = [self.reduce(f"sum {op.name}", parts) for parts in written.values()]
        self.bring()

    def backward(self, op: Operator, last: bool) -> None:
        """What forward reads, backward reduces into, over the same Rect; what forward writes, backward reads."""
        self.owners[f"d {op.name}"] = [self.gather(op.name, own, last) for own in self.owners[op.name]]
        self.bring()
        dys = [self.read(f"d {op.name}", op.writes(piece), at) for piece, at in self.pieces[op.name]]
        self.bring()
        for number, ((piece, at), dy) in enumerate(zip(self.pieces[op.name], dys)):
            read, out, saved = self.kept[op.name, number]
            looks = [*{"reads": read, "output": [out], "saved": saved}[op.keeps], dy]
            targets = []  # for each argument of forward: its gradient (None: nobody needs it), and whether this task adds to it
            for tensor, key in zip([*op.inputs, f"{op.name}.weight"], ((r.rect, at) for r in read)):
                put = self.gradients.get(tensor)
                adds, new = put is not None and key in put, self.flat.get((tensor, *key)) or instance(*key)
                targets.append((None if put is None else put.setdefault(key, new), adds))
            run = partial(run_backward, op, [i.array for i in looks], targets)
            self.emit("backward", f"{op.name}[{number}]", at, run, [*looks, *(t for t, adds in targets if adds)],
                      [t for t, _ in targets if t], op.flops[1] * prod(piece.shape))

    def gather(self, tensor: str, own: Instance, last: bool) -> Instance:
        """The gradient of an owner's piece: the sum of what its readers have put there, in program order."""
        parts = [(g, g.rect.intersect(own.rect)) for g in self.gradients[tensor].values() if g.rect.overlaps(own.rect)]
        if len(parts) == 1 and parts[0][0][:2] == own[:2]:
            return parts[0][0]
        name, total, seen = f"d {tensor}", instance(own.rect, own.processor), set()
        if last:  # the derivative of the loss by itself
            self.emit("fill", name, own.processor, partial(total.array.fill, 1.0), [], [total])
        for part, into in ((given.part(shared), total.part(shared)) for given, shared in parts):
            if into.rect not in seen:
                self.transfer(name, part, into)
            else:
                arrived = part if part.processor == own.processor else self.transfer(name, part, instance(*into[:2]))
                self.later.append((name, [arrived], into))
            seen.add(into.rect)
        return total

    def synchronise(self, lr: float) -> None:
        """The holders of a bundle have a gradient each: add them at one holder, which updates and sends new weights. (taskflow
        spreads bundles of more than a MiB over their holders, a share each, and knows trees and rings.)"""
        for name, bundle in self.bundles:
            self.reduce(f"d {name}.weight", [gradient for _, gradient in bundle.values()])
            self.bring()
        for name, bundle in self.bundles:
            (weights, gradient), *others = bundle.values()
            self.emit("update", name, weights[1], lambda w=weights.array, g=gradient.array: np.subtract(w, lr * g, out=w),
                      [weights, gradient], [weights], 3 * weights.array.size)
            for copy, _ in others:
                self.transfer(f"{name}.weight", weights, copy)
            self.bring()

def run_backward(op: Operator, looks: list[np.ndarray], targets: list[tuple[Instance | None, bool]]) -> None:
    for (target, adds), value in zip(targets, op.backward(*looks)):
        if target:
            target.array[...] = target.array + value if adds else value
