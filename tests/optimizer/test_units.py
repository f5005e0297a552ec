"""A step in people's units, and the plans beside a found one: by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fast_and_slow import fast_among

from taskflow.machine import load_machine
from taskflow.mapper import HybridParallel, Strategy, map_graph
from taskflow.models import build
from taskflow.models.llama import LlamaConfig, llama
from taskflow.optimizer import BudgetExhausted, MemoryCheck, has_usual_plans, make_evaluator, step_units, usual_plans
from taskflow.rules import Adam


def test_a_decoder_by_hand() -> None:
    """Products of a GPT: 2 for each weight of a matrix and token, and 2 x 2 x hidden x positions of attention's two products."""
    batch, steps, hidden, layers, vocabulary = 4, 32, 64, 3, 96
    graph = build("GPT-2", batch=batch, steps=steps, hidden=hidden, heads=4, layers=layers, vocabulary=vocabulary, dtype="bfloat16")
    machine = load_machine("h100", 16)
    matrices = layers * 12 * hidden**2 + hidden * vocabulary
    forward = batch * steps * (2 * matrices + layers * 4 * hidden * steps)
    found = step_units(graph, machine, Adam(), 0.5)
    assert found.model_flops == pytest.approx(3 * forward, rel=0.01)
    assert step_units(graph, machine, None, 0.5).model_flops == pytest.approx(forward, rel=0.01)
    assert (found.samples, found.tokens) == (batch, batch * steps)
    assert found.tokens_per_second == 2 * batch * steps and found.device_hours == 16 * 0.5 / 3600
    assert found.peak_flops_per_second == 16 * 989.4e12
    assert found.mfu == pytest.approx(found.model_flops / (0.5 * 16 * 989.4e12))
    value = found.as_json()
    assert value["tokens_per_second_per_device"] == found.tokens_per_second / 16 and "three times" in value["mfu_is"]
    assert str(found).startswith("a step is 4 samples (128 tokens); 256 tokens/s, 16 a device; MFU ")


def test_products_run_at_the_rate_of_their_type() -> None:
    graph = build("MLP", preset="small")
    for name, rate in (("h100", 66.9e12), ("h100:tf32", 494.7e12), ("h100:bf16", 989.4e12)):
        found = step_units(graph, load_machine(name, 2), Adam(), 1.0)
        assert found.peak_flops_per_second == 2 * rate
        assert found.tokens is None and found.tokens_per_second is None and "tokens" not in str(found)


def test_without_words_samples_are_counted() -> None:
    found = step_units(build("MLP", batch=96, preset="small"), load_machine("h100", 16), Adam(), 0.5)
    assert found.samples_per_second == 192 and found.as_json()["samples_per_second_per_device"] == 12
    assert str(found).startswith("a step is 96 samples; 192 samples/s, 12 a device; MFU ")
    assert "; 19.2 samples/s, 1.2 a device; " in str(replace(found, seconds=5.0))


def decoder(hidden: int, layers: int, batch: int):  # type: ignore[no-untyped-def]
    sizes = replace(
        LlamaConfig.small(), batch=batch, layers=layers, steps=256, vocabulary=512, hidden=hidden, inner=2 * hidden, heads=8,
    )  # fmt: skip
    return llama(sizes, "bfloat16")


USUAL = {  # memory of a device: the plans; "!": does not fit
    80e9: ("d16 mb2", "d16 mb2 zero3", "t1 p1 d16 mb2 zero1"),
    0.15e9: ("d16 mb1!", "d16 mb2 zero3", "t2 p1 d8 mb4 zero1"),
    0.06e9: ("d16 mb1!", "d16 mb2 zero3 recompute=full", "t4 p1 d4 mb1 zero1"),
    1e6: ("d16 mb1!", "d16 mb1 zero3 recompute=full!", "t8 p2 d1 mb1 zero1 recompute=whole!"),
}


@pytest.mark.parametrize("memory", fast_among(USUAL, [80e9, 0.06e9]))
def test_usual_plans_are_the_first_that_fit(memory: float) -> None:
    """With less and less memory: smaller micro-batches, then recomputation; more devices that share a layer, then stages."""
    graph, rule, whole = decoder(512, 8, 32), Adam(), load_machine("h100", 16)
    machine = replace(whole, kinds=tuple(replace(kind, memory_bytes=int(memory)) for kind in whole.kinds))
    room = MemoryCheck(make_evaluator(graph, machine, rule=rule))
    plans = list(usual_plans(graph, machine, room, rule))
    assert [plan.name for plan in plans] == ["DDP", "FSDP", "Megatron-LM"]
    for plan in plans:
        assert plan.strategy is not None and plan.lacks == room(plan.strategy)
    assert tuple(plan.plan + ("!" if plan.lacks else "") for plan in plans) == USUAL[memory]


def test_usual_plans_that_cannot_fit_are_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The closed form rules them out; what is answered is the same."""
    graph, machine, asked = decoder(64, 4, 32), load_machine("h100", 8), list[str]()
    evaluator = make_evaluator(graph, machine, rule=Adam())
    most = 0.7 * max(MemoryCheck(evaluator).peaks(map_graph(HybridParallel("d8 mb1"), graph, machine))[0])
    small = replace(machine, kinds=tuple(replace(kind, memory_bytes=int(most)) for kind in machine.kinds))

    class Asked(MemoryCheck):
        def __call__(self, strategy: Strategy) -> str:
            asked.append(strategy.name)
            return super().__call__(strategy)

    answers = []
    for may_fit in (None, lambda *_: lambda words: True):
        asked.clear()
        if may_fit is not None:
            monkeypatch.setattr("taskflow.optimizer.beside._may_fit", may_fit)
        check = Asked(make_evaluator(graph, small, rule=Adam()))
        answers.append(([(one.name, one.plan, bool(one.lacks)) for one in usual_plans(graph, small, check, Adam())], len(asked)))
    assert answers[0][0] == answers[1][0] and answers[0][1] < answers[1][1]


@pytest.mark.parametrize(("memory", "plan"), [(80e9, "t1 p1 d16 e8 mb2 zero1"), (0.05e9, "t1 p2 d8 e8 mb4 zero1")])
def test_experts_are_dealt_within_a_node(memory: float, plan: str) -> None:
    graph, whole = build("MoE", batch=32, preset="small", experts=32, hidden=256, inner=1024, layers=4), load_machine("h100", 16)
    machine = replace(whole, kinds=tuple(replace(kind, memory_bytes=int(memory)) for kind in whole.kinds))
    check = MemoryCheck(make_evaluator(graph, machine, rule=Adam()))
    megatron = list(usual_plans(graph, machine, check, Adam()))[-1]
    assert megatron.plan == plan and not megatron.lacks


def test_who_has_usual_plans() -> None:
    h100 = load_machine("h100", 8)
    assert has_usual_plans(decoder(64, 4, 8), h100, Adam())
    assert not has_usual_plans(decoder(64, 4, 8), load_machine("h100", 1), Adam())
    assert not has_usual_plans(decoder(64, 4, 8), h100, None) and not has_usual_plans(build("LeNet"), h100, Adam())
    graph = decoder(64, 4, 9)
    room = MemoryCheck(make_evaluator(graph, h100, rule=Adam()))
    ddp, fsdp, _ = usual_plans(graph, h100, room, Adam())
    assert ddp.strategy is None and "divided evenly" in ddp.why and fsdp.strategy is None
    late = list(usual_plans(decoder(64, 4, 8), h100, room, Adam(), lambda: True))
    assert all(plan.strategy is None and plan.why == "there was no time to try it" for plan in late)


def test_a_plan_beside_it_ends_with_the_time() -> None:
    """Not only is no other begun: evaluating it is ended, and no memory is said of it."""
    graph, machine = decoder(64, 2, 16), load_machine("h100", 4)
    evaluator = make_evaluator(graph, machine, rule=Adam())
    asked = []

    def in_time() -> None:
        asked.append(1)
        raise BudgetExhausted

    with evaluator.interruptible(in_time):
        plans = list(usual_plans(graph, machine, MemoryCheck(evaluator), Adam()))
    assert asked and {plan.name for plan in plans} == {"DDP", "FSDP", "Megatron-LM"}
    ended = [plan for plan in plans if plan.strategy is None]
    assert ended and all(plan.why == "there was no time to try it" and not plan.lacks for plan in ended)
