"""Memory check: whether a strategy fits the devices' memory. What it says is the runtime's plan of the step's memory.

A search asks for every new best plan, and lowering a step may take seconds. So a bound and an estimate come first
(`MemoryEstimate`), and a step is lowered where these do not decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from taskflow.mapper import ShardedSync, Strategy
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.evaluate.folded import folded_use
from taskflow.optimizer.memory import MemoryUse, explain, fits, memory_use
from taskflow.optimizer.memory_estimate import MemoryEstimate

MOST_TASKS = 2000  # of a step that takes little time to plan (about 0.2 s)
MOST_PLANNED = 20_000  # pieces of a step that is planned although it takes long (about 6 s)
# In a search, an estimate decides below FITS of the memory and above LACKS, or LACKS_SMALL where planning takes little time.
# Of 45 random networks and plans, estimates were 0.91 to 1.6 times the plan, and once 2.5 times.
FITS, LACKS, LACKS_SMALL = 0.8, 1.15, 2.5
OTHER_ORDER = 0.03
"""Share of the arrays that is added where a folded step's order is not quite the whole one's (docs/decisions/55-folded-steps.md):
with weights by shares in tensor-parallel groups, and with what is gathered again."""
MOST_KEPT = 8  # strategies whose needs are kept
SPARE = 0.1  # share of the memory that an estimate leaves free where nothing can be planned
RULE = (
    f"a plan of more than {MOST_PLANNED:,} pieces whose devices do not do the same is estimated, and {SPARE:.0%} of the memory is "
    "kept spare for it"
)
SCALED = f"a search estimates what is far from the memory, and keeps {SPARE:.0%} of it spare"


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes that a strategy needs, by processor. ``uses``: as the runtime plans them; None if they are estimated."""

    nbytes: Sequence[int]
    uses: tuple[MemoryUse, ...] | None


class _KnownNeeds:
    """What checks of one problem know: the last strategy's needs, and those of the last `MOST_KEPT` that have an order and fit, of
    which a search returns one."""

    def __init__(self) -> None:
        self.last: tuple[Strategy, Needs] | None = None
        self.fitting: list[tuple[Strategy, Needs]] = []

    def of(self, strategy: Strategy) -> Needs | None:
        """Return the needs of a strategy, or of one with an order that is equal."""
        pairs = self.fitting if self.last is None else [self.last, *self.fitting]
        return next((needs for one, needs in pairs if one is strategy or (strategy.ordered and one.same(strategy))), None)

    def keep(self, strategy: Strategy, needs: Needs) -> None:
        """Keep the needs of a strategy that fits."""
        self.fitting = [*(pair for pair in self.fitting if pair[0] is not strategy), (strategy, needs)][-MOST_KEPT:]


class MemoryCheck:
    """Check of plans: a call with a strategy returns what memory it lacks, empty if it fits. Search, commands and reports all
    use it, so that they agree on which plans fit.

    What a device holds is the plan of the runtime (`memory_use`), or of a folded step (`folded_use`), which is the same. Steps
    that are too large to be lowered, and cannot be folded, are estimated. A search (``quick``) takes a scaled estimate of a
    step that takes long to lower, unless that comes near the memory: the last step that was planned says what to scale by.
    """

    def __init__(
        self, evaluator: Evaluator, quick: bool = False, estimate: MemoryEstimate | None = None,
        refuses: Callable[[Strategy], str] | None = None, known: _KnownNeeds | None = None,
    ) -> None:
        self.graph = evaluator.graph
        self.machine = evaluator.machine
        self.estimate = estimate or MemoryEstimate(evaluator)
        self._evaluator = evaluator
        self._quick, self._refuses = quick, refuses
        self._scale: float | None = None  # planned bytes over estimated ones, of the last step for which both are known
        self._known, self._shared = _KnownNeeds(), known or _KnownNeeds()  # of strategies without an order, and with one
        self._repeats = evaluator.repetition is not None  # whose plans are not lowered

    def for_search(self) -> MemoryCheck:
        """Return the check that a search uses."""
        return MemoryCheck(self._evaluator, True, self.estimate, known=self._shared)

    def refusing(self, refuses: Callable[[Strategy], str]) -> MemoryCheck:
        """Return the check that also asks a function why a strategy that fits is refused all the same."""
        return MemoryCheck(self._evaluator, self._quick, self.estimate, refuses, self._shared)

    def interruptible(self, checkpoint: Callable[[], object]) -> AbstractContextManager[None]:
        """Return a block in which ``checkpoint`` is called while a step is planned (`Evaluator.interruptible`)."""
        return self._evaluator.interruptible(checkpoint)

    def surely(self, strategy: Strategy) -> str:
        """Return what memory a strategy lacks, of those that this check has let pass: planned, if it has been estimated and the
        estimate is not far below the memory."""
        if strategy.ordered or self._surely_fits(strategy) or (self._scale and self._share(strategy, self._scale) <= FITS):
            return ""
        return MemoryCheck(self._evaluator, False, self.estimate)(strategy)

    def __call__(self, strategy: Strategy) -> str:
        """Return what memory a strategy lacks; empty if it fits."""
        if lacks := self._lacks(strategy):
            return f"{lacks}{_advice(strategy)}"
        return self._refuses(strategy) if self._refuses is not None else ""

    def _lacks(self, strategy: Strategy) -> str:
        if self._quick and not strategy.ordered and self._known.of(strategy) is None and self._surely_fits(strategy):
            return ""
        needs = self.needs(strategy)
        if needs.uses is not None:
            return explain(self.machine, needs.uses)
        processors = self.machine.processors
        lacking = [(n, p) for n, p in zip(needs.nbytes, processors) if n > (1 - SPARE) * p.memory_bytes]
        if not lacking:
            return ""
        nbytes, worst = max(lacking, key=lambda pair: pair[0] - pair[1].memory_bytes)
        return (
            f"{len(lacking)} of {len(processors)} processors may lack memory; processor {worst.number} ({worst.kind}) has "
            f"{worst.memory_bytes / 1e9:.3g} GB, its arrays take about {nbytes / 1e9:.3g} GB ({SCALED if self._quick else RULE})"
        )

    def peaks(self, strategy: Strategy) -> tuple[list[int], bool]:
        """Return bytes by processor, and whether they are planned as the runtime plans them (else estimated)."""
        needs = self.needs(strategy)
        return list(needs.nbytes), needs.uses is not None

    def kept_gradients(self, strategy: Strategy) -> int:
        """Return the bytes that the fullest device needs in a framework that keeps gradients until the update, beyond `peaks`. The
        runtime gives a layer's up as soon as they are used, which is within the backward pass of a step of one micro-batch: of more
        there is nothing to add."""
        if strategy.pipeline is not None and strategy.pipeline.micro_batches > 1:
            return 0
        needs, (kept, updating) = self.needs(strategy), self.estimate.updating(strategy)
        if needs.uses is not None:
            kept = [use.weights + use.state for use in needs.uses]
        return max(0, max(map(sum, zip(kept, updating))) - max(needs.nbytes))

    def spare(self, strategy: Strategy) -> list[float]:
        """Return bytes by processor that a plan leaves of what it may use; negative if it needs more."""
        needs = self.needs(strategy)
        share = 1 - SPARE if needs.uses is None else 1.0
        return [share * p.memory_bytes - nbytes for nbytes, p in zip(needs.nbytes, self.machine.processors)]

    def needs(self, strategy: Strategy) -> Needs:
        """Return what a strategy needs."""
        known = self._shared if strategy.ordered and not self._repeats else self._known  # checks agree on what is planned
        found = known.of(strategy)
        if found is None:
            uses = None if self._repeats else self._planned(strategy)
            found = self._estimated(strategy) if uses is None else Needs([use.nbytes for use in uses], uses)
            known.last = strategy, found
            if known is self._shared and uses is not None and fits(self.machine, uses):
                known.keep(strategy, found)
        return found

    # ---- what decides ------------------------------------------------------------------------------------------------
    def _surely_fits(self, strategy: Strategy) -> bool:
        most = self.estimate.at_most(strategy)
        return all(nbytes <= p.memory_bytes for nbytes, p in zip(most, self.machine.processors))

    def _planned(self, strategy: Strategy) -> tuple[MemoryUse, ...] | None:
        """Return the runtime's plan; None if that would take too long, or need not be known."""
        pieces = sum(len(config.processors) for config in strategy.configs.values())
        if self._quick and not strategy.ordered and self._scale is not None:
            # The evaluator's tasks may be those of the plan before this one; of most pieces a task forward and one backward.
            small = max(self._evaluator.tasks, pieces) <= MOST_TASKS
            if not FITS <= self._share(strategy, self._scale) <= (LACKS_SMALL if small else LACKS):
                return None
        uses = self._folded(strategy)
        if uses is None:
            if pieces > MOST_PLANNED and not strategy.ordered:
                return None
            tasks, timeline = self._evaluator.evaluated(strategy)
            uses = memory_use(tasks, timeline.begun(tasks))
        if not strategy.ordered:
            self._scale = max(use.nbytes for use in uses) / max(1, *self.estimate.likely(strategy))
        return uses

    def _folded(self, strategy: Strategy) -> tuple[MemoryUse, ...] | None:
        """Return the plan of a step of which only a part needs to be lowered; None if all must be."""
        step = self._evaluator.folded(strategy)
        if step is None:
            return None
        uses = folded_use(step, self._evaluator.checkpoint)
        in_groups = any(isinstance(sync, ShardedSync) and sync.replicas for sync in strategy.syncs.values())
        if not strategy.again.fetched and not in_groups:
            return uses
        return tuple([replace(use, holes=use.holes + round(OTHER_ORDER * use.buffers)) for use in uses])

    def _share(self, strategy: Strategy, scale: float) -> float:
        """Return the share of its memory that a strategy is estimated to need on the device that is nearest to its limit."""
        estimated = self.estimate.likely(strategy)
        return max(scale * nbytes / p.memory_bytes for nbytes, p in zip(estimated, self.machine.processors))

    def _estimated(self, strategy: Strategy) -> Needs:
        scale = self._scale or 1.0
        return Needs([round(scale * nbytes) for nbytes in self.estimate.likely(strategy)], None)


def _advice(strategy: Strategy) -> str:
    """What else to try for a plan that does not fit, for the end of the message; empty if nothing is known."""
    pipeline = strategy.pipeline
    if pipeline is None or not pipeline.schedule.weights_apart or not strategy.again.recompute or pipeline.ranks == 1:
        return ""
    return (
        f"; under schedule={pipeline.schedule.value}, what the pass for inputs computes again is kept until the pass for weights, "
        f"for up to {min(pipeline.ranks - 1, pipeline.micro_batches)} micro-batches: schedule=1f1b needs less"
    )
