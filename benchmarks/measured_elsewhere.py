"""Predicted against measured training steps of others: every row of the given files, and single published figures.

    python benchmarks/measured_elsewhere.py --data DIR [--group several-nodes published] [--sample 5] [--whole] [--rows]

--data has the files that are not part of the project (docs/guide/trust.md says where they come from): vtrain-one-node.csv,
vtrain-several-nodes.csv, nccl-allreduce-a100.csv. Their networks are GPT as Megatron-LM has it (vocabulary 51,200, float16, Adam,
layers recomputed, 1F1B); their GPUs are A100 of 80 GB, 8 a node, with 4 cards of 200 Gb/s for each node. Plans are predicted as
they ran, a recomputed layer run again as a whole (`recompute=whole`) and without sequence parallelism (`nosp`), and as if their
layers' passes were cut along the sequence. Steps are priced as a search prices the plans of its grid, in the program that ran them;
with --whole they are evaluated as `taskflow simulate` does it.

Files whose names begin with ultrascale, layouts, fsdp and b200 have steps, files gemm-GPU.csv.gz matrix products
(`measured_rows`, `measured_steps`).

For each group of rows: mean absolute error (per cent of the measured time), bias, largest error, and over all plans that were
measured together Kendall's tau, the regret of the plan that is predicted to be fastest, and of how many it is at most 3 %.

The rows of vtrain-one-node.csv are not predicted. They lie on lines to the nanosecond, as measured steps never do: they were
computed from traces of single layers. What such a layer took is held against the costs of a layer (group `profiled`).
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import mean, median

import click
import numpy as np
from decoders import Priced
from measured_steps import predicted_groups, product_groups
from measured_steps import said as said_of_group
from measured_steps import summary as summary_of_group
from rich.console import Console
from rich.table import Column, Table
from several import Several

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, collective, load_machine, ring_bytes
from taskflow.mapper import map_graph, parse_plan
from taskflow.mapper.hybrid import HybridParallel
from taskflow.models import build
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.grid import GraphTables, PlanSums, kendall
from taskflow.optimizer.trust import MEASURED
from taskflow.optimizer.trust.measured import BLOOM, PROGRAMS, TORCHTITAN, VTRAIN, MeasuredPlan, regret
from taskflow.programs import load_program
from taskflow.rules import Adam

VOCABULARY = 51_200
GROUPS = ("nccl", "profiled", "several-nodes", "published", "h100", "steps", "products")
UNHIDDEN = "recompute=whole overlap=none"  # gradients are summed after all passes
NEAR = 0.03  # regret that is as good as none
CARD = 25e9  # bytes a second of a network card of 200 Gb/s
H100_POWER = 0.75  # of the rate of products, at 500 of 700 W
H100_MEMORY = 2.4e12  # bytes a second, of torchtitan's H100
OMNI_PATH = 12.5e9  # of 100 Gb/s, four a node (Le Scao et al., BLOOM, arXiv 2211.05100, section 3.4)


@dataclass(frozen=True, slots=True)
class Row:
    """A measured step. ``of``: rows with the same are plans for one task, which may be compared."""

    group: str
    of: str
    machine: str
    gpus: int
    hidden: int
    heads: int
    layers: int
    sequence: int
    batch: int
    plan: str
    seconds: float
    vocabulary: int = VOCABULARY
    card: float = CARD  # bytes a second of each of four cards of a node; 0: a card for each GPU, as preset
    network: str = "GPT-2"
    memory: float = 0.0  # bytes a second of each GPU's memory, if not the preset's
    program: str = PROGRAMS[VTRAIN]


def published(device: str) -> list[Row]:
    """The single figures of `taskflow.optimizer.trust` on such devices that are from other sources than the files."""
    return [row_of(m) for m in MEASURED if m.source != VTRAIN and m.device == device]


def row_of(m: MeasuredPlan) -> Row:
    """A measured plan of the package, on the cluster where it ran."""
    card = CARD if m.source == VTRAIN else OMNI_PATH if m.source == BLOOM else 0.0
    return Row(
        "published", f"{m.source}, {m.session}", m.device, m.devices, m.hidden, m.heads, m.layers, m.sequence, m.batch, m.plan,
        m.seconds, m.vocabulary, card, m.network, H100_MEMORY if m.source == TORCHTITAN else 0.0,
        m.program,
    )  # fmt: skip


def four_cards(gpus: int, card: float = CARD) -> Cluster:
    """A100 nodes with four network cards, each of which two neighbours reach over a PCIe switch."""
    machine = load_machine("a100", gpus)
    if gpus <= 8:
        return machine
    (node,) = machine.nodes
    nvlink, network = node.wires
    cards = [f"card{i}" for i in range(4)]
    wires = [nvlink]
    for i, name in enumerate(cards):
        wires += [
            replace(network, between=(f"gpu[{2 * i}{2 * i + 1}]", name), bytes_per_second=31.5e9, source="PCIe 4.0 x16"),
            replace(network, between=(name, "network"), bytes_per_second=card),
        ]
    return replace(machine, nodes=(replace(node, switches=(*node.switches, *cards), wires=tuple(wires)),))


def rows_of(data: Path, name: str) -> list[Row]:
    """The rows of a file of steps."""
    found = []
    with (data / f"vtrain-{name}.csv").open() as file:
        for row in csv.DictReader(file):
            n = {key: int(row[key]) for key in row if key not in ("milliseconds", "parameters_billion")}
            of = f"{n['gpus']} GPUs, batch {n['global_batch']}, {n['layers']} x {n['hidden']}"
            alone = "" if n["tensor"] == 1 else " nosp"
            plan = f"t{n['tensor']}{alone} p{n['pipeline']} d{n['data']} mb{n['micro_batch']} {UNHIDDEN}"
            found.append(Row(
                name, of, "a100", n["gpus"], n["hidden"], n["heads"], n["layers"], n["sequence"], n["global_batch"], plan,
                float(row["milliseconds"]) / 1e3,
            ))  # fmt: skip
    return found


def machine_of(row: Row) -> Cluster:
    """The cluster of a row, driven by its program; at least a node of it."""
    return _driven(row.machine, row.gpus, row.card, row.memory, row.program)


@lru_cache(maxsize=32)
def _driven(name: str, gpus: int, card: float, memory: float, program: str) -> Cluster:
    gpus, driver = max(8, gpus), load_program(program)
    if card:
        return four_cards(gpus, card).driven_by(driver)
    machine = load_machine(name, gpus).driven_by(driver)
    if not memory:
        return machine
    kinds = tuple(replace(kind, memory_bytes_per_second=memory, power=H100_POWER) for kind in machine.kinds)
    return replace(machine, kinds=kinds)


def whole(row: Row) -> float:
    """Seconds of a step."""
    graph, machine = network_of(row), machine_of(row).prefix(row.gpus)
    return make_evaluator(graph, machine, rule=Adam()).set(map_graph(HybridParallel(row.plan), graph, machine))


def network_of(row: Row) -> OperatorGraph:
    """The network of a row; of one that is not GPT the sizes are the preset's."""
    if row.network != "GPT-2":
        return _built(row.network, row.batch, dtype="bfloat16", steps=row.sequence)
    return _built(
        "GPT-2", row.batch, dtype="float16", steps=row.sequence, vocabulary=row.vocabulary, hidden=row.hidden, heads=row.heads,
        layers=row.layers,
    )


@lru_cache(maxsize=8)
def _built(name: str, batch: int, **sizes: object) -> OperatorGraph:
    return build(name, batch=batch, **sizes)


_PRICED = Priced()


def priced(row: Row) -> float:
    """Seconds of a step, as a search prices it."""
    return _PRICED.of(network_of(row), machine_of(row), row.plan)[0]


def summary(rows: Sequence[tuple[Row, float]]) -> dict:
    """Errors of (row, predicted seconds), and what plans of one task say."""
    errors = [predicted / row.seconds - 1 for row, predicted in rows]
    found = {
        "rows": len(rows), "mean_error": mean(map(abs, errors)), "bias": mean(errors), "largest_error": max(errors, key=abs),
    }
    tasks: dict[str, list[tuple[float, float]]] = {}
    for row, predicted in rows:
        tasks.setdefault(row.of, []).append((predicted, row.seconds))
    several = [pairs for pairs in tasks.values() if len(pairs) > 2]
    if several:
        found |= {
            "tasks": len(several), "tau": median(map(kendall, several)), "regret": median(map(regret, several)),
            "largest_regret": max(map(regret, several)), "near": sum(regret(pairs) <= NEAR for pairs in several),
        }
    return found


def along_sequence(row: Row) -> Row:
    """The row's plan with the passes between shared layers cut along the sequence."""
    return replace(row, plan=row.plan.replace(" nosp", ""))


def on_lines(rows: Sequence[Row]) -> tuple[int, int]:
    """How many series of three rows and more there are that differ in the number of micro-batches alone, and of how many the
    seconds lie on a line, to two nanoseconds a micro-batch."""
    series: dict[tuple, dict[int, float]] = {}
    for row in rows:
        plan = parse_plan(row.plan)
        count = row.batch // (plan.data or 1) // (plan.micro_batch or 1)
        series.setdefault((row.hidden, row.layers, row.plan), {})[count] = row.seconds
    long = [sorted(one.items()) for one in series.values() if len(one) > 2]
    lines = 0
    for points in long:
        slopes = [(b - a) / (m - n) for (n, a), (m, b) in zip(points, points[1:])]
        lines += max(slopes) - min(slopes) <= 2e-9
    return len(long), lines


def traced_layers(rows: Sequence[Row]) -> dict[tuple[int, int, int], float]:
    """Seconds of a layer's forward and backward pass that the rows were computed from, by hidden size, devices that share the
    layer, and sequences of a micro-batch: what one more layer of a stage adds to one more micro-batch. Rows that say different
    layers (by more than ten nanoseconds) raise ValueError."""
    steps: dict[tuple, dict[int, dict[int, float]]] = {}
    for row in rows:
        plan = parse_plan(row.plan)
        d, mb = plan.data or 1, plan.micro_batch or 1
        one = steps.setdefault((row.hidden, plan.tensor, mb, plan.pipeline, d), {})
        one.setdefault(row.layers, {})[row.batch // d // mb] = row.seconds
    found: dict[tuple[int, int, int], list[float]] = {}
    for (hidden, tensor, mb, pipeline, _), layers in steps.items():
        slopes = {}
        for count, by_batches in layers.items():
            low, high = min(by_batches), max(by_batches)
            if low < high:
                slopes[count] = (by_batches[high] - by_batches[low]) / (high - low)
        if len(slopes) > 1:
            low, high = min(slopes), max(slopes)
            layer = (slopes[high] - slopes[low]) / (high - low) * pipeline
            found.setdefault((hidden, tensor, mb), []).append(layer)
    for key, several in found.items():
        if max(several) - min(several) > 1e-8:
            raise ValueError(f"profiled: layers {key} take {min(several)} to {max(several)} s; expected the same in all rows")
    return {key: mean(several) for key, several in sorted(found.items())}


def profiled(data: Path) -> dict:
    """What the rows on one node were computed from, and what such layers cost here."""
    rows = rows_of(data, "one-node")
    series, lines = on_lines(rows)
    layers = []
    for (hidden, tensor, mb), seconds in traced_layers(rows).items():
        device, host = layer_seconds(replace(rows[0], hidden=hidden, layers=1, batch=2 * mb), mb, tensor)
        layers.append({"hidden": hidden, "tensor": tensor, "micro_batch": mb, "traced": seconds, "device": device, "host": host})
    return {"rows": len(rows), "series": series, "on_lines": lines, "layers": layers}


def layer_seconds(row: Row, micro_batch: int, tensor: int) -> tuple[float, float]:
    """Seconds of the device, with the sums of activations, and of the host for the forward and backward pass of the layer of a
    network that has one, without sequence parallelism."""
    sums = PlanSums(GraphTables(network_of(row), machine_of(row)), Adam())
    plan = parse_plan(f"t{tensor}{' nosp' if tensor > 1 else ''} p1 d1 mb{micro_batch}")
    table, own = sums.tables.of(plan), [node.number for node in sums.graph if node.name.startswith("h.0.")]
    reads = np.isin(sums.tables.read_node, own)
    device, host = table.seconds[own, 0:4:2].sum(), table.seconds[own, 1:4:2].sum()
    return float(device + (table.read_seconds.sum(axis=1) + table.read_hidden)[reads].sum()), float(host)


def said_of_rows(found: dict) -> str:
    """What the rows on one node are."""
    are = "computed, not measured" if found["on_lines"] == found["series"] else "not all computed"
    return (
        f"profiled      {found['rows']:>4} rows: {are}; {found['on_lines']} of {found['series']} series that differ in the number "
        "of micro-batches alone lie on a line to the nanosecond"
    )


def layers_table(found: dict) -> Table:
    """The layers that they were computed from, beside costs of today. Milliseconds."""
    titles = ("hidden", "t", "mb", "forward and backward, traced", "device here", "host here")
    table = Table(*(Column(title, justify="right") for title in titles))
    for one in found["layers"]:
        sizes = (f"{one['hidden']:,}", str(one["tensor"]), str(one["micro_batch"]))
        table.add_row(*sizes, *(f"{one[key] * 1e3:.2f}" for key in ("traced", "device", "host")))
    return table


def nccl(data: Path) -> dict:
    """NCCL's all-reduce within a node of A100."""
    errors = []
    machine = load_machine("a100", 8)
    with (data / "nccl-allreduce-a100.csv").open() as file:
        for row in csv.DictReader(file):
            gpus, nbytes = int(row["gpus"]), int(row["bytes"])
            seconds = collective(machine, range(gpus)).seconds(ring_bytes(gpus, nbytes))
            errors.append(seconds / float(row["nanoseconds"]) * 1e9 - 1)
    return {
        "rows": len(errors), "mean_error": mean(map(abs, errors)), "bias": mean(errors), "largest_error": max(errors, key=abs),
        "mean_error_fitted": mean(map(abs, errors[::2])), "mean_error_held": mean(map(abs, errors[1::2])),
    }


def said(name: str, found: dict) -> str:
    """A summary as a line."""
    text = f"{name:<14}{found['rows']:>4} rows: off by {found['mean_error']:.1%}"
    if "mean_error_along_sequence" in found:
        text += f" (cut along the sequence {found['mean_error_along_sequence']:.1%})"
    for key in ("fitted", "held"):
        if f"mean_error_{key}" in found:
            text += f" ({key} {found[f'mean_error_{key}']:.1%})"
    text += f", bias {found['bias']:+.1%}, at most {found['largest_error']:+.0%}"
    if "tau" in found:
        text += f"; {found['tasks']} tasks: tau {found['tau']:.2f}, regret {found['regret']:.1%}"
        text += f", {found['largest_regret']:.0%} at most; of {found['near']} at most {NEAR:.0%}"
    return text


def _priced(data: Path, group: str, sample: int, each: bool, as_json: bool) -> dict[str, dict]:
    """Say what the rows that are priced are predicted to take, by group; return the groups' summaries."""
    if group == "products":
        totals = product_groups(data)
    else:
        groups = predicted_groups(data, sample)
        totals = {name: summary_of_group(rows) for name, rows in groups.items()}
        for rows in groups.values() if each else ():
            for one in rows:
                click.echo(str(one), err=as_json)
    for name, found in totals.items():
        click.echo(said_of_group(name, found), err=as_json)
    return totals


ROWS = {"published": lambda: published("a100"), "h100": lambda: published("h100")}  # groups that need no files


@click.command(cls=Several, help=__doc__.split("\n\n")[0])
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="The folder of the files.")
@click.option("--group", "groups", multiple=True, type=click.Choice(GROUPS), help="Default: all that there are data for.")
@click.option("--sample", default=1, show_default=True, help="Predict every so many rows only.")
@click.option("--whole", "evaluated", is_flag=True, help="Evaluate whole steps.")
@click.option("--rows", "each", is_flag=True, help="Say every row.")
@click.option("--json", "as_json", is_flag=True)
def main(data: Path | None, groups: tuple[str, ...], sample: int, evaluated: bool, each: bool, as_json: bool) -> None:
    totals: dict[str, dict] = {}
    done: list[tuple[Row, float]] = []
    for group in groups or GROUPS:
        if data is None and group not in ROWS:
            continue
        if group == "nccl":
            totals[group] = nccl(data)
        elif group == "profiled":
            totals[group] = profiled(data)
        elif group in ("steps", "products"):
            totals |= _priced(data, group, sample, each, as_json)
        else:
            of_group = []
            for row in (ROWS[group]() if group in ROWS else rows_of(data, group))[::sample]:
                start = time.perf_counter()
                of_group.append((row, (whole if evaluated else priced)(row)))
                if each:
                    predicted, took = of_group[-1][1], time.perf_counter() - start
                    click.echo(
                        f"{row.of}, {row.plan}: {predicted:.4g} s, measured {row.seconds:.4g}: {predicted / row.seconds - 1:+.1%} "
                        f"(took {took:.1f} s)", err=as_json,
                    )  # fmt: skip
            totals[group] = summary(of_group)
            if not evaluated and any(" nosp" in row.plan for row, _ in of_group):
                cut = summary([(row, priced(along_sequence(row))) for row, _ in of_group])
                totals[group] |= {f"{key}_along_sequence": cut[key] for key in ("mean_error", "bias")}
            done += of_group
        if group in totals:
            click.echo(said_of_rows(totals[group]) if group == "profiled" else said(group, totals[group]), err=as_json)
            if group == "profiled":
                Console(stderr=as_json).print(layers_table(totals[group]))
    if as_json:
        rows = [
            {"group": r.group, "task": r.of, "plan": r.plan, "seconds": s, "measured_seconds": r.seconds} for r, s in done
        ]
        click.echo(json.dumps({"benchmark": "measured_elsewhere", "groups": totals, "rows": rows}))


if __name__ == "__main__":
    main()
