"""Search over plans with an order of passes: single changes from the best plan of the grid, those with the best price first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, isfinite
from random import Random

from taskflow.mapper import HybridPlan, Strategy, samples
from taskflow.optimizer.budget import BudgetExhausted, Deadline, Looks
from taskflow.optimizer.evaluate import Evaluator, TooManyTasksError
from taskflow.optimizer.grid.descent import descend
from taskflow.optimizer.grid.grid import SIMULATED, PlanTrial, best_of_grid, spare_of
from taskflow.optimizer.grid.grid_result import GridResult
from taskflow.optimizer.grid.memory import MARGIN
from taskflow.optimizer.grid.plans import held_bytes
from taskflow.optimizer.grid.priced import NEARLY, AnyGrid, PricedPlan, by_price
from taskflow.optimizer.grid.recompute_to_fit import LIMIT
from taskflow.optimizer.memory_check import MemoryCheck
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.result import Improvement, Progress, SearchResult

MOST_PROPOSALS = 24  # after the grid, where no seconds limit them: each takes as long as thousands without an order
PROPOSALS_SHARE = 0.1  # of a budget of proposals, for the grid; as much again for what follows
GRID_SHARE = 0.5  # of these, for the grid
LOOKS, LEAST_LOOKS = 100, 2000
"""Plans in closed form for each proposal of a budget, and in any case: among these are all that people often use."""
GRID_LOOKS = 0.5  # of these, for the grid
FIT_SHARE = 0.5  # of the time after the grid, for plans that recompute as much as memory requires
WORTH = 0.97  # times the best seconds so far: a plan of such a price may take all of the time that is left
MOST_FITTED = 3  # simulations of one of these, each with the memory that the one before left
DESCENT_SHARE = 0.3  # of the time after the grid, for descents by price
MOST_DESCENDED = 6  # plans that these end at and that are simulated
LOOKING = 0.5  # of these two, to find plans by price; the rest is to simulate them
GOES_ON = 0.05  # of the time: with less left, a search does not go on
MOST_WAITING = 100  # plans for which there was no time in their share of it
OVERTIME = 2.0  # times what is left at the end: a plan that is expected to take no longer is begun, since nothing else would be
DEARER = 1.1  # times the price of the current plan that a neighbour may have to be simulated


@dataclass(frozen=True, slots=True)
class PlansFound:
    """``result`` of the search, None if no plan was found that fits; ``grid``: the result of the grid alone."""

    result: SearchResult | None
    grid: GridResult
    proposals: int


@dataclass(frozen=True, slots=True)
class Begun:
    """A plan that was simulated before, and fits: from it a search climbs, too. ``spare``: bytes that it leaves (`spare_of`)."""

    plan: HybridPlan
    strategy: Strategy
    seconds: float
    spare: float


def plan_search(
    evaluator: Evaluator, options: SearchOptions, grid: AnyGrid, share: float = 1.0, *,
    make: Callable[[HybridPlan], Strategy] | None = None, begun: Sequence[Begun] = (),
) -> PlansFound:
    """Simulate the best plans of the grid, then search from the best of them, and from those ``begun``, within ``share`` of the
    time and part of the proposals. If it ends early although not all plans of the grid were looked at, it goes on with these.
    ``make``: makes a plan's strategy (`Allowed.strategy`). Ctrl-C ends it with the best plan so far; it is raised if there is
    none."""
    search = _PlanSearch(evaluator, options, grid, share, make, begun)
    found, deadline = search.found(), search.deadline
    while (result := found.result) is not None and result.stopped == "stalled" and not grid.whole and result.strategy.plan:
        if not isfinite(deadline.seconds) or (left := search.end - deadline.elapsed) <= GOES_ON * deadline.seconds:
            break
        best = Begun(result.strategy.plan, result.strategy, result.seconds, spare_of(search.lacks, result.strategy))
        again = _PlanSearch(evaluator, options, grid, left / deadline.left, make, (*begun, best), again=True)
        found = _joined(found, again.found())
    return found


def _joined(found: PlansFound, again: PlansFound) -> PlansFound:
    """What a search and its continuation have found."""
    one, other = found.result, again.result
    if one is None or other is None:
        return found if other is None else again
    history = [replace(step, proposal=step.proposal + found.proposals) for step in other.history if step.seconds < one.seconds]
    result = replace(
        min(one, other, key=lambda result: result.seconds), history=(*one.history, *history), stopped=other.stopped,
        proposals=one.proposals + other.proposals, accepted=one.accepted + other.accepted, refused=one.refused + other.refused,
        search_seconds=other.search_seconds, left_out=tuple(dict.fromkeys((*one.left_out, *other.left_out))),
        fit=(*one.fit, *other.fit),
    )
    return PlansFound(result, min(found.grid, again.grid, key=lambda grid: grid.seconds), found.proposals + again.proposals)


class _PlanSearch:
    def __init__(
        self, evaluator: Evaluator, options: SearchOptions, grid: AnyGrid, share: float,
        make: Callable[[HybridPlan], Strategy] | None, begun: Sequence[Begun], again: bool = False,
    ) -> None:
        self.must = not again and (not may_be_whole(grid) or not options.rivals)
        self.again = again  # with what the first search has not looked at
        self.evaluator, self.options, self.grid, self.make, self.begun = evaluator, options, grid, make, begun
        self.deadline = options.deadline or Deadline(options.budget.seconds)
        self.end = self.deadline.elapsed + share * self.deadline.left
        self.lacks = options.lacks or (lambda strategy: "")
        proposals = options.budget.proposals
        timed = isfinite(self.deadline.seconds)
        part = ceil(PROPOSALS_SHARE * proposals) if isfinite(proposals) else inf
        self.most_grid = int(min(SIMULATED, part))
        self.most = part if timed else min(part, MOST_PROPOSALS)
        self.looks = Looks(max(LEAST_LOOKS, LOOKS * proposals))
        self.history: list[Improvement] = []
        self.accepted = 0
        self.before = 0  # proposals of the grid
        self.left_out: list[str] = []
        self.halved: set[HybridPlan] = set()  # plans that `_split` has simulated
        self.climbed: set[HybridPlan] = set()  # from, or tried there
        self.waiting: dict[HybridPlan, int] = {}  # plans for which there was no time in their share of it; their micro-batches

    def found(self) -> PlansFound:
        self._tell("grid", inf, 0)
        last, share, left = self.deadline.seconds if self.options.rivals else self.end, 1.0, self.deadline.left
        if isfinite(self.deadline.seconds) and left:
            share = GRID_SHARE * max(0.0, self.end - self.deadline.elapsed) / left
        best = best_of_grid(
            self.evaluator, self.lacks, deadline=self.deadline, most=self.most_grid, grid=self.grid, share=share, must=self.must,
            until=last, make=self.make, looked=self.looks.part(GRID_LOOKS),
        )
        trial = PlanTrial(
            self.evaluator, self.lacks, lambda: self.deadline.expired or self.deadline.elapsed >= self.end,
            lambda: self.deadline.elapsed >= self.end, self.deadline, self.make,
        )
        trial.begin_at(best)
        for one in self.begun:
            if one.seconds < trial.seconds:
                trial.best, trial.strategy, trial.seconds, trial.spare = one.plan, one.strategy, one.seconds, one.spare
        self.waiting = {one.plan: one.micro_batches for one in best.late[:MOST_WAITING]}
        self.before = proposals = len(best.simulated)
        self.history.extend(best.history)
        stopped = "interrupted" if self.deadline.stopped else "budget"
        if not self.deadline.stopped:
            try:
                self._split(trial)
                self._fit(trial)
                self._descend(trial)
                self._split(trial)
                self._from(trial, trial.best, trial.seconds, trial.spare)
                self._from(trial, best.best, best.seconds, best.spare)
                for one in self.begun:
                    self._from(trial, one.plan, one.seconds, one.spare)
                if self.grid.whole or self.again:  # else what has not been looked at comes first
                    self._late(trial)
                    self._rest(trial)
                stopped = "stalled"
            except BudgetExhausted:
                pass
            except KeyboardInterrupt:
                self.deadline.stopped, stopped = True, "interrupted"
        proposals += trial.simulated
        if trial.strategy is None:
            return PlansFound(None, best, proposals)
        return PlansFound(self._result(trial, best, trial.strategy, proposals, stopped), best, proposals)

    def _result(self, trial: PlanTrial, best: GridResult, strategy: Strategy, proposals: int, stopped: str) -> SearchResult:
        return SearchResult(
            strategy, trial.seconds, {"grid": best.seconds} if best.best is not None else {}, tuple(self.history), proposals,
            self.accepted, self.deadline.elapsed, self.options.seed, "guided", stopped, refused=best.refused + trial.refused,
            left_out=tuple(self.left_out), fit=tuple(trial.fit),
        )

    def _descend(self, trial: PlanTrial) -> None:
        """Simulate what descents by price end at, as long as that may be faster than what is known. What
        simulations say of some is expected of the others of their kind. BudgetExhausted when time or proposals end."""
        if trial.simulated >= self.most:
            return
        over, end = self._looked(trial, DESCENT_SHARE), self._part(DESCENT_SHARE)
        self._simulate(trial, descend(self.grid, self.grid.fitting, over), end)

    def _fit(self, trial: PlanTrial) -> None:
        """Simulate plans in which each rank recomputes as much as memory requires. What is planned of the memory of the best
        ones says how much more or less that is than in closed form. BudgetExhausted when time or proposals end."""
        if trial.simulated >= self.most:
            return
        over, end = self._looked(trial, FIT_SHARE), self._part(FIT_SHARE)
        self._simulate(trial, self.grid.fitted(over, trial.seconds), end)

    def _split(self, trial: PlanTrial) -> None:
        """Simulate the best plan with its micro-batches split in two, then in four, and so on, as long as that is faster.
        BudgetExhausted when time or proposals end."""
        while trial.best is not None:
            plan = trial.best
            one = replace(plan, split=2 * plan.split)
            count = samples(self.grid.graph) // plan.samples_a_pass
            if one in self.halved or not one.may_split:
                return
            before = trial.seconds
            if self._took(trial, one, count, self.end) is None:
                if one not in self.waiting:  # it cannot be had, or takes far too long
                    self.halved.add(one)
                return
            self.halved.add(one)
            if trial.seconds >= before:
                return

    def _late(self, trial: PlanTrial) -> None:
        """Simulate plans for which there was no time in their share of it, as long as time is left. Nothing else would use that
        time, so the last plan may be broken off."""

        def waiting() -> list[PricedPlan]:
            some, self.waiting = list(self.waiting.items()), {}
            prices = self.grid.prices.price(some)
            return by_price(PricedPlan(*pair, price, self.grid.memory(*pair)) for pair, price in zip(some, prices))

        if trial.best is not None:
            self._in_rounds(trial, waiting, OVERTIME - 1)

    def _rest(self, trial: PlanTrial) -> None:
        """Simulate what is left of the plans that fit in closed form, as long as it may be faster."""
        self._in_rounds(trial, lambda: [
            one for one in self.grid.fitting if one.seconds < trial.seconds and one.plan not in trial.tried
            and one.memory.nbytes <= self.grid.memory_bytes
        ])  # fmt: skip

    def _in_rounds(self, trial: PlanTrial, left: Callable[[], list[PricedPlan]], overtime: float = 0.0) -> None:
        """Simulate plans that are ``left`` until there are none, or a round simulates none. Climb after each that found a faster
        one. ``overtime``: for which share of what is left of the time a round may go on beyond it. BudgetExhausted when time or
        proposals end."""
        while plans := left():
            before = trial.simulated, trial.seconds
            self._simulate(trial, plans, self.end + overtime * max(0.0, self.end - self.deadline.elapsed))
            if trial.seconds < before[1]:
                self._from(trial, trial.best, trial.seconds, trial.spare)
            elif trial.simulated == before[0]:
                return

    def _part(self, share: float) -> float:
        return self.deadline.elapsed + share * max(0.0, self.end - self.deadline.elapsed)

    def _looked(self, trial: PlanTrial, share: float) -> Callable[[], bool]:
        """What ends looking at plans in closed form within a share of the time, and of the looks, that are left."""
        found, looked = self._part(LOOKING * share), self.looks.part(share)
        return lambda: trial.over() or self.deadline.elapsed >= found or looked()

    def _simulate(self, trial: PlanTrial, plans: Sequence[PricedPlan], end: float) -> None:
        """Simulate plans until ``end`` while they may be faster than what is known, and those like the fastest that use all of the
        memory. Of those that are expected to be nearly as fast as any, the one that is simulated soonest comes first.
        BudgetExhausted when time or proposals end."""
        left = list(plans)
        ratios: dict[object, float] = {}
        for _ in range(MOST_DESCENDED):
            expected = [one.seconds * ratios.get(_mispriced_as(one.plan), 1.0) for one in left]
            if (least := min(expected, default=inf)) >= trial.seconds:
                return
            near = [i for i, seconds in enumerate(expected) if seconds <= min(NEARLY * least, trial.seconds)]
            one: PricedPlan | None = left.pop(min(
                near, key=lambda i: (trial.work(left[i].plan, left[i].micro_batches), expected[i])
            ))  # fmt: skip
            for _ in range(MOST_FITTED):
                if one is None:
                    break
                before, until = trial.seconds, self.end if one.seconds < WORTH * trial.seconds < inf else end
                if (took := self._took(trial, one.plan, one.micro_batches, until)) is None:
                    left += self._plainer(one) if one.plan in self.waiting else []
                    break
                ratios[_mispriced_as(one.plan)] = max(took / one.seconds, ratios.get(_mispriced_as(one.plan), 0.0))
                one = self._with_all_memory(trial, one) if took <= before else None

    def _took(self, trial: PlanTrial, one: HybridPlan, micro_batches: int, end: float) -> float | None:
        """Simulate a plan, and tell of it. Return its seconds; None if simulating it would probably take until after ``end``, or
        the network cannot be cut so. BudgetExhausted when time or proposals end."""
        if trial.simulated >= self.most or trial.over():
            raise BudgetExhausted
        if not trial.room_for(one, micro_batches, end - self.deadline.elapsed):
            if len(self.waiting) < MOST_WAITING:
                self.waiting[one] = micro_batches
            return None
        before = trial.seconds
        try:
            seconds = trial.of(one)
        except (ValueError, TooManyTasksError):
            return None
        self.waiting.pop(one, None)
        self._tell("layers", trial.seconds, trial.simulated)
        if trial.seconds < before:
            self.accepted += 1
            self.history.append(Improvement(self.before + trial.simulated, self.deadline.elapsed, trial.seconds))
        return seconds

    def _plainer(self, one: PricedPlan) -> list[PricedPlan]:
        """The same plan with even stages whose layers all compute the same again: the cheapest that fits. It is simulated sooner,
        since more layers of a stage are alike."""
        plain = replace(one.plan, stages=(), recompute_layers=(), recompute="none")
        some = [(replace(plain, recompute=level), one.micro_batches) for level in self.grid.sums.levels]
        memories = [self.grid.memory(*pair) for pair in some]
        fitting = [
            PricedPlan(*pair, price, memory) for pair, memory, price in zip(some, memories, self.grid.prices.price(some))
            if memory.nbytes <= LIMIT * self.grid.memory_bytes
        ]
        return [best for best in by_price(fitting)[:1] if best.plan not in self.waiting and best.plan != one.plan]

    def _with_all_memory(self, trial: PlanTrial, one: PricedPlan) -> PricedPlan | None:
        """Return the plan that differs from the one just simulated in that each rank uses all of its memory, as far as is known
        from what was planned for that one; None if that is the same."""
        check, last = self.lacks, trial.last
        if not isinstance(check, MemoryCheck) or last is None:
            return None
        return self.grid.refitted(one, lambda: check.spare(last))

    def _from(self, trial: PlanTrial, plan: HybridPlan | None, seconds: float, spare: float) -> None:
        """Climb from a plan of so many seconds, which leaves ``spare`` bytes, until none of its neighbours is faster than the best.
        Raises BudgetExhausted when time or proposals run out."""
        if plan is None or plan in self.climbed:
            return
        random = Random(f"plan {self.options.seed}")
        self.climbed.add(plan)
        while True:
            better = None
            for one, count in self._promising(plan, trial.seconds / seconds, spare, random):
                self.climbed.add(one)
                before = trial.seconds
                self._took(trial, one, count, self.end)
                if trial.seconds < before:
                    better = one
                    break
            if better is None:
                return
            plan, seconds, spare = better, trial.seconds, trial.spare

    def _promising(
        self, plan: HybridPlan, share: float, spare: float, random: Random
    ) -> list[tuple[HybridPlan, int]]:
        """The neighbours that fit in closed form and whose price is not much higher than this ``share`` of the plan's, the lowest
        price first. Those with the same passes have a lower one, since prices of such differ as their seconds do; and they need no
        more than the plan, in closed form, and the ``spare`` bytes that it was seen to leave."""
        batch = samples(self.grid.graph)
        own_bytes, looked = self.grid.memory(plan, batch // plan.samples_a_pass).nbytes, self.looks.part()
        fitting: list[tuple[HybridPlan, int]] = []
        for one in self.grid.neighbours(plan):
            if one in self.climbed:
                continue
            if self.deadline.elapsed >= self.end or looked():
                raise BudgetExhausted
            count = batch // one.samples_a_pass
            try:
                most = own_bytes + spare if _passes(one) == _passes(plan) else inf
                if self.grid.memory(one, count).nbytes <= min(most, (1 + MARGIN) * self.grid.memory_bytes):
                    fitting.append((one, count))
            except ValueError:
                continue
        own = share * self.grid.prices(plan, batch // plan.samples_a_pass)
        prices = self.grid.prices.price(fitting)
        ranked = sorted(
            (price, random.random(), number) for number, ((one, _), price) in enumerate(zip(fitting, prices))
            if price < (own if _passes(one) == _passes(plan) else DEARER * own)
        )
        return [fitting[number] for _, _, number in ranked]

    def _tell(self, phase: str, best: float, proposals: int) -> None:
        if self.options.progress is not None:
            self.options.progress(Progress("guided", phase, best, self.deadline.elapsed, proposals, self.accepted))


def _mispriced_as(plan: HybridPlan) -> object:
    """What plans share whose prices are expected to be off alike."""
    return plan.zero, plan.pipeline > 1, plan.schedule, plan.context > 1, plan.tensor > 1, plan.split


def _passes(plan: HybridPlan) -> object:
    """Of plans with the same passes on the same devices, the memory in closed form differs as the planned memory does."""
    degrees = plan.tensor, plan.context, plan.pipeline, plan.data, plan.experts
    return degrees, plan.micro_batch, plan.shares, plan.virtual, plan.schedule, plan.split


def may_be_whole(grid: AnyGrid) -> bool:
    """True if weights and state fit a device, as data parallelism needs."""
    return held_bytes(grid.graph, grid.rule) <= min(processor.memory_bytes for processor in grid.machine.processors)


def joined(first: SearchResult, second: SearchResult, proposals: int) -> SearchResult:
    """Return the better of the results of two searches of one budget; the second began after this many proposals."""
    history = list(first.history)
    for step in second.history:
        if not history or step.seconds < history[-1].seconds:
            history.append(replace(step, proposal=step.proposal + proposals))
    best = first if first.seconds <= second.seconds else second
    return replace(
        second, strategy=best.strategy, seconds=best.seconds, starts={**first.starts, **second.starts}, history=tuple(history),
        proposals=second.proposals + proposals, accepted=first.accepted + second.accepted, refused=first.refused + second.refused,
        lower_bound=min(second.lower_bound, best.seconds) if best is second else 0.0, local=second.local and best is second,
        optimal=False, left_out=(*first.left_out, *second.left_out), lacking=(*first.lacking, *second.lacking),
        fit=(*first.fit, *second.fit),
    )
