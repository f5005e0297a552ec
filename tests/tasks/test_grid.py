"""Simulated time is on a grid, so that its sums are exact in any order."""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from itertools import permutations
from math import inf
from operator import add

from taskflow.tasks.simulate import on_grid


def test_costs_are_rounded_up_to_the_grid():
    for seconds in (0.0, 1e-9, 1e-6, 0.1, 1 / 3, 8191.9):
        given = on_grid(seconds)
        assert Fraction(seconds) <= Fraction(given) < Fraction(seconds) + Fraction(1, 2**40)
        assert (Fraction(given) * 2**40).denominator == 1 and on_grid(given) == given
    assert on_grid(9000.1) == 9000.1 and on_grid(inf) == inf
    parts = tuple(map(on_grid, (0.1, 0.2, 0.3, 1e-7, 300.7)))
    # One after the other, as the core adds: since Python 3.12 sum() makes up for rounding.
    assert len({reduce(add, order) for order in permutations(parts)}) == 1
    assert len({reduce(add, order) for order in permutations((0.1, 0.2, 0.3, 1e-7, 300.7))}) > 1
