"""Parameter layout: the cells that processors share, bundled by layer (or block, or bucket of layers) and group of holders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from types import MappingProxyType

from taskflow.graph import OperatorGraph
from taskflow.operators.tensor import Parameter
from taskflow.partition import Grid
from taskflow.regions import Rect
from taskflow.tasks.lower.part import NotAlikeError
from taskflow.tasks.task import Bundle, Cell

Uses = Mapping[Parameter, Mapping[int, Sequence[Rect]]]  # parameter -> processor -> the distinct Rects its tasks read, if any
NO_UNITS: Mapping[str, str] = MappingProxyType({})
NO_HOLDERS: Mapping[str, Mapping[Rect, tuple[int, ...]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ParameterLayout:
    """Bundles of a graph under a strategy, and where each cell of a parameter is found."""

    bundles: tuple[Bundle, ...]
    cells: Mapping[str, tuple[tuple[Bundle, Cell], ...]]  # parameter name -> its cells
    layers: tuple[str, ...]  # of all parameters, in the order of the graph
    units: Mapping[str, str] = field(default_factory=dict)  # of layers that are gathered or summed with others (`units_of`)

    def unit(self, parameter: Parameter) -> str:
        """Return what a parameter's layer is gathered with, or the layer itself."""
        return self.units.get(parameter.layer, parameter.layer)

    def rank(self, bundle: Bundle) -> int:
        """Return the number of the bundle's layer plus that of the bundle within the layer."""
        of_layer = [b.name for b in self.bundles if b.layer == bundle.layer]
        return self.layers.index(bundle.layer) + of_layer.index(bundle.name)

    def covering(self, parameter: Parameter, rect: Rect) -> list[tuple[Bundle, Cell]]:
        """Return the cells that make up ``rect`` of a parameter."""
        return [(b, c) for b, c in self.cells[parameter.name] if rect.contains(c.rect)]


def lay_out(
    graph: OperatorGraph, uses: Uses, trained: set[str], everywhere: Callable[[tuple[int, ...]], tuple[int, ...]] | None = None,
    units: Mapping[str, str] = NO_UNITS, holders: Mapping[str, Mapping[Rect, tuple[int, ...]]] = NO_HOLDERS,
) -> ParameterLayout:
    """Bundle the cells of all parameters in ``uses``, those of the layers of a unit together (``units``: by layer).
    ``trained``: the parameters that get gradients. The others, and those of which nothing is used, get bundles of their own,
    so that either all of a bundle has gradients or none. ``everywhere``: of processors in ``uses``, all that use the same
    (`StepPart.everywhere`); None: there are no others. ``holders``: of parameters of which others use other Rects, who uses each
    Rect (`StepPart.holders`)."""
    grouped: dict[tuple[str, tuple[int, ...], bool, str], list[tuple[Parameter, Rect]]] = {}
    for parameter in graph.parameters:
        if parameter not in uses:
            continue
        reached = parameter.name in trained and any(uses[parameter].values())
        of = holders.get(parameter.name)
        for rect, group in _cells(parameter, uses[parameter], everywhere) if of is None else _apart(uses[parameter], of):
            key = (units.get(parameter.layer, parameter.layer), group, reached, str(parameter.spec.dtype))
            grouped.setdefault(key, []).append((parameter, rect))
    bundles: list[Bundle] = []
    cells: dict[str, list[tuple[Bundle, Cell]]] = {p.name: [] for p in graph.parameters}
    counts: dict[str, int] = {}
    for (unit, group, _, _), members in grouped.items():
        offset, placed = 0, []
        for parameter, rect in members:
            placed.append(Cell(parameter.name, rect, offset))
            offset += rect.volume
        index = counts[unit] = counts.get(unit, -1) + 1
        name = unit if index == 0 else f"{unit}#{index}"
        bundle = Bundle(name, members[0][0].layer, unit, group, tuple(placed), members[0][0].spec.dtype)
        bundles.append(bundle)
        for cell in placed:
            cells[cell.parameter].append((bundle, cell))
    layers = tuple(dict.fromkeys(p.layer for p in graph.parameters))
    return ParameterLayout(tuple(bundles), {k: tuple(v) for k, v in cells.items()}, layers, units)


def _cells(
    parameter: Parameter, uses: Mapping[int, Sequence[Rect]], everywhere: Callable[[tuple[int, ...]], tuple[int, ...]] | None
) -> list[tuple[Rect, tuple[int, ...]]]:
    """The common refinement of all Rects in use, each cell with the processors that hold it, in row-major order.

    What no task uses is held too, so that weight decay reaches every element under every strategy. (Of a kernel that is
    what meets nothing but padding, and which elements these are depends on the cut.) The holders of the first cell that
    is used hold it, since there the update has a gradient; if none is, processor 0 does.
    """
    using: dict[Rect, list[int]] = {}
    for processor, rects in uses.items():
        for rect in rects:
            using.setdefault(rect, []).append(processor)
    grid = _refined(parameter.spec.rect, using)
    holders: dict[tuple[int, ...], set[int]] = {}
    for rect, processors in using.items():
        for color in grid.overlapping(rect):
            holders.setdefault(color, set()).update(processors)
    groups = {color: tuple(sorted(of)) for color, of in holders.items()}
    if everywhere is not None:
        groups = {color: everywhere(group) for color, group in groups.items()}
    of_unused = groups[min(groups)] if groups else (0,)
    return [(grid.rect(color), groups.get(color, of_unused)) for color in product(*(range(n) for n in grid.colors))]


def _apart(
    uses: Mapping[int, Sequence[Rect]], holders: Mapping[Rect, tuple[int, ...]]
) -> list[tuple[Rect, tuple[int, ...]]]:
    """The Rects in use, each with its holders, in row-major order. NotAlikeError if they are not apart from each other."""
    rects = sorted({rect for of in uses.values() for rect in of}, key=lambda rect: rect.lo)
    if sum(rect.volume for rect in holders) != hull_volume(holders):
        raise NotAlikeError("weights that replicas divide are used in Rects that overlap")
    return [(rect, holders[rect]) for rect in rects]


def hull_volume(rects: Collection[Rect]) -> int:
    """Return the number of elements of the least Rect that contains all of ``rects``."""
    lows, highs = zip(*(rect.lo for rect in rects)), zip(*(rect.hi for rect in rects))
    return Rect(tuple(map(min, lows)), tuple(map(max, highs))).volume


def left_over(whole: Rect, used: Collection[Rect]) -> tuple[int, Rect | None]:
    """Return the number of elements of ``whole``, a parameter's Rect, that are in none of the Rects ``used``, and the first
    cell that is in some. The holders of that cell hold the unused elements too (see `_cells`). The cell is None if nothing is
    used; then processor 0 holds them."""
    grid = _refined(whole, used)
    covered = {color for rect in used for color in grid.overlapping(rect)}
    unused = whole.volume - sum(grid.rect(color).volume for color in covered)
    return unused, grid.rect(min(covered)) if covered else None


def _refined(whole: Rect, used: Iterable[Rect]) -> Grid:
    """The coarsest grid of cells that each lie in or outside of every Rect."""
    distinct = {whole, *used}
    return Grid([sorted({r.lo[i] for r in distinct} | {r.hi[i] for r in distinct}) for i in range(whole.ndim)])
