"""taskflow strategy: shows a plan, compares two, checks whether one fits."""

from __future__ import annotations

import sys
from typing import Any

import click

from taskflow.cli import completing
from taskflow.cli.options import FAILED, emit, output_options, plan_options, seed_option
from taskflow.cli.problem import Problem, describe, named_strategy, plan_problem, recorded
from taskflow.cli.progress import working
from taskflow.cli.sections import SectionedCommand
from taskflow.cli.tables import nbytes, places, render, seconds, tell
from taskflow.mapper import Strategy
from taskflow.optimizer.explain import LayerChange, difference
from taskflow.wording import some


@click.group("strategy")
def strategy_group() -> None:
    """Show, compare and check plans: strategy files or mappers' plans.

    A strategy file that `taskflow search --out` wrote knows its model and machine; for a mapper's name, or a plan such as
    't2 p2 mb1', give --model.
    """


# ---- show ------------------------------------------------------------------------------------------------------------
@strategy_group.command("show", cls=SectionedCommand, short_help="List how each operator is cut and placed.")
@click.argument("plan", shell_complete=completing.strategies)
@plan_options
@seed_option
@output_options
def show_command(plan: str, seed: int, as_json: bool, quiet: bool, **asked: Any) -> None:
    """Show how PLAN cuts and places every operator, and how it synchronises the weights.

    \b
    Examples:
      taskflow strategy show plan.json
      taskflow strategy show expert --model nmt -m k80 -n 8
      taskflow strategy show plan.json --json
    """
    with working("simulating"):
        problem = plan_problem(plan, **asked)
        strategy = named_strategy(problem, plan, seed)
        row = describe(problem, strategy)
    operators = [_operator(problem, strategy, node.name) for node in problem.graph]
    if as_json:
        emit({**problem.header(), **row, "strategy": operators})
        return
    if not quiet:
        tell(f"{strategy.name}: {problem.graph} on {problem.machine}")
        tell(f"{seconds(row['iteration_seconds'])} a step, {nbytes(row['transfer_bytes'])} moved; costs: "
                   f"{problem.header()['costs']}\n")  # fmt: skip
    lines = [
        [o["operator"], o["kind"], o["configuration"].partition(" @ ")[0], places(o["devices"]), _travels(o)]
        for o in operators
    ]
    tell(render(["operator", "kind", "cut", "devices", "weights and partial values"], lines, words=(0, 1, 2, 3, 4)))


def _travels(operator: dict[str, Any]) -> str:
    """Say how the gradients of its weights and its partial values are summed."""
    return ", ".join([*filter(None, [operator["sync"]]), *([f"partial values: {operator['sums']}"] if operator["sums"] else [])])


def _operator(problem: Problem, strategy: Strategy, name: str) -> dict[str, Any]:
    node, config = problem.graph.node(name), strategy[name]
    layers = dict.fromkeys(p.layer for p in node.parameters)
    return {
        "operator": name, "kind": node.operator.kind, "configuration": config.describe(node),
        "degrees": {d.name: k for d, k in zip(node.dims, config.degrees)}, "devices": list(config.processors),
        "sync": ", ".join(str(strategy.sync(layer)) if layer == name else f"as {layer}" for layer in layers) or None,
        "sums": strategy.sums.value if strategy.partial(node) else None,
    }


# ---- diff ------------------------------------------------------------------------------------------------------------
@strategy_group.command("diff", cls=SectionedCommand, short_help="Say where two plans differ, and what it costs.")
@click.argument("first", shell_complete=completing.strategies)
@click.argument("second", shell_complete=completing.strategies)
@plan_options
@seed_option
@output_options
def diff_command(first: str, second: str, seed: int, as_json: bool, quiet: bool, **asked: Any) -> None:
    """Show where the plans FIRST and SECOND differ, and what each difference does to the predicted time.

    The first plan is turned into the second one layer at a time, in program order, and simulated after each layer. So the
    effects add up to the whole difference, and each depends on those before it. Exit code 1 if the plans differ, 0 if they do
    not.

    \b
    Examples:
      taskflow strategy diff plan.json expert
      taskflow strategy diff old.json new.json --json
      taskflow strategy diff data expert --model alexnet -m p100 -n 8
    """
    with working("simulating"):
        # The first of the two that is a file says what the plans are for.
        problem = plan_problem(second if second.endswith(".json") and not first.endswith(".json") else first, **asked)
        a, b = named_strategy(problem, first, seed), named_strategy(problem, second, seed)
        changes = difference(problem.evaluator, a, b)
        after = problem.evaluator.set(b)
        before = problem.evaluator.set(a)
    if as_json:
        emit({
            **problem.header(), "first": first, "second": second, "first_iteration_seconds": before,
            "second_iteration_seconds": after, "layers": [_change(problem, change) for change in changes],
        })
    elif not changes:
        tell(f"{first} and {second} are the same plan, {seconds(before)} a step; costs: {problem.header()['costs']}")
    else:
        if not quiet:
            tell(problem.heading)
        tell(f"{first} {seconds(before)}, {second} {seconds(after)} a step ({(after / before - 1):+.1%})\n")
        tell(_diff_table(problem, changes, before))
        tell("The second plan applied to the first one layer at a time, in this order, and simulated after each.")
    if changes:
        sys.exit(FAILED)


def _change(problem: Problem, change: LayerChange) -> dict[str, Any]:
    nodes = {node.name: node for node in problem.graph}
    return {
        "layer": change.layer, "before_seconds": change.before, "after_seconds": change.after,
        "effect_seconds": change.effect,
        "operators": {
            name: {"first": a.describe(nodes[name]), "second": b.describe(nodes[name])} for name, (a, b) in change.operators.items()
        },
        "syncs": {layer: {"first": str(a), "second": str(b)} for layer, (a, b) in change.syncs.items()},
        **({"sums": {"first": change.sums[0].value, "second": change.sums[1].value}} if change.sums is not None else {}),
    }


def _diff_table(problem: Problem, changes: tuple[LayerChange, ...], whole: float) -> str:
    rows = []
    for change in changes:
        value = _change(problem, change)
        alike: dict[tuple[str, str], list[str]] = {}
        for name, pair in value["operators"].items():
            alike.setdefault((pair["first"], pair["second"]), []).append(name)
        lines = [(some(names, 3), a, b) for (a, b), names in alike.items()]
        lines += [(f"weights of {layer}", pair["first"], pair["second"]) for layer, pair in value["syncs"].items()]
        if change.sums is not None:
            lines.append(("how they are summed", value["sums"]["first"], value["sums"]["second"]))
        for i, (who, a, b) in enumerate(lines):
            effect = [f"{'+' if change.effect > 0 else '-' if change.effect < 0 else ''}{seconds(abs(change.effect))}",
                      f"{change.effect / whole:+.1%}", seconds(change.after)] if i == 0 else ["", "", ""]  # fmt: skip
            rows.append([change.layer if i == 0 else "", who, a, b, *effect])
    headings = ["layer", "operators", "first", "second", "effect", "of step", "then"]
    return render(headings, rows, words=(0, 1, 2, 3), spare=(6, 5))


# ---- check -----------------------------------------------------------------------------------------------------------
@strategy_group.command("check", cls=SectionedCommand, short_help="Say whether a plan fits model and machine.")
@click.argument("plan", shell_complete=completing.strategies)
@plan_options
@seed_option
@output_options
def check_command(plan: str, seed: int, as_json: bool, quiet: bool, **asked: Any) -> None:
    """Check whether PLAN fits its model, its machine and the devices' memory. Exit code 1 if it does not.

    \b
    Examples:
      taskflow strategy check plan.json
      taskflow strategy check plan.json --model nmt -m p100 --batch 512
      taskflow strategy check data --model transformer -m k80 -n 4 --json
    """
    problems: list[str] = []
    row: dict[str, Any] = {}
    with working("checking"):
        if plan.endswith(".json"):
            recorded(plan)  # a file that is not there or no JSON is the user's mistake, not the plan's
        problem = plan_problem(plan, **asked)
        try:
            strategy = named_strategy(problem, plan, seed)
        except ValueError as error:
            problems.append(str(error))
        else:
            row = describe(problem, strategy)
            if row["lacks"]:
                problems.append(f"memory: {row['lacks']}")
    if as_json:
        emit({**problem.header(), **row, "plan": plan, "fits": not problems, "problems": problems})
    elif problems:
        for text in problems:
            tell(f"{plan} does not fit: {text}")
    else:
        memory = f"{'about ' if row['peak_memory_is'] == 'estimate' else ''}{nbytes(row['peak_memory_bytes'])}"
        step = seconds(row["iteration_seconds"])
        tell(f"{plan} fits {problem.graph.name} on {problem.machine}: {step} a step, {memory} at most on a device; "
             f"costs: {problem.header()['costs']}")  # fmt: skip
    if problems:
        sys.exit(FAILED)
