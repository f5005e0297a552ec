"""LeastProgram: the seconds that a linear program over places, recomputation and sharding of layers needs at least.

Each layer chooses a place in the pipeline and an option (what it computes again, and how its weights are shared), or any mixture
of these. A step takes at least as long as every path, and as every rank's links are occupied. What is kept at every moment fits
the memory. Weights on these conditions, one each, make a bound: what every layer costs at least under them, whatever it chooses.
All weights do, so the bound is one however well the program is solved. The best weights are the prices of the simplex method.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taskflow.optimizer.grid.bound_places import LayerPlaces
from taskflow.optimizer.grid.node_table import Array

LACKS = 1e3  # times ``scale`` that a step would take if it needed all of the memory once more
EVERY = 25  # exchanges of the basis, after which it is worked out anew, and the bound
MOST = 2_000  # exchanges
TINY = 1e-9  # what rounding leaves of a zero


@dataclass(frozen=True, eq=False, slots=True)
class LayerKinds:
    """Layers that are alike, and their options. ``many``: how many there are of each. Other arrays are by option and kind.
    ``forward``, ``backward``: seconds of a micro-batch. ``through``, ``back``: seconds by which the layer delays the first
    micro-batch, and the last one's gradients. ``kept``: bytes that a micro-batch keeps. ``weights`` (with the rule's state),
    ``gradients``: bytes. ``busy``: seconds of a step for which links are."""

    many: Array
    forward: Array
    backward: Array
    through: Array
    back: Array
    kept: Array
    weights: Array
    gradients: Array
    busy: Array


class LeastProgram:
    """The conditions of some places for some layers. ``scale``: seconds, about as many as the bound. ``waits``: seconds
    that are added to each path (`LayerPlaces.ahead`)."""

    def __init__(self, kinds: LayerKinds, places: LayerPlaces, memory: float, scale: float, waits: Array) -> None:
        self.many, self.memory, self.scale = kinds.many, memory, scale
        of_rank = (places.rank[None, :] == np.arange(places.rank.max() + 1)[:, None]).astype(float)
        paths, ranks, moments = len(places.forward), len(of_rank), len(places.kept)
        self.timed = paths + ranks
        rows = np.zeros((8, self.timed + moments, len(places.rank)))
        for i, of in enumerate((places.forward, places.backward, places.fill, places.drain)):
            rows[i, :paths] = of / scale
        rows[7, paths : self.timed] = of_rank / scale
        for i, of in enumerate((places.kept, places.own, places.summed)):
            rows[4 + i, self.timed :] = of / memory
        self.rows = rows
        self.limits = np.concatenate([-waits / scale, np.zeros(ranks), np.ones(moments)])
        self._flat = np.ascontiguousarray(rows.transpose(1, 0, 2).reshape(rows.shape[1], -1))
        self.each = np.stack([
            kinds.forward, kinds.backward, kinds.through, kinds.back, kinds.kept, kinds.weights, kinds.gradients, kinds.busy
        ])  # fmt: skip
        self._each = self.each.reshape(len(self.each), -1)

    def seconds(self, weights: Array) -> float:
        """Return the bound that weights on the conditions make."""
        least = float((self._costs(weights).min(axis=(0, 1)) * self.many).sum())
        timed = float(weights[: self.timed].sum())
        return self.scale * (least - float(weights @ self.limits)) / timed if timed > 0 else 0.0

    def _costs(self, weights: Array) -> Array:
        """(places, options, kinds): what a layer costs."""
        found: Array = (weights @ self._flat).reshape(len(self.rows), -1).T @ self._each
        return found.reshape(-1, *self.each.shape[1:])

    def _column(self, place: int, option: int, kind: int) -> Array:
        found: Array = np.append(self.rows[:, :, place].T @ self.each[:, option, kind], np.zeros(len(self.many)))
        found[len(self.rows[0]) + kind] = 1.0
        return found

    def solve(self, enough: float) -> float:
        """Return the best bound, or one that is ``enough``; ``weights`` are then those that make it."""
        count, kinds = self.rows.shape[1], len(self.many)
        size, memory = count + kinds, np.arange(count + kinds)
        timed, kept = (memory < self.timed).astype(float), ((memory >= self.timed) & (memory < count)).astype(float)
        # Limits differ a little, so that no two conditions are met at once.
        limits = np.concatenate([self.limits + 1e-7 * (1 + np.random.default_rng(0).random(count)), self.many])
        # Basis: slacks, then all layers in the first place with the option that costs least, and what makes that possible.
        columns = np.eye(size)
        costs = np.zeros(size)
        option = self.each[4].argmin(axis=0)
        for kind in range(kinds):
            columns[:, count + kind] = self._column(0, int(option[kind]), kind)
        loads = columns[:count, count:] @ self.many - limits[:count]
        for of, price, first, last in ((timed, 1.0, 0, self.timed), (kept, LACKS, self.timed, count)):
            if last > first and loads[first:last].max() > 0:
                worst = first + int(loads[first:last].argmax())
                columns[:, worst], costs[worst] = -of, price
        best = 0.0
        for number in range(MOST):
            if number % EVERY == 0:
                inverse = np.linalg.inv(columns)
                amounts = inverse @ limits
            prices = costs @ inverse
            weights = -prices[:count]
            if number % EVERY == EVERY - 1:
                best = max(best, self._tried(weights))
                if best >= enough:
                    return best
            reduced = self._costs(weights) - prices[count:]
            at = int(reduced.argmin())
            least, column, price = float(reduced.flat[at]), None, 0.0
            if (value := 1.0 - float(weights @ timed[:count])) < least:
                least, column, price = value, -timed, 1.0
            if (value := LACKS - float(weights @ kept[:count])) < least:
                least, column, price = value, -kept, LACKS
            slack = int(weights.argmin())
            if weights[slack] < least:
                least, column, price = float(weights[slack]), np.eye(size)[slack], 0.0
            if least > -TINY:
                break
            if column is None:
                column = self._column(*(int(i) for i in np.unravel_index(at, reduced.shape)))
            change = inverse @ column
            rising = change > TINY
            if not rising.any():
                break
            ratios = np.where(rising, amounts / np.where(rising, change, 1.0), np.inf)
            out = int(ratios.argmin())
            amounts -= ratios[out] * change
            amounts[out] = ratios[out]
            inverse[out] /= change[out]
            others = change.copy()
            others[out] = 0.0
            inverse -= np.outer(others, inverse[out])
            columns[:, out], costs[out] = column, price
        return max(best, self._tried(weights))

    def _tried(self, weights: Array) -> float:
        self.weights: Array = np.maximum(weights, 0.0)
        return self.seconds(self.weights)
