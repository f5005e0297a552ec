"""Uneven pieces: sizes of each device's pieces, if devices are of unequal speed.

It starts from data parallelism with shares in proportion to the devices' speeds. A device's speed is its share divided by the
seconds that it is busy, so launches, small kernels and measured costs count as they do in a step. A share that does not fit a
device's memory is lowered until it does. Then units of the samples go from the slowest devices to the fastest ones as long as a
step gets faster.

Operators that are pinned keep their pieces, and others may be better off with even ones. Between pieces of other sizes an
operator's inputs and outputs have to be cut anew. So what is next to even pieces is tried with even pieces, too; anything else
now and then, since work may scale with weights, of which each device has as many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, nextafter
from random import Random

from taskflow.mapper import OpConfig, Strategy
from taskflow.optimizer.budget import BudgetPart
from taskflow.optimizer.evaluate import where_time_goes
from taskflow.optimizer.memory_check import MemoryCheck
from taskflow.optimizer.session import SearchSession
from taskflow.optimizer.space import Weigher, even, kinds_of, shares_by_speed, uneven_applies, units_of, whole_shares

ROUNDS = 6  # in which speeds are worked out again at the new shares
LOWERED = 24  # times that shares are lowered for the memory
STEPS = (8, 2, 1)  # units that move at once
EVEN_BESIDE, EVEN = 0.5, 0.1  # of annealing's proposals: next to even pieces, and elsewhere


class UnevenPieces:
    """Shares of one search. From `start` on, ``run`` proposes pieces of their sizes."""

    def __init__(self, run: SearchSession) -> None:
        self.run = run
        machine, graph = run.evaluator.machine, run.evaluator.graph
        self.processors, self.applies = machine.processors, uneven_applies(machine, run.options.space)
        self.units = units_of(graph, len(self.processors))
        self._fixed = frozenset(name for name, of in run.permitted.items() if of.pin is not None)
        self.kinds = kinds_of(machine)
        self._beside: dict[str, list[str]] = {node.name: [] for node in graph}
        for node in graph:
            for tensor in node.inputs:
                other = graph.nodes[tensor.node].name
                self._beside[node.name].append(other)
                self._beside[other].append(node.name)

    def start(self, known: Sequence[Strategy]) -> None:
        """Try data parallelism, the first of the ``known`` strategies, with pieces by speed, and set the best shares; then try
        the others with these. Does nothing if devices are alike."""
        data = known[0]
        if not self.applies or not self.run.try_set(data):
            return
        self.run.enter("uneven pieces")
        machine = self.run.evaluator.machine
        shares, best = whole_shares([1.0] * len(self.processors), self.units), inf
        chosen, plan = shares, data
        for _ in range(ROUNDS):
            shares = self._fitting(data, shares_by_speed(machine, self._busy(), shares))
            weighed = replace(self._weigher(shares).strategy(data), name=f"{data.name} by speed")
            if not self.run.try_set(weighed) or self.run.seconds >= best:
                break
            best, chosen, plan = self.run.seconds, shares, weighed
        self.run.weigher = self._weigher(chosen)
        self.run.try_set(plan, start=True)
        for strategy in known[1:]:
            self.run.try_set(strategy)  # which tries it by speed, too
        self.shift(BudgetPart(self.run, 0.1))

    def shift(self, part: BudgetPart) -> None:
        """Move units, from the best plan, from slow devices to fast ones while a step gets faster."""
        if self.run.weigher is None:
            return
        self.run.enter("uneven pieces")
        self.run.back_to_best()
        improved = True
        while improved and not part.expired:
            improved = any(self._try(shares) for shares in self._shifted() if not part.expired)

    def flatten(self, groups: Sequence[Sequence[str]], part: BudgetPart) -> None:
        """Give groups of operators even pieces if a step is then faster: transfers may matter more than arithmetic."""
        if self.run.weigher is None:
            return
        weigher, self.run.weigher = self.run.weigher, None
        try:
            flat = even(self.run.strategy).configs
            for names in groups:
                if part.expired:
                    return
                changes = {name: flat[name] for name in names if flat[name] != self.run.strategy[name]}
                if changes:
                    self.run.propose(changes, nextafter(self.run.seconds, 0.0))
        finally:
            self.run.weigher = weigher

    def may_be_even(self, changes: Mapping[str, OpConfig]) -> bool:
        """True if a change would get uneven pieces, and so is another one with even pieces."""
        return any(True for _ in self._weighed(changes))

    def draw_even(self, changes: Mapping[str, OpConfig], random: Random) -> bool:
        """True if annealing is to try a change with even pieces. Draws no number if there are no shares."""
        return self.may_be_even(changes) and random.random() < (EVEN_BESIDE if self.beside_even(changes) else EVEN)

    def beside_even(self, changes: Mapping[str, OpConfig]) -> bool:
        """True if a change would get uneven pieces next to an operator in even ones on several devices."""
        now = self.run.strategy.configs
        return any(
            not now[other].weights and len(set(now[other].processors)) > 1
            for name in self._weighed(changes) for other in self._beside[name]
        )

    def _weighed(self, changes: Mapping[str, OpConfig]) -> Iterator[str]:
        weigher = self.run.weigher if self._fixed else None  # without pins `flatten` finds what is better in even pieces
        for name, config in changes.items() if weigher is not None else ():
            assert weigher is not None
            if weigher.of(name, config) != config:
                yield name

    # ---- shares --------------------------------------------------------------------------------------------------
    def _weigher(self, shares: Sequence[int]) -> Weigher:
        return Weigher(self.run.evaluator.graph, shares, self._fixed)

    def _busy(self) -> tuple[float, ...]:
        return where_time_goes(self.run.evaluator, path=False).processor_seconds

    def _fitting(self, data: Strategy, shares: tuple[int, ...]) -> tuple[int, ...]:
        """The shares, lowered on devices whose memory is too small for them; what these give up goes to the others."""
        check = self.run.options.lacks
        for _ in range(LOWERED if isinstance(check, MemoryCheck) else 0):
            assert isinstance(check, MemoryCheck)
            plan = self._weigher(shares).strategy(data)
            if not self.run.try_set(plan) or not check(plan):
                break
            peaks, _ = check.peaks(plan)
            limits = [peak + spare for peak, spare in zip(peaks, check.spare(plan))]
            lacking = {p for p, (peak, limit) in enumerate(zip(peaks, limits)) if peak > limit}
            left = [0 if p in lacking else share for p, share in enumerate(shares)]
            if not lacking or not any(left):
                break
            kept = {p: max(0, min(shares[p] - 1, int(shares[p] * limits[p] / peaks[p]))) for p in lacking}
            others = whole_shares([float(share) for share in left], self.units - sum(kept.values()))
            shares = tuple(kept.get(p, share) for p, share in enumerate(others))
        return shares

    def _shifted(self) -> Iterator[tuple[int, ...]]:
        """Other shares: from all of the busiest kind to the least busy one, and from the busiest device to the least busy one."""
        assert self.run.weigher is not None
        now, busy = self.run.weigher.shares, self._busy()
        mean = sorted(self.kinds, key=lambda members: sum(busy[p] for p in members) / len(members))
        one = sorted(range(len(busy)), key=lambda p: (busy[p], p))
        pairs = [(mean[-1], mean[0]), (one[-1:], one[:1]), (mean[0], mean[-1])]
        for units in STEPS:
            for givers, takers in pairs:
                given = [min(units, now[p]) for p in givers]
                if givers is takers or not any(given):
                    continue
                found = list(now)
                for p, some in zip(givers, given):
                    found[p] -= some
                ranked = sorted(takers, key=lambda p: (busy[p], p))
                for i in range(sum(given)):
                    found[ranked[i % len(ranked)]] += 1
                yield tuple(found)

    def _try(self, shares: tuple[int, ...]) -> bool:
        """Propose the current plan with other shares; they are in force from then on if it is faster."""
        weigher, before = self._weigher(shares), self.run.weigher
        now = self.run.strategy.configs
        changed = {n: config for n, config in weigher.strategy(self.run.strategy).configs.items() if config != now[n]}
        self.run.weigher = weigher
        if changed and self.run.propose(changed, nextafter(self.run.seconds, 0.0)):
            return True
        self.run.weigher = before
        return False
