"""taskflow models, taskflow machines: what there is."""

from __future__ import annotations

from typing import Any

import click

from taskflow.cli.problem import emit, output_options
from taskflow.machine import load_machine, preset_names
from taskflow.models import MODELS


@click.command("models")
@output_options
def models_command(as_json: bool, quiet: bool) -> None:
    """The networks that there are."""
    rows = []
    for name, model in MODELS.items():
        graph = model.builder(model.paper, "float32")
        rows.append({
            "name": name, "operators": len(graph), "parameters": graph.parameter_count, "batch_per_device": model.paper.batch
        })
    if as_json:
        emit({"models": rows})
    else:
        for row in rows:
            click.echo(
                f"{row['name']:<14}{row['operators']:>5} operators {row['parameters']:>14,} parameters, "
                f"batch {row['batch_per_device']} a device"
            )


@click.command("machines")
@output_options
def machines_command(as_json: bool, quiet: bool) -> None:
    """The machines that there are; any other is a JSON file."""
    rows: list[dict[str, Any]] = []
    for name in preset_names():
        machine = load_machine(name)
        first = machine.processors[0]
        rows.append({
            "name": name, "devices": len(machine.processors), "kind": first.kind,
            "memory_bytes": first.memory_bytes, "flops_per_second": first.flops_per_second,
        })
    if as_json:
        emit({"machines": rows})
    else:
        for row in rows:
            click.echo(
                f"{row['name']:<12}{row['devices']:>5} x {row['kind']:<24}{row['memory_bytes'] / 2**30:>7.4g} GiB "
                f"{row['flops_per_second'] / 1e12:>9.3g} TFLOP/s"
            )
