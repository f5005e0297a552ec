"""What a group wants whole from another group comes in shares, which it gathers; between stages whose layers a group shares."""

from __future__ import annotations

import pytest

from taskflow.graph import OperatorGraph
from taskflow.machine import host, load_machine
from taskflow.mapper import HybridParallel, map_graph, parse_plan
from taskflow.models import build
from taskflow.optimizer.grid import PlanGrid
from taskflow.optimizer.grid.price import PlanPrices
from taskflow.rules import Adam
from taskflow.tasks import Kind, Purpose, Task
from taskflow.tasks.lower import lower
from taskflow.tasks.task import AllGather

ELEMENTS = 2 * 16 * 32  # of a micro-batch between two layers


def network() -> OperatorGraph:
    return build("GPT-2", batch=8, steps=16, vocabulary=64, hidden=32, heads=4, layers=4)


def of_stages(text: str, devices: int, purpose: Purpose) -> list[Task]:
    """Tasks of one purpose about the tensor between the two stages."""
    graph = network()
    tasks = lower(graph, map_graph(HybridParallel(text), graph, host(devices)), Adam())
    return [task for task in tasks if task.topic.purpose is purpose and task.topic.name == "h.1.mlp.add"]


@pytest.mark.parametrize("purpose", [Purpose.OUTPUT, Purpose.GRADIENT])
@pytest.mark.parametrize(("text", "devices", "members"), [
    ("t2 nosp p2 d2 mb2", 8, 2), ("t4 nosp p2 mb2", 8, 4), ("t2 nosp p2 mb2", 4, 2),
])
def test_each_sends_a_share_and_the_others_gather(text: str, devices: int, members: int, purpose: Purpose) -> None:
    """For each two samples as many copies as members, each of a share, and one all-gather."""
    tasks = of_stages(text, devices, purpose)
    copies = [task for task in tasks if task.kind is Kind.COPY]
    gathers = [task for task in tasks if isinstance(task.work, AllGather)]
    count = 8 // 2
    assert [task.nbytes for task in copies] == [ELEMENTS // members * 4] * (members * count)
    assert len(gathers) == count and {len(task.processors) for task in gathers} == {members}
    assert len(tasks) == len(copies) + len(gathers)
    assert all(set(task.after) & {copy.number for copy in copies} for task in gathers)


def test_what_is_cut_along_the_sequence_is_sent_as_it_is() -> None:
    tasks = of_stages("t2 p2 d2 mb2", 8, Purpose.OUTPUT)
    assert {task.kind for task in tasks} == {Kind.COPY} and {task.nbytes for task in tasks} == {ELEMENTS // 2 * 4}


def test_prices_count_the_bytes_of_shares_on_cards_that_neighbours_use() -> None:
    """A whole tensor in shares is as many bytes as one that is cut along the sequence; what two operators of the next stage read is
    sent once. On nodes with a card for each GPU no message waits for its neighbours'."""
    graph, machine = network(), load_machine("a100", 16)
    prices = PlanGrid(graph, machine, Adam()).prices
    assert isinstance(prices, PlanPrices)
    plans = [map_graph(HybridParallel(text), graph, machine).plan for text in ("t4 nosp p2 d2 mb2", "t4 p2 d2 mb2")]
    whole, cut = (prices.sums.sums(plan).crossing for plan in plans if plan is not None)
    assert ELEMENTS * 4 / 4 <= whole == cut < ELEMENTS * 4 / 2
    route = machine.route(0, 8)
    seconds = prices._travels(parse_plan("p2 d8 mb1"), 0, 1e9)
    assert seconds == pytest.approx(sum(k.latency_seconds for k in route) + 1e9 / min(k.bytes_per_second for k in route))
