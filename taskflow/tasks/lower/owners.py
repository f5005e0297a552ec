"""Owners: the owning pieces of a tensor, each with the processor and the buffer where it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from taskflow.operators.operator import Spec
from taskflow.partition import Grid
from taskflow.regions import Rect
from taskflow.tasks.lower.part import NotAlikeError
from taskflow.tasks.lower.recut import Held, Members


class Owners:
    """Owning pieces of a tensor: disjoint Rects that form a grid, each with its processor and buffer."""

    def __init__(self, spec: Spec, pieces: Sequence[tuple[Rect, int, int]], whole: bool = True) -> None:
        """``whole``: False where only some of the pieces are lowered."""
        cuts = [
            sorted({r.lo[i] for r, _, _ in pieces} | {r.hi[i] for r, _, _ in pieces}) for i in range(len(spec.shape))
        ]
        self.grid = Grid(cuts)
        self.pieces = {rect.lo: (rect, processor, buffer) for rect, processor, buffer in pieces}
        self.whole = whole
        if whole and (len(self.pieces) != len(self.grid) or self.grid.space != spec.rect):
            raise ValueError(f"pieces of a {spec} do not form a grid: {[str(r) for r, _, _ in pieces]}")
        self._found: dict[Rect, list[tuple[Rect, int, int]]] = {}
        self.summed: dict[Rect, dict[int, int]] = {}
        """Of a Rect whose partial values an all-reduce sums: processor -> buffer of the sum, the owner's too. The same of one that
        several processors compute, each for itself."""
        self.copied: set[Rect] = set()
        """Those that several processors compute."""
        self.crossing: dict[Rect, tuple[int, ...]] = {}
        """Of such a Rect of which other replicas have parts too, where only one is lowered: all processors that sum it."""
        self.shares: dict[Rect, dict[int, Held]] = {}
        """Of a Rect whose partial values a reduce-scatter sums, and which so is several owning pieces: by processor."""
        self.among: dict[Rect, dict[int, Rect]] = {}
        """Of such a Rect the shares of all processors, in all replicas, ascending, where not all are lowered."""
        self.recut: dict[tuple[int, Rect], Members] = {}
        """Of what a processor reads that all replicas have written, where only one is lowered: among whom it is cut anew."""
        self._written: dict[Rect, Rect] = {}  # the Rect of partial values that an owning piece is a share of

    def overlapping(self, rect: Rect) -> list[tuple[Rect, int, int]]:
        """Return the owning pieces that share points with ``rect``; of what all replicas write (`recut`), those that are
        lowered."""
        own = self.pieces.get(rect.lo)
        if own is not None and own[0].hi == rect.hi and not self.recut and not rect.empty:
            return [own]  # as most Rects are read
        found = self._found.get(rect)
        if found is None and any(read == rect for _, read in self.recut):
            found = self._found[rect] = [piece for piece in self if piece[0].overlaps(rect)]
        if found is None:
            places = self._places(rect)
            if places is None:
                raise NotAlikeError(f"{rect} is read, of which not all pieces are lowered")
            found = self._found[rect] = [self.pieces[lo] for lo in places]
        return found

    def shared(self, rect: Rect) -> dict[int, Rect]:
        """Return who has the shares of sums that share points with ``rect``, in all replicas; empty unless some are not
        lowered."""
        return {p: share for shares in self.among.values() for p, share in shares.items() if share.overlaps(rect)}

    def lowered(self, rect: Rect) -> bool:
        """True if all pieces that share points with ``rect`` are lowered."""
        own = self.pieces.get(rect.lo)
        return self.whole or (own is not None and own[0].contains(rect)) or self._places(rect) is not None

    def _places(self, rect: Rect) -> list[tuple[int, ...]] | None:
        places = [self.grid.rect(c).lo for c in self.grid.overlapping(rect)]
        known = self.pieces.keys() >= set(places) and rect.volume == rect.intersect(self.grid.space).volume
        return places if known else None

    def nearest(self, rect: Rect, owner: int, buffer: int, processor: int) -> tuple[int, int]:
        """Return from where ``processor`` reads the owning piece ``rect``, as (processor, buffer): from itself if it has the
        sum."""
        if not self.summed or rect not in self.summed:
            return owner, buffer
        held = self.summed[rect]
        if processor not in held and rect in self.copied:  # from a group to a group, each gets it from another one
            giver = nearest_copy(list(held), processor)
            return giver, held[giver]
        own = held.get(processor)
        return (owner, buffer) if own is None else (processor, own)

    def divide(self, spec: Spec, shares: Mapping[Rect, Mapping[int, Rect]]) -> Owners:
        """Return the same owners with shares (by processor) in place of these Rects; `place` later says which buffers they are
        in. Raises ValueError if the pieces would form no grid."""
        pieces = [piece for piece in self if piece[0] not in shares]
        divided = Owners(
            spec, pieces + [(rect, p, -1) for by_processor in shares.values() for p, rect in by_processor.items()], self.whole
        )
        divided.summed, divided.crossing, divided.copied, divided.among = self.summed, self.crossing, self.copied, self.among
        divided.shares = {whole: {p: (rect, p, -1) for p, rect in parts.items()} for whole, parts in shares.items()}
        divided._written = {rect: whole for whole, parts in shares.items() for rect in parts.values()}
        return divided

    def places(self, whole: Rect) -> tuple[tuple[int, ...], tuple[Rect, ...]] | None:
        """Return among whom a Rect has shares, and where these are in it, if some are of processors that are not lowered."""
        if (shares := self.among.get(whole)) is None:
            return None
        return tuple(shares), tuple([share.relative_to(whole) for share in shares.values()])

    def place(self, whole: Rect, buffers: Mapping[int, int]) -> None:
        """Set the buffers (by processor) of the shares of a Rect, if it has shares."""
        if whole not in self.shares:
            return
        self.shares[whole] = {p: (rect, p, buffers[p]) for p, (rect, *_) in self.shares[whole].items()}
        self.pieces.update({held[0].lo: held for held in self.shares[whole].values()})
        self._found.clear()

    def written(self, rect: Rect) -> Rect:
        """Return the Rect, written by operators' pieces, of which the owning piece ``rect`` is all or a share."""
        return self._written.get(rect, rect)

    def of(self, written: Rect) -> list[tuple[Rect, int]]:
        """Return the owning pieces that make up a Rect written by operators' pieces, each with its processor."""
        if written in self.shares:
            return [(rect, processor) for rect, processor, _ in self.shares[written].values()]
        return [(written, self.pieces[written.lo][1])]

    def replace(self, parts: Mapping[Rect, Sequence[tuple[int, int]]]) -> None:
        """Replace the buffers of owning pieces' values. Given by Rect: the processor and buffer of each partial value."""
        for rect, holders in parts.items():
            if rect in self.shares:
                continue  # `place` says where they are
            self.pieces[rect.lo] = (rect, *holders[0])
            if rect in self.summed:
                held: dict[int, int] = {}
                for processor, buffer in holders:
                    held.setdefault(processor, buffer)
                self.summed[rect] = held
        self._found.clear()

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self.pieces.values())


def nearest_copy(holders: Sequence[int], processor: int) -> int:
    """Choose which of the processors that have the same values gives them to another one: that one itself. Else, if they are
    equally far apart, the one in the same group of so many neighbours, counted anew behind the last group; or the one whose number
    has the most leading digits in common.

    The compiled twin is optimizer/evaluate/lowering/parameter_layout.h; tests/optimizer/evaluate/test_core_of_weights.py holds them
    equal."""
    if processor in holders:
        return processor
    step = holders[1] - holders[0] if len(holders) > 1 else 1
    if step > 0 and all(b - a == step for a, b in pairwise(holders)):
        return holders[(processor // step - holders[0] // step) % len(holders)]
    return min(holders, key=lambda holder: holder ^ processor)


def partial_overlap(rects: list[Rect]) -> bool:
    """Return whether some Rect overlaps an earlier one without lying in it: then its first part would have to be written and the
    rest added, so it is simpler to start from zero."""
    first: dict[Rect, int] = {}
    last: dict[Rect, int] = {}
    for place, rect in enumerate(rects):  # mostly a few Rects, each many times
        first.setdefault(rect, place)
        last[rect] = place
    if len(first) == 1:
        return False
    return any(
        later.overlaps(earlier) and not earlier.contains(later)
        for later in last for earlier in first if first[earlier] < last[later]
    )
