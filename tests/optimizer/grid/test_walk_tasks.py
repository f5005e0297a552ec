"""The tasks of walks, on small walks made by hand: what a gather hides behind, and what waits for what on links."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from taskflow.optimizer.grid.shortened import Walk, WalkStep
from taskflow.optimizer.grid.walk_tasks import Travel, Travels, WalkShape, WalkTasks, listed


def steps(*chain: WalkStep) -> Walk:
    """A walk whose forward pass is the chain, after a forward and a backward pass of one step."""
    one = Walk([WalkStep(0), WalkStep(0, back=True), *chain], ["w"], ["w"])
    one.ends = {0: 0}, {0: 1}, {0: 1 + len(chain)}
    return one


def ahead(walk: Walk, seconds: Sequence[float], reads: Sequence[float], gathers: Travels, reduces: Travels) -> float:
    """Seconds of a walk's forward pass; its backward pass of one step takes 1."""
    meets = (tuple(tuple(one.meets for one in of[name]) for name in walk.names) for of in (gathers, reduces))
    shape = WalkShape(tuple(one > 0 for one in reads), *meets)
    (forward, back, _), _ = WalkTasks(walk, shape).seconds(seconds, reads, listed(walk, gathers, reduces))
    assert back == 1.0
    return forward


@pytest.mark.parametrize(("gather", "expected"), [(1.0, 8.0), (2.0, 8.0), (3.5, 9.5)])
def test_a_gather_hides_behind_the_step_beside_it_alone(gather: float, expected: float) -> None:
    """It may begin when the first step ends. The device copies its share once it has run the second, which was ready, too."""
    walk = steps(WalkStep(0, begins=[0]), WalkStep(0), WalkStep(0), WalkStep(0, waits=[0]))
    travel = {"w": [Travel(gather, 0.0, False)]}
    assert ahead(walk, [1.0, 1.0, 2.0, 2.0, 2.0, 2.0], [0.0], travel, {"w": []}) == expected


@pytest.mark.parametrize(("gathers", "expected"), [
    ([(3.0, True)], 2.0 + 3.0 + 0.5 + 1.0), ([(3.0, False)], 3.0 + 0.5 + 1.0),
    ([(2.0, True), (3.0, True)], 2.0 + 5.0 + 0.5 + 1.0), ([(2.0, False), (3.0, False)], 3.0 + 0.5 + 1.0),
    ([(2.0, True), (3.0, False)], 2.0 + 2.0 + 0.5 + 1.0), ([(3.0, False), (2.0, True)], 2.0 + 2.0 + 0.5 + 1.0),
])
def test_sums_of_activations_wait_for_gathers_on_their_links(gathers: Sequence[tuple[float, bool]], expected: float) -> None:
    """The sum reaches the links a second after the gathers did; on other links, as those between nodes are for experts that are
    dealt within one, it does not wait."""
    walk = steps(WalkStep(0, begins=[0]), WalkStep(0), WalkStep(0, sends=[1]), WalkStep(0, waits=[1]), WalkStep(0, waits=[0]))
    walk.collectives.append((0, 0))
    walk.ends = *walk.ends[:2], {0: 5}
    travel = {"w": [Travel(seconds, 0.0, meets) for seconds, meets in gathers]}
    assert ahead(walk, [1.0] * 7, [0.0, 0.5], travel, {"w": []}) == expected


def test_what_a_reduction_adds_to_a_share_comes_before_steps_that_are_ready_later() -> None:
    """The gradient is summed a second after the first step ends; the device adds it to its share once the second step ends,
    though no step waits for it."""
    walk = steps(WalkStep(0, reduces=[0]), WalkStep(0), WalkStep(0))
    assert ahead(walk, [1.0] * 5, [0.0], {"w": []}, {"w": [Travel(0.5, 0.25, False)]}) == 3.25


def test_reductions_go_before_what_brings_gradients_to_the_next_step() -> None:
    """Both are ready when the first step ends, and lowering numbers the reduction first."""
    walk = steps(WalkStep(0, sends=[1], reduces=[0]), WalkStep(0, waits=[1]))
    walk.collectives.append((0, 1))
    for meets, expected in ((True, 1.0 + 2.0 + 0.5 + 1.0), (False, 1.0 + 0.5 + 1.0)):
        reduces = {"w": [Travel(2.0, 0.0, meets)]}
        assert ahead(walk, [1.0] * 4, [0.0, 0.5], {"w": []}, reduces) == expected
