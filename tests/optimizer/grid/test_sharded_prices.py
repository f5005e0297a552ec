"""Prices under ZeRO's stages 2 and 3: a gather hides only behind the operator that it runs beside, as in the simulated step."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import pytest

from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import BLOCK, HybridParallel, HybridPlan, map_graph, samples
from taskflow.models.llama import LlamaConfig, llama
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.grid import PlanGrid, kendall
from taskflow.optimizer.grid.shortened import KEPT, Walk, WalkStep, shortened
from taskflow.optimizer.grid.walked import OTHER, OWN, Travel, walked
from taskflow.rules import Adam

RULE = Adam()
DEVICES = 16  # two nodes


@cache
def network(layers: int = 4) -> OperatorGraph:
    """Layers of some milliseconds, so that devices and links count, not hosts."""
    sizes = LlamaConfig(batch=32, layers=layers, steps=2048, hidden=4096, inner=11264, vocabulary=8192, heads=32, key_heads=8)
    return llama(sizes, "bfloat16")


@cache
def grid(layers: int = 4) -> PlanGrid:
    return PlanGrid(network(layers), load_machine("h100", DEVICES), RULE)


PLANS = [
    HybridPlan(data=16, micro_batch=1, zero=3), HybridPlan(data=16, micro_batch=1, zero=3, recompute="full"),
    HybridPlan(tensor=4, data=4, micro_batch=1, zero=3), HybridPlan(tensor=8, data=2, micro_batch=2, zero=3),
    HybridPlan(context=4, data=4, micro_batch=1, zero=3), HybridPlan(tensor=2, pipeline=2, data=4, micro_batch=1, zero=3),
    HybridPlan(tensor=4, data=4, micro_batch=1, zero=2), HybridPlan(data=16, micro_batch=1, zero=3, prefetch=3),
    HybridPlan(data=16, micro_batch=1, zero=3, prefetch=1, recompute="full"),
    HybridPlan(data=16, micro_batch=1, zero=3, recompute="whole"),
]


def prices() -> list[tuple[float, float]]:
    """Price and simulated seconds of each plan."""
    one, evaluator = grid(), make_evaluator(network(), grid().machine, rule=RULE)
    pairs = []
    for plan in PLANS:
        price = one.prices(plan, samples(one.graph) // plan.samples_a_pass)
        pairs.append((price, evaluator.set(map_graph(HybridParallel(plan), one.graph, one.machine))))
    return pairs


def test_prices_of_sharded_plans_are_near_simulated_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskflow.optimizer.evaluate.ordered.MOST_WHOLE", 0)  # folded: a tenth of the time
    pairs = prices()
    assert [price for price, _ in pairs] == pytest.approx([seconds for _, seconds in pairs], rel=0.1)
    assert kendall(pairs) > 0.8


def test_gathers_that_take_as_long_as_the_computation_are_not_hidden_by_the_whole_pass() -> None:
    one, plan = grid(), HybridPlan(tensor=4, data=4, micro_batch=1, zero=3, prefetch=1)
    whole = replace(plan, zero=1, prefetch=BLOCK)
    ahead, back, _ = one.prices._passes(plan, 8)
    without, backward, _ = one.prices._passes(whole, 8)
    assert ahead[0] > 1.2 * without[0] and back[0] > 1.2 * backward[0]
    early = replace(plan, prefetch=4)
    assert one.prices._passes(early, 8)[0][0] < ahead[0]  # more of them is beside more


def test_layers_that_are_left_out_take_as_long_as_those_that_are_walked_through() -> None:
    """The pass of 12 layers is that of 8 and four more, whether they are walked through or not."""
    plan = HybridPlan(data=16, micro_batch=1, zero=3)
    passes = [grid(layers).prices._passes(plan, 2) for layers in (4, 8, 12)]
    for which in (0, 1):
        few, some, many = (float(one[which][0]) for one in passes)
        assert many - some == pytest.approx(some - few, rel=0.01)


@pytest.mark.parametrize("seed", range(30))
def test_runs_of_layers_stand_for_all(seed: int) -> None:
    random = Random(seed)
    kinds: list[int] = []
    for _ in range(random.randint(1, 4)):
        kinds += random.choices(range(3), k=random.randint(1, 4)) * random.choice([1, 1, 2, 5, 9])
    kept, runs = shortened(kinds)
    assert kept == sorted(set(kept)) and len(kept) + sum(run.more * (run.end - run.first[-1]) for run in runs) == len(kinds)
    found, at = [], 0
    for run in runs:  # each run's last block as often as it is left out
        assert len(run.first) == KEPT
        block = [kinds[kept[i]] for i in range(run.first[-1], run.end)]
        assert all([kinds[kept[i + first]] for i in range(len(block))] == block for first in run.first)
        found += [kinds[kept[i]] for i in range(at, run.end)] + block * run.more
        at = run.end
    assert found + [kinds[kept[i]] for i in range(at, len(kept))] == kinds


def steps(*chain: WalkStep) -> Walk:
    """A walk whose forward pass is the chain, after a forward and a backward pass of one step."""
    one = Walk([WalkStep(0), WalkStep(0, back=True), *chain], ["w"], [])
    one.ends = {0: 0}, {0: 1}, {0: 1 + len(chain)}
    return one


@pytest.mark.parametrize(("gather", "expected"), [(1.0, 8.0), (2.0, 8.0), (3.5, 9.5)])
def test_a_gather_hides_behind_the_step_beside_it_alone(gather: float, expected: float) -> None:
    """It may begin when the first step ends. The device copies its share once it has run the second, which was ready, too."""
    walk = steps(WalkStep(0, begins=[0]), WalkStep(0), WalkStep(0), WalkStep(0, waits=[0]))
    travel = {"w": [Travel(gather, 0.0, ((OWN,),))]}
    (ahead, back), _ = walked(walk, [1.0, 1.0, 2.0, 2.0, 2.0, 2.0], [0.0], (OWN,), travel, {})
    assert (ahead, back) == (expected, 1.0)


def test_sums_of_activations_wait_for_gathers_on_their_links() -> None:
    """The sum reaches the links a second after the gather of 3 s did; on another link it does not wait."""
    walk = steps(WalkStep(0, begins=[0]), WalkStep(0), WalkStep(0, sends=[1]), WalkStep(0, waits=[1]))
    walk.collectives.append((0, 0))
    travel = {"w": [Travel(3.0, 0.0, ((OWN,), (OTHER,)))]}
    (ahead, _), _ = walked(walk, [1.0] * 6, [0.0, 0.5], (OWN, OTHER), travel, {})
    assert ahead == 2.0 + 3.0 + 0.5 + 1.0
    (apart, _), _ = walked(walk, [1.0] * 6, [0.0, 0.5], (2,), travel, {})
    assert apart == 3.0 + 0.5 + 1.0


def test_a_collective_reaches_its_links_together() -> None:
    """The sum's second link was free when it became ready. A gather of 1 s that comes there later waits for the sum."""
    walk = steps(
        WalkStep(0, begins=[0]), WalkStep(0), WalkStep(0, sends=[1]), WalkStep(0, begins=[2]), WalkStep(0), WalkStep(0, waits=[2])
    )
    walk.collectives += [(0, 0), "v"]
    travel = {"w": [Travel(3.0, 0.0, ((OWN,),))], "v": [Travel(1.0, 0.0, ((OTHER,),))]}
    (ahead, _), _ = walked(walk, [1.0] * 8, [0.0, 2.5, 0.0], (OWN, OTHER), travel, {})
    assert ahead == 5.0 + 2.5 + 1.0 + 1.0 - 2.0  # two steps of 1 s came before


def test_a_backward_step_waits_for_the_sum_of_the_gradients_two_before() -> None:
    one = grid()
    plan = HybridPlan(data=16, micro_batch=1, zero=2)
    one.prices(plan, 2)
    walk, _ = next(iter(one.prices.sharded._walks.values()))
    reductions = [number for step in walk.steps for number in step.reduces]
    waiting = list(dict.fromkeys(number for step in walk.steps for number in step.waits if number in reductions))
    assert waiting == reductions[: len(waiting)] and len(waiting) >= len(reductions) - 2
