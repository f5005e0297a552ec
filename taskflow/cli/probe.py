"""taskflow probe: writes a program that measures a machine and needs PyTorch or JAX alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from taskflow.cli import completing
from taskflow.cli.options import emit, output_options, plan_options, writable
from taskflow.cli.problem import named_strategy, plan_problem
from taskflow.cli.sections import SectionedCommand
from taskflow.cli.tables import tell
from taskflow.probe import FRAMEWORKS, message_sizes, operators_of, probe_text
from taskflow.writing import replacing


@click.command("probe", cls=SectionedCommand)
@click.option("--out", type=click.Path(dir_okay=False), default="probe.py", show_default=True, help="The program to write.")
@click.option("--for", "framework", type=click.Choice(FRAMEWORKS), default="torch", show_default=True,
              help="The framework that trains there.")
@click.option("--plan", shell_complete=completing.strategies, help="Time the operators and messages of this plan, too.")
@plan_options
@output_options
def probe_command(out: str, framework: str, plan: str | None, as_json: bool, quiet: bool, **asked: Any) -> None:
    """Write a program that measures what a machine's PyTorch or JAX does in what time.

    It needs PyTorch alone, runs on one device or under torchrun on several nodes, on GPUs or CPUs, and takes less than three
    minutes. With --for jax it needs JAX alone and measures all devices of a process, and what JAX compiles takes longer.
    `taskflow machine build` makes a machine of what it writes.

    \b
    Examples:
      taskflow probe --out probe.py
      taskflow probe --plan plan.json --out probe.py
      taskflow probe --for jax --out probe.py
      torchrun --nproc-per-node 8 probe.py --out probe.json
      taskflow machine build probe.json --like h100 --out mine.json
    """
    writable(out)
    if not out.endswith(".py"):
        raise ValueError(f"--out must end in .py, since it is a Python program; got {out}")
    cases, sizes = list[Any](), list[int]()
    if plan is not None:
        problem = plan_problem(plan, **asked)
        strategy = named_strategy(problem, plan)
        cases = operators_of(problem.graph, strategy)
        sizes = message_sizes(problem.graph, strategy, problem.evaluator.rule)
    elif any(value is not None for value in asked.values()):
        raise ValueError("--model, --machine and the like say for which plan a probe is; give --plan, or leave them out")
    text = probe_text(Path(out).name, cases, sizes, framework)
    with replacing(Path(out)) as file:
        file.write_text(text)
    if as_json:
        emit({"written": [out], "operators": len(cases), "message_sizes": sizes})
        return
    tell(f"wrote {out}" + (f": with {len(cases)} operators and {len(sizes)} sizes of messages of the plan" if plan else ""))
    if not quiet:
        start = "torchrun --nproc-per-node N" if framework == "torch" else "python"
        tell(f"run it where you train: {start} {out} --out probe.json")
