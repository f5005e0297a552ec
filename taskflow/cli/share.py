"""taskflow share: several jobs on one cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from taskflow.cli import completing
from taskflow.cli.budgets import CommandBudget
from taskflow.cli.model import build_model
from taskflow.cli.options import (
    RULES,
    budget_option,
    default_rule,
    emit,
    given_settings,
    machine_options,
    output_options,
    seed_option,
    writable,
)
from taskflow.cli.problem import recorded
from taskflow.cli.progress import working
from taskflow.cli.sections import SectionedCommand
from taskflow.cli.tables import render, tell
from taskflow.machine import load_machine
from taskflow.mapper import load, ranges, read_strategy, save
from taskflow.optimizer.cost import ANALYTIC
from taskflow.optimizer.sharing import OBJECTIVES, Job, JobShare, Sharing, share, throughput
from taskflow.runtime.job import INTERRUPTED
from taskflow.wording import milliseconds


@click.command("share", cls=SectionedCommand)
@click.argument("networks", nargs=-1, required=True, shell_complete=completing.models)
@machine_options
@click.option("--objective", type=click.Choice(OBJECTIVES), default="slowest", show_default=True,
              help="slowest: minimise the largest slowdown; throughput: maximise the weighted sum of speeds.")
@click.option("--weights", metavar="W,W,...", help="Weights of the jobs' throughputs, in their order (default: all 1).")
@budget_option("60s")
@seed_option
@click.option("--out", type=click.Path(file_okay=False), help="Write each job's plan, for the whole machine, to this folder.")
@output_options
def share_command(
    networks: tuple[str, ...], objective: str, weights: str | None, budget: str, seed: int, out: str | None, as_json: bool,
    quiet: bool, **asked: Any,
) -> None:
    """Decide which devices of a machine each of several NETWORKS gets, and find a plan for each.

    A network is a model as `taskflow search` takes it, or a strategy file FILE.json, whose plan is then a starting point for
    that job. A job's slowdown is its step time relative to having the whole machine. Jobs that share links are simulated
    together. The result is compared with equal shares and with taking turns. Ctrl-C gives the best division so far.

    \b
    Examples:
      taskflow share resnet-101 rnnlm -m p100 -n 8
      taskflow share nmt nmt lenet -m k80 -n 16 --objective throughput --weights 2,1,1 --budget 2m
      taskflow share plan.json alexnet -m a100-v100 --batch 256 --json
    """
    spending = CommandBudget(budget)
    if out == "":
        raise ValueError("the name of the folder to write is empty")
    if out is not None and not os.access(Path(out).resolve().parent, os.W_OK):
        raise ValueError(f"cannot write to {out}: no such folder, or no permission")
    if asked["costs"] not in (None, ANALYTIC):
        raise ValueError("--costs measured: jobs beside each other are predicted by the machine's rates only; leave --costs out")
    counts = _weights(weights, len(networks))
    machine = load_machine(asked["machine"] or "this", asked["devices"])
    if out is not None:
        Path(out).mkdir(exist_ok=True)
        for _, name in _named(networks):
            writable(_plan_file(out, name))
    with working("building") as display:
        jobs = [_job(name, weight, asked, len(machine.processors)) for name, weight in zip(_named(networks), counts)]
        display.say("plans")
        found = share(jobs, machine, budget=spending.search, seed=seed, objective=objective, say=display.say)
    if out is not None:
        for job, own in zip(jobs, found.jobs):
            save(own.strategy, job.graph, machine.name, _plan_file(out, own.name))
    if as_json:
        emit({"machine": machine.name, "devices": len(machine.processors), **found.as_json()})
    else:
        if not quiet:
            tell(f"{'; '.join(str(job.graph) for job in jobs)}\non {machine}; costs: analytic {machine.name}")
        tell(in_words(found))
    if found.interrupted:
        sys.exit(INTERRUPTED)


def _weights(text: str | None, jobs: int) -> list[float]:
    if text is None:
        return [1.0] * jobs
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if len(found) != jobs:
        raise ValueError(f"--weights {text!r}: write one number for each of the {jobs} jobs, such as {','.join('1' * jobs)}")
    return found


def _named(networks: tuple[str, ...]) -> list[tuple[str, str]]:
    """Jobs with their names; a second one of a kind gets a number."""
    found: list[tuple[str, str]] = []
    for network in networks:
        stem = Path(network).stem if network.endswith(".json") else network
        many = sum(name.split(" ")[0] == stem for _, name in found)
        found.append((network, f"{stem} {many + 1}" if many else stem))
    return found


def _job(named: tuple[str, str], weight: float, asked: dict[str, Any], devices: int) -> Job:
    """A job: a model by its name, in the batch for all devices, or that of a strategy file, in the batch that it was made for."""
    network, name = named
    made_from: dict[str, Any] = recorded(network) if network.endswith(".json") else {"model": network}
    if "model" not in made_from:
        raise ValueError(f"{network}: does not say which model it is for; write it with taskflow search --out")
    context = click.get_current_context(silent=True)
    settings = {**made_from.get("set", {}), **given_settings(context)}
    batch, size = asked["batch"] or made_from.get("batch"), asked["size"] or made_from.get("size") or "paper"
    graph = build_model(str(made_from["model"]), batch, made_from.get("devices") or devices, size=size, settings=settings)
    starts = (load(network, graph, read_strategy(network).processors),) if network.endswith(".json") else ()
    rule = asked["rule"] or made_from.get("rule") or default_rule(str(made_from["model"]), graph)
    return Job(name, graph, RULES[rule], weight, starts)


def _plan_file(folder: str, name: str) -> str:
    return str(Path(folder) / f"{name.replace('/', '-')}.json")


def in_words(found: Sharing) -> str:
    """Return a table of the jobs, and the alternatives, as text."""
    shares_links = any(job.seconds != job.group_seconds for job in found.jobs)
    headings = ["job", "devices", "weight", "alone on all ms", "on its own ms", "beside the others ms", "slowdown"]
    rows = [
        [job.name, ranges(job.devices), f"{job.weight:g}", *(milliseconds(s) for s in _seconds(job)), f"{job.slowdown:.2f}x"]
        for job in found.jobs
    ]
    spare = [2] if all(job.weight == 1 for job in found.jobs) else []
    if spare:
        headings, rows = headings[:2] + headings[3:], [row[:2] + row[3:] for row in rows]
    lines = [render(headings, rows, words=(0, 1)), "", _compared(found), ""]
    lines.append("Jobs use links of each other's." if shares_links else "No job is in another's way on a link.")
    looked = f"{found.simulated} of {found.divisions} divisions simulated with all jobs together"
    sure = "; no other is better with these plans" if found.complete else "; there was no time to rule out the others"
    lines.append(f"{looked}{sure}.")
    return "\n".join(lines)


def _seconds(job: JobShare) -> tuple[float, float, float]:
    return job.machine_seconds, job.group_seconds, job.seconds


def _compared(found: Sharing) -> str:
    equal = max((job.slowdown for job in found.equal), default=None)
    parts = [("this division", found.slowest, found.throughput)]
    if equal is not None:
        parts.append(("equal parts", equal, throughput(found.equal)))
    parts.append(("taking turns", found.turns["slowest"], found.turns["throughput"]))
    rows = [[name, f"{slowest:.2f}x", f"{speed:.0%}"] for name, slowest, speed in parts]
    return render(["against each job alone", "slowest job", "throughput"], rows)
