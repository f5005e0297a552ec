"""The problem that a command is given: a model on a machine, and the row that describes a plan of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import click
import msgspec
from msgspec import UNSET

from taskflow.cli.experts import experts_row, placed
from taskflow.cli.model import build_model, is_function
from taskflow.cli.options import PROGRAM, RULES, default_rule, given_settings
from taskflow.cli.tables import nbytes, render, three
from taskflow.cli.trusted import trusted
from taskflow.export import PROGRAM_OF, why_not
from taskflow.floats import FLOATS
from taskflow.graph import OperatorGraph
from taskflow.machine import TYPICAL, Cluster, Device, load_machine, preset_names
from taskflow.mapper import MAPPERS, Strategy, choose, has_attention, is_plan, paths_of, read_strategy
from taskflow.optimizer import RULE, MemoryCheck, make_evaluator, step_units
from taskflow.optimizer.cost import ANALYTIC, COSTS, untimed
from taskflow.optimizer.evaluate import Evaluator, too_many_to_show, where_time_goes
from taskflow.programs import PROBED, load_program
from taskflow.reading import path_here
from taskflow.wording import a_second, listed, milliseconds, some

TIMES_AS_FAST = 4  # as float32, so that units for 16 bits are worth a word


@dataclass(frozen=True, slots=True)
class Problem:
    """A model on a machine, as the command line names them, and the evaluator of its plans. ``made_from``: the user's choices, as
    strategy files record them. ``memory_check``: the memory check of plans, which caches operators that it has seen."""

    graph: OperatorGraph
    machine: Cluster
    evaluator: Evaluator
    made_from: Mapping[str, Any] = field(default_factory=dict)
    memory_check: MemoryCheck = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory_check", MemoryCheck(self.evaluator))

    def header(self) -> dict[str, Any]:
        """Return the fields that every command's JSON starts with."""
        return {
            "model": self.graph.name,
            "operators": len(self.graph),
            "parameters": self.graph.parameter_count,
            "machine": self.machine.name,
            "devices": len(self.machine.processors),
            "costs": self.evaluator.costs.name,
            "rule": self.made_from.get("rule"),
        }

    @property
    def heading(self) -> str:
        """Return what a plan is predicted for, in one line."""
        return f"{self.graph} on {self.machine}; {self.costs}"

    @property
    def costs(self) -> str:
        """Return which costs and which update rule a prediction rests on, what of the network was not timed, whether devices are
        slow in its type, and whether nobody has measured their rates."""
        lacks = some(untimed(self.graph, self.machine.processors[0].device), 5)
        rests = f"costs: {self.evaluator.costs.name}{lacks and f' (not timed: {lacks})'}; rule: {self.made_from.get('rule')}"
        guessed = not self.evaluator.costs.measures and any(kind.source.startswith(TYPICAL) for kind in self.machine.kinds)
        by_hand = is_function(str(self.made_from.get("model", "")))  # of the user's, which may take no --dtype
        says = (other_type(kind, self.graph.dtype.name, "" if by_hand else "--dtype ") for kind in self.machine.kinds)
        typical = "rates and memory are typical, not this machine's: taskflow machine measure" * guessed
        return listed((rests, *says, unfused(self.graph, self.machine), typical), "; ")


def unfused(graph: OperatorGraph, machine: Cluster) -> str:
    """Return that a program on GPUs is planned without its kernel of attention, since the network writes scores; empty if not."""
    fused = any(node.operator.kind in ("flash_attention", "attention_blocks") for node in graph)
    if fused or not has_attention(graph) or machine.kinds[0].program is None:
        return ""
    return "attention is not one kernel" + " (--set fused=True)" * graph.name.startswith("GPT-")


def other_type(device: Device, dtype: str, option: str) -> str:
    """Return which 16-bit type a device multiplies in faster than in this one: the other, if it has no units for this one, or one
    that is several times as fast as float32. ``option``: what comes before its name. Empty if there is none."""
    rates, now = dict(device.flops_per_second), device.product_rate(dtype)
    if dtype in rates and (dtype != "float32" or device.products != "float32"):
        return ""
    best, other = max(((rates.get(FLOATS[name], 0.0), name) for name in ("bf16", "fp16")), key=itemgetter(0))
    if best <= (TIMES_AS_FAST if dtype in rates else 1) * now:
        return ""
    lacks = "" if dtype in rates else f"{device.kind} has no units for {dtype}, "
    return f"{lacks}{option}{other} multiplies {best / now:.2g}x as fast"


def trace_prediction(problem: Problem, plan: str, path: str) -> None:
    """Write the step that the evaluator is at as a trace, in the form of a run's. If it has too many tasks, write one device of
    each group that behaves alike, and say so on stderr. Raises OSError if it cannot be written, ValueError if none are alike."""
    from taskflow.runtime.profiler import part_document, predicted_document, write_trace

    evaluator, facts = problem.evaluator, {**problem.header(), "plan": plan}
    step = evaluator.folded(evaluator.strategy) if too_many_to_show(evaluator.strategy) else None
    if step is None:
        write_trace(predicted_document(*evaluator.current(), problem.machine, facts), path)
        return
    alike = {processor: len(images) for processor, images in step.replicas.images.items()}
    write_trace(part_document(step.first_replica(), alike, facts), path)
    few = f"{len(alike):,} of {len(problem.machine.processors):,} devices"
    click.echo(f"{path}: {few}, which stand for all others; identical layers share one name", err=True)


# ---- problems --------------------------------------------------------------------------------------------------------
def make_problem(
    model: str, machine: str, devices: int | None, batch: int | None, size: str, rule: str | None, algorithm: str = "auto",
    settings: Mapping[str, str] | None = None, costs: str = ANALYTIC, imbalance: float | None = None, target: str | None = None,
    recorded_program: str | None = None,
) -> Problem:
    """Build the problem. ``settings``: by default those of --set; ``rule``: by default `default_rule`; ``imbalance``: where
    --expert-imbalance says none. ``target``: the framework whose program drives the devices, by default that of --for or --to;
    ``recorded_program``: where neither that nor --program says one. Raises ValueError, FileNotFoundError or ImportError if there
    is no such model or machine, or if its costs cannot be measured here."""
    context = click.get_current_context(silent=True)
    if settings is None:
        settings = given_settings(context)
    cluster = load_machine(machine, devices)
    program = asked_program(context, cluster, target) or recorded_program
    if program is not None:
        cluster = driven(cluster, program)
    count = len(cluster.processors)
    graph, imbalance = placed(build_model(model, batch, count, size=size, settings=settings), context, imbalance)
    rule = rule or default_rule(model, graph)
    made_from = {
        "model": model, "machine": machine, "devices": count, "batch": batch, "size": size, "rule": rule,
        "set": dict(settings), "costs": costs, **({"program": program} if program is not None else {}),
        **({"expert_imbalance": imbalance} if imbalance is not None else {}),
    }
    evaluator = make_evaluator(graph, cluster, costs=costs, rule=RULES[rule], algorithm=algorithm)
    if context is not None:
        context.call_on_close(evaluator.costs.close)
    return Problem(graph, cluster, evaluator, made_from)


def asked_program(context: click.Context | None, machine: Cluster, target: str | None = None) -> str | None:
    """Return the program of --program, else that of the framework of --for or --to. None if neither says one, or if the framework's
    is not for this machine: one without GPUs, or one whose program was measured."""
    named: str | None = context.meta.get(PROGRAM) if context is not None else None
    if named is not None:
        return named
    if all(kind.kind == "cpu" or (kind.program is not None and kind.program.name == PROBED) for kind in machine.kinds):
        return None
    return PROGRAM_OF.get(target or (context.params.get("target") if context is not None else None) or "")


def driven(machine: Cluster, program: str) -> Cluster:
    """Return a machine with a program that drives its devices. Raises ValueError if these are cores of a CPU, or if there is no
    such program; FileNotFoundError for a missing file."""
    found = load_program(program)
    if all(kind.kind == "cpu" for kind in machine.kinds):
        raise ValueError(f"--program {program}: programs drive GPUs, machine {machine.name} has none; name one with --machine")
    return machine.driven_by(found)


def plan_problem(
    plan: str, model: str | None, machine: str | None, devices: int | None, batch: int | None, size: str | None,
    rule: str | None, costs: str | None = None, target: str | None = None,
) -> Problem:
    """Build the problem of a plan. Options that are not given are taken from the strategy file, which records what it was made
    for (costs only if the machine is the same). ``target``: as of `make_problem`. Raises ValueError if an option is in neither."""
    _a_strategy(plan)
    made_from = recorded(plan) if plan.endswith(".json") else {}
    context = click.get_current_context(silent=True)
    given = given_settings(context)
    if model is None and "model" not in made_from:
        raise ValueError(f"plan {plan}: which model? give --model MODEL")
    same = model is None or model == made_from.get("model")  # another model has other sizes
    settings = {**(made_from.get("set", {}) if same else {}), **given}
    wanted = machine or made_from.get("machine") or "this"
    there = made_from if machine in (None, made_from.get("machine")) else {}
    return make_problem(
        model or str(made_from["model"]), wanted, devices or there.get("devices"),
        batch or (made_from.get("batch") if same else None), size or (made_from.get("size") if same else None) or "paper",
        rule or made_from.get("rule"), settings=settings, costs=costs or there.get("costs") or ANALYTIC,
        imbalance=made_from.get("expert_imbalance") if same else None, target=target, recorded_program=there.get("program"),
    )


def recorded(path: str) -> dict[str, Any]:
    """Return what a strategy file records about the problem that it was made for. Files that were not written by the command
    line have only model, machine and processors. Raises ValueError or FileNotFoundError if it is not a strategy file."""
    file = read_strategy(path)
    if file.made_from is UNSET:
        found: dict[str, Any] = {"model": file.model} if file.model else {}
        found["devices"] = file.processors
        return {**found, "machine": file.machine} if file.machine in preset_names() else found
    made_from = paths_of({k: v for k, v in msgspec.to_builtins(file.made_from).items() if v is not None}, path_here)
    for key, known in (("rule", tuple(RULES)), ("costs", COSTS)):
        if key in made_from and made_from[key] not in known:
            raise ValueError(f"{path}: made_from.{key}: must be one of {', '.join(known)}, got {made_from[key]!r}")
    return made_from


def named_strategy(problem: Problem, name: str, seed: int = 0) -> Strategy:
    """Return a strategy by a mapper's name, from a file, or from a Mapper class (``package.module:Class``)."""
    _a_strategy(name)
    return choose(name, problem.graph, problem.machine, seed=seed)[0]


def _a_strategy(name: str) -> None:
    """ValueError unless the name may be that of a strategy, known before anything is built for it."""
    if not name.endswith(".json") and name not in MAPPERS and name != "search" and ":" not in name and not is_plan(name):
        raise ValueError(
            f"no strategy {name!r}; use {', '.join(MAPPERS)}, a plan such as 't2 p2 mb1', a strategy file FILE.json, or "
            "package.module:Class"
        )


def describe(problem: Problem, strategy: Strategy) -> dict[str, Any]:
    """Return a plan's row: its predicted seconds, where they go, and its memory, as `MemoryCheck` has it. ``lacks``: what
    memory is missing. Afterwards the evaluator is at ``strategy``."""
    evaluator = problem.evaluator
    seconds = evaluator.seconds if evaluator.at(strategy) else evaluator.set(strategy)
    evaluator.keep()
    usage = where_time_goes(evaluator, path=False)
    row: dict[str, Any] = {
        "name": strategy.name,
        "iteration_seconds": seconds,
        "transfer_bytes": usage.transfer_bytes,
        "compute_seconds": sum(usage.processor_seconds),
        "busiest_processor_seconds": max(usage.processor_seconds),
        "busiest_link_seconds": max(usage.link_seconds.values(), default=0.0),
        "tasks": evaluator.tasks,
        **step_units(problem.graph, problem.machine, evaluator.rule, seconds).as_json(),
    }
    peaks, planned = problem.memory_check.peaks(strategy)
    row |= {"peak_memory_bytes": max(peaks), "peak_memory_is": "planned" if planned else "estimate"}
    row |= {"fits_memory": not (lacks := problem.memory_check(strategy)), "lacks": lacks}
    known = {} if lacks else trusted(problem, strategy, seconds)  # of a step that cannot run nothing is likely
    program = problem.machine.kinds[0].program
    if program is not None and (why := why_not(program.name, problem.graph, strategy)):
        row["program_lacks"] = {"program": program.name, "why": why}
    return row | experts_row(problem.graph, strategy) | known


def lacking_sentence(rows: Sequence[dict[str, Any]]) -> str:
    """Return the line about plans, rows of `describe`, which the program that they are predicted for does not have."""
    lacking = [(row["name"], *row["program_lacks"].values()) for row in rows if "program_lacks" in row]
    if not lacking:
        return ""
    _, program, why = lacking[0]
    names = listed([name for name, *_ in lacking])
    return (
        f"{program} itself cannot run {names} ({why}); predicted with its kernels all the same: --program fsdp, or --for, says "
        "what runs"
    )


SPARE = ("compute s", "search s", "moved")  # columns that a narrow terminal does without
DATA = ("data", "data (repaired)")  # what rows are compared with, unless it does not fit


def table(rows: list[dict[str, Any]]) -> str:
    """Return rows of `describe` as text."""
    data = next((row["iteration_seconds"] for row in rows if row["name"] in DATA and row["fits_memory"]), None)
    counted, lines = "tokens" if any(row["tokens_per_second"] for row in rows) else "samples", []
    for row in rows:
        most = "~" if row["peak_memory_is"] == "estimate" else ""
        lines.append([
            row["name"], milliseconds(row["iteration_seconds"]), f"{data / row['iteration_seconds']:.2f}x" if data else "",
            a_second(rate) if (rate := row[f"{counted}_per_second"]) else "", f"{row['mfu']:.1%}" if row["mfu"] else "",
            nbytes(row["transfer_bytes"]), three(row["compute_seconds"]),
            f"{most}{row['peak_memory_bytes'] / 1e9:.2f}{'' if row['fits_memory'] else '!'}",
            f"{row['search_seconds']:.1f}" if row.get("search_seconds") else "",
        ])
    headings = ["strategy", "step ms", "against data", f"{counted}/s", "MFU", "moved", "compute s", "memory GB", "search s"]
    used = [i for i in range(len(headings)) if i == 0 or any(line[i] for line in lines)]
    spare = [used.index(i) for i in map(headings.index, SPARE) if i in used]
    text = render([headings[i] for i in used], [[line[i] for i in used] for line in lines], spare=spare)
    if all(row["fits_memory"] for row in rows):
        return text
    if len(rows) == 1:
        return f"{text}\n! {rows[0]['lacks']}"
    estimated = any(row["peak_memory_is"] == "estimate" for row in rows if not row["fits_memory"])
    return f"{text}\n! may need more memory than a device has{f' (~: {RULE})' if estimated else ''}"
