"""Plans on more devices than the compiled evaluator numbers: folded, or refused before they fill the memory."""

from time import process_time
from typing import Any

import pytest

from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import HybridParallel, map_graph
from taskflow.models import build
from taskflow.optimizer import MemoryCheck, make_evaluator, search
from taskflow.optimizer.evaluate import MOST_PROCESSORS, TooManyTasksError
from taskflow.optimizer.evaluate.evaluator import Evaluator
from taskflow.optimizer.evaluate.folded import FoldedStep, folded_step
from taskflow.optimizer.evaluate.ordered import MOST_LOWERED, OrderedEvaluator
from taskflow.optimizer.session import NothingFits
from taskflow.rules import Adam

DEVICES = MOST_PROCESSORS + 512


def _graph(batch: int) -> OperatorGraph:
    return build("GPT-2", batch=batch, dtype="bfloat16", dropout=0.0, layers=4)


def test_a_plan_on_4608_devices_is_folded() -> None:
    graph, machine = _graph(4 * DEVICES // 32), load_machine("h100", DEVICES)
    evaluator = make_evaluator(graph, machine, rule=Adam())
    seconds = evaluator.set(map_graph(HybridParallel("t8 p4 mb1"), graph, machine))
    assert isinstance(evaluator, OrderedEvaluator) and evaluator.step is not None
    assert 0 < seconds < 1 and len(evaluator.step.lowered) < 20_000 < evaluator.tasks


def test_both_evaluators_give_the_same_time_of_a_large_plan() -> None:
    graph, machine = _graph(512), load_machine("h100", 256)
    compiled = make_evaluator(graph, machine, rule=Adam())
    other = OrderedEvaluator(graph, machine, compiled.costs, Adam(), None)
    strategy = map_graph(HybridParallel("t2 p2 mb1 zero1"), graph, machine)
    assert compiled.set(strategy) == other.set(strategy)


def test_what_is_kept_of_a_folded_step_is_not_evaluated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, machine = _graph(512), load_machine("h100", 256)
    evaluator = make_evaluator(graph, machine, rule=Adam())
    room, plans = MemoryCheck(evaluator), ("t2 p2 mb1 zero1", "t2 p4 mb1")
    first, second = (map_graph(HybridParallel(plan), graph, machine) for plan in plans)
    seconds, peaks = evaluator.set(first), room.for_search().peaks(first)
    known = evaluator.tasks, evaluator.usage()
    evaluator.keep()
    other, _ = evaluator.set(second), room.for_search()(second)
    folds: list[str] = []

    def counted(*given: Any) -> FoldedStep:
        folds.append(given[1].name)
        return folded_step(*given)

    monkeypatch.setattr("taskflow.optimizer.evaluate.ordered.folded_step", counted)
    again = map_graph(HybridParallel(plans[0]), graph, machine)  # equal, another object
    assert evaluator.set(again) == seconds and (evaluator.tasks, evaluator.usage()) == known and room.peaks(again) == peaks
    assert not folds
    step = evaluator.folded(again)  # made when it is asked for, and once
    assert step is not None and step.makespan == seconds and evaluator.folded(again) is step and folds == [again.name]
    assert evaluator.set(map_graph(HybridParallel(plans[1]), graph, machine)) == other and len(folds) == 2  # was not kept


def test_a_small_step_whose_memory_was_planned_is_not_evaluated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, machine = build("GPT-2", batch=16, preset="small", layers=2), load_machine("h100", 4)
    first, second = (map_graph(HybridParallel(plan), graph, machine) for plan in ("p2 d2 mb2", "d4 mb2 zero2"))
    fresh = make_evaluator(graph, machine, rule=Adam())
    wanted = fresh.set(first), fresh.usage(), fresh.set(second)
    evaluator, lowered = make_evaluator(graph, machine, rule=Adam()), list[str]()
    of = Evaluator.lowered
    monkeypatch.setattr(Evaluator, "lowered", lambda self, strategy=None: lowered.append(strategy.name) or of(self, strategy))
    room = MemoryCheck(evaluator)
    assert not room(first) and lowered == [first.name]
    again = map_graph(HybridParallel("p2 d2 mb2"), graph, machine)  # equal, another object
    assert (evaluator.set(again), evaluator.usage()) == wanted[:2] and lowered == [first.name]
    assert not room(second) and not room(first)  # planned before
    assert evaluator.set(second) == wanted[2] and lowered == [first.name, second.name]
    assert evaluator.set(first) == wanted[0] and len(lowered) == 3  # the last one alone is kept


def test_a_timeline_is_that_of_the_current_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskflow.optimizer.evaluate.ordered.MOST_WHOLE", 1000)  # pieces: the first has more, the second fewer
    graph, machine = build("GPT-2", batch=16, dtype="bfloat16", dropout=0.0, layers=2), load_machine("h100", 8)
    costs = make_evaluator(graph, machine, rule=Adam()).costs
    evaluator = OrderedEvaluator(graph, machine, costs, Adam(), None)
    folded, whole = (map_graph(HybridParallel(plan), graph, machine) for plan in ("t2 p2 d2 mb1 zero1", "d8 mb2 zero2"))
    seconds = evaluator.set(folded)
    evaluator.keep()
    assert evaluator.step is not None and evaluator.timeline().makespan == seconds
    other = evaluator.set(whole)
    assert evaluator.step is None and evaluator.timeline().makespan == other != seconds
    assert evaluator.set(folded) == seconds and evaluator.timeline().makespan == seconds


def test_what_cannot_be_folded_is_refused_before_it_is_lowered() -> None:
    graph, machine = _graph(4 * DEVICES), load_machine("h100", DEVICES)
    evaluator = make_evaluator(graph, machine, rule=None)  # a forward pass alone is not folded
    strategy = map_graph(HybridParallel("t2 p2 mb1"), graph, machine)
    pieces = sum(len(config.processors) for config in strategy.configs.values())
    assert pieces > MOST_LOWERED
    with pytest.raises(TooManyTasksError, match="more tasks on 4608 processors"):
        evaluator.set(strategy)


def test_a_search_of_a_large_machine_keeps_its_budget() -> None:
    graph, machine = _graph(DEVICES), load_machine("h100", DEVICES)
    begin = process_time()  # its own time: other programs on the machine lengthen the rest
    try:
        found = search(graph, machine, budget="4s", rule=Adam())
        assert found.strategy.processors == DEVICES and found.seconds <= found.starts.get("grid", found.seconds)
    except NothingFits as error:
        assert "no plan was found in time" in str(error) and "would fit" in str(error)
    assert process_time() - begin < 4.0 + 1.0 + 1.0  # a second as promised, one for what was built before
