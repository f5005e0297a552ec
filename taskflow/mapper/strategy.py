"""Strategy: one configuration per operator. Its file is in `strategy_file`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape

import numpy as np

from taskflow.drawing import box, device_colour, svg
from taskflow.drawing import table as html_table
from taskflow.graph import Node, OperatorGraph
from taskflow.mapper.again import HadAgain
from taskflow.mapper.config import Exchange, OpConfig, ranges
from taskflow.mapper.pipeline import Pipeline, verify_pipeline
from taskflow.mapper.plan import HybridPlan
from taskflow.mapper.sync import MessageSync, Sync, SyncAlgorithm

_DEFAULT_SYNC = MessageSync()
_NOTHING = HadAgain()
MOST_ROWS = 200  # of the table that a notebook shows
SUMS = (SyncAlgorithm.OWNER, SyncAlgorithm.COLLECTIVE)  # how partial values may be summed


@dataclass(frozen=True, slots=True)
class Strategy:
    """Parallelisation strategy of a graph.

    - ``configs``: operator name -> OpConfig.
    - ``syncs``: layer name -> Sync; a layer that is not named has the default.
    - ``sums``: how partial values that several processors computed of one Rect are added. OWNER: one of them adds and the
      others fetch the sum. COLLECTIVE: one all-reduce leaves the sum with all of them.
    - ``pipeline``: micro-batches, stages and the order of passes; None: operator after operator.
    - ``again``: what is not kept for the backward pass, but computed or fetched again.
    - ``exchange``: how tensors are resharded within a group of processors. With COLLECTIVES, partial values that ``sums`` adds
      by collectives become reduce-scatters where each processor reads only a share of the sum.
    - ``plan``: the plan in notation that all this is, with every degree set; None: none, or nobody knows. It describes what the
      other fields say, so it does not count when strategies are compared. Who replaces these fields replaces it, too; `plan_of`
      returns it only if it is true.
    - ``name``: what people call the strategy; nothing follows from it.

    Raises ValueError if ``sums`` is any other algorithm.
    """

    processors: int
    configs: Mapping[str, OpConfig]
    syncs: Mapping[str, Sync] = field(default_factory=dict)
    name: str = "custom"
    sums: SyncAlgorithm = SyncAlgorithm.OWNER
    pipeline: Pipeline | None = None
    again: HadAgain = _NOTHING
    exchange: Exchange = Exchange.COPIES
    plan: HybridPlan | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.sums not in SUMS:
            raise ValueError(
                f"strategy {self.name}: partial values are summed by 'owner' or 'collective' "
                f"(SyncAlgorithm.OWNER, SyncAlgorithm.COLLECTIVE), "
                f"got {self.sums!r}"
            )

    def __getitem__(self, operator: str) -> OpConfig:
        return self.configs[operator]

    def same(self, other: Strategy) -> bool:
        """True if this is ``other``, or equal to it with the same plan. Most that differ have other names, which come first."""
        return self is other or (self.name == other.name and self.plan == other.plan and self == other)

    def sync(self, layer: str) -> Sync:
        """Return how the weights of a layer are synchronised."""
        return self.syncs.get(layer, _DEFAULT_SYNC)

    def on_members(self, members: Sequence[int], processors: int) -> Strategy:
        """Return this strategy for a group of devices as one for a machine of ``processors``: its processor p becomes
        ``members[p]``."""
        configs = {
            name: replace(config, processors=tuple(members[p] for p in config.processors)) for name, config in self.configs.items()
        }
        return replace(self, processors=processors, configs=configs, plan=None)

    def partial(self, node: Node) -> bool:
        """True if several processors compute partial values of one Rect of an output of ``node``; `sums` says how these are
        added."""
        config = self[node.name]
        if config.copies > 1:
            return False
        cut = [i for i, degree in enumerate(config.degrees) if degree > 1]
        sums = {tuple(i for i in cut if node.written_axis(i, tensor.index) is None) for tensor in node.outputs} - {()}
        if sums:
            places = np.asarray(config.processors).reshape(config.degrees)
            return any((places.max(along) != places.min(along)).any() for along in sums)  # pieces there write the same Rect
        return False

    def verify_names(self, graph: OperatorGraph) -> None:
        """Raise ValueError that names operators of the graph without a configuration, and configurations without an operator."""
        names = {node.name for node in graph}
        missing, extra = names - set(self.configs), set(self.configs) - names
        if missing or extra:
            raise ValueError(
                f"strategy {self.name} does not fit model {graph.name}: "
                + "; ".join(
                    f"{what}: {', '.join(sorted(ops)[:5])}{' ...' if len(ops) > 5 else ''}"
                    for what, ops in (("no configuration for", missing), ("unknown operators", extra))
                    if ops
                )
            )

    def verify_syncs(self, graph: OperatorGraph) -> None:
        """Raise ValueError that names layers that `syncs` has and that have no weights. A part of a graph has fewer layers, so
        `verify` does not ask."""
        layers = dict.fromkeys(parameter.layer for node in graph for parameter in node.parameters)
        if unknown := sorted(set(self.syncs) - set(layers)):
            raise ValueError(
                f"strategy {self.name}: syncs of layers that have no weights: {', '.join(unknown[:5])}; layers with weights are "
                f"{', '.join(list(layers)[:5])}{' ...' if len(layers) > 5 else ''}"
            )

    def verify(self, graph: OperatorGraph) -> None:
        """Raise ValueError that names what does not fit the graph or the machine."""
        self.verify_names(graph)
        right: set[tuple[object, ...]] = set()  # layers are alike, and have the same configurations
        known: dict[int, tuple[int, ...]] = {}
        for node in graph:
            config = self.configs[node.name]
            if config.copies == 1 and not config.weights:
                if (key := (id(config), node.operator.kind, node.dims)) in right:
                    continue
                right.add(key)
            config.verify(node, self.processors, known)
        if self.pipeline is not None:
            verify_pipeline(graph, self.configs, self.pipeline)
        self._verify_again(graph)

    @property
    def ordered(self) -> bool:
        """True if the strategy says more than cuts, places and sums.

        That is an order of passes, something that the backward pass has again, or collectives that reshard tensors. Or it says of
        weights that they, or their gradients, are kept as shares, gathered or summed at another time, or in buckets.
        """
        shares = any(sync.ordered for sync in self.syncs.values())
        return self.pipeline is not None or bool(self.again) or self.exchange is not Exchange.COPIES or shares

    def _verify_again(self, graph: OperatorGraph) -> None:
        names = {node.name for node in graph}
        for what, of in self.again.sets().items():
            if unknown := of - names:
                raise ValueError(f"strategy {self.name}: {what} names unknown operators: {', '.join(sorted(unknown)[:5])}")
        for node in graph:
            if not node.inputs and node.name in self.again.computed:
                raise ValueError(
                    f"strategy {self.name}: operator {node.name} ({node.operator.kind}) has no inputs to be computed again "
                    f"from; leave it out of {next(what for what, of in self.again.sets().items() if node.name in of)}"
                )

    def describe(self, graph: OperatorGraph) -> str:
        """Return one line for each operator: ``lstm1: n/4 @ 0-3``."""
        return "\n".join(f"{node.name}: {self[node.name].describe(node)}" for node in graph)

    def __repr__(self) -> str:
        pieces = sum(len(config.processors) for config in self.configs.values())
        used = len({p for config in self.configs.values() for p in config.processors})
        order = f"; {self.pipeline}" if self.pipeline is not None else ""
        many = len(self.again.computed)
        again = f"; {many} operator{'s' * (many > 1)} recomputed" if many else ""
        return (
            f"{self.name}: {len(self.configs)} operators in {pieces} pieces on {used} of {self.processors} processors{order}{again}"
        )

    def _repr_html_(self) -> str:
        return _page(self)


def _page(strategy: Strategy) -> str:
    """The strategy as an HTML table: an operator a row, its pieces as a strip of processors."""
    count, rows = strategy.processors, []
    for name, config in list(strategy.configs.items())[:MOST_ROWS]:
        width = 240 / len(config.processors)
        strip = [
            box(k * width, 0, width, 14, device_colour(p, count), f"piece {k} on {p}", str(p))
            for k, p in enumerate(config.processors)
        ]
        cut = "x".join(map(str, config.degrees))
        where = ranges(config.processors)
        rows.append((escape(name), cut, escape(where), svg(240, 14, strip, f"{len(strip)} pieces on {where}")))
    left = len(strategy.configs) - len(rows)
    more = f"<div>and {left} more operators</div>" if left else ""
    return f"<div>{html_table(('operator', 'degrees', 'processors', 'pieces'), rows, repr(strategy), raw=True)}{more}</div>"

