"""How fast strategies are evaluated: by full simulation (paper, Algorithm 1) and, if asked for, by delta simulation (Algorithm 2),
with the update of the task graph included.

    python benchmarks/simulator.py [--models NMT RNNLM ...] [--devices 8 64 ...] [--algorithms full delta] [--seconds 2]
        [--steps-per-operator 10 1] [--json]
    python benchmarks/simulator.py --plans [all | llama-405B ...]

For each network and number of devices, from data parallelism (``start`` data; gradients by a library's all-reduces) and
from a random strategy. A proposal gives one random operator random degrees (powers of two) and a random contiguous range
of devices. ``proposals_per_second`` evaluates every proposal to its end and accepts none. ``decided`` only asks whether it would be
accepted by the rule of Metropolis-Hastings, with the threshold drawn first and passed on as the limit, as searches do, and stays
where it is; ``walk`` goes where that leads, mostly to plans of many more tasks. Rates are per second of processor time;
tasks_per_second counts tasks of the current strategy for each evaluation to its end. With --steps-per-operator
recurrent networks are unrolled otherwise than the paper's ten steps an operator.

``--plans``: public plans of public decoders instead, each once, as `taskflow simulate` does, without what it imports: seconds of
processor time for the network, its strategy, the step, and the memory of its devices. Numbers of 16 bits, Adam, no dropout.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import product
from math import inf, log, prod
from random import Random
from time import process_time
from typing import Any

import click
from several import Several, one_of

from taskflow.collector import paused_collector
from taskflow.graph import Node
from taskflow.machine import load_machine
from taskflow.mapper import DataParallel, HybridParallel, OpConfig, Strategy, map_graph
from taskflow.models import MODELS, build, with_places
from taskflow.operators.operator import Soap
from taskflow.optimizer import MemoryCheck, make_evaluator
from taskflow.optimizer.cost import Roofline
from taskflow.optimizer.evaluate import ALGORITHMS, Evaluator, evaluator
from taskflow.rules import SGD, Adam

TEMPERATURE = 0.005  # of the Metropolis rule, relative to the current time


@dataclass(frozen=True, slots=True)
class Public:
    """A decoder, on how many devices of which machine it is trained, and the plans."""

    network: str
    batch: int
    machine: str
    devices: int
    plans: tuple[str, ...]
    sizes: dict[str, Any] = field(default_factory=dict)


PUBLIC = {
    "llama-405B": Public("Llama-405B", 1536, "h100", 1024, (
        "t8 p16 d8 mb1 v8 zero1", "t8 p16 d8 mb1 v8 zero1 recompute=full", "t8 c2 p8 d8 mb1 v8 zero1 recompute=selective",
        "t8 c2 p8 d8 mb1 v8", "t8 p8 d16 mb1 zero1", "t8 d128 mb1 zero3 recompute=full",
    )),
    "llama-70B": Public("Llama-70B", 1024, "h100", 1024, ("t8 p8 d16 mb1 v10 zero1", "t4 p4 d64 mb1 v5 recompute=selective")),
    "gpt-175B": Public("GPT-3-175B", 1536, "a100", 1024, (
        "t8 p8 d16 mb1 v2 recompute=full", "t8 p16 d8 mb1 v6 zero1", "t8 p8 d16 mb1 recompute=selective",
    ), {"dropout": 0.0}),
    "mt-nlg-530B": Public("GPT-3-175B", 1920, "a100", 2240, ("t8 p35 d8 mb1 recompute=full",), {
        "dropout": 0.0, "hidden": 20_480, "heads": 128, "layers": 105,
    }),
    "bloom-176B": Public("GPT-3-175B", 2048, "a100", 384, ("t4 p12 d8 mb2 zero1 recompute=full", "t4 p12 d8 mb2"), {
        "dropout": 0.0, "hidden": 14_336, "heads": 112, "layers": 70, "vocabulary": 250_880,
    }),
    "glm-130B": Public("Llama-70B", 4224, "a100", 768, ("t4 p8 d24 mb1 zero1 recompute=full", "t4 p8 d24 mb2"), {
        "hidden": 12_288, "inner": 32_768, "heads": 96, "key_heads": 96, "layers": 70, "vocabulary": 150_528, "steps": 2048,
    }),
    "nemotron-340B": Public("Llama-70B", 2304, "h100", 768, ("t8 p12 d8 mb1 v8 zero1", "t8 p12 d8 mb1 v8 recompute=selective"), {
        "hidden": 18_432, "inner": 49_152, "heads": 96, "layers": 96, "vocabulary": 256_000, "steps": 4096,
    }),
    "mixtral-8x22B": Public("Mixtral-8x22B", 1024, "h100", 512, (
        "p8 d64 e8 mb1 zero1", "t2 p4 d64 e4 mb1 v14 zero1 recompute=selective",
    )),
    "dbrx": Public("Mixtral-8x7B", 2048, "h100", 512, ("p4 d128 e16 mb1 zero1", "t2 p4 d64 e8 mb1 v10 zero1"), {
        "hidden": 6144, "heads": 48, "layers": 40, "experts": 16, "chosen": 4, "expert_inner": 10_752, "vocabulary": 100_352,
        "steps": 4096,
    }),
    "qwen3-30B": Public("Mixtral-8x7B", 2048, "h100", 256, ("p2 d128 e32 mb1 zero1", "t4 p4 d16 e16 mb1 v12 zero1"), {
        "hidden": 2048, "heads": 32, "key_heads": 4, "head_size": 128, "layers": 48, "experts": 128, "chosen": 8,
        "expert_inner": 768, "vocabulary": 151_936, "steps": 4096,
    }),
    "qwen3-235B": Public("Mixtral-8x7B", 2048, "h100", 512, (
        "t2 p8 d32 e32 v4 mb1 zero1 recompute=selective", "t2 p8 d32 e32 v4 mb1", "t4 p16 d8 e8 mb1 zero1",
    ), {
        "hidden": 4096, "inner": 12_288, "heads": 64, "key_heads": 4, "head_size": 128, "layers": 94, "experts": 128, "chosen": 8,
        "expert_inner": 1536, "vocabulary": 151_936, "steps": 4096,
    }),
    "deepseek-v2": Public("DeepSeek-V3", 2304, "h100", 1024, ("p16 d64 e8 mb1 zero1", "p8 d128 e8 mb1 zero1 recompute=full"), {
        "hidden": 5120, "layers": 60, "inner": 12_288, "experts": 160, "chosen": 6, "expert_inner": 1536, "shared": 2, "dense": 1,
        "vocabulary": 102_400,
    }),
    "deepseek-v3": Public("DeepSeek-V3", 2048, "h100", 1024, (
        "p16 d64 e64 mb1 zero1", "p16 d64 e64 mb1 zero1 recompute=full", "t4 p8 d32 e32 mb1 zero1", "t2 p16 d32 e32 mb1 zero1",
    )),
}


def public_row(name: str, of: Public, plan: str) -> dict[str, Any]:
    """One plan of a public decoder."""
    times = [process_time()]
    with paused_collector():
        graph = build(of.network, batch=of.batch, dtype="bfloat16", **of.sizes)
        graph = with_places(graph, 1.0) if " e" in plan else graph
        here = make_evaluator(graph, load_machine(of.machine, of.devices), rule=Adam())
        strategy = map_graph(HybridParallel(plan), graph, here.machine)
        times.append(process_time())
        seconds = here.set(strategy)
        times.append(process_time())
        peaks, planned = MemoryCheck(here).peaks(strategy)
        times.append(process_time())
    made, step, memory = (b - a for a, b in zip(times, times[1:]))
    return {
        "network": name, "devices": of.devices, "machine": of.machine, "plan": plan, "tasks": here.tasks,
        "made_seconds": made, "step_seconds": step, "memory_seconds": memory, "seconds": times[-1] - times[0],
        "iteration_seconds": seconds, "peak_memory_bytes": max(peaks), "planned": planned,
    }


def random_config(node: Node, devices: int, random: Random) -> OpConfig:
    """Powers of two as degrees, on a contiguous range of devices."""
    left, degrees = devices, [1] * len(node.dims)
    order = list(range(len(node.dims)))
    random.shuffle(order)
    for i in order:
        dim = node.dims[i]
        if dim.divisible and dim.soap is not Soap.REDUCTION:
            most = min(left, dim.size)
            degrees[i] = random.choice([1 << k for k in range(most.bit_length()) if 1 << k <= most])
            left //= degrees[i]
    first = random.randrange(devices)
    return OpConfig(tuple(degrees), tuple((first + i) % devices for i in range(prod(degrees))))


def every(here: Evaluator, moves: list[dict[str, OpConfig]], seconds: float) -> float:
    """Proposals a second when each is evaluated to the end."""
    start, count = process_time(), 0
    while process_time() - start < seconds:
        here.propose(moves[count % len(moves)])
        count += 1
    return count / (process_time() - start)


def decided(here: Evaluator, moves: list[dict[str, OpConfig]], seconds: float, random: Random) -> float:
    """Proposals a second when each is only to be accepted or not, at one strategy."""
    start, count = process_time(), 0
    while process_time() - start < seconds:
        here.propose(moves[count % len(moves)], here.seconds * (1 - TEMPERATURE * log(1 - random.random())))
        count += 1
    return count / (process_time() - start)


def walk(here: Evaluator, seconds: float, random: Random) -> tuple[float, float]:
    """Proposals a second of a Metropolis walk, and the share accepted."""
    nodes, devices = list(here.graph), here.strategy.processors
    start, count, accepted, spent = process_time(), 0, 0, 0.0
    while spent < seconds:
        node = random.choice(nodes)
        limit = here.seconds * (1 - TEMPERATURE * log(1 - random.random()))
        if here.propose({node.name: random_config(node, devices, random)}, limit) <= limit:
            here.accept()
            accepted += 1
        count += 1
        spent = process_time() - start
    return count / spent, accepted / count


def row(
    model: str, devices: int, start: str, algorithm: str, machine: str, seconds: float, steps: int | None
) -> dict[str, object]:
    graph = build(model, devices=devices, **({} if steps is None else {"steps_per_operator": steps}))
    described = load_machine(machine, devices)
    here = evaluator(graph, described, Roofline(described), SGD(0.1), algorithm=algorithm)
    random = Random(0)
    strategy = map_graph(DataParallel(), graph, here.machine)
    if start == "random":
        strategy = Strategy(devices, {n.name: random_config(n, devices, random) for n in graph}, strategy.syncs, "random")
    here.set(strategy)
    nodes, tasks = list(graph), here.tasks
    moves = []
    for _ in range(50):
        node = random.choice(nodes)
        moves.append({node.name: random_config(node, devices, random)})
    for move in moves:  # make the tables first, as a search's first seconds do
        here.propose(move, inf)
    rate = every(here, moves, seconds)
    decisions = decided(here, moves, seconds, random)
    walk(here, seconds, random)
    walking, accepted = walk(here, seconds, random)
    return {
        "model": model, "devices": devices, "machine": machine, "steps_per_operator": steps, "start": start, "algorithm": algorithm,
        "evaluator": type(here).__name__, "operators": len(nodes), "tasks": tasks,
        "tasks_per_second": rate * tasks, "proposals_per_second": rate,
        "decided_proposals_per_second": decisions,
        "walk_proposals_per_second": walking, "walk_accepted": accepted, "walk_tasks": here.tasks,
    }


@click.command(cls=Several)
@click.option("--models", multiple=True, type=one_of(MODELS), default=["NMT"])
@click.option("--devices", multiple=True, type=int, default=[4, 8, 16, 32, 64])
@click.option("--machine", default="k80", show_default=True, help="Preset whose first devices are used.")
@click.option("--algorithms", multiple=True, type=click.Choice(ALGORITHMS[1:]), default=["full"], help="One or several.")
@click.option("--seconds", default=1.0, show_default=True, help="Processor time of each measurement.")
@click.option("--steps-per-operator", multiple=True, type=click.IntRange(1), help="Of recurrent networks. One or several.")
@click.option("--plans", multiple=True, type=one_of(["all", *PUBLIC]), help="Public plans of these decoders instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    models: tuple[str, ...], devices: tuple[int, ...], machine: str, algorithms: tuple[str, ...], seconds: float,
    steps_per_operator: tuple[int, ...], plans: tuple[str, ...], as_json: bool,
) -> None:
    """Print tasks, tasks a second and proposals a second."""
    rows: list[dict[str, Any]] = []
    for name, of in PUBLIC.items() if plans else ():
        for plan in of.plans if name in plans or "all" in plans else ():
            found = public_row(name, of, plan)
            rows.append(found)
            if not as_json:
                click.echo(
                    f"{name:13} {of.devices:5} {of.machine}  {plan:50} {found['seconds']:6.1f} s ({found['made_seconds']:.1f} + "
                    f"{found['step_seconds']:.1f} + {found['memory_seconds']:.1f})  {found['iteration_seconds'] * 1e3:,.3f} ms  "
                    f"{found['peak_memory_bytes'] / 1e9:.2f} GB"
                )
    if plans:
        models = ()
    for model, steps, count, start, algorithm in product(
        models, steps_per_operator or (None,), devices, ("data", "random"), algorithms
    ):
        found = row(model, count, start, algorithm, machine, seconds, steps)
        rows.append(found)
        if not as_json:
            click.echo(
                f"{model + ('' if steps is None else f' by {steps}'):13} {count:4} devices  {start:6} {algorithm:5} "
                f"{found['tasks']:7} tasks  {found['tasks_per_second'] / 1e6:6.2f} M tasks/s  "
                f"{found['proposals_per_second']:8.0f} proposals/s  decided {found['decided_proposals_per_second']:8.0f}/s  walk "
                f"{found['walk_proposals_per_second']:8.0f}/s ({found['walk_accepted']:.0%} accepted)"
            )
    if as_json:
        click.echo(json.dumps({"benchmark": "simulator", "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
