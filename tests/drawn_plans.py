"""Plans drawn at random in the notation, of all words mixed, for the tests."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

from taskflow.graph import OperatorGraph
from taskflow.machine import host
from taskflow.mapper import HybridParallel, Strategy, map_graph
from taskflow.mapper.plan_words import WORDS
from taskflow.models import build

NETWORKS = ("GPT-2", "Llama", "Mixtral", "MoE")
BATCH, LAYERS = 8, 4


def network(name: str, dtype: str) -> OperatorGraph:
    more: dict[str, Any] = {"steps": 12, "key_blocks": 4} if name == "Llama" else {}
    return build(name, BATCH, preset="small", dtype=dtype, layers=LAYERS, **more)


def drawn(name: str, random: Random) -> tuple[str, int]:
    """A plan, which may not fit the network, and its devices."""
    t, c, p = random.choice((1, 1, 2, 2)), random.choice((1, 1, 2)) if name != "MoE" else 1, random.choice((1, 2, 2, 4))
    d = random.choice((1, 2, 4) if t * c * p < 4 else (1, 2))
    found = [f"{letter}{degree}" for letter, degree in (("t", t), ("c", c), ("p", p), ("d", d)) if degree > 1 or letter == "d"]
    if name in ("Mixtral", "MoE") and d > 1 and random.random() < 0.6:
        found.append("e2")
    if d > 1 and random.random() < 0.25:
        found.append(f"shares={parts(random.choice((BATCH, BATCH // 2)), d, random)}")
    else:
        found.append(random.choice(("mb1", "mb2", "mb1", "")))
    if p > 1:
        virtual = random.choice((1, 1, 2))
        found.append(f"v{virtual}" if virtual > 1 else "")
        if p * virtual < LAYERS and random.random() < 0.5:
            found.append(f"stages={parts(LAYERS, p * virtual, random)}")
    for word in WORDS:
        if word.drawn and random.random() < 0.3:
            found.append(random.choice(word.drawn))
    return " ".join(word for word in found if word), t * c * p * d


def parts(whole: int, count: int, random: Random) -> str:
    """So many numbers that add up to ``whole``, each 1 or more: mostly uneven."""
    cuts = [0, *sorted(random.sample(range(1, whole), count - 1)), whole]
    return ",".join(str(high - low) for low, high in pairwise(cuts))


def plans(name: str, dtype: str, count: int) -> list[tuple[str, int, Strategy]]:
    """The first of the random plans that fit the network."""
    graph, random, found = network(name, dtype), Random(f"{name} {dtype}"), {}
    while len(found) < count:
        text, devices = drawn(name, random)
        try:
            strategy = map_graph(HybridParallel(text), graph, host(devices))
            strategy.verify(graph)
        except ValueError:
            continue
        found[text] = (text, devices, strategy)
    return list(found.values())
