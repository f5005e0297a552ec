"""Predicted against measured training steps of others: every row of the given files, and single published figures.

    python benchmarks/measured_elsewhere.py --data DIR [--group one-node several-nodes] [--sample 5] [--whole] [--rows]

--data has the files that are not part of the project (docs/guide/trust.md says where they come from): vtrain-one-node.csv,
vtrain-several-nodes.csv, nccl-allreduce-a100.csv. Their networks are GPT as Megatron-LM has it (vocabulary 51,200, float16, Adam,
layers recomputed, 1F1B); their GPUs are A100 of 80 GB, 8 a node, with 4 cards of 200 Gb/s for each node. Steps are put together
from one layer (`layers_alone`); with --whole they are evaluated as `taskflow simulate` does it, which takes minutes a row.

For each group of rows: mean absolute error (per cent of the measured time), bias, largest error, and over all plans of one
network, batch and number of GPUs Kendall's tau, the regret of the plan that is predicted to be fastest, and of how many it is
at most 3 %. ``fitted`` are the rows (every other one) to which constants were fitted (the source entries of a100.json name
them), ``held`` the others.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import mean, median

import click
from layers_alone import LayersAlone, Sizes
from several import Several

from taskflow.machine import Cluster, collective, load_machine, ring_bytes
from taskflow.mapper import map_graph
from taskflow.mapper.hybrid import HybridParallel
from taskflow.mapper.notation import parse_plan
from taskflow.models import build
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.trust import MEASURED, Features
from taskflow.optimizer.trust.expected_error import expected
from taskflow.optimizer.trust.measured import VTRAIN
from taskflow.rules import Adam

VOCABULARY = 51_200
GROUPS = ("nccl", "one-node", "several-nodes", "published")
NEAR = 0.03  # regret that is as good as none


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
    fitted: bool
    vocabulary: int = VOCABULARY
    four_cards: bool = True


def published() -> list[Row]:
    """The single figures of `taskflow.optimizer.trust` that are from other sources than the files."""
    return [
        Row(
            "published", m.source, m.device, m.devices, m.hidden, m.heads, m.layers, m.sequence, m.batch,
            f"{m.plan} recompute=full", m.seconds, False, m.vocabulary, False,
        )
        for m in MEASURED if m.source != VTRAIN
    ]  # fmt: skip


def four_cards(gpus: int) -> Cluster:
    """A100 nodes with four network cards, each of which two neighbours reach over a PCIe switch."""
    machine = load_machine("a100", gpus)
    if gpus <= 8:
        return machine
    (node,) = machine.nodes
    nvlink, network = node.wires
    cards = [f"card{i}" for i in range(4)]
    wires = [nvlink]
    for i, card in enumerate(cards):
        wires += [
            replace(network, between=(f"gpu[{2 * i}{2 * i + 1}]", card), bytes_per_second=31.5e9, source="PCIe 4.0 x16"),
            replace(network, between=(card, "network")),
        ]
    return replace(machine, nodes=(replace(node, switches=(*node.switches, *cards), wires=tuple(wires)),))


def rows_of(data: Path, group: str) -> list[Row]:
    """The rows of a file of measured steps."""
    found = []
    with (data / f"vtrain-{group}.csv").open() as file:
        for number, row in enumerate(csv.DictReader(file)):
            n = {key: int(row[key]) for key in row if key not in ("milliseconds", "parameters_billion")}
            of = f"{n['gpus']} GPUs, batch {n['global_batch']}, {n['layers']} x {n['hidden']}"
            plan = f"t{n['tensor']} p{n['pipeline']} d{n['data']} mb{n['micro_batch']} recompute=full"
            found.append(Row(
                group, of, "a100", n["gpus"], n["hidden"], n["heads"], n["layers"], n["sequence"], n["global_batch"], plan,
                float(row["milliseconds"]) / 1e3, number % 2 == 0,
            ))  # fmt: skip
    return found


def whole(row: Row) -> float:
    """Seconds of a step."""
    graph = build(
        "GPT-2", batch=row.batch, steps=row.sequence, vocabulary=row.vocabulary, hidden=row.hidden, heads=row.heads,
        layers=row.layers, dtype="float16",
    )
    machine = four_cards(row.gpus) if row.four_cards else load_machine(row.machine, row.gpus)
    return make_evaluator(graph, machine, rule=Adam()).set(map_graph(HybridParallel(row.plan), graph, machine))


_MACHINES: dict[tuple[int, bool], LayersAlone] = {}


def by_layers(row: Row) -> float:
    """The same, put together from one layer."""
    key, gpus = (row.gpus, row.four_cards), max(8, row.gpus)
    if key not in _MACHINES:
        _MACHINES[key] = LayersAlone(four_cards(gpus) if row.four_cards else load_machine(row.machine, gpus))
    sizes = Sizes(row.hidden, row.heads, row.layers, row.sequence, row.batch, row.vocabulary)
    return _MACHINES[key].seconds(sizes, row.plan)


def tau(pairs: Sequence[tuple[float, float]]) -> float:
    """Kendall's rank correlation (tau a) of (predicted, measured)."""
    signs = [(a[0] - b[0]) * (a[1] - b[1]) for a, b in combinations(pairs, 2)]
    return sum((s > 0) - (s < 0) for s in signs) / len(signs)


def regret(pairs: Sequence[tuple[float, float]]) -> float:
    """How much slower the plan that is predicted to be fastest was than the fastest one."""
    return min(pairs)[1] / min(measured for _, measured in pairs) - 1


def summary(rows: Sequence[tuple[Row, float]]) -> dict:
    """Errors of (row, predicted seconds), and what plans of one task say."""
    errors = [predicted / row.seconds - 1 for row, predicted in rows]
    found = {
        "rows": len(rows), "mean_error": mean(map(abs, errors)), "bias": mean(errors), "largest_error": max(errors, key=abs),
    }
    for name, fitted in (("fitted", True), ("held", False)):
        part = [abs(e) for e, (row, _) in zip(errors, rows) if row.fitted == fitted]
        if part:
            found[f"mean_error_{name}"] = mean(part)
    tasks: dict[str, list[tuple[float, float]]] = {}
    for row, predicted in rows:
        tasks.setdefault(row.of, []).append((predicted, row.seconds))
    several = [pairs for pairs in tasks.values() if len(pairs) > 2]
    if several and all(row.group != "published" for row, _ in rows):
        found |= {
            "tasks": len(several), "tau": median(map(tau, several)), "regret": median(map(regret, several)),
            "largest_regret": max(map(regret, several)), "near": sum(regret(pairs) <= NEAR for pairs in several),
        }
    return found


def coverage(rows: Sequence[tuple[Row, float]]) -> float:
    """How often a measured time lies in the interval that is expected from the measured plans of other networks and batches."""
    within = 0
    for row, predicted in rows:
        plan = parse_plan(row.plan)
        weights = float(12 * row.hidden**2 * row.layers + row.vocabulary * row.hidden)
        own = Features(weights, plan.tensor, plan.pipeline, plan.data or 1, float((plan.micro_batch or 1) * row.sequence))
        others = [m for m in MEASURED if (m.hidden, m.layers, m.devices) != (row.hidden, row.layers, row.gpus)]
        found = expected(own, predicted, others)
        assert found.low is not None and found.high is not None
        within += found.low <= row.seconds <= found.high
    return within / len(rows)


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
    for key in ("fitted", "held"):
        if f"mean_error_{key}" in found:
            text += f" ({key} {found[f'mean_error_{key}']:.1%})"
    text += f", bias {found['bias']:+.1%}, at most {found['largest_error']:+.0%}"
    if "tau" in found:
        text += f"; {found['tasks']} tasks: tau {found['tau']:.2f}, regret {found['regret']:.1%}"
        text += f", {found['largest_regret']:.0%} at most; of {found['near']} at most {NEAR:.0%}"
    if "coverage" in found:
        text += f"; {found['coverage']:.0%} within the expected interval"
    return text


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
        if data is None and group != "published":
            continue
        if group == "nccl":
            totals[group] = nccl(data)
        else:
            of_group = []
            for row in (rows_of(data, group) if group != "published" else published())[::sample]:
                start = time.perf_counter()
                of_group.append((row, (whole if evaluated else by_layers)(row)))
                if each:
                    predicted, took = of_group[-1][1], time.perf_counter() - start
                    click.echo(
                        f"{row.of}, {row.plan}: {predicted:.4g} s, measured {row.seconds:.4g}: {predicted / row.seconds - 1:+.1%} "
                        f"(took {took:.1f} s)", err=as_json,
                    )  # fmt: skip
            totals[group] = {**summary(of_group), "coverage": coverage(of_group)}
            done += of_group
        if group in totals:
            click.echo(said(group, totals[group]), err=as_json)
    if as_json:
        rows = [
            {"group": r.group, "task": r.of, "plan": r.plan, "seconds": s, "measured_seconds": r.seconds} for r, s in done
        ]
        click.echo(json.dumps({"benchmark": "measured_elsewhere", "groups": totals, "rows": rows}))


if __name__ == "__main__":
    main()
