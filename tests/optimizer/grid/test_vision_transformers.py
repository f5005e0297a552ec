"""A Transformer over an image's patches: its one convolution, little of its arithmetic, bars no plan that layers have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.models import build
from taskflow.models.classifier import classify, image_inputs
from taskflow.optimizer import MemoryCheck, has_usual_plans, make_evaluator, search, usual_plans
from taskflow.optimizer.grid import no_grid
from taskflow.rules import Adam


def vision(batch: int = 8, hidden: int = 256, layers: int = 6, heads: int = 4) -> OperatorGraph:
    graph = OperatorGraph("bfloat16", "vision")
    images, labels = image_inputs(graph, batch, 3, 64)
    x = ops.conv2d(images, hidden, 16, 16, name="patches")
    x = ops.transpose(ops.reshape(x, (batch, hidden, 16), name="rows"), 1, 2, name="words")
    for i in range(layers):
        y = ops.layer_norm(x, name=f"layers.{i}.before")
        each = (batch, 16, heads, hidden // heads)
        flat = [ops.linear(y, hidden, name=f"layers.{i}.{which}") for which in "qkv"]
        q, k, v = (ops.reshape(one, each, name=f"layers.{i}.{which}_heads") for which, one in zip("qkv", flat))
        y = ops.reshape(ops.flash_attention(q, k, v, name=f"layers.{i}.attention"), (batch, 16, hidden), name=f"layers.{i}.joined")
        x = ops.add(x, ops.linear(y, hidden, name=f"layers.{i}.out"), name=f"layers.{i}.add")
        y = ops.linear(ops.layer_norm(x, name=f"layers.{i}.after"), 4 * hidden, name=f"layers.{i}.up")
        x = ops.add(x, ops.linear(ops.gelu(y, name=f"layers.{i}.gelu"), hidden, name=f"layers.{i}.down"), name=f"layers.{i}.sum")
    return classify(graph, ops.linear(ops.flatten(x, 1), 10, name="head"), labels)


def test_it_has_plans_in_notation_and_usual_ones() -> None:
    graph, whole = vision(), load_machine("l40s", 4)
    machine = replace(whole, kinds=tuple(replace(kind, memory_bytes=80_000_000) for kind in whole.kinds))
    assert no_grid(graph, machine, Adam()) == ""
    assert has_usual_plans(graph, machine, Adam())
    plans = list(usual_plans(graph, machine, MemoryCheck(make_evaluator(graph, machine, rule=Adam())), Adam()))
    assert [plan.name for plan in plans] == ["DDP", "FSDP", "Megatron-LM"] and all(plan.strategy for plan in plans)
    assert plans[2].plan == "t1 p1 d4 mb2 zero1"  # without stages it takes as many samples at a time as fit, as others do
    found = search(graph, machine, rule=Adam(), budget="40p")
    assert found.grid is not None and not next(phase for phase in found.phases if phase.name == "plans in notation").barred


@pytest.mark.parametrize("network", ["ResNet-101", "AlexNet", "RNNLM"])
def test_networks_of_convolutions_and_recurrence_have_none(network: str) -> None:
    machine = load_machine("l40s", 4)
    graph = build(network, preset="small", batch=8)
    assert "no layers with matrix products" in no_grid(graph, machine, Adam()) and not has_usual_plans(graph, machine, Adam())
