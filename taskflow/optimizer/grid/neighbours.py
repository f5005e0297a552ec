"""The plans next to a plan, which differ in one choice: also such as no grid has, with uneven stages and layers unlike others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from taskflow.mapper import BLOCK, HybridPlan, PipelineSchedule, plan_with
from taskflow.optimizer.grid.stages import PlanSums

AHEAD = (BLOCK, 1, 2, 3, 4)  # layers whose weights are gathered ahead
DEGREES = ("tensor", "context", "pipeline", "data")


def neighbours(plan: HybridPlan, sums: PlanSums, batch: int, node: int) -> Iterator[HybridPlan]:
    """Plans that differ in one choice: layers of neighbouring stages, what the layers of a stage compute again, how weights are
    sharded, micro-batches, schedule, stages a rank, and degrees that trade a factor of two. All divide; whether the network can
    be cut so, and whether it fits, is for the caller to find out. ``node``: devices of a node."""
    seen = {plan}
    for one in _all(plan, sums, node):
        if one not in seen and _divides(one, batch, sums.layers):
            seen.add(one)
            yield one


def quick_neighbours(plan: HybridPlan, sums: PlanSums, batch: int) -> Iterator[HybridPlan]:
    """Those of the neighbours that keep the degrees and treat all stages alike; and the plan with stages that take equally long."""
    seen = {plan}
    for one in (
        *_balanced(plan, sums), *_ends(plan, sums), *_computed_again(plan, sums, stages=False),
        *_sharded(plan, sums.layers), *_ordered(plan), *_by_heads(plan, sums),
    ):  # fmt: skip
        if one not in seen and _divides(one, batch, sums.layers):
            seen.add(one)
            yield one


def _all(plan: HybridPlan, sums: PlanSums, node: int) -> Iterator[HybridPlan]:
    yield from _uneven(plan, sums)
    yield from _balanced(plan, sums)
    yield from _computed_again(plan, sums)
    yield from _sharded(plan, sums.layers)
    yield from _ordered(plan)
    yield from _by_heads(plan, sums)
    for more in DEGREES if not plan.shares else ():
        for less in DEGREES:
            degrees: dict[str, int] = {name: getattr(plan, name) or 1 for name in DEGREES}
            if more == less or degrees[less] % 2:
                continue
            degrees[more] *= 2
            degrees[less] //= 2
            t, c = degrees["tensor"], degrees["context"]
            if (t * c > node and (t > node or c not in sums.axes.contexts(t))) or degrees["data"] % plan.experts:
                continue
            if degrees["pipeline"] > 1 and plan.schedule.chunks not in (None, plan.virtual):
                continue
            yield plan_with(plan, **degrees, stages=())


def _ordered(plan: HybridPlan) -> Iterator[HybridPlan]:
    """Other micro-batches, parts of them, schedules and stages a rank, weights that are gathered further ahead or in the next
    step, and sequences that are gathered again."""
    if plan.zero in (1, 2) and plan.sums_beside:
        yield replace(plan, overlap="grads" if plan.gathers_late else "all")
    if plan.zero == 3:
        yield from (replace(plan, prefetch=ahead) for ahead in AHEAD)
    if plan.along:
        yield replace(plan, regather=not plan.regather)
    micro_batch = plan.micro_batch or 1
    for other in (2 * micro_batch, micro_batch // 2):
        if other and not plan.shares:
            yield replace(plan, micro_batch=other)
    for parts in (2 * plan.split, plan.split // 2):
        if parts and (split := replace(plan, split=parts)).may_split:
            yield split
    for schedule in PipelineSchedule:
        if schedule.chunks in (None, plan.virtual):
            yield replace(plan, schedule=schedule)
        elif plan.pipeline > 1 and schedule.in_a_v:
            yield replace(plan, schedule=schedule, virtual=2, stages=())
    for virtual in (2 * plan.virtual, plan.virtual // 2):
        if virtual and plan.pipeline > 1:
            schedule = plan.schedule if plan.schedule.chunks in (None, virtual) else PipelineSchedule.ONE_F_ONE_B
            yield replace(plan, virtual=virtual, stages=(), schedule=schedule)


def _by_heads(plan: HybridPlan, sums: PlanSums) -> Iterator[HybridPlan]:
    """Attention shared by heads instead of queries, or the other way round."""
    if plan.context > 1 and not plan.ring and plan.tensor * plan.context <= sums.axes.heads:
        yield replace(plan, ulysses=not plan.ulysses)


def _divides(plan: HybridPlan, batch: int, layers: int) -> bool:
    taken, stages = plan.samples_a_pass, plan.pipeline * plan.virtual
    if not plan.may_split or batch % taken or (stages > 1 and stages > max(layers, plan.pipeline)):
        return False
    count = batch // taken
    if plan.pipeline == 1 and plan.schedule is not PipelineSchedule.ONE_F_ONE_B:
        return False
    if plan.schedule.chunks is not None:
        return plan.schedule.chunks == plan.virtual
    return plan.virtual == 1 or count % plan.pipeline == 0


def _uneven(plan: HybridPlan, sums: PlanSums) -> Iterator[HybridPlan]:
    """A layer moves to a neighbouring stage, or from the first and the last to stages in the middle, or back."""
    count = plan.pipeline * plan.virtual
    if count == 1 or sums.layers < count:
        return
    counts = layers_of_stages(plan, sums)
    moves: list[tuple[tuple[int, int], ...]] = [((i, j),) for i in range(count) for j in (i - 1, i + 1) if 0 <= j < count]
    if count > 2:
        middle = count // 2
        moves += [((0, middle), (count - 1, middle)), ((middle, 0), (middle, count - 1)), ((count - 1, middle),), ((0, middle),)]
    for move in moves:
        stages = list(counts)
        for source, target in move:
            stages[source] -= 1
            stages[target] += 1
        if min(stages) > 0:
            yield replace(plan, stages=tuple(stages))


def _ends(plan: HybridPlan, sums: PlanSums) -> Iterator[HybridPlan]:
    """Return, of the moves of `_uneven`, those between the ends and the middle."""
    count = plan.pipeline * plan.virtual
    if count < 3 or sums.layers < count:
        return
    counts = layers_of_stages(plan, sums)
    for source, target in ((0, count // 2), (count - 1, count // 2), (count // 2, 0), (count // 2, count - 1)):
        stages = list(counts)
        stages[source] -= 1
        stages[target] += 1
        if min(stages) > 0:
            yield replace(plan, stages=tuple(stages))


def _balanced(plan: HybridPlan, sums: PlanSums) -> Iterator[HybridPlan]:
    """The layers dealt so that the slowest rank is as quick as can be, if stages have what other stages have not: the words
    of a vocabulary. A layer takes what it takes on average in the stages between."""
    count = plan.pipeline * plan.virtual
    if count < 3 or sums.layers < count:
        return
    counts = list(layers_of_stages(plan, sums))
    found = sums.sums(plan)
    takes = [float(x) for x in found.seconds[:, 0] + found.seconds[:, 2] + found.sums.sum(axis=1)]
    layer = sum(takes[1:-1]) / sum(counts[1:-1])
    ranks = [plan.schedule.rank(stage, plan.pipeline) for stage in range(count)]
    of_rank = [0.0] * plan.pipeline
    for rank, seconds in zip(ranks, takes):
        of_rank[rank] += seconds
    for _ in range(sums.layers):
        slow, quick = max(range(count), key=lambda s: of_rank[ranks[s]]), min(range(count), key=lambda s: of_rank[ranks[s]])
        slow = max((s for s in range(count) if ranks[s] == ranks[slow]), key=counts.__getitem__)
        quick = min((s for s in range(count) if ranks[s] == ranks[quick]), key=counts.__getitem__)
        if counts[slow] < 2 or of_rank[ranks[quick]] + layer >= of_rank[ranks[slow]]:
            break
        for stage, by in ((slow, -1), (quick, 1)):
            counts[stage] += by
            of_rank[ranks[stage]] += by * layer
    yield replace(plan, stages=tuple(counts))


def layers_of_stages(plan: HybridPlan, sums: PlanSums) -> tuple[int, ...]:
    """Return the number of layers of each stage."""
    if plan.stages:
        return plan.stages
    stage, layer = sums.stages(plan), sums.layer_of
    first = {int(one): int(of) for one, of in zip(layer, stage)}  # of a layer's operators all are in one stage
    return tuple(sum(of == s for of in first.values()) for s in range(plan.pipeline * plan.virtual))


def _computed_again(plan: HybridPlan, sums: PlanSums, stages: bool = True) -> Iterator[HybridPlan]:
    """All layers, or those of one stage, compute another part again; or one more or one fewer of a stage; or, of every stage,
    one, an eighth, a quarter or half of those that compute the same. ``stages``: whether single stages' layers change, too."""
    plain = replace(plan, recompute_layers=())
    choices = sums.levels
    for level in choices:
        yield replace(plain, recompute=level)
    if not sums.layers:
        return
    levels = plan.levels_of(sums.layers)
    counts = layers_of_stages(plan, sums)
    starts = [sum(counts[:s]) for s in range(len(counts))]
    every: dict[tuple[str, str, int], list[str]] = {}
    for start, count in zip(starts, counts):
        own = range(start, start + count)
        for level in choices:
            if stages:
                yield _again(plan, {i: level for i in own}, levels)
            for other in choices:
                at = [i for i in own if levels[i] == other]
                if other != level and at:
                    if stages:
                        yield _again(plan, {at[-1]: level}, levels)
                    for part in (len(levels), 8, 4, 2):
                        new = every.setdefault((level, other, part), list(levels))
                        for i in at[-max(1, len(at) // part) :]:
                            new[i] = level
    for changed in every.values():
        yield _again(plan, dict(enumerate(changed)), levels)


def _again(plan: HybridPlan, changes: dict[int, str], levels: tuple[str, ...]) -> HybridPlan:
    new = tuple(changes.get(i, level) for i, level in enumerate(levels))
    if len(set(new)) == 1:
        return replace(plan, recompute_layers=(), recompute=new[0])
    return replace(plan, recompute_layers=new)


def _sharded(plan: HybridPlan, layers: int) -> Iterator[HybridPlan]:
    """All layers are sharded otherwise; or the first and the last, which have the vocabulary; or all others."""
    if (plan.data or 1) * plan.context == 1:
        return
    for zero in range(4):
        yield plan_with(plan, zero=zero, zero_layers=())
        if layers > 2:
            now = plan.zeros_of(layers)
            for ends in (True, False):
                new = tuple(zero if (i in (0, layers - 1)) is ends else other for i, other in enumerate(now))
                if len(set(new)) > 1:
                    yield plan_with(plan, zero=max(new), zero_layers=new)
