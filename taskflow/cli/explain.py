"""taskflow explain: why a plan takes as long as it does, why an operator is cut as it is, and what would change."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import click

from taskflow.cli import completing
from taskflow.cli.budgets import CommandBudget
from taskflow.cli.constraints import constraint_options, taken_from
from taskflow.cli.explain_text import in_words, operator_in_words, what_if_in_words
from taskflow.cli.options import budget_option, emit, output_options, plan_options, seed_option
from taskflow.cli.problem import Problem, named_strategy, plan_problem
from taskflow.cli.progress import working
from taskflow.cli.sections import SectionedCommand
from taskflow.cli.tables import tell
from taskflow.cli.trusted import runs_option, trusted
from taskflow.mapper import Strategy, plan_of
from taskflow.optimizer.evaluate import piece_color, shown_step
from taskflow.optimizer.explain import (
    Change,
    Explanation,
    Outcome,
    Scenario,
    Stretch,
    TaskPurpose,
    alternatives,
    beyond_grid,
    explain,
    split_gain,
    uneven_pieces,
    what_if,
)
from taskflow.optimizer.space import Constraints, SpaceOptions
from taskflow.runtime.job import INTERRUPTED
from taskflow.tasks import Compute
from taskflow.wording import some
from taskflow.working import Working

MOST_STEPS = 2000  # of the critical path in JSON
MOST_NAMED = 10  # operators that an error lists


@click.command("explain", cls=SectionedCommand)
@click.argument("plan", shell_complete=completing.strategies)
@click.argument("operator", required=False)
@plan_options
@click.option("--what-if", "scenarios", multiple=True, metavar="WHAT=FACTOR",
              help="Simulate again with links=2x, memory=2x, compute=2x or latency=0.5x; or with the end of some links, "
                   "network=4x; several changes at once with commas. May be given several times.")
@click.option("--search", "again", is_flag=True, help="With --what-if: also search on the changed machine and on this one.")
@budget_option("10s")
@seed_option
@click.option("--top", type=click.IntRange(1), default=15, show_default=True, help="Rows of each table.")
@constraint_options
@runs_option
@output_options
def explain_command(
    plan: str, operator: str | None, scenarios: tuple[str, ...], again: bool, budget: str, seed: int, top: int,
    as_json: bool, quiet: bool, **asked: Any,
) -> None:
    """Explain PLAN: its critical path, what each operator costs, and what limits it. With OPERATOR: how that operator is cut
    and placed, and how long the step would take with each alternative.

    PLAN is a strategy file, which knows its model and machine, or with --model a mapper's name or a plan such as 't2 p2 mb1'.
    With --constraints, --pin, --pin-sync, --forbid or --limit the plan is first repaired to respect them, and its name says so;
    alternatives and --search respect them too. Ctrl-C after the step has been explained leaves out what would follow.

    \b
    Examples:
      taskflow explain plan.json
      taskflow explain plan.json softmax --limit 'softmax: pieces<=4' --json
      taskflow explain expert --model nmt -m k80 -n 8 --what-if links=2x --what-if network=4x,compute=2x
      taskflow explain plan.json --what-if memory=2x --search --budget 30s
    """
    spending, constraints = CommandBudget(budget), taken_from(asked)
    parsed = [Scenario(tuple(Change.parse(part) for part in text.split(","))) for text in scenarios]
    if again and not parsed:
        raise ValueError("--search goes with --what-if: to search on this machine, use taskflow search")
    with working("simulating") as display:
        problem = plan_problem(plan, **asked)
        if operator is not None:
            _check_operator(problem, operator)
        strategy = constraints.repair(named_strategy(problem, plan, seed), problem.graph)
        problem.evaluator.set(strategy)
        found = explain(problem.evaluator)
        result = {**problem.header(), "plan": plan, "strategy": strategy.name, **as_value(found)}
        result |= {"constraints": [str(rule) for rule in constraints.rules], "uneven_pieces": None, "split": None}
        result["beyond_grid"] = beyond = beyond_grid(plan_of(problem.graph, strategy))
        result |= trusted(problem, strategy, found.seconds)
        uneven, split, outcomes, interrupted = None, None, list[Outcome](), False
        try:
            uneven = uneven_pieces(problem.evaluator)
            result["uneven_pieces"] = uneven.as_json() if uneven is not None else None
            split = split_gain(problem.evaluator)
            result["split"] = split.as_json() if split is not None else None
            if operator is not None:
                result["operator"] = _operator(problem, operator, display, constraints, result["operators"], spending)
            if parsed:
                outcomes += what_if(
                    problem.graph, problem.machine, strategy, parsed, rule=problem.evaluator.rule,
                    budget=spending.search if again else None, seed=seed, say=display.say, constraints=constraints,
                    costs=problem.made_from["costs"],
                )
                result["what_if"] = [_outcome(outcome) for outcome in outcomes]
                interrupted = outcomes[-1].interrupted
        except KeyboardInterrupt:
            interrupted = True
        result["interrupted"] = interrupted
    if as_json:
        emit(result)
    else:
        if not quiet:
            tell(f"{problem.heading}; plan: {strategy.name}")
        tell(operator_in_words(result["operator"], top) if "operator" in result else in_words(found, top))
        if uneven is not None:
            tell(f"\n{uneven}")
        if split is not None:
            tell(f"\n{split}")
        if beyond:
            tell(f"\n{beyond}")
        if "trust" in result:
            tell("\n" + result["trust"]["text"])
        if outcomes:
            tell("\n" + what_if_in_words(result["what_if"], found.seconds))
        if interrupted:
            tell("\ninterrupted: the rest was not computed")
    if interrupted:
        sys.exit(INTERRUPTED)


def _check_operator(problem: Problem, operator: str) -> None:
    names = [node.name for node in problem.graph]
    if operator not in names:
        close = difflib.get_close_matches(operator, names, 3)
        raise ValueError(
            f"{problem.graph.name} has no operator {operator!r}; "
            + (f"did you mean {' or '.join(close)}?" if close else f"there are {some(names, MOST_NAMED)}")
        )


# ---- as JSON ---------------------------------------------------------------------------------------------------------
def as_value(found: Explanation) -> dict[str, Any]:
    """Return an explanation as a JSON value."""
    return {
        "iteration_seconds": found.seconds,
        "critical_path_seconds": shares_as_value(found.shares),
        "stretches": [_stretch(stretch) for stretch in found.stretches],
        "critical_path": [
            {
                "operator": step.label.operator, "what": step.label.what, "for": step.label.work.value,
                "start_seconds": step.start, "seconds": step.seconds, "tasks": step.tasks, "bytes": step.nbytes,
                "devices": list(step.processors), "links": list(step.links), "waited_seconds": step.waited,
            }
            for step in found.steps[:MOST_STEPS]
        ],
        "operators": [
            {
                "operator": cost.operator, **{f"{w.name.lower()}_seconds": s for w, s in cost.seconds.items()},
                "waiting_seconds": cost.waiting, "transfer_bytes": cost.transfer_bytes, "sync_bytes": cost.sync_bytes,
                "tasks": cost.tasks, "critical_seconds": cost.critical,
            }
            for cost in found.operators
        ],
        "busy": [
            {"name": b.name, "is": "link" if b.link else "device", "seconds": b.seconds, "share": b.seconds / found.seconds}
            for b in found.busy
        ],
        "limit": found.limit.name, "devices_explained": found.explained,
        "bubble": None if found.bubble is None else {
            "schedule": found.bubble.pipeline.schedule.value, "micro_batches": found.bubble.pipeline.micro_batches,
            "stages": found.bubble.pipeline.count, "ranks": found.bubble.pipeline.ranks, "seconds": found.bubble.seconds,
            "share": found.bubble.share, "closed_form_share": found.bubble.closed_form,
            "idle_seconds": {str(device): seconds for device, seconds in found.bubble.idle.items()},
        },
    }  # fmt: skip


def shares_as_value(shares: Mapping[TaskPurpose, float]) -> dict[str, float]:
    """Return seconds by purpose (forward, synchronisation and so on) as a JSON value."""
    return {work.name.lower(): shares[work] for work in TaskPurpose}


def _stretch(stretch: Stretch) -> dict[str, Any]:
    return {
        "kind": stretch.kind, "start_seconds": stretch.start, "seconds": stretch.seconds,
        "operators": [{"operator": name, "seconds": s} for name, s in stretch.operators], "tasks": stretch.tasks,
        "bytes": stretch.nbytes, "devices": list(stretch.processors), "links": list(stretch.links),
        "other_seconds": dict(stretch.others),
    }


def _operator(
    problem: Problem, name: str, display: Working, constraints: Constraints, costs: Sequence[Mapping[str, Any]],
    spending: CommandBudget,
) -> dict[str, Any]:
    """Describe one operator: its configuration, its row of ``costs``, its tasks (where not all are shown, those of the first
    replica), and the alternatives; of so large a plan those that the budget has time for."""
    evaluator, node = problem.evaluator, problem.graph.node(name)
    strategy: Strategy = evaluator.strategy
    config, now, step = strategy[name], evaluator.seconds, shown_step(evaluator)
    micro, ready, start, end = (of.tolist() for of in (step.micro_batches(), step.on.ready, step.on.start, step.on.end))
    own = []
    for n, (task, of) in enumerate(zip(step.tasks, step.names)):
        if of == name and isinstance(task.work, Compute):
            piece = config.partition(node).rect(piece_color(node, task.work.piece, micro[n], strategy))
            own.append((n, task, task.work.backward, piece))
    others = alternatives(
        evaluator, name, options=SpaceOptions(constraints=constraints), say=display.say,
        seconds=inf if step.folded is None else spending.left,
    )
    return {
        "name": name, "is": str(node), "configuration": config.describe(node),
        "degrees": list(config.degrees), "devices": list(config.processors),
        "shown_devices": len(step.shown.processors), "all_devices": len(problem.machine.processors),
        "syncs": {layer: str(strategy.sync(layer)) for layer in dict.fromkeys(p.layer for p in node.parameters)},
        "sums": strategy.sums.value if strategy.partial(node) else None,
        "iteration_seconds": now, "costs": next((dict(cost) for cost in costs if cost["operator"] == name), None),
        "tasks": [
            {
                "task": task.name if step.folded is None else f"{name}{piece} {task.topic.purpose.value}",
                "direction": "backward" if backward else "forward",
                "piece": str(piece), "device": task.processor, "ready_seconds": ready[n], "start_seconds": start[n],
                "end_seconds": end[n],
            }
            for n, task, backward, piece in own
        ],
        "alternatives": [
            {
                "configuration": other.config.describe(node), "degrees": list(other.config.degrees),
                "devices": list(other.config.processors), "reason": other.reason, "iteration_seconds": other.seconds,
                "against_plan": other.seconds / now - 1 if now > 0 else 0.0,
                "critical_path_change_seconds": shares_as_value(other.grows) if other.grows is not None else None,
                "grows": other.worst(),
            }
            for other in others
        ],
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "what_if": str(outcome.scenario), "iteration_seconds": outcome.seconds, "speedup": outcome.speedup,
        "critical_path_seconds": shares_as_value(outcome.shares), "limit": outcome.limit.name,
        "limit_share": outcome.limit.seconds / outcome.seconds if outcome.seconds > 0 else 0.0,
        "fits_memory": not outcome.lacks, "lacks": outcome.lacks,
        "plans": list(outcome.plans), "now_fit": list(outcome.now_fit), "no_longer_fit": list(outcome.no_longer_fit),
        "search": None if outcome.found is None or outcome.here is None else {
            "iteration_seconds": outcome.found.seconds, "refused_for_memory": outcome.found.refused,
            "here_iteration_seconds": outcome.here.seconds, "here_refused_for_memory": outcome.here.refused,
            "plan_fits_here": outcome.found_fits_here,
        },
        "search_found_none": outcome.none_found or None, "search_interrupted": outcome.interrupted,
    }  # fmt: skip
