"""Options that several commands share, what all commands do with errors and output, and exit codes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from taskflow.cli import completing
from taskflow.cli.experts import imbalance_option
from taskflow.cli.model import FROZEN, parse_settings
from taskflow.graph import OperatorGraph
from taskflow.mapper import attends
from taskflow.optimizer.cost import ANALYTIC, COSTS
from taskflow.option_types import FloatName, command_path, kept
from taskflow.rules import SGD, Adam, AdamW, AdamWInBfloat16, UpdateRule
from taskflow.runtime.job import INTERRUPTED, LaunchError, say_once, speaks
from taskflow.working import interruption
from taskflow.writing import json_text, one_line, unwritable

FAILED, MISTAKE = 1, 2  # exit codes beside 0 and INTERRUPTED
SETTINGS, DTYPE, FREEZE = "taskflow.settings", "taskflow.dtype", "taskflow.freeze"  # keys of a click context's meta
DEBUG, PROGRAM = "taskflow.debug", "taskflow.program"
F = TypeVar("F", bound=Callable[..., Any])
COSTS_HELP = ("Costs of tasks: analytic, from the machine's rates; or measured, by timing tasks one by one on the CPU or GPU at "
              "hand and keeping the times on disk (the first time this takes a moment).")  # fmt: skip
RULES: Mapping[str, UpdateRule | None] = {
    "sgd": SGD(lr=0.1), "momentum": SGD(lr=0.1, momentum=0.9), "adam": Adam(), "adamw": AdamW(), "adamw-bf16": AdamWInBfloat16(),
    "none": None}


def default_rule(model: str, graph: OperatorGraph) -> str:
    """Return the update rule of a model where none is given: networks of Hugging Face are trained with AdamW, others with attention
    with Adam, as nobody trains them with less state."""
    return "adamw" if model.startswith("hf:") else "adam" if attends(graph) else "momentum"


def problem_options(command: F, required: bool = True, costs: str = ANALYTIC, rule: str | None = None) -> F:
    """Add MODEL and the options that make a `Problem`. ``costs``, ``rule``: the defaults of --costs and --rule (None:
    `default_rule`)."""
    command = click.argument("model", required=required, shell_complete=completing.models)(command)
    return _shared_options(command, machine="this", size="paper", rule=rule, costs=costs)


def machine_options(command: F) -> F:
    """Add the options of `problem_options` except the model; their only defaults are those that a plan's file records."""
    return _shared_options(command, machine=None, size=None, rule=None, costs=None)


def plan_options(command: F) -> F:
    """Add --model and the options that make a `Problem`; what is not given is taken from the strategy file (`plan_problem`)."""
    command = click.option(
        "--model", shell_complete=completing.models, help="A model's name or file.py:function (default: as in the plan's file)."
    )(command)
    return _shared_options(command, machine=None, size=None, rule=None, costs=None)


def _shared_options(command: F, machine: str | None, size: str | None, rule: str | None, costs: str | None) -> F:
    """Without a default, what a plan's file records is taken."""
    shown = machine is not None
    for option in (
        click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", expose_value=False, callback=kept(SETTINGS),
                     help="A size of the network or a parameter of the function, such as hidden=512; may be given several times."),
        click.option("--dtype", "--precision", type=FloatName(), expose_value=False, callback=kept(DTYPE),
                     help="Type of weights and activations; bf16 and fp16 keep float32 copies of the weights (default: fp32)."),
        click.option("--freeze", multiple=True, metavar="PATTERN", expose_value=False, callback=kept(FREEZE),
                     help="Layers that are not trained, such as 'encoder.*'; may be given several times."),
        click.option("--program", expose_value=False, callback=kept(PROGRAM), shell_complete=completing.programs,
                     help="What runs the step on GPUs: a program's name (see `taskflow programs`) or FILE.json (default: the one "
                          "that a probe measured, else that of --for, else the machine's)."),
        imbalance_option,
        click.option("--costs", type=click.Choice(COSTS), default=costs, show_default=shown, help=COSTS_HELP),
        click.option("--rule", type=click.Choice(list(RULES)), default=rule,
                     show_default=shown and (rule or "momentum; adam with attention, adamw for hf:"),
                     help="Update rule; none: forward only."),
        click.option("--size", default=size, show_default=shown, metavar="paper|small|NAME", shell_complete=completing.sizes,
                     help="Size of a built-in network: paper, small (a toy for trying things), or a published one such as 405B."),
        click.option("--batch", type=click.IntRange(1), help="Samples of a step, of all devices (default: the model's own)."),
        click.option("--devices", "-n", type=click.IntRange(1), help="Use the machine's first N devices (default: all)."),
        click.option("--machine", "-m", default=machine, show_default=shown, shell_complete=completing.machines,
                     help="A machine's name (see `taskflow machines`) or FILE.json; with :tf32 or :bf16 appended, float32 "
                          "products multiply on tensor cores."),
    ):
        command = option(command)
    return command


def budget_option(default: str, of: str = "the command") -> Callable[[F], F]:
    """Add --budget."""
    return click.option(
        "--budget", default=default, show_default=True, help=f"Budget of {of}: 30s, 5m, or 20000p for proposals (reproducible)."
    )


def trace_option(command: F) -> F:
    """Add --trace of a prediction (`trace_prediction`)."""
    return click.option(
        "--trace", type=click.Path(dir_okay=False), shell_complete=completing.json_files,
        help="Write the predicted step for ui.perfetto.dev or chrome://tracing (gzipped if the name ends in .gz)."
    )(command)


def seed_option(command: F) -> F:
    """Add --seed."""
    return click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of random choices.")(command)


def output_options(command: F) -> F:
    """Add --json, --quiet and --debug. Errors that the user can correct are shown on one line and exit with code 2, Ctrl-C with
    130."""

    @click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
    @click.option("--quiet", "-q", is_flag=True, help="Nothing but the result.")
    @click.option("--debug", is_flag=True, expose_value=False, callback=kept(DEBUG), help="Show where an error comes from.")
    @functools.wraps(command)
    def checked(*args: Any, **options: Any) -> Any:
        context = click.get_current_context()
        path = command_path(context)
        if not works(path):
            return None
        try:
            return command(*args, **options)
        except KeyboardInterrupt as error:
            say_once(f"{path}: {interruption(error)}")
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            raise  # the reader has seen enough: click ends quietly
        except (ValueError, OSError, ImportError, LaunchError, MemoryError) as error:
            if context.meta.get(DEBUG):
                raise
            say_once(f"{path}: {one_line(error)}")  # under mpirun every rank raises the same error
            sys.exit(MISTAKE)

    return checked  # type: ignore[return-value]


def given_settings(context: click.Context | None) -> dict[str, str]:
    """Read --set, and --dtype and --freeze as two more of the model's parameters."""
    if context is None:
        return {}
    found = parse_settings(context.meta.get(SETTINGS, ()))
    if (dtype := context.meta.get(DTYPE)) is not None:
        if "dtype" in found:
            raise ValueError(f"--dtype {dtype} and --set dtype={found['dtype']} say the same twice; give one")
        found["dtype"] = dtype
    if frozen := context.meta.get(FREEZE):
        found[FROZEN] = " ".join(frozen)
    return found


def emit(value: dict[str, Any]) -> None:
    """Print JSON on stdout."""
    click.echo(json_text(value))


def writable(path: str | None) -> None:
    """Raise ValueError if no such file can be written, or if the name is empty (an unset shell variable). Called before the
    work, so that nobody waits for a result that cannot be saved."""
    if path == "":
        raise ValueError("the name of the file to write is empty")
    if path is not None and (problem := unwritable(path)) is not None:
        raise ValueError(f"cannot write {path}: {problem}")


TOGETHER = ("taskflow profile", "taskflow machine measure")
"""Commands whose ranks work together, beside `taskflow train`; of all others rank 0 alone does the work."""


def works(path: str) -> bool:
    """True if this process should run the command ``path``, such as ``taskflow search``."""
    return path in TOGETHER or speaks()
