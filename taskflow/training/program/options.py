"""Options that all training programs share: ``taskflow train NAME`` and the examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import click

from taskflow.optimizer.cost import ANALYTIC, COSTS
from taskflow.option_types import Duration, FloatName, Seconds
from taskflow.runtime.job import LAUNCHER, RankRange
from taskflow.training.program.plan import SEARCH_BUDGET


@dataclass(frozen=True, slots=True)
class Every:
    """How often a checkpoint is written: after so many ``steps``, or after so many ``seconds``; the other is 0."""

    steps: int = 0
    seconds: float = 0.0


class _Every(click.ParamType):  # type: ignore[type-arg]
    name = "steps or time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Every:
        if str(value).isdecimal() and int(value) > 0:
            return Every(steps=int(value))
        with suppress(click.BadParameter):
            return Every(seconds=Duration().convert(value, param, ctx))
        return self.fail(f"{value!r}: write a number of steps, such as 100, or a time, such as 90s, 10m or 1h", param, ctx)


class _Ranks(click.ParamType):  # type: ignore[type-arg]
    name = "ranks"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> RankRange:
        least, _, most = str(value).partition(":")
        with suppress(ValueError):
            return RankRange(int(least), int(most or least))
        return self.fail(f"{value!r}: write the fewest and the most ranks, such as 2:4", param, ctx)


@dataclass(frozen=True, slots=True)
class Options:
    """Values from the command line; None where nothing was given. ``trace_steps``: the first and the last step, from 1."""

    mapper: str
    search_budget: str
    costs: str
    machine: str | None
    preset: str
    processors: int | None
    data: tuple[str, ...]
    steps: int | None
    every: int | None
    seed: int | None
    dtype: str
    loss_scale: float | None
    watchdog: float | None
    save_strategy: str | None
    checkpoint: str | None
    checkpoint_every: Every | None
    keep: int
    resume: str | None
    elastic: RankRange | None
    max_restarts: int
    launcher: str | None
    discovery: str | None
    trace: str | None
    trace_steps: tuple[int, int] | None
    log: str | None
    as_json: bool
    quiet: bool
    debug: bool
    device: str


def _steps(context: click.Context, option: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """``3-5``, or ``4`` for ``4-4``: numbers of steps, counted from 1, as (first, last)."""
    if value is None:
        return None
    first, _, last = value.partition("-")
    try:
        steps = int(first), int(last or first)
    except ValueError:
        steps = 0, 0
    if not 1 <= steps[0] <= steps[1]:
        raise click.BadParameter(f"{value!r}: write the first and the last step, counted from 1, such as 3-5")
    return steps


def shared_options(presets: Sequence[str], data: str, data_help: str) -> list[Callable[[Any], Any]]:
    """Decorators of the options, in the order in which help lists them; they make the fields of `Options`."""
    return [
        click.option("--mapper", "--strategy", "mapper", default="data", show_default=True, metavar="NAME",
                     help="data, model, expert, megatron, search, best (the fastest of data, expert and search, each tried for "
                     "some steps), round-robin, random, a plan such as 't2 p2 mb1', a strategy FILE.json, or "
                     "package.module:Class."),
        click.option("--search-budget", default=SEARCH_BUDGET, show_default=True, metavar="TIME",
                     help="How long --mapper search may take: 5s, 2m, or 20000p for proposals."),
        click.option("--costs", type=click.Choice(COSTS), default=ANALYTIC, show_default=True,
                     help="What says how long tasks take when a plan is searched for and in a trace's prediction: analytic, the "
                     "machine's rates; or measured, for which the search times the tasks one by one on the CPU or GPU at hand and "
                     "keeps that on disk (the first time this takes a moment)."),
        click.option("--machine", "-m", metavar="NAME",
                     help="Whose rates the search and the prediction use: FILE.json from `taskflow machine measure`, or a "
                     "name (default: typical rates of a CPU's cores)."),
        click.option("--preset", type=click.Choice(list(presets)), default=presets[0], show_default=True,
                     help="Sizes and settings: a small network for a quick run, or the published ones."),
        click.option("--processors", type=click.IntRange(1), help="Virtual processors (default: one a rank)."),
        click.option("--data", multiple=True, metavar=data, help=data_help),
        click.option("--steps", type=click.IntRange(1),
                     help="Training steps, those before --resume included (default: the preset's)."),
        click.option("--every", type=click.IntRange(1), metavar="N", help="Show a line every N steps (default: 20 lines a run)."),
        click.option("--seed", type=click.IntRange(0), help="Seed of weights, dropout and the data's order (default: 0)."),
        click.option("--dtype", "--precision", type=FloatName(), default="float32", show_default=True,
                     help="Type of weights and activations: float32, float64, or bf16 and fp16 (with float32 copies of weights)."),
        click.option("--loss-scale", type=click.FloatRange(0, min_open=True), metavar="NUMBER",
                     help="For fp16: a fixed loss scale (default: one that falls when gradients overflow, and rises again)."),
        click.option("--watchdog", type=Seconds(0), metavar="SECONDS", help="End the job if a rank waits longer."),
        click.option("--save-strategy", metavar="FILE", help="Write the strategy that is used."),
        click.option("--checkpoint", metavar="FILE", help="Write everything that --resume needs, at the end (.safetensors)."),
        click.option("--checkpoint-every", type=_Every(), metavar="N|TIME",
                     help="Write it beside training after every N steps too, or after every 90s, 10m, 1h."),
        click.option("--keep", type=click.IntRange(1), default=1, show_default=True, metavar="K",
                     help="Keep the last K checkpoints: those before FILE as NAME.stepN.safetensors."),
        click.option("--resume", metavar="FILE|auto",
                     help="Continue from a checkpoint, with the losses of a run that never stopped; auto: from the newest whole "
                     "one that --checkpoint has written, or from the beginning if there is none."),
        click.option("--elastic", "--ranks", "elastic", type=_Ranks(), metavar="MIN:MAX",
                     help="Start the job under mpirun on MAX ranks, and when it fails, start it again on those that are left, at "
                     "least MIN, from the newest checkpoint (needs --checkpoint)."),
        click.option("--max-restarts", type=click.IntRange(0), default=3, show_default=True, metavar="N",
                     help="With --elastic: how often a job that fails is started again."),
        click.option("--launcher", metavar="WORDS",
                     help=f"With --elastic: what starts the ranks (default: '{LAUNCHER}'; {{hosts}} stands for the nodes' names)."),
        click.option("--host-discovery-script", "discovery", metavar="FILE",
                     help="With --elastic: a program that prints the nodes that are there, a line NAME:RANKS each, before each "
                     "start; the job shrinks and grows with them."),
        click.option("--trace", metavar="FILE",
                     help="Write what all ranks do in some steps, and what was predicted, for ui.perfetto.dev or "
                     "chrome://tracing (gzipped if the name ends in .gz)."),
        click.option("--trace-steps", callback=_steps, metavar="A-B",
                     help="Steps to trace, counted from 1 (default: the third to the fifth of the run)."),
        click.option("--log", metavar="KIND:WHERE",
                     help="Log losses and seconds of steps: tensorboard:FOLDER or wandb:PROJECT (optional packages)."),
        click.option("--json", "as_json", is_flag=True, help="Last line of stdout: one JSON object with the results."),
        click.option("--quiet", "-q", is_flag=True, help="Nothing but the result."),
        click.option("--debug", is_flag=True, help="Show where an error comes from."),
        click.option("--device", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True,
                     help="Where to compute; gpu needs CuPy and a GPU for each rank, or one that they share."),
    ]  # fmt: skip


def steps_to_trace(options: Options, first: int, steps: int) -> range | None:
    """Return the steps, counted from 0, to trace of a run from step ``first`` to before ``steps``; None without ``--trace``.
    Raises ValueError if the run has none of those that were asked for."""
    if options.trace is None:
        if options.trace_steps is not None:
            raise ValueError("--trace-steps: say with --trace FILE where to write")
        return None
    if options.trace_steps is None:
        start = min(first + 2, steps - 1)
        return range(start, min(start + 3, steps))
    chosen = range(max(first, options.trace_steps[0] - 1), min(steps, options.trace_steps[1]))
    if not len(chosen):
        asked = "-".join(map(str, options.trace_steps))
        raise ValueError(f"--trace-steps {asked}: the run has steps {first + 1} to {steps}")
    return chosen
