"""The best plan of the grid: all plans that divide are priced in closed form, the best of those that fit are simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import takewhile
from math import inf, isfinite

from taskflow.collector import paused_collector
from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, Machine, PartOfMachine
from taskflow.mapper import HybridParallel, HybridPlan, Strategy, block_count, map_graph
from taskflow.optimizer.budget import BudgetExhausted, Deadline
from taskflow.optimizer.evaluate import Evaluator, TooManyTasksError, is_small
from taskflow.optimizer.evaluate.folded import KEPT
from taskflow.optimizer.grid.allowed import NotAllowedError
from taskflow.optimizer.grid.bound_work import LayerWorks
from taskflow.optimizer.grid.grid_result import GridResult, Pace
from taskflow.optimizer.grid.memory import MARGIN, PlanMemory, memory_of_plan
from taskflow.optimizer.grid.neighbours import neighbours, quick_neighbours
from taskflow.optimizer.grid.plan_bound import least_of_plans, least_unordered_bytes
from taskflow.optimizer.grid.plans import has_no_order, runs_after_micro_batches
from taskflow.optimizer.grid.price import PlanPrices
from taskflow.optimizer.grid.priced import AnyGrid, PricedPlan, by_price, priced_plans, soonest_first, varied
from taskflow.optimizer.grid.recompute_to_fit import fitted, refitted
from taskflow.optimizer.grid.stages import PlanSums
from taskflow.optimizer.grid.tables import GraphTables
from taskflow.optimizer.memory_check import MemoryCheck
from taskflow.optimizer.result import Improvement
from taskflow.rules import UpdateRule
from taskflow.tasks.lower import LOWERED

SIMULATED = 12  # plans, at most, unless somebody says otherwise
STARTING = 300  # pieces that are lowered in the time that each plan takes in any case
PLACES = 8
"""Devices that are given their places in the time that one piece is lowered in."""
PATIENCE, LEAST_PATIENCE = 4.0, 2.0
"""Times the seconds that a simulation is expected to take, and seconds, after which it is broken off if another plan is known: one
that turns out not to be folded would take all the time that there is."""
SIMULATED_PIECES = 60
"""Pieces of one replica that are simulated in the time that one is lowered in."""
BLOCKS = 30
"""Parts that members of an all-to-all give each other that are lowered in the time of one piece."""
PRICING = 0.5  # of the time that is left, at most, until plans are simulated
SURE = 0.8
"""Of the memory: a plan that is estimated at no more, and has no shares of gradients, is likely to fit and is soon simulated."""
NEAR = 2.5  # times the best price: so good is the plan that is simulated first where one takes long
LATE_SHARE = 0.5  # of the budget, beyond it, to simulate further plans where none that was simulated fits
LACKING = 4  # times as many plans are simulated, at most, as long as none of them fits the memory
MUCH_FASTER = 0.9  # times the best seconds so far: a plan with such a price may take longer to simulate than its share of the time
LONGEST = 0.8  # of the time that is left, at most, for that
SOON = 0.5  # of the time that is left, at most, for a plan that is simulated while none fits, unless there is no other
DEAR = 1.1  # times the best seconds so far: a plan with such a price is not simulated in a search, which has better to do


class PlanGrid(AnyGrid):
    """The grid of a machine of equal devices."""

    def __init__(
        self, graph: OperatorGraph, machine: Machine, rule: UpdateRule | None, takes: Callable[[HybridPlan], bool] | None = None,
        all_of_a_layer: str = "full",
    ) -> None:
        if not isinstance(machine, (Cluster, PartOfMachine)):
            raise ValueError("grid: plans are priced for described machines (taskflow.machine.Cluster)")
        super().__init__(graph, machine, rule, takes)
        self.sums = PlanSums(GraphTables(graph, machine), rule, all_of_a_layer)
        self.prices = PlanPrices(self.sums)
        self._listed: list[tuple[HybridPlan, int]] = []
        self._known, self._huge = dict[HybridPlan, PricedPlan](), set[HybridPlan]()  # looked at; those that need far too much

    def plans(self, over: Callable[[], bool] = lambda: False) -> tuple[list[PricedPlan], int]:
        every, self.whole = self.listed(), True

        def ended() -> bool:
            self.whole = self.whole and not over()
            return not self.whole

        self.fitting, self.refused = self._known_of(every, ended)
        return self.fitting, len(every)

    def usual(self, over: Callable[[], bool] = lambda: False) -> list[PricedPlan]:
        """Return those of these plans that fit and that people often use (`PlanAxes.unusual`): a tenth, soon priced. Those with
        stages come last and as time permits: of imported code a framework records each pipeline to say whether it takes it."""
        every = list(self.sums.axes.plans(usual=True))
        taken = self._taken_of(one for one in every if one[0].pipeline == 1)
        self._known_of(taken, over)
        taken += self._taken_of(takewhile(lambda one: not over(), (one for one in every if one[0].pipeline > 1)))
        return self._known_of(taken, over)[0]

    def _known_of(
        self, plans: Sequence[tuple[HybridPlan, int]], over: Callable[[], bool]
    ) -> tuple[list[PricedPlan], list[PricedPlan]]:
        """Look at those of these plans that are not known; return the known ones that fit, by price, and those that do not."""
        left = [one for one in plans if one[0] not in self._known]
        if self._known:  # those like the best of the usual ones first: there may be no time for all
            left.sort(key=lambda one: self._promise(one[0]))
        new = priced_plans(self, left, over, self._huge)
        self._known.update((one.plan, one) for some in new for one in some)
        known, most = [self._known[plan] for plan, _ in plans if plan in self._known], (1 + MARGIN) * self.memory_bytes
        return by_price(one for one in known if one.memory.nbytes <= most), [one for one in known if one.memory.nbytes > most]

    def _promise(self, plan: HybridPlan) -> float:
        """The price of the usual plan that a plan is most like; infinite if that is not known, or does not fit."""
        known = self._known.get(self.sums.axes.usual_like(plan))
        return inf if known is None else known.seconds

    def listed(self) -> list[tuple[HybridPlan, int]]:
        """Return all plans with their numbers of micro-batches, those with fewer unusual features first."""
        if not self._listed:
            every = self._taken_of(self.sums.axes.plans())
            self._listed = sorted(every, key=lambda one: self.sums.axes.unusual(one[0]))
        return self._listed

    def _taken_of(self, plans: Iterable[tuple[HybridPlan, int]]) -> list[tuple[HybridPlan, int]]:
        return [(plan, count) for one, count in plans if (plan := self.taken(one)) is not None]

    def memory(self, plan: HybridPlan, count: int) -> PlanMemory:
        return memory_of_plan(self.sums, plan, count)

    def fitted(self, over: Callable[[], bool], known: float) -> list[PricedPlan]:
        return fitted(self, over, known)

    def refitted(self, one: PricedPlan, spare: Callable[[], Sequence[float]]) -> PricedPlan | None:
        return refitted(self, one, spare())

    def least(self, over: Callable[[], bool] = lambda: False) -> float:
        # A plan without an order, of any cuts, may be faster than all in notation.
        return 0.0 if self.may_fit_unordered else least_of_plans(self.works, self.memory_bytes, over)

    @cached_property
    def works(self) -> LayerWorks:
        """What devices do at least, for bounds."""
        return LayerWorks(self.sums)

    @cached_property
    def may_fit_unordered(self) -> bool:
        return least_unordered_bytes(self.works) <= sum(processor.memory_bytes for processor in self.machine.processors)

    def neighbours(self, plan: HybridPlan) -> Iterator[HybridPlan]:
        return self.all_taken(neighbours(plan, self.sums, self.batch, self.sums.axes.node), plan)

    def quick_neighbours(self, plan: HybridPlan) -> Iterator[HybridPlan]:
        return self.all_taken(quick_neighbours(plan, self.sums, self.batch), plan)


def best_of_grid(
    evaluator: Evaluator, lacks: Callable[[Strategy], str] = lambda strategy: "", *, deadline: Deadline | None = None,
    most: int = SIMULATED, grid: AnyGrid | None = None, share: float = 1.0, must: bool = True,
    until: float = inf, make: Callable[[HybridPlan], Strategy] | None = None, looked: Callable[[], bool] = lambda: False,
) -> GridResult:
    """Price all plans and simulate the best ``most`` of them (more if none of these fits), within ``share`` of the ``deadline``.
    ``looked``: whether no more are priced (`Looks.part`).
    ``lacks``: returns what memory a strategy lacks (empty: it fits). ``must``: simulate plans until one fits even if that is likely
    to take longer; ``until``: the second at which even that is abandoned. A plan whose price promises much more than the best
    so far may take most of the time that is left. ``make``: makes a plan's strategy (`Allowed.strategy`; by default any plan's).
    Leaves the evaluator at any strategy. Ctrl-C ends it once there is a plan. Raises ValueError if its machine is not described."""
    deadline = deadline or Deadline()
    end = deadline.elapsed + share * deadline.left
    grid = grid or PlanGrid(evaluator.graph, evaluator.machine, evaluator.rule)
    begin = deadline.elapsed
    trial = PlanTrial(
        evaluator, lacks, lambda: deadline.expired or deadline.elapsed >= end, lambda: deadline.elapsed >= until, deadline, make
    )
    counts = [0, 0]
    left_out: list[str] = []
    waiting: list[PricedPlan] = []
    pairs: list[tuple[float, float]] = []
    own_end = end
    order = _order(grid, trial, counts, end, deadline, isfinite(end), must, looked)
    for one in soon_first(order, trial, lambda: SOON * deadline.left) if must else order:
        end = own_end  # at which `trial` ends a simulation
        if len(pairs) >= (most if trial.best is not None else LACKING * most):
            break
        left, most_left = end - deadline.elapsed, max(0.0, min(LONGEST * deadline.left, until - deadline.elapsed))
        found = trial.best is not None
        late = bool(pairs) and deadline.elapsed > (1 + LATE_SHARE) * deadline.seconds
        if left <= 0 and (found or not must or late):
            left_out.append(f"{one.plan} (no time to simulate it)")
            break
        if share < 1 and trial.promises(one.seconds) and one.memory.nbytes <= SURE * grid.memory_bytes:
            left = max(left, most_left)  # for this plan
        if share < 1 and one.seconds > DEAR * trial.seconds:
            break
        if (found or not must) and not trial.room_for(one.plan, one.micro_batches, left):
            left_out.append(f"{one.plan} (no time to simulate it)")
            waiting.append(one)
            continue
        if share < 1:  # what has begun is not thrown away because this part of the time ends
            end = max(end, deadline.elapsed + most_left)
        try:
            seconds = trial.of(one.plan)
        except BudgetExhausted:
            left_out.append(f"{one.plan} (no time to simulate it)")
            waiting.append(one)
            break
        except KeyboardInterrupt:
            if trial.best is None:
                raise
            deadline.stopped = True
            break
        except NotAllowedError:
            continue
        except (ValueError, TooManyTasksError) as error:
            left_out.append(f"{one.plan} ({error})")
            continue
        pairs.append((one.seconds, seconds))
    return GridResult(
        trial.best, trial.strategy, trial.seconds, counts[0], counts[1], tuple(pairs), trial.refused, tuple(left_out[:5]),
        deadline.elapsed - begin, trial.pace, tuple(trial.history), trial.spare, tuple(by_price(waiting)),
        frozenset(trial.tried), tuple(trial.fit),
    )


def _order(
    grid: AnyGrid, trial: PlanTrial, counts: list[int], end: float, deadline: Deadline, early: bool, must: bool,
    looked: Callable[[], bool],
) -> Iterator[PricedPlan]:
    """Yield the plans in the order of simulation. ``early``: the first is a usual one, the smallest of those with nearly the best
    price, and comes before the others are priced. ``counts`` receives the number of plans and of those that fit."""

    def part(all_of_it: bool = False) -> Callable[[], bool]:
        """Whether a share of what is left from now on has passed: of the grid's time, or of all time."""
        last = deadline.elapsed + max(0.0, deadline.left) if all_of_it else end
        until = deadline.elapsed + PRICING * max(0.0, last - deadline.elapsed)
        return lambda: deadline.expired or deadline.elapsed >= until or looked()

    first: HybridPlan | None = None
    if early and (usual := grid.usual(part()) or (grid.usual(part(True)) if must else [])):
        counts[:] = len(usual), len(usual)  # others are listed, which takes seconds of thousands of devices, once there is a plan
        if (quickest := trial.quickest(usual, grid.memory_bytes)) is not None:
            first = quickest.plan
            yield quickest
    plans, counts[0] = grid.plans(part(must and trial.best is None))  # of what the first plan has left
    counts[1] = len(plans)
    left = soonest_first([one for one in plans if one.plan != first], lambda one: trial.work(one.plan, one.micro_batches))
    # The closed form leaves out short-lived arrays: a plan that lacks memory by it is likely to lack it.
    yield from varied(left, lambda: trial.simulated, lambda: trial.refused, grid.memory_bytes)


def soon_first(plans: Iterator[PricedPlan], trial: PlanTrial, left: Callable[[], float]) -> Iterator[PricedPlan]:
    """The plans as they come, but until one fits only those that are likely to be simulated in the time that is ``left``; then the
    others, and where none fits, those first that take least."""
    late: list[PricedPlan] = []
    for one in plans:
        if trial.best is None and not trial.room_for(one.plan, one.micro_batches, left()):
            late.append(one)
            continue
        yield one
        if trial.best is not None:
            yield from late
            late = []
    yield from sorted(late, key=lambda one: trial.work(one.plan, one.micro_batches))


def spare_of(lacks: Callable[[Strategy], str], strategy: Strategy) -> float:
    """Return the bytes that a strategy leaves of the memory, on the device with the fewest left; infinite if not known."""
    return min(lacks.spare(strategy)) if isinstance(lacks, MemoryCheck) and strategy.ordered else inf


class TooLongError(ValueError):
    """Error for a plan whose simulation takes far longer than expected."""


class PlanTrial:
    """Simulates plans and keeps the fastest that fits. ``over``: true once time has run out; it ends a simulation if there is a
    plan already. ``make``: makes a plan's strategy."""

    def __init__(
        self, evaluator: Evaluator, lacks: Callable[[Strategy], str], over: Callable[[], bool],
        ended: Callable[[], bool] = lambda: False, clock: Deadline | None = None,
        make: Callable[[HybridPlan], Strategy] | None = None,
    ) -> None:
        self.evaluator, self.lacks, self.over = evaluator, lacks, over
        self.ended = ended
        """Whether even the first plan that fits may take no longer."""
        self.history: list[Improvement] = []
        """Of the plans that were the fastest, by the ``clock``."""
        self.best: HybridPlan | None = None
        self.strategy: Strategy | None = None
        self.last: Strategy | None = None
        """The one that was simulated last."""
        self.spare = inf
        """Bytes that the best plan leaves of the memory, on the device that has the fewest left."""
        self.seconds, self.refused, self.simulated = inf, 0, 0
        self.tried: set[HybridPlan] = set()
        self.fit: list[tuple[HybridPlan, float]] = []
        """Plans that fit, with their seconds: each was the fastest when it was simulated."""
        self.pace = Pace()
        self._layers = block_count(evaluator.graph)
        self._exchanges = 4 * sum(node.operator.kind == "dispatch" for node in evaluator.graph)  # there and back, twice
        self._clock = clock or Deadline()
        self._until = inf  # by this clock a simulation may go on
        self._make = make or (lambda plan: map_graph(HybridParallel(plan), evaluator.graph, evaluator.machine))
        self._routed = any(node.operator.kind == "top_k_routing" for node in evaluator.graph)
        self._unfolded = runs_after_micro_batches(evaluator.graph)  # then no part of a step stands for all of it

    def begin_at(self, found: GridResult) -> None:
        """Continue from the result of a grid."""
        self.best, self.strategy, self.seconds, self.spare = found.best, found.strategy, found.seconds, found.spare
        self.pace, self.tried, self.fit = found.pace, set(found.tried), list(found.fit)

    def of(self, plan: HybridPlan) -> float:
        """Return the seconds of a step. Raises BudgetExhausted if the time ends meanwhile, ValueError if the plan does not fit
        the network, or takes far longer than expected (TooLongError)."""
        begin, count = self._clock.elapsed, self._micro_batches(plan)
        self.tried.add(plan)
        most = max(LEAST_PATIENCE, PATIENCE * self.work(plan, count) * self.pace.of_a_piece)
        self._until = begin + most if isfinite(self._clock.seconds) else inf
        with paused_collector(), self.evaluator.interruptible(self._checkpoint):
            strategy = self._make(plan)
            seconds = self.evaluator.set(strategy)
            self.simulated, self.last = self.simulated + 1, strategy
            if seconds < self.seconds:
                if self.lacks(strategy):
                    self.refused += 1
                else:
                    self.best, self.strategy, self.seconds = plan, strategy, seconds
                    self.fit.append((plan, seconds))
                    self.spare = spare_of(self.lacks, strategy)
                    self.evaluator.keep()
                    self.history.append(Improvement(self.simulated, self._clock.elapsed, seconds))
        if not has_no_order(plan, count):
            self.pace = self.pace.after(self.work(plan, count), self._clock.elapsed - begin)
        return seconds

    def _micro_batches(self, plan: HybridPlan) -> int:
        return self.evaluator.graph.nodes[0].space.shape[0] // plan.samples_a_pass

    def promises(self, seconds: float) -> bool:
        """True if a plan of so many seconds would be much faster than the best so far."""
        return seconds < MUCH_FASTER * self.seconds < inf

    def room_for(self, plan: HybridPlan, micro_batches: int, seconds: float) -> bool:
        """True if this many seconds are likely to be enough for a plan."""
        return self.work(plan, micro_batches) * self.pace.of_a_piece <= seconds

    def quickest(self, plans: Sequence[PricedPlan], memory_bytes: float) -> PricedPlan | None:
        """Return, of the plans with nearly the best price that surely fit, the one that takes least to simulate. The ``plans`` are
        by price."""
        quick = [one for one in plans if one.memory.nbytes <= SURE * memory_bytes and one.seconds <= NEAR * plans[0].seconds]
        return min(quick, key=lambda one: (self.work(one.plan, one.micro_batches), one.seconds), default=None)

    def work(self, plan: HybridPlan, micro_batches: int) -> int:
        """Return about how many pieces are lowered."""
        starting = STARTING + len(self.evaluator.machine.processors) // PLACES
        if has_no_order(plan, micro_batches):  # for the compiled evaluator
            return starting
        devices = plan.tensor * plan.context
        if plan.shares:  # unequal replicas are not folded
            devices *= len(plan.shares)
        elif plan.split == 1 and not self._routed:  # the members of a group of t do the same, and are
            devices = plan.context
        blocks = 0
        if plan.experts > 1 and plan.tensor * plan.context > 1:  # all groups of an exchange with experts are lowered
            members = plan.tensor * plan.context * plan.experts
            devices, blocks = max(devices, members), members**2 * self._exchanges * min(micro_batches, LOWERED) // BLOCKS
        alike = plan.pipeline * plan.virtual + plan.changes  # runs of layers that are alike
        whole = len(self.evaluator.graph) * plan.tensor * plan.context * (plan.data or len(plan.shares) or 1) * micro_batches
        whole, devices = whole * plan.split, devices * plan.split
        if is_small(whole) or (micro_batches > 1 and self._unfolded):
            return starting + whole
        nodes = len(self.evaluator.graph) * min(1.0, KEPT * alike / max(1, self._layers))
        simulated = len(self.evaluator.graph) * devices * micro_batches // SIMULATED_PIECES
        return starting + int(nodes * devices * min(micro_batches, LOWERED)) + simulated + blocks

    def _checkpoint(self) -> None:
        if (self.best is not None and self.over()) or self.ended():
            raise BudgetExhausted
        if self.best is not None and self._clock.elapsed > self._until:
            raise TooLongError("simulating it takes far longer than expected")
