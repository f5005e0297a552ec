"""taskflow search: find a fast strategy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, isfinite
from typing import Any

import click

from taskflow.cli import completing
from taskflow.cli.beside import beside, beside_table, better
from taskflow.cli.budgets import NEXT_SHARE, CommandBudget
from taskflow.cli.constraints import constraint_options, require_target, taken_from, target_option
from taskflow.cli.dealing import dealing, faster_of_both
from taskflow.cli.experts import experts_sentence
from taskflow.cli.next_best import write_next_best
from taskflow.cli.options import budget_option, emit, output_options, problem_options, seed_option, writable
from taskflow.cli.problem import Problem, describe, lacking_sentence, make_problem, named_strategy
from taskflow.cli.searched import run_search
from taskflow.cli.sections import SectionedCommand
from taskflow.cli.tables import nbytes, tell
from taskflow.cli.trusted import runs_option
from taskflow.mapper import NARROW_PRODUCTS, described_by_blocks, for_processors, save
from taskflow.optimizer import ALGORITHMS, Budget, SearchResult, step_units
from taskflow.optimizer.explain import UnevenGain, uneven_pieces
from taskflow.optimizer.grid import SIMULATED
from taskflow.optimizer.space import DEGREES, PLACEMENTS, SpaceOptions
from taskflow.runtime.job import INTERRUPTED
from taskflow.wording import milliseconds

MORE = 4  # the advised budget, in multiples of one that was too short


def _counts(context: click.Context, option: click.Parameter, value: str | None) -> tuple[int, ...]:
    """``7,6,4`` as numbers."""
    words = (value or "").replace(",", " ").split()
    if not all(word.isdecimal() and int(word) for word in words):
        raise click.BadParameter(f"{value!r}: write numbers such as 7,6,4")
    return tuple(map(int, dict.fromkeys(words)))


@click.command("search", cls=SectionedCommand)
@problem_options
@budget_option("30s")
@seed_option
@click.option("--algorithm", type=click.Choice(list(ALGORITHMS)), default="guided", show_default=True,
              help="exact proves its plan; mcmc is the paper's; optcnn and placement are what it compares with.")
@click.option("--degrees", type=click.Choice(DEGREES), default="any", show_default=True, help="Degrees that a cut may have.")
@click.option("--placements", type=click.Choice(PLACEMENTS), default="structured", show_default=True,
              help="Processors that pieces may be assigned to.")
@click.option("--reduction/--no-reduction", default=True, show_default=True, help="Whether contracted dimensions may be cut.")
@click.option("--uneven/--even", default=True, show_default=True,
              help="Whether unequal devices may get pieces of uneven size (guided search).")
@click.option("--memory/--no-memory", default=True, show_default=True, help="Refuse plans that do not fit the memory.")
@click.option("--start", "starts", multiple=True, shell_complete=completing.strategies,
              help="A strategy (a mapper's name, a plan such as 't2 p2 mb1', or FILE.json) that the result must not be slower "
              "than. A pipelined or sharded one is also where the search begins. May be given several times.")
@click.option("--workers", type=click.IntRange(1),
              help="Threads of the guided search (default: one a core where that helps; with a budget of proposals, or measured "
              "costs, one).")
@click.option("--products", type=click.Choice(list(NARROW_PRODUCTS)),
              help="Products of linear layers in 8 bits, in all plans that are searched (for torchtitan and Megatron-LM).")
@constraint_options
@target_option
@runs_option
@click.option("--out", type=click.Path(dir_okay=False), shell_complete=completing.json_files,
              help="Write the strategy to this file.")
@click.option("--top", type=click.IntRange(1), default=1, show_default=True,
              help="Write this many plans: the best one to --out, the next ones, of other kinds, to PLAN-2.json and so on, for "
              "`taskflow try`.")
@click.option("--also-for", callback=_counts, metavar="N,N,...",
              help="Search again for these numbers of nodes (of devices, if the machine is one node), each with the same batch and "
              "budget, and write PLAN.DEVICES.json beside --out, for training that loses devices.")
@output_options
def search_command(
    budget: str, seed: int, algorithm: str, degrees: str, placements: str, reduction: bool, uneven: bool, memory: bool,
    starts: tuple[str, ...], workers: int | None, products: str | None, target: str | None, out: str | None, top: int,
    also_for: tuple[int, ...], as_json: bool, quiet: bool, **asked: Any,
) -> None:
    """Find a fast strategy for MODEL.

    The plan is never predicted to be slower than data parallelism, the expert strategy or model parallelism. Ctrl-C ends the
    search and gives the best plan so far. With --constraints, --pin, --pin-sync, --forbid or --limit only plans that respect
    them are considered, and the known strategies are repaired to do so.

    \b
    Examples:
      taskflow search nmt --machine k80 --devices 4 --budget 10s --out plan.json
      taskflow search rnnlm -m p100 --set hidden=1024 --set steps=20 --budget 20000p --seed 7 --json
      taskflow search minigpt.py:graph -m a100 -n 8 --for torch --out plan.json
      taskflow search alexnet -m k80 -n 4 --pin 'classifier.6=c/4 @ 0-3' --limit '*: degree<=4' --pin-sync 'features.*=ring/every'
    """
    spending, constraints = CommandBudget(budget, NEXT_SHARE if top > 1 else 0.0), taken_from(asked)
    writable(out)
    if also_for and out is None:
        raise ValueError("--also-for: say with --out where to write")
    if top > 1 and out is None:
        raise ValueError("--top: say with --out where to write")
    if top > 1 and products:
        raise ValueError("--top: the plans next to the best have no products in 8 bits; leave --products or --top out")
    problem, silent = make_problem(**asked), quiet or as_json
    smaller_problems = [_of_fewer(problem, count, asked) for count in also_for]
    limit = spending.search
    space = SpaceOptions(degrees, placements, reduction, uneven=uneven, constraints=constraints)
    if target is not None:
        require_target(problem.graph, target)
    searched = partial(
        run_search, algorithm=algorithm, seed=seed, quiet=silent, space=space, memory=memory, workers=workers,
        target=target, products=products or "",
    )
    begins = [named_strategy(problem, name, seed) for name in dict.fromkeys(starts)]
    deals = algorithm == "guided" and not begins and not constraints.rules
    problem, found = faster_of_both(
        problem, dealing(problem, target) if deals else None, lambda of, part: searched(of, budget=part, starts=begins), limit
    )
    unsaved = _saved(problem, found, out)
    beside_it = beside(problem, spending.beside, silent)
    if algorithm == "guided" and memory and space == SpaceOptions() and not products:
        before, found = found, better(problem, found, beside_it, target)
        unsaved = _saved(problem, found, out) if found is not before else unsaved
    row = {**problem.header(), **describe(problem, found.strategy), **found.as_json(), "beside": beside_it}
    sizes = uneven_pieces(problem.evaluator, long=False)  # at the found strategy since `describe`
    row["uneven_pieces"] = sizes.as_json() if sizes is not None else None
    row["advice"] = more_time(found, spending.whole)
    interrupted = found.stopped == "interrupted"
    row["next_best"] = after = write_next_best(
        problem, found, beside_it, top - 1, str(out), spending.rest, space, target, silent
    ) if top > 1 and not interrupted else []
    row["constraints"] = [str(rule) for rule in constraints.rules]
    row["also_for"] = smaller = [] if interrupted else [
        _smaller(fewer, str(out), lambda fewer: faster_of_both(
            fewer, dealing(fewer, target) if deals else None, lambda of, part: searched(of, budget=part), spending.whole
        )) for fewer in smaller_problems
    ]
    if as_json:
        emit(row)
    else:
        _tell_found(problem, found, row, sizes, quiet)
        _tell_others(found, after, smaller, top if not interrupted else 1)
    if unsaved is not None:
        raise unsaved
    if interrupted:
        sys.exit(INTERRUPTED)


def _tell_found(
    problem: Problem, found: SearchResult, row: dict[str, Any], sizes: UnevenGain | None, quiet: bool
) -> None:
    """Print what was found, and what there is to say of it. ``row``: the same as JSON."""
    tell(f"{problem.heading}\n{found}")
    units = step_units(problem.graph, problem.machine, problem.evaluator.rule, found.seconds)
    tell(f"{units}; {nbytes(row['transfer_bytes'])} moved, {nbytes(row['peak_memory_bytes'])} at most on a device")
    sentences = (
        row["advice"], beside_table(row, str(found.strategy.plan or ""), row["beside"]), sizes and str(sizes),
        experts_sentence(row), lacking_sentence([{**row, "name": "found"}, *row["beside"]]),
        row["trust"]["text"] if "trust" in row else "",
    )
    for sentence in filter(None, sentences):
        tell(sentence)
    if not quiet:
        if found.strategy.ordered:
            tell(f"plan {found.strategy.name}")
        tell(described_by_blocks(problem.graph, found.strategy))


def _tell_others(found: SearchResult, after: Sequence[dict[str, Any]], smaller: Sequence[dict[str, Any]], top: int) -> None:
    """Print the plans next to the best, of which ``top`` were asked for with it, and those on fewer devices."""
    for one in after:
        tell(f"next: {one['name']}, {_against(one, found)}")
    if len(after) < top - 1:
        tell(f"--top {top}: no other plans that fit were found in time")
    for one in smaller:
        tell(f"{one['devices']} devices: {one['why'] or _against(one, found)}")


def _against(one: dict[str, Any], found: SearchResult) -> str:
    seconds = one["iteration_seconds"]
    return f"{milliseconds(seconds)} ms a step, {seconds / found.seconds:.2f} times as long; {one['file']}"


def _of_fewer(problem: Problem, count: int, asked: dict[str, Any]) -> Problem:
    """The problem on ``count`` nodes of its machine (devices, if it is one node)."""
    processors = problem.machine.processors
    nodes = len({processor.node for processor in processors})
    devices = count * (len(processors) // nodes if nodes > 1 else 1)
    return make_problem(**{**asked, "devices": devices, "batch": problem.graph.nodes[0].space.shape[0]})


def _smaller(fewer: Problem, out: str, searched: Callable[[Problem], tuple[Problem, SearchResult]]) -> dict[str, Any]:
    """Search for a plan on fewer devices, and write it beside ``out``. ``why`` there is none, or no file: what was found for all
    devices is not lost with it."""
    devices = len(fewer.machine.processors)
    row: dict[str, Any] = {"devices": devices, "iteration_seconds": None, "file": None, "why": None}
    try:
        fewer, found = searched(fewer)
    except ValueError as error:
        return {**row, "why": str(error)}
    file = str(for_processors(out, devices))
    unsaved = _saved(fewer, found, file)
    return {**row, "iteration_seconds": found.seconds, "file": None if unsaved else file, "why": str(unsaved) if unsaved else None}


def more_time(found: SearchResult, budget: Budget) -> str | None:
    """Return what to say of an answer for which the time was too short to simulate more than a few plans; None for any other."""
    if found.stopped != "budget" or not isfinite(budget.seconds) or found.proposals >= SIMULATED:
        return None
    plans = "one simulated plan" if found.proposals == 1 else f"{found.proposals} simulated plans"
    rests = f"this answer rests on {plans}" if found.proposals else "there was no time for more than plans that people write"
    return f"{rests}; give it --budget {max(2, ceil(budget.seconds * MORE / 60))}m"


def _saved(problem: Problem, found: SearchResult, out: str | None) -> OSError | None:
    """Write a strategy file, if one is wanted. Return why it could not be written: what was found in an hour is not lost with a
    full disk, but is printed first."""
    try:
        if out:
            save(found.strategy, problem.graph, problem.machine.name, out, problem.made_from, found.as_json())
    except OSError as error:
        return error
    return None
