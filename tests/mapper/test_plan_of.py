"""A strategy carries its plan: through files, under any name, and only as long as its operators are those of the plan."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from drawn_plans import NETWORKS, network, plans
from fast_and_slow import fast_among

import taskflow
from taskflow.machine import host
from taskflow.mapper import HadAgain, HybridParallel, Strategy, joined_parts, load, map_graph, parse_plan, plan_of, save

FULL = "t2 c2 p1 d2 mb1 recompute=full regather zero1"


def planned(graph: taskflow.OperatorGraph, text: str, devices: int = 8) -> Strategy:
    return map_graph(HybridParallel(text), graph, host(devices))


def written(folder: Path, graph: taskflow.OperatorGraph, strategy: Strategy, **changes: Any) -> Path:
    path = folder / "plan.json"
    save(strategy, graph, "host", path)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


@pytest.mark.parametrize("count", fast_among([6, 60], [6]))
@pytest.mark.parametrize("name", NETWORKS)
def test_every_drawn_plan_is_carried_through_a_file_under_another_name(name: str, count: int, tmp_path: Path) -> None:
    graph = network(name, "float32")
    for text, devices, strategy in plans(name, "float32", count)[6 if count > 6 else 0 :]:
        plan = strategy.plan
        assert plan is not None and parse_plan(str(plan)) == plan, text
        path = written(tmp_path, graph, replace(strategy, name="what we run"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read = load(path, graph, devices)
        assert read.plan == plan and read.name == "what we run" and plan_of(graph, read) == plan, text
        again = planned(graph, str(plan), devices)
        assert again == replace(strategy, name=again.name) and again.plan == plan, text


def test_a_plan_says_every_degree_and_numbers_of_devices() -> None:
    machine, graph = taskflow.load_machine("a100-v100", 8), network("GPT-2", "float32")
    kinds = list(dict.fromkeys(processor.kind for processor in machine.processors))
    count = len(machine.processors)
    plan = map_graph(HybridParallel(f"p2 mb1 devices={kinds[1]},{kinds[0]}"), graph, machine).plan
    assert plan is not None and plan.data == count // 2 and plan.micro_batch == 1
    assert sorted(plan.devices) == list(range(count)) and plan.devices != tuple(range(count))
    assert planned(graph, "d8").plan == planned(graph, "d8 devices=0-7").plan == parse_plan("t1 p1 d8 mb1")
    assert taskflow.choose("data", graph, host(2))[0].plan is None


def no_recompute(content: dict[str, Any]) -> None:
    del content["recompute"]


def no_regather(content: dict[str, Any]) -> None:
    content["regather"] = content["regather"][1:]


def other_degrees(content: dict[str, Any]) -> None:
    entry = content["operators"]["h.1.mlp.c_fc"]
    n, a, c, k = entry["degrees"]
    entry["degrees"] = [n, a * c, 1, k]


def other_place(content: dict[str, Any]) -> None:
    content["operators"]["h.1.mlp.c_fc"]["processors"].reverse()


def other_sync(content: dict[str, Any]) -> None:
    content["syncs"]["h.1.mlp.c_fc"] = {"travel": "collective", "place": "every"}


def by_copies(content: dict[str, Any]) -> None:
    content["exchange"] = "copies"


def other_sums(content: dict[str, Any]) -> None:
    content["sums"] = "owner"


def other_stages(content: dict[str, Any]) -> None:
    stages = content["pipeline"]["stages"]
    stages.update({name: stages["h.0.ln_1"] for name in stages if name.startswith("h.1.")})
    for name in stages:
        if name.startswith("h.1."):
            content["operators"][name] = content["operators"][name.replace("h.1.", "h.0.")]


def other_plan(content: dict[str, Any]) -> None:
    content["plan"] = "t2 p1 d4 mb1"


def another_network_s_plan(content: dict[str, Any]) -> None:
    content["plan"] = "t2 d4 e2 mb1"


@pytest.mark.parametrize(("text", "change", "why"), [(FULL, *case) for case in (
    (no_recompute, "is kept, in the plan recomputed"),
    (no_regather, "is keeping the input that it gathers"),
    (other_degrees, r"h.1.mlp.c_fc is n/8 a1/4 @ .*, in the plan n/8 a1/2 c/2 @ "), (other_place, "h.1.mlp.c_fc is .* in the plan"),
    (other_sync, "weights of h.1.mlp.c_fc are synchronised by collective/every, in the plan by collective/spread"),
    (by_copies, "exchanged by copies, in the plan by collectives"), (other_sums, "summed by owner, in the plan by collective"),
    (other_plan, "in the plan"), (another_network_s_plan, "eN needs layers of experts"),
)] + [("t2 p2 d2 mb1 stages=1,3", other_stages, "in the plan")], ids=lambda value: getattr(value, "__name__", ""))
def test_a_file_whose_operators_are_not_its_plan_is_not_believed(
    text: str, change: Callable[[dict[str, Any]], None], why: str, tmp_path: Path
) -> None:
    graph = network("GPT-2", "float32")
    content = json.loads(written(tmp_path, graph, planned(graph, text)).read_text())
    change(content)
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.warns(UserWarning, match=f"plan.json: not the plan t2 .* that it says, but taken as .*{why}") as said:
        read = load(tmp_path / "plan.json", graph, 8)
    assert read.plan is None and len(said) == 1 and "\n" not in str(said[0].message)


def test_a_plan_that_is_none_is_refused(tmp_path: Path) -> None:
    graph = network("GPT-2", "float32")
    path = written(tmp_path, graph, planned(graph, FULL), plan="t2 x3")
    with pytest.raises(ValueError, match=r"plan.json: plan: plan 't2 x3': no meaning for 'x3'"):
        load(path, graph, 8)


def test_files_from_before_plans_were_in_them(tmp_path: Path) -> None:
    """A name may be the plan, if the operators are; a later file has no plan where it says so."""
    graph, strategy = network("GPT-2", "float32"), planned(network("GPT-2", "float32"), FULL)

    def read(**changes: Any) -> Strategy:
        content = json.loads(written(tmp_path, graph, strategy).read_text())
        del content["plan"]
        (tmp_path / "plan.json").write_text(json.dumps(content | changes))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return load(tmp_path / "plan.json", graph, 8)

    assert read().plan == read(name="t2 c2 recompute=full regather mb1 zero1").plan == strategy.plan
    assert read(name="mine").plan is read(name="t2 x3").plan is read(name="d8").plan is read(recompute=[]).plan is None
    assert read(plan=None).plan is None


def test_what_is_replaced_beside_a_plan_is_noticed() -> None:
    graph = network("GPT-2", "float32")
    strategy = planned(graph, "t2 p2 mb1 recompute=full", 8)
    assert plan_of(graph, replace(strategy, name="mine")) == strategy.plan is not None
    for changed in (
        replace(strategy, again=HadAgain()), replace(strategy, pipeline=None), replace(strategy, syncs={}),
        replace(strategy, configs={**strategy.configs, "h.1.ln_1": strategy["h.3.ln_1"]}), replace(strategy, plan=None),
    ):
        assert plan_of(graph, changed) is None
    assert planned(graph, "t2 p2 mb1 recompute=full zero1", 8) != strategy
    assert replace(strategy, plan=None) == strategy  # a plan describes; what runs is the same


def test_joined_parts_are_the_plan_without_split() -> None:
    graph = network("GPT-2", "float32")
    found = joined_parts(graph, replace(planned(graph, "t2 d4 mb2 split=2"), name="mine"))
    assert plan_of(graph, found) == planned(graph, "t2 d4 mb2").plan and found.name == "mine (parts joined)"
