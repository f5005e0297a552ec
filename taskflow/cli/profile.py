"""taskflow profile: predicted against measured times of a step, operator by operator, and the largest mispredictions."""

from __future__ import annotations

import functools
from typing import Any

import click

from taskflow.cli import completing
from taskflow.cli.model import build_model
from taskflow.cli.options import RULES, default_rule, emit, given_settings, output_options, problem_options, seed_option
from taskflow.cli.progress import wanted, working
from taskflow.cli.sections import SectionedCommand
from taskflow.cli.tables import nbytes, percent, render, seconds, tell
from taskflow.machine import host, load_machine
from taskflow.optimizer.cost import MEASURED, choose_costs
from taskflow.runtime.profiler import Differences, Row, differences
from taskflow.tasks import AllToAll, Collective, Kind, ReduceScatter, Task
from taskflow.training.program import SEARCH_BUDGET
from taskflow.working import Working


@click.command("profile", cls=SectionedCommand)
@functools.partial(problem_options, required=False, costs=MEASURED)
@click.option("--strategy", "--mapper", "strategy", default="data", show_default=True, shell_complete=completing.strategies,
              help="data, model, expert, ..., search, a strategy FILE.json, or package.module:Class.")
@click.option("--budget", default=SEARCH_BUDGET, show_default=True, help="For --strategy search: 30s, 5m, or 20000p (proposals).")
@click.option("--warmup", type=click.IntRange(0), default=3, show_default=True, help="Warm-up steps, not measured.")
@click.option("--steps", type=click.IntRange(1), default=5, show_default=True, help="Steps to measure.")
@click.option("--top", type=click.IntRange(0), default=10, show_default=True, help="How many mispredicted tasks to list.")
@click.option("--trace", type=click.Path(dir_okay=False),
              help="With MODEL: write the steps to this file too. Without: read them from it instead of running.")
@click.option("--torch", "torch_traces", multiple=True, type=click.Path(dir_okay=False),
              help="A trace of PyTorch's profiler, of one rank of an exported module; may be given several times. Needs --plan.")
@click.option("--plan", shell_complete=completing.strategies, help="With --torch: the plan that ran.")
@click.option("--calibrate", type=click.Path(dir_okay=False), help="With --torch: the machine file that takes what was measured.")
@click.option("--step", "step_seconds", type=click.FloatRange(0, min_open=True),
              help="With --calibrate: seconds of a step without the profiler, which makes it longer.")
@seed_option
@output_options
def profile_command(
    model: str | None, machine: str, devices: int | None, batch: int | None, size: str, rule: str | None, strategy: str,
    budget: str, costs: str, warmup: int, steps: int, top: int, trace: str | None, torch_traces: tuple[str, ...], plan: str | None,
    calibrate: str | None, step_seconds: float | None, seed: int, as_json: bool, quiet: bool,
) -> None:
    """Run some steps of MODEL on random data, and compare each operator's time with its prediction.

    Under mpirun every rank is a processor; in one process, --devices virtual ones share it. Or read a trace that an earlier run
    has written.

    \b
    Examples:
      taskflow profile rnnlm --size small --devices 2
      mpirun -n 4 taskflow profile alexnet --size small --strategy expert --trace steps.json.gz
      taskflow profile --trace steps.json.gz --top 20
      taskflow profile --torch rank0.json --torch rank1.json --plan plan.json -m mine.json
    """
    if step_seconds is not None and calibrate is None:
        raise ValueError("--step SECONDS is what --calibrate MACHINE takes the run's times for; give both")
    if torch_traces or plan or calibrate:
        if not torch_traces or not plan:
            raise ValueError("--torch TRACE, --plan PLAN (and --calibrate MACHINE) belong together: give the traces and the plan")
        from taskflow.cli.profile_torch import profile_torch

        profile_torch(plan, torch_traces, model, calibrate, step_seconds, top, as_json, quiet)
        return
    if model is None:
        if trace is None:
            raise ValueError("give a MODEL to run, or --trace FILE of a run")
        from taskflow.runtime.profiler import read_trace

        lines = read_trace(trace)
        if lines["otherData"].get("steps") == []:
            raise ValueError(f"{trace}: a step that was only predicted; give the trace of a run (taskflow train --trace FILE)")
        try:
            _show(differences(lines), top, as_json, quiet)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
            raise ValueError(f"{trace}: a trace that was changed or cut; write it anew") from error
        return
    from taskflow.runtime import connect
    from taskflow.training.program import PATIENCE_SECONDS

    transport = connect(watchdog_seconds=PATIENCE_SECONDS)
    try:
        with working("reading the model", show=wanted() and transport.rank == 0) as display:
            content = _run(
                transport, model, machine, devices, batch, size, rule, strategy, budget, costs, warmup, steps, trace, seed, display
            )
        if content is not None:
            _show(differences(content), top, as_json, quiet)
    finally:
        transport.close()


def _run(
    transport: Any, model: str, machine: str, devices: int | None, batch: int | None, size: str, rule: str | None, strategy: str,
    budget: str, costs: str, warmup: int, steps: int, trace: str | None, seed: int, display: Working,
) -> dict[str, Any] | None:
    """Plan, warm up, trace; the trace on rank 0 (None elsewhere)."""
    from taskflow.runtime import Executor
    from taskflow.training.data import random_feeds
    from taskflow.training.program import on_all_ranks, plan

    if rule == "none":
        raise ValueError("--rule none: profile trains; choose an update rule")
    count = devices or transport.size
    settings = given_settings(click.get_current_context())
    cluster = on_all_ranks(transport, lambda: host(count) if machine == "this" else load_machine(machine, count))
    graph = on_all_ranks(transport, lambda: build_model(model, batch, count, size=size, settings=settings))
    update = RULES[rule or default_rule(model, graph)]
    assert update is not None
    if not graph.losses:
        raise ValueError(f"{graph.name} minimises no loss, so that it cannot be trained; call graph.minimize")
    display.say(f"planning {graph}")
    chosen, mapper = plan(strategy, graph, cluster, transport, rule=update, seed=seed, budget=budget, costs=costs)
    predictor = on_all_ranks(transport, lambda: choose_costs(costs, graph, cluster, update, ranks=transport.size))
    run = Executor(graph, chosen, update, transport=transport, machine=cluster, seed=seed, mapper=mapper)
    about = {"costs": predictor.name, "seed": seed, "data": "random"}

    def cost(task: Task) -> float:
        if task.kind is Kind.COPY and run.placement.rank(task.source) == run.placement.rank(task.processor):
            return predictor.memory_seconds(Kind.MOVE, 2 * task.nbytes, 0, runs=max(task.runs))  # no message: both share a rank
        alone = len({run.placement.rank(p) for p in task.processors}) == 1
        if isinstance(task.work, AllToAll) and alone:
            return predictor.memory_seconds(Kind.MOVE, 2 * task.nbytes, 0)  # what goes from one processor to another
        if isinstance(task.work, Collective) and alone:
            others = len(task.processors) - 1  # no messages either, but sums, or copies, or both
            nbytes = task.nbytes // (task.work.halves * others)
            sums = predictor.memory_seconds(Kind.SUM, 3 * nbytes, task.flops // others) if task.flops else 0.0
            copies = 0.0 if isinstance(task.work, ReduceScatter) else predictor.memory_seconds(Kind.MOVE, 2 * nbytes, 0)
            return others * (sums + copies)
        return predictor.seconds(task)

    tracer = run.trace(trace, range(warmup, warmup + steps), cost=cost, about=about)
    feeds = random_feeds(graph, seed)
    for step in range(warmup + steps):
        last = "" if step + 1 < warmup + steps else f"; then the {costs} costs of its tasks"
        display.say(f"step {step + 1} of {warmup + steps}{last}")
        run.train(feeds, lr=1e-4)  # small, so that random labels make no number infinite
    run.close()
    return tracer.content


def _show(found: Differences, top: int, as_json: bool, quiet: bool) -> None:
    if as_json:
        emit(found.as_json(top))
    else:
        tell(_in_words(found, top, quiet))


def _in_words(found: Differences, top: int, quiet: bool) -> str:
    lines: list[str] = []
    about = found.about
    ranks = f"{about['ranks']} rank{'s' * (about['ranks'] != 1)}"
    if not quiet:
        unknown = about.get("tasks_not_measured")
        lines.append(
            f"{about.get('model', 'tasks')} under {about.get('strategy', 'no strategy')}: {ranks}, "
            f"{about['processors']} processors, steps {about['steps'][0]}-{about['steps'][-1]}; "
            f"costs: {about.get('costs', 'roofline')}" + (f" ({unknown} tasks had not been measured)" if unknown else "")
        )
        lines.append(_table(found.rows, "operator"))
        if top:
            lines.append(f"\nlargest mispredictions\n{_table(found.largest(top), 'task')}")
        lines.append("")
    if about["processors"] > about["ranks"]:
        lines.append(
            f"{about['processors']} processors share {ranks} and run in turn: compare tasks, and the step with "
            f"{seconds(found.predicted_in_turn_seconds / about['ranks'])}, what all tasks take in turn"
        )
    for rank, spent in enumerate(found.rank_seconds):
        whole = sum(spent.values())
        parts = ", ".join(f"{name} {seconds(value)} ({percent(value, whole)})" for name, value in spent.items())
        lines.append(f"rank {rank}: {parts}")
    lines.append(
        f"step: predicted {seconds(found.predicted_step_seconds)}, measured {seconds(found.step_seconds)}, "
        f"ratio {found.step_seconds / found.predicted_step_seconds:.2f}"
    )
    return "\n".join(lines)


def _table(rows: Any, first: str) -> str:
    def cells(row: Row) -> tuple[str, ...]:
        return (
            row.operator, row.phase, str(row.tasks), seconds(row.predicted_seconds),
            ("< " if row.unknown else "") + seconds(row.measured_seconds),
            "" if row.ratio is None else f"{row.ratio:.2f}", seconds(row.waited_seconds) if row.waited_seconds else "",
            nbytes(row.nbytes) if row.phase == "transfer" else "",
        )

    headings = (first, "part", "tasks", "predicted", "measured", "ratio", "waited", "sent")
    return render(headings, [cells(row) for row in rows], words=(0, 1), spare=(2,))
