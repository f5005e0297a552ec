"""Plans drawn at random in the notation, of all words mixed, train as one processor does; and what they allocate is planned."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import pytest
from beside_one_processor import STEPS, same, trained
from drawn_plans import NETWORKS, network, plans
from fast_and_slow import fast_among
from language_model import undivided
from pipelines import words

from taskflow.machine import host
from taskflow.mapper import HybridParallel, PipelineSchedule, map_graph
from taskflow.optimizer.memory import memory_use
from taskflow.rules import SGD, Adam
from taskflow.runtime.executor import Executor
from taskflow.runtime.program import schedule
from taskflow.tasks import Placement, roofline, simulate
from taskflow.tasks.lower import lower

TYPES = ("float64", "float32")


@cache
def alone(name: str, dtype: str) -> tuple[list[Any], dict[str, Any]]:
    graph = network(name, dtype)
    return trained(graph, undivided(graph), [words(graph, step) for step in range(STEPS)], SGD(0.1, momentum=0.9), 1.0)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("count", fast_among([2, 60], [2]))
@pytest.mark.parametrize(("name", "dtype"), fast_among(
    list(product(NETWORKS, TYPES)), [("MoE", "float64"), ("Llama", "float32")]
))
def test_drawn_plans_train_as_one_processor_does(name: str, dtype: str, count: int) -> None:
    batches = [words(network(name, dtype), step) for step in range(STEPS)]
    for text, _, strategy in plans(name, dtype, count)[2 if count > 2 else 0 :]:
        found = trained(network(name, dtype), strategy, batches, SGD(0.1, momentum=0.9), 1.0)
        same(found, alone(name, dtype), f"{name} {text}", dtype)


def test_every_word_is_drawn() -> None:
    """Of the plans that fit, some have each word."""
    texts = [text for name in NETWORKS for text, *_ in plans(name, "float32", 60)]
    said = {word for text in texts for word in text.split()}
    for word in ("t2", "c2", "p2", "p4", "d4", "e2", "ring", "ulysses", "nosp", "nolp", "regather", "mb1",
                 "v2", "zero1", "zero2", "zero3", "hsdp2",
                 "recompute=full", "recompute=selective", "recompute=light", "recompute=linear", "recompute=none*3,linear*1",
                 "recompute=alternate",                 "recompute=whole", "recompute=whole*2,full*2",
                 "zero=3*1,0*3", "prefetch=0", "stages=1,3", "stages=3,1", "shares=3,1", "split=2",
                 *(f"schedule={s.value}" for s in PipelineSchedule)):
        assert word in said, word
    assert len(texts) == 240


# ---- what is planned is what is allocated ----------------------------------------------------------------------------
MEMORY = (
    ("Llama", "float64", "p2 d2 mb1 schedule=gpipe"), ("Llama", "float64", "p2 d2 mb1"), ("Llama", "float64", "p2 d2 mb1 v2"),
    ("GPT-2", "float64", "p2 d2 mb1 schedule=zb-h1 recompute=selective"), ("GPT-2", "float64", "p2 d2 mb1 schedule=zbv"),
    ("GPT-2", "float64", "t2 d2 mb2 recompute=full regather"), ("GPT-2", "float64", "t2 nosp d2 mb2 zero1"),
    ("Llama", "float64", "d4 zero2 mb1"), ("Llama", "float64", "d4 zero3 mb1"), ("Llama", "float64", "d4 hsdp2 mb1"),
    ("MoE", "float64", "d4 e2 mb2 split=2"), ("Llama", "float64", "t2 d2 mb2 split=2 zero3"),
    ("Llama", "float64", "c2 ring d2 mb2"), ("Llama", "float64", "c2 t2 mb2"), ("MoE", "float64", "t2 d2 e2 mb1"),
    ("Mixtral", "float64", "p2 d2 mb1 recompute=full"), ("Llama", "bfloat16", "t2 p2 mb1 zero1"),
    ("Llama", "float16", "p2 d2 zero3 mb1 schedule=zb-h1"), ("MoE", "bfloat16", "t2 d2 e2 mb1"),
    ("Llama", "float64", "p2 d2 mb1 recompute=whole"), ("GPT-2", "float64", "t2 nosp d2 mb2 recompute=whole"),
)


@pytest.mark.parametrize(("name", "dtype", "text"), fast_among(MEMORY, [MEMORY[i] for i in (4, 9, 10, 12, 14, -2)]))
def test_the_planned_peak_is_what_is_allocated(name: str, dtype: str, text: str) -> None:
    """Arrays that live at once are the peak to the byte; what is allocated is that and what lies between them."""
    if dtype != "float64":
        pytest.importorskip("ml_dtypes")
    graph, machine = network(name, dtype), host(4)
    strategy = map_graph(HybridParallel(text), graph, machine)
    tasks = lower(graph, strategy, Adam(), clip_norm=1.0, scaled=dtype == "float16")
    order = simulate(tasks, machine, roofline(machine)).begun(tasks)
    run = Executor(graph, strategy, Adam(), machine=machine, clip_norm=1.0)
    for use in memory_use(tasks, order):
        memory = schedule(tasks, order, Placement(4, 4), use.processor).memory
        assert memory.peak_bytes == use.buffers > 0
        assert memory.nbytes <= 1.1 * use.buffers
        kept = [array.nbytes for key, array in run.kept.arrays.items() if key.endswith(f"@ {use.processor}")]
        assert sum(kept) == use.weights + use.state
