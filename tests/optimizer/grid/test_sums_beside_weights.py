"""Programs whose tensor groups sum gradients beside the products that make weights' gradients, and that send gradients of 16 bits:
simulated steps and prices are as much shorter."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, load_machine
from taskflow.mapper import HybridParallel, map_graph, samples
from taskflow.models.llama import LlamaConfig, llama
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.grid import PlanGrid
from taskflow.rules import Adam
from taskflow.tasks import Compute, Kind, Purpose
from taskflow.tasks.task import Collective

RULE = Adam()
DEVICES = 8
NODES = 16  # devices of two


@cache
def network(dtype: str = "bfloat16") -> OperatorGraph:
    sizes = LlamaConfig(batch=16, layers=4, steps=2048, hidden=4096, inner=11264, vocabulary=4096, heads=32, key_heads=32)
    return llama(sizes, dtype)


@cache
def machine(devices: int = DEVICES, **figures: object) -> Cluster:
    """H100 whose program has these figures, else hides nothing, and whose host is never waited for."""
    of = load_machine("h100", devices)
    (kind,) = of.kinds
    assert kind.program is not None
    plain = replace(kind.program, sums_beside_weights=0.0, exposed=0.0, gradient_bytes=0, host_seconds=1e-7)
    return replace(of, kinds=(replace(kind, program=replace(plain, **figures)),))  # type: ignore[arg-type]


def both(text: str, of: Cluster, dtype: str = "bfloat16") -> tuple[float, float]:
    """Price and simulated seconds."""
    graph = network(dtype)
    strategy = map_graph(HybridParallel(text), graph, of)
    assert strategy.plan is not None
    price = PlanGrid(graph, of, RULE).prices(strategy.plan, samples(graph) // strategy.plan.samples_a_pass)
    return price, make_evaluator(graph, of, rule=RULE).set(strategy)


@pytest.fixture(autouse=True)
def folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskflow.optimizer.evaluate.ordered.MOST_WHOLE", 0)  # a tenth of the time


@pytest.mark.parametrize("text", [
    "t8 mb4", "t8 nosp mb4", "t4 d2 mb2", "t4 nosp p2 mb2", "t2 p2 d2 mb1 recompute=full", "t8 mb2 zero3",
])
def test_price_and_step_are_shorter_by_as_much(text: str) -> None:
    (price, seconds), (hidden_price, hidden) = both(text, machine()), both(text, machine(sums_beside_weights=1.0))
    assert hidden < 0.99 * seconds and hidden_price < 0.99 * price
    assert price - hidden_price == pytest.approx(seconds - hidden, rel=0.25)
    assert hidden_price == pytest.approx(hidden, rel=0.05)


def test_what_computing_beside_takes_longer_is_added() -> None:
    text = "t8 nosp mb4"
    plain, hidden, half = (
        both(text, machine(**figures))
        for figures in ({}, {"sums_beside_weights": 1.0}, {"sums_beside_weights": 0.5})
    )
    for without, all_of_it, a_half in zip(plain, hidden, half):
        assert all_of_it < a_half < without
    more_price, more_seconds = (a - b for a, b in zip(half, hidden))
    assert more_price == pytest.approx(more_seconds, rel=0.2)


@pytest.mark.parametrize("text", ["t8 nosp", "d8", "p8 mb1"])
def test_a_step_without_passes_or_groups_stays(text: str) -> None:
    """A single micro-batch on one stage is no pass, and what no group shares has no sums."""
    assert both(text, machine()) == both(text, machine(sums_beside_weights=1.0))


def test_weights_of_products_of_one_tensor_come_after_the_last_of_them() -> None:
    graph, of = network(), machine(sums_beside_weights=1.0)
    evaluator = make_evaluator(graph, of, rule=RULE)
    tasks = list(evaluator.lowered(map_graph(HybridParallel("t8 nosp mb8"), graph, of)))
    back = [t for t in tasks if t.kind is Kind.BACKWARD and t.processor == 0 and t.topic.name.startswith("layers.1.self_attn.")]
    halves = [t for t in back if "_proj" in t.name and "o_proj" not in t.name][:6]
    assert [t.name.split("[")[0][-6:] + t.name.rsplit(" ", 1)[1] for t in halves] == [
        f"{which}_proj{half}" for half in ("inputs", "weights") for which in "vkq"
    ]
    sums = [
        t for t in tasks if isinstance(t.work, Collective) and t.topic.purpose is Purpose.GRADIENT
        and t.topic.name == "layers.1.input_layernorm"
    ]
    assert set(sums[0].after) & {halves[2].number} and not set(sums[0].after) & {t.number for t in halves[3:]}
    assert all(isinstance(t.work, Compute) and all(one is None for one in t.work.inputs) for t in halves[:3])


@pytest.mark.parametrize("text", ["d16", "d16 mb1 overlap=none", "d16 mb1 zero1 overlap=none", "t2 d8 mb1 zero1", "d16 mb1 zero2"])
def test_sums_of_gradients_in_the_type_of_the_program(text: str) -> None:
    """Between nodes. ``d16`` has no passes: the compiled core evaluates it. Where each device updates all weights, updates
    hide most of what is won."""
    (price, seconds), (short_price, short) = both(text, machine(NODES)), both(text, machine(NODES, gradient_bytes=2))
    assert short < 0.999 * seconds and short_price < price
    if "zero1 overlap" in text:
        assert price - short_price == pytest.approx(seconds - short, rel=0.1)
        assert short < 0.9 * seconds


def test_float32_weights_have_float32_gradients() -> None:
    text = "d16 mb1 overlap=none"
    assert both(text, machine(NODES), "float32") == both(text, machine(NODES, gradient_bytes=2), "float32")
