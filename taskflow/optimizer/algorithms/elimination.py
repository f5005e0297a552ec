"""Node and edge elimination (Jia, Lin, Qi and Aiken, "Exploring Hidden Dimensions in Parallelizing Convolutional Neural
Networks", ICML 2018, section 5): the cheapest choice for every vertex of a graph whose cost is a sum over vertices and edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

MOST_COMBINATIONS = 200_000  # of what elimination leaves over, to be enumerated


@dataclass(frozen=True, slots=True)
class Assignment:
    """Result of an elimination: the choice of every vertex, the total cost, and whether it is proved to be the least."""

    chosen: tuple[int, ...]
    cost: float
    exact: bool


def eliminate(vertices: Sequence[Vector], edges: Mapping[tuple[int, int], Matrix]) -> Assignment:
    """Minimise sum vertices[v][chosen[v]] + sum edges[u, v][chosen[u], chosen[v]].

    A vertex with at most two neighbours is eliminated (its best choice becomes a function of theirs), and edges between the
    same two vertices are added up. If all remaining vertices have more neighbours, their choices are enumerated if there are
    few combinations. Otherwise a vertex with the most neighbours is fixed at the choice that looks best beside them, and the
    result is not exact.
    """
    costs = {v: np.array(cost, dtype=np.float64) for v, cost in enumerate(vertices)}
    table: dict[int, dict[int, Matrix]] = {v: {} for v in costs}
    for (u, v), matrix in edges.items():
        if u == v:
            costs[u] = costs[u] + np.diagonal(matrix)
        else:
            _add(table, u, v, np.asarray(matrix, dtype=np.float64))
    chosen: dict[int, int] = {}
    undo: list[Callable[[], None]] = []
    exact = True
    while costs:
        vertex = min(costs, key=lambda v: (len(table[v]), v))
        if len(table[vertex]) <= 2:
            undo.append(_eliminate(vertex, costs, table, chosen))
        elif prod(len(c) for c in costs.values()) <= MOST_COMBINATIONS:
            chosen.update(_enumerate(costs, table))
            break
        else:
            exact = False
            _fix(max(costs, key=lambda v: (len(table[v]), -v)), costs, table, chosen)
    for step in reversed(undo):
        step()
    total = sum(float(vertices[v][c]) for v, c in chosen.items())
    total += sum(float(matrix[chosen[u], chosen[v]]) for (u, v), matrix in edges.items())
    return Assignment(tuple(chosen[v] for v in range(len(vertices))), total, exact)


def _add(table: dict[int, dict[int, Matrix]], u: int, v: int, matrix: Matrix) -> None:
    table[u][v] = table[u][v] + matrix if v in table[u] else matrix
    table[v][u] = table[u][v].T


def _remove(vertex: int, costs: dict[int, Vector], table: dict[int, dict[int, Matrix]]) -> dict[int, Matrix]:
    del costs[vertex]
    for other in table[vertex]:
        del table[other][vertex]
    return table.pop(vertex)


def _eliminate(
    vertex: int, costs: dict[int, Vector], table: dict[int, dict[int, Matrix]], chosen: dict[int, int]
) -> Callable[[], None]:
    """Take out a vertex with up to two neighbours; the function returned chooses for it once they are chosen."""
    own = costs[vertex]
    around = list(_remove(vertex, costs, table).items())
    if not around:
        chosen[vertex] = int(np.argmin(own))
        return lambda: None
    if len(around) == 1:
        ((a, to_a),) = around
        sums = own[:, None] + to_a  # (vertex, a)
        best = np.argmin(sums, axis=0)
        costs[a] = costs[a] + np.min(sums, axis=0)
        return lambda: chosen.__setitem__(vertex, int(best[chosen[a]]))
    (a, to_a), (b, to_b) = around
    cube = own[:, None, None] + to_a[:, :, None] + to_b[:, None, :]  # (vertex, a, b)
    pick = np.argmin(cube, axis=0)
    _add(table, a, b, np.min(cube, axis=0))
    return lambda: chosen.__setitem__(vertex, int(pick[chosen[a], chosen[b]]))


def _enumerate(costs: dict[int, Vector], table: dict[int, dict[int, Matrix]]) -> dict[int, int]:
    names = list(costs)
    best, found = inf, {v: 0 for v in names}
    for choice in product(*(range(len(costs[v])) for v in names)):
        at = dict(zip(names, choice))
        total = sum(costs[v][at[v]] for v in names)
        total += sum(table[u][v][at[u], at[v]] for u in names for v in table[u] if u < v)
        if total < best:
            best, found = total, at
    return found


def _fix(
    vertex: int, costs: dict[int, Vector], table: dict[int, dict[int, Matrix]], chosen: dict[int, int]
) -> None:
    """Choose for a vertex as if each neighbour could then choose by itself."""
    guess = costs[vertex].copy()
    for other, matrix in table[vertex].items():
        guess += np.min(matrix + costs[other][None, :], axis=1)
    chosen[vertex] = choice = int(np.argmin(guess))
    for other, matrix in _remove(vertex, costs, table).items():
        costs[other] = costs[other] + matrix[choice]
