"""taskflow models, taskflow machines, taskflow programs: lists of the built-in ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from taskflow.cli.options import emit, output_options
from taskflow.cli.progress import working
from taskflow.cli.tables import render
from taskflow.machine import load_machine, preset_names
from taskflow.models import MODELS
from taskflow.programs import load_program, program_names, unparse


@click.command("models")
@output_options
def models_command(as_json: bool, quiet: bool) -> None:
    """List the built-in networks and the sizes that --set takes. A name such as GPT-3-1.7B stands for a network with its
    published sizes.

    \b
    Examples:
      taskflow models
      taskflow models --json
      taskflow simulate nmt --set hidden=512 --set layers=4
    """
    rows = []
    with working("building"):
        for name, model in MODELS.items():
            graph = model.builder(model.paper, "float32")
            rows.append({
                "name": name, "operators": len(graph), "parameters": graph.parameter_count,
                "batch_per_device": model.paper.batch, "sizes": asdict(model.paper),
                "named": [f"{name}-{size}" for size in model.sizes],
            })
    if as_json:
        emit({"models": rows})
        return
    lines = [
        [row["name"], f"{row['operators']:,}", f"{row['parameters']:,}", str(row["batch_per_device"]),
         " ".join([*(f"{k}={v}" for k, v in row["sizes"].items() if k != "batch"), *row["named"]])]
        for row in rows
    ]
    click.echo(render(["model", "operators", "parameters", "batch a device", "sizes (--set)"], lines, words=(0, 4)))


@click.command("machines")
@output_options
def machines_command(as_json: bool, quiet: bool) -> None:
    """List the built-in machines; any other machine is a JSON file.

    \b
    Examples:
      taskflow machines
      taskflow machine show k80 --devices 8
      mpirun -n 2 taskflow machine measure --out mine.json
    """
    rows: list[dict[str, Any]] = []
    for name in preset_names():
        machine = load_machine(name)
        first = machine.processors[0]
        kinds = {p.kind: p for p in reversed(machine.processors)}
        rows.append({
            "name": name, "devices": len(machine.processors), "kind": first.kind, "nodes": machine.node_count,
            "memory_bytes": first.memory_bytes, "flops_per_second": first.flops_per_second,
            "kinds": [
                {
                    "kind": p.kind, "memory_bytes": p.memory_bytes, "memory_bytes_per_second": p.bytes_per_second,
                    "flops_per_second": p.flops_per_second, "rates": dict(p.device.flops_per_second),
                }
                for p in reversed(kinds.values())
            ],
        })
    if as_json:
        emit({"machines": rows})
        return
    lines = [
        [row["name"], ", ".join(k["kind"] for k in row["kinds"]), str(row["devices"]), str(row["nodes"]),
         *(_each([k["rates"].get(dtype, 0) / 1e12 for k in row["kinds"]]) for dtype in ("bfloat16", "float8", "float32")),
         _each([k["memory_bytes"] / 1e9 for k in row["kinds"]]),
         _each([k["memory_bytes_per_second"] / 1e12 for k in row["kinds"]])]
        for row in rows
    ]
    heads = ["machine", "device", "devices", "nodes", "bf16 TFLOP/s", "fp8", "fp32", "memory GB", "TB/s"]
    click.echo(render(heads, lines, words=(0, 1)))
    if not quiet:
        click.echo("Of each device: the vendors' peaks, without sparsity. Nodes, links and sources: taskflow machine show NAME")


@click.command("programs")
@output_options
def programs_command(as_json: bool, quiet: bool) -> None:
    """List the training programs whose steps are predicted; any other program is a JSON file.

    \b
    Examples:
      taskflow programs
      taskflow simulate Llama-8B -m h100 -n 8 --batch 16 --program torchtitan --strategy 'd8 mb2 fsdp'
    """
    programs = [load_program(name) for name in program_names()]
    if as_json:
        emit({"programs": [unparse(program) for program in programs]})
        return
    lines = [
        [one.name, one.attention, f"{one.host_seconds * 1e6:.3g}", ", ".join(kind for kind, _ in one.gpus) or "any", one.about]
        for one in programs
    ]
    click.echo(render(["program", "attention", "us a kernel", "figures of their own", "what it is"], lines, words=(0, 1, 3, 4)))


def _each(figures: Sequence[float]) -> str:
    """A figure of each kind of device of a machine, four digits; a dash for none."""
    return ", ".join(f"{figure:.4g}" if figure else "-" for figure in figures)
