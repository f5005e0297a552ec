"""Steps of networks of which a part is frozen: compiled as lowered, folded as whole, priced as simulated; and their memory."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest
import test_core_equal as core_equal
from fast_and_slow import fast_among
from frozen_networks import freeze_some
from language_model import random_strategy

from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import HybridParallel, choose, map_graph, parse_plan, samples
from taskflow.models import build
from taskflow.models.llama import LlamaConfig, llama
from taskflow.optimizer import MemoryCheck, make_evaluator, search, step_units
from taskflow.optimizer.evaluate import ordered
from taskflow.optimizer.grid import PlanGrid
from taskflow.optimizer.grid.plans import held_bytes
from taskflow.rules import Adam

RULE = Adam()


@pytest.mark.parametrize("seed", fast_among(range(200), range(12)))
def test_the_compiled_core_lowers_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = core_equal.model
    monkeypatch.setattr(core_equal, "model", lambda *args: freeze_some(plain(*args), Random(seed)))
    random, reference, compiled = core_equal.pair(seed)
    for _ in range(3):
        strategy = random_strategy(reference.graph, len(reference.machine.processors), random)
        reference.set(strategy), compiled.set(strategy)
        core_equal.same(reference, compiled)


@cache
def decoder(share: float, layers: int = 4) -> OperatorGraph:
    """Layers of some milliseconds, of which a share is frozen in all blocks alike."""
    sizes = LlamaConfig(batch=32, layers=layers, steps=2048, hidden=4096, inner=11264, vocabulary=8192, heads=32, key_heads=8)
    graph = llama(sizes, "bfloat16")
    parts = ("mlp.*", "self_attn.*", "*layernorm")[: round(3 * share)]
    graph.freeze("embed_tokens", *(f"layers.*.{part}" for part in parts))
    return graph


PLANS = ("d16 mb1", "d16 mb1 zero1", "d16 mb1 zero2", "d16 mb1 zero3", "t4 d4 mb1 zero3", "t2 p2 d4 mb1 zero1", "c4 d4 mb1 zero3",
         "d16 mb1 zero3 recompute=full")  # fmt: skip


@pytest.mark.parametrize("share", [1 / 3, 2 / 3])
def test_prices_are_near_simulated_steps(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "MOST_WHOLE", 0)  # folded: a tenth of the time
    graph, machine = decoder(share), load_machine("h100", 16)
    grid, whole = PlanGrid(graph, machine, RULE), PlanGrid(decoder(0), machine, RULE)
    evaluator = make_evaluator(graph, machine, rule=RULE)
    for text in PLANS:
        plan = parse_plan(text)
        count = samples(graph) // plan.samples_a_pass
        price = grid.prices(plan, count)
        assert price == pytest.approx(evaluator.set(map_graph(HybridParallel(plan), graph, machine)), rel=0.1), text
        assert price < 0.95 * whole.prices(plan, count), text


def test_folded_and_whole_steps_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, machine = build("Llama", 16, preset="small", layers=6), load_machine("h100", 8)
    graph.freeze("layers.*.mlp.*", "embed_tokens")
    for text in ("d8 mb1 zero3", "t2 d4 mb2 zero1", "p2 d4 mb1"):
        strategy, evaluator = map_graph(HybridParallel(text), graph, machine), make_evaluator(graph, machine, rule=RULE)
        whole = evaluator.set(strategy), max(MemoryCheck(evaluator).peaks(strategy)[0])
        with monkeypatch.context() as patched:
            patched.setattr(ordered, "MOST_WHOLE", 0)
            folded = make_evaluator(graph, machine, rule=RULE)
            assert folded.set(strategy) == whole[0], text
            assert max(MemoryCheck(folded).peaks(strategy)[0]) == pytest.approx(whole[1], rel=0.05), text


def test_frozen_weights_have_no_gradients_and_no_state() -> None:
    """16 bytes less of 18 for each of them: the float32 sum of gradients, a float32 copy, and Adam's two arrays."""
    machine = load_machine("h100", 2)
    def peak(graph: OperatorGraph) -> int:
        return max(MemoryCheck(make_evaluator(graph, machine, rule=RULE)).peaks(choose("data", graph, machine)[0])[0])

    plain, some = (build("Llama", 2, preset="small", layers=2, hidden=512, steps=8, dtype="bfloat16") for _ in range(2))
    count = some.freeze("layers.*.mlp.*")
    assert held_bytes(plain, RULE) - held_bytes(some, RULE) == 12 * count
    assert 12 * count <= peak(plain) - peak(some) <= 16.5 * count


def test_products_of_frozen_layers_count_twice_and_a_search_plans_them() -> None:
    graph, machine = build("GPT-2", 8, preset="small", layers=4), load_machine("h100", 4)
    whole = step_units(graph, machine, RULE, 1.0).model_flops
    layers = [node.name for node in graph if node.operator.kind == "linear"]
    graph.freeze(*layers[:-1])
    flops = {node.name: node.operator.flops(node.specs, node.space) for node in graph if node.operator.kind == "linear"}
    assert whole - step_units(graph, machine, RULE, 1.0).model_flops == sum(flops[name] for name in layers[:-1])
    found = search(graph, machine, rule=RULE, budget="200p")
    assert found.seconds <= make_evaluator(graph, machine, rule=RULE).set(choose("data", graph, machine)[0])
    assert found.lower_bound <= found.seconds
