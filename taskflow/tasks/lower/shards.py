"""Shards: which processor keeps which share of a bundle's gradients and weights (ZeRO's stages 2 and 3, FSDP).

Rajbhandari et al., "ZeRO: Memory optimizations toward training trillion parameter models", arXiv 1910.02054; Zhao et al.,
"PyTorch FSDP: Experiences on scaling fully sharded data parallel", arXiv 2304.11277 (hybrid sharding: its section 3.2.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from taskflow.graph import OperatorGraph
from taskflow.mapper import ShardedSync, Strategy, gather_units
from taskflow.partition import even_cuts
from taskflow.regions import Rect
from taskflow.tasks.lower.parameters import ParameterLayout
from taskflow.tasks.task import Bundle


@dataclass(frozen=True)
class Shards:
    """Division of a bundle among its holders. The holders of each of the ``groups``, which have equal sizes, have all of it
    between them: the nth has elements ``cuts[n]`` to ``cuts[n + 1]``. ``zero``: 2 if they keep shares of gradients and of the
    update rule's state, 3 if also of weights. ``ahead``: how many units ahead weights are gathered; ``in_blocks``: whether these
    are blocks of layers (`ShardedSync.prefetch`)."""

    zero: int
    groups: tuple[tuple[int, ...], ...]
    cuts: tuple[int, ...]
    ahead: int
    in_blocks: bool

    @cached_property
    def _places(self) -> dict[int, tuple[tuple[int, ...], Rect]]:
        spans = [Rect((low,), (high,)) for low, high in zip(self.cuts, self.cuts[1:])]
        return {processor: (group, span) for group in self.groups for processor, span in zip(group, spans)}

    def group(self, processor: int) -> tuple[int, ...]:
        """Return the holders that have all shares together with this one."""
        return self._places[processor][0]

    def span(self, processor: int) -> Rect:
        """Return the elements that a holder keeps; they may be empty."""
        return self._places[processor][1]

    def sharers(self) -> list[tuple[Rect, tuple[int, ...]]]:
        """Return each share that is not empty, and its holders: one in each group."""
        spans = [Rect((low,), (high,)) for low, high in zip(self.cuts, self.cuts[1:])]
        return [(span, keepers) for span, keepers in zip(spans, zip(*self.groups)) if not span.empty]


def shards_of(graph: OperatorGraph, strategy: Strategy, layout: ParameterLayout) -> dict[str, Shards]:
    """Return, by bundle's name, those that are kept as shares beyond ZeRO's stage 1. A bundle that one processor holds alone is
    not, nor one of fewer elements than shares: all of it is kept, so that holders stay alike."""
    found: dict[str, Shards] = {}
    using: Mapping[str, Sequence[str]] | None = None
    in_blocks = bool(gather_units(graph, strategy))
    for bundle in layout.bundles:
        sync = strategy.sync(bundle.layer)
        if not isinstance(sync, ShardedSync) or len(bundle.group) == 1:
            continue
        if using is None:
            using = _users(graph, layout)
        classes = _by_replicas(_by_stages(strategy, bundle, using[bundle.unit]), sync.replicas)
        most = min(sync.shard_group or len(classes[0]), len(classes[0]))
        size = next(n for n in range(most, 0, -1) if len(classes[0]) % n == 0)
        if 1 < size <= bundle.size:
            groups = tuple(tuple(c[i : i + size]) for c in classes for i in range(0, len(c), size))
            cuts = tuple(even_cuts(bundle.size, size))
            found[bundle.name] = Shards(sync.zero, groups, cuts, sync.ahead, sync.in_blocks and in_blocks)
    return found


@dataclass(frozen=True, slots=True)
class LateGather:
    """A bundle whose new weights are gathered at the beginning of the next step (`Sync.late_gather`). ``shards``: the elements that
    each holder has updated; between steps only these are new. ``stages``: of a bundle that several stages of a pipeline use, by
    holder those that it runs."""

    shards: Shards
    stages: Mapping[int, frozenset[int]]


def late_gathers(
    graph: OperatorGraph, strategy: Strategy, layout: ParameterLayout, shards: Mapping[str, Shards]
) -> dict[str, LateGather]:
    """Return those by bundle's name."""
    found: dict[str, LateGather] = {}
    using: Mapping[str, Sequence[str]] | None = None
    for bundle in layout.bundles:
        sync = strategy.sync(bundle.layer)
        if sync.late_gather and len(bundle.group) > 1:
            using = _users(graph, layout) if using is None else using
            cuts = tuple(even_cuts(bundle.size, len(bundle.group)))
            own = shards.get(bundle.name) or Shards(sync.zero, (bundle.group,), cuts, 1, sync.bucket > 0)
            found[bundle.name] = LateGather(own, _stages_of(strategy, using[bundle.unit]))
    return found


def _users(graph: OperatorGraph, layout: ParameterLayout) -> dict[str, list[str]]:
    """The operators that use the weights of each layer, or block."""
    found: dict[str, list[str]] = {}
    for node in graph:
        for unit in {layout.unit(p) for p in node.parameters}:
            found.setdefault(unit, []).append(node.name)
    return found


def _stages_of(strategy: Strategy, operators: Sequence[str]) -> dict[int, frozenset[int]]:
    """By processor, the stages whose operators it runs, of those named; empty if all are in one."""
    pipeline = strategy.pipeline
    if pipeline is None or len({pipeline.stage(name) for name in operators}) == 1:
        return {}
    stages: dict[int, set[int]] = {}
    for name in operators:
        for processor in strategy[name].processors:
            stages.setdefault(processor, set()).add(pipeline.stage(name))
    return {processor: frozenset(of) for processor, of in stages.items()}


def _by_replicas(classes: Sequence[Sequence[int]], replicas: int) -> list[list[int]]:
    """Of each class of holders, those at the same place of each replica (`ShardedSync.replicas`). A class of ``replicas`` or fewer
    is left as it is."""
    apart = len(classes[0]) // replicas if replicas and len(classes[0]) % replicas == 0 else 1
    return [list(holders[place::apart]) for holders in classes for place in range(apart)]


def _by_stages(strategy: Strategy, bundle: Bundle, operators: Sequence[str]) -> list[list[int]]:
    """The holders of a bundle by the pipeline's stages that use its layer. So no stage takes part in the collectives of
    another's passes (first and last stage may share an embedding). All are together if that leaves sets of several
    sizes."""
    together = [list(bundle.group)]
    if not (stages := _stages_of(strategy, operators)):
        return together
    classes: dict[frozenset[int], list[int]] = {}
    for processor in bundle.group:
        classes.setdefault(stages.get(processor, frozenset()), []).append(processor)
    return list(classes.values()) if len({len(c) for c in classes.values()}) == 1 else together
