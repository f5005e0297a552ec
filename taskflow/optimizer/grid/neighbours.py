"""The plans next to a plan, which differ in one choice: also such as no grid has, with uneven stages and layers unlike others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from taskflow.mapper import BLOCK, HybridPlan, PipelineSchedule
from taskflow.optimizer.grid.layered import LayeredPlan
from taskflow.optimizer.grid.stages import PlanSums

AHEAD = (BLOCK, 1, 2, 3, 4)  # layers whose weights are gathered ahead
DEGREES = ("tensor", "context", "pipeline", "data")


def neighbours(layered: LayeredPlan, sums: PlanSums, batch: int, node: int) -> Iterator[LayeredPlan]:
    """Plans that differ in one choice: layers of neighbouring stages, what the layers of a stage compute again, how weights are
    sharded, micro-batches, schedule, stages a rank, and degrees that trade a factor of two. All divide; whether the network can
    be cut so, and whether it fits, is for the caller to find out. ``node``: devices of a node."""
    seen = {layered}
    for one in _all(layered, sums, node):
        if one not in seen and _divides(one.plan, batch, sums.layers):
            seen.add(one)
            yield one


def quick_neighbours(layered: LayeredPlan, sums: PlanSums, batch: int) -> Iterator[LayeredPlan]:
    """Those of the neighbours that keep the degrees and treat all stages alike; and the plan with stages that take equally long."""
    seen = {layered}
    for one in (
        *_balanced(layered, sums), *_ends(layered, sums), *_computed_again(layered, sums, stages=False),
        *_sharded(layered, sums.layers), *_ordered(layered),
    ):  # fmt: skip
        if one not in seen and _divides(one.plan, batch, sums.layers):
            seen.add(one)
            yield one


def _all(layered: LayeredPlan, sums: PlanSums, node: int) -> Iterator[LayeredPlan]:
    plan = layered.plan
    yield from _uneven(layered, sums)
    yield from _balanced(layered, sums)
    yield from _computed_again(layered, sums)
    yield from _sharded(layered, sums.layers)
    yield from _ordered(layered)
    for more in DEGREES if not plan.shares else ():
        for less in DEGREES:
            degrees: dict[str, int] = {name: getattr(plan, name) or 1 for name in DEGREES}
            if more == less or degrees[less] % 2:
                continue
            degrees[more] *= 2
            degrees[less] //= 2
            if degrees["tensor"] * degrees["context"] > node or degrees["data"] % plan.experts:
                continue
            virtual = plan.virtual if degrees["pipeline"] > 1 else 1
            if degrees["pipeline"] > 1 and plan.schedule.chunks not in (None, virtual):
                continue
            yield replace(layered, plan=replace(
                plan, tensor=degrees["tensor"], context=degrees["context"], pipeline=degrees["pipeline"], data=degrees["data"],
                virtual=virtual, stages=(), regather=plan.regather and degrees["tensor"] > 1,
            ))


def _ordered(layered: LayeredPlan) -> Iterator[LayeredPlan]:
    """Other micro-batches, parts of them, schedules and stages a rank, weights that are gathered further ahead or in the next
    step, and sequences that are gathered again."""
    plan = layered.plan
    if plan.zero in (1, 2) and plan.overlap != "none":
        yield replace(layered, plan=replace(plan, overlap="grads" if plan.overlap == "all" else "all"))
    if plan.zero == 3:
        yield from (replace(layered, plan=replace(plan, prefetch=ahead)) for ahead in AHEAD)
    if plan.tensor > 1 and plan.sequence_parallel:
        yield replace(layered, plan=replace(plan, regather=not plan.regather))
    micro_batch = plan.micro_batch or 1
    for other in (2 * micro_batch, micro_batch // 2):
        if other and not plan.shares:
            yield replace(layered, plan=replace(plan, micro_batch=other))
    for parts in (2 * plan.split, plan.split // 2):
        if parts and (split := replace(plan, split=parts)).may_split:
            yield replace(layered, plan=split)
    for schedule in PipelineSchedule:
        if schedule.chunks in (None, plan.virtual):
            yield replace(layered, plan=replace(plan, schedule=schedule))
        elif plan.pipeline > 1 and schedule is PipelineSchedule.ZERO_BUBBLE_V:
            yield replace(layered, plan=replace(plan, schedule=schedule, virtual=2, stages=()))
    for virtual in (2 * plan.virtual, plan.virtual // 2):
        if virtual and plan.pipeline > 1:
            schedule = plan.schedule if plan.schedule.chunks in (None, virtual) else PipelineSchedule.ONE_F_ONE_B
            yield replace(layered, plan=replace(plan, virtual=virtual, stages=(), schedule=schedule))


def _divides(plan: HybridPlan, batch: int, layers: int) -> bool:
    together, stages = plan.together, plan.pipeline * plan.virtual
    if not plan.may_split or batch % together or (stages > 1 and stages > max(layers, plan.pipeline)):
        return False
    count = batch // together
    if plan.pipeline == 1 and plan.schedule is not PipelineSchedule.ONE_F_ONE_B:
        return False
    if plan.schedule.chunks is not None:
        return plan.schedule.chunks == plan.virtual
    return plan.virtual == 1 or count % plan.pipeline == 0


def _uneven(layered: LayeredPlan, sums: PlanSums) -> Iterator[LayeredPlan]:
    """A layer moves to a neighbouring stage, or from the first and the last to stages in the middle, or back."""
    plan = layered.plan
    count = plan.pipeline * plan.virtual
    if count == 1 or sums.layers < count:
        return
    counts = layers_of_stages(layered, sums)
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
            yield replace(layered, plan=replace(plan, stages=tuple(stages)))


def _ends(layered: LayeredPlan, sums: PlanSums) -> Iterator[LayeredPlan]:
    """Return, of the moves of `_uneven`, those between the ends and the middle."""
    plan = layered.plan
    count = plan.pipeline * plan.virtual
    if count < 3 or sums.layers < count:
        return
    counts = layers_of_stages(layered, sums)
    for source, target in ((0, count // 2), (count - 1, count // 2), (count // 2, 0), (count // 2, count - 1)):
        stages = list(counts)
        stages[source] -= 1
        stages[target] += 1
        if min(stages) > 0:
            yield replace(layered, plan=replace(plan, stages=tuple(stages)))


def _balanced(layered: LayeredPlan, sums: PlanSums) -> Iterator[LayeredPlan]:
    """The layers dealt so that the slowest rank is as quick as can be, if stages have what other stages have not: the words
    of a vocabulary. A layer takes what it takes on average in the stages between."""
    plan = layered.plan
    count = plan.pipeline * plan.virtual
    if count < 3 or sums.layers < count:
        return
    counts = list(layers_of_stages(layered, sums))
    found = sums.sums(layered)
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
    yield replace(layered, plan=replace(plan, stages=tuple(counts)))


def layers_of_stages(layered: LayeredPlan, sums: PlanSums) -> tuple[int, ...]:
    """Return the number of layers of each stage."""
    if layered.plan.stages:
        return layered.plan.stages
    stage, layer = sums.stages(layered), sums.layer_of
    first = {int(one): int(of) for one, of in zip(layer, stage)}  # of a layer's operators all are in one stage
    return tuple(sum(of == s for of in first.values()) for s in range(layered.plan.pipeline * layered.plan.virtual))


def _computed_again(layered: LayeredPlan, sums: PlanSums, stages: bool = True) -> Iterator[LayeredPlan]:
    """All layers, or those of one stage, compute another part again; or one more or one fewer of a stage; or, of every stage,
    one, an eighth, a quarter or half of those that compute the same. ``stages``: whether single stages' layers change, too."""
    plain = replace(layered, recompute=())
    choices = sums.levels
    for level in choices:
        yield replace(plain, plan=replace(layered.plan, recompute=level))
    if not sums.layers:
        return
    levels = layered.levels(sums.layers)
    counts = layers_of_stages(layered, sums)
    starts = [sum(counts[:s]) for s in range(len(counts))]
    every: dict[tuple[str, str, int], list[str]] = {}
    for start, count in zip(starts, counts):
        own = range(start, start + count)
        for level in choices:
            if stages:
                yield _again(layered, {i: level for i in own}, levels)
            for other in choices:
                at = [i for i in own if levels[i] == other]
                if other != level and at:
                    if stages:
                        yield _again(layered, {at[-1]: level}, levels)
                    for part in (len(levels), 8, 4, 2):
                        new = every.setdefault((level, other, part), list(levels))
                        for i in at[-max(1, len(at) // part) :]:
                            new[i] = level
    for changed in every.values():
        yield _again(layered, dict(enumerate(changed)), levels)


def _again(layered: LayeredPlan, changes: dict[int, str], levels: tuple[str, ...]) -> LayeredPlan:
    new = tuple(changes.get(i, level) for i, level in enumerate(levels))
    if len(set(new)) == 1:
        return replace(layered, recompute=(), plan=replace(layered.plan, recompute=new[0]))
    return replace(layered, recompute=new, plan=replace(layered.plan, recompute="none"))


def _sharded(layered: LayeredPlan, layers: int) -> Iterator[LayeredPlan]:
    """All layers are sharded otherwise; or the first and the last, which have the vocabulary; or all others."""
    plan = layered.plan
    if (plan.data or 1) * plan.context == 1:
        return
    for zero in range(4):
        yield replace(layered, zero=(), plan=_at_stage(plan, zero))
        if layers > 2:
            now = layered.zeros(layers)
            for ends in (True, False):
                new = tuple(zero if (i in (0, layers - 1)) is ends else other for i, other in enumerate(now))
                if len(set(new)) > 1:
                    yield replace(layered, zero=new, plan=_at_stage(plan, max(new)))


def _at_stage(plan: HybridPlan, zero: int) -> HybridPlan:
    """The plan at another stage of ZeRO, without what that has no use for."""
    return replace(
        plan, zero=zero, prefetch=plan.prefetch if zero > 2 else BLOCK, shard_group=plan.shard_group if zero > 1 else 0,
        overlap="grads" if plan.overlap == "all" and zero not in (1, 2) else plan.overlap,
    )
