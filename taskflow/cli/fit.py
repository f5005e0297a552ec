"""taskflow fit: which usual ways to train a model fit a machine, with which batch."""

from __future__ import annotations

import functools
from dataclasses import asdict, replace
from typing import Any

import click

from taskflow.cli.dealing import dealing
from taskflow.cli.imported import HUGGING_FACE
from taskflow.cli.options import emit, output_options, problem_options
from taskflow.cli.problem import make_problem
from taskflow.cli.progress import working
from taskflow.cli.sections import SectionedCommand
from taskflow.cli.tables import nbytes, render, tell, three
from taskflow.machine import load_machine
from taskflow.optimizer import Deadline, WayToShard, expert_imbalance, step_units, ways_to_deal, ways_to_shard

SAMPLES = 4  # of a device, if nobody says how many: enough to plan steps with several at a time
PATIENCE_SECONDS = 20.0  # after which sizes are by closed form alone


@click.command("fit", cls=SectionedCommand)
@functools.partial(problem_options, rule="adam")
@output_options
def fit_command(
    model: str, machine: str, devices: int | None, batch: int | None, rule: str, as_json: bool, quiet: bool, **asked: Any
) -> None:
    """Say which usual ways to train MODEL fit the memory: DDP, ZeRO's stages, FSDP, tensor and expert parallelism.

    For each: the memory that a device needs for one sample at a time, the most samples that a replica takes at a time (more are
    accumulated), and the fewest devices on which one sample fits. Gradients stay until the update, as PyTorch and Megatron-LM
    keep them. No plan is searched: go on with `taskflow search`.

    \b
    Examples:
      taskflow fit hf:config.json -m h100 -n 8
      taskflow fit llama --size 70B --dtype bf16 -m h100 -n 64
      taskflow fit llama --dtype bf16 -m a100 -n 8 --set steps=4096 --json
    """
    if batch is None and (":" not in model or model.startswith(HUGGING_FACE)) and not model.endswith((".onnx", ".pt2")):
        batch = SAMPLES * len(load_machine(machine, devices).processors)
    problem = make_problem(model=model, machine=machine, devices=devices, batch=batch, rule=rule, **asked)
    count, patience = len(problem.machine.processors), Deadline(PATIENCE_SECONDS)
    ways: list[WayToShard] = []
    with working("memory") as display:
        dealt = dealing(problem, None) or problem
        for of, listed in ((problem, ways_to_shard), (dealt, ways_to_deal)):
            for way in listed(of.graph, of.machine, of.evaluator.rule, of.memory_check, lambda: patience.expired):
                ways.append(way)
                display.say(f"memory: {way.name}")
    units = step_units(problem.graph, problem.machine, problem.evaluator.rule, 0.0)
    tokens = units.tokens // units.samples if units.tokens else None
    have = min(processor.memory_bytes for processor in problem.machine.processors)
    smallest = min((way for way in ways if way.devices), key=lambda way: way.devices or 0, default=None)
    if as_json:
        emit({
            **problem.header(), "dtype": str(problem.graph.dtype), "memory_bytes": have, "tokens_per_sample": tokens,
            "ways": [_row(way) for way in ways], "smallest": smallest and {"name": smallest.name, "devices": smallest.devices},
        })
        return
    if not quiet:
        size = f"a sample is {tokens:,} tokens" if tokens else "one sample at a time"
        tell(f"{problem.graph} on {problem.machine}; {rule}; {size}; a device has {nbytes(have)}")
    tell(_table(ways, count, tokens))
    if (factor := expert_imbalance(dealt.graph)) is not None:
        tell(f"experts: places for {factor:.4g} times the mean of tokens")
    if not ways[0].accumulates:
        tell("batch normalisation, or the loss, takes all samples of a step together: none are accumulated, more need more devices")
    if smallest is None:
        tell("no cluster that was looked at is large enough; search for a plan with stages: taskflow search")
    elif not quiet:
        tell(f"smallest cluster of these: {smallest.devices} device{'' if smallest.devices == 1 else 's'} ({smallest.name})")
        tell("GB of a device with one sample at a time; most samples that a replica takes at a time; ~: closed form, not planned")
        tell("gradients stay until the update, as PyTorch and Megatron-LM keep them")


def _row(way: WayToShard) -> dict[str, Any]:
    return {
        "name": way.name, "plan": str(way.plan), "peak_memory_bytes": round(way.nbytes),
        "peak_memory_is": "planned" if way.planned else "estimate", "closed_form_bytes": {
            key: round(value) for key, value in asdict(way.memory).items()
        },
        "fits_memory": way.samples > 0, "largest_micro_batch": way.samples, "largest_is": "planned" if way.known else "estimate",
        "smallest_devices": way.devices, "accumulates": way.accumulates,
    }


def _table(ways: list[WayToShard], count: int, tokens: int | None) -> str:
    lines = []
    for way in ways:
        plan = way.most if way.samples else way.plan
        lines.append([
            way.name, str(replace(plan, pipeline=1)), *(three(part / 1e9) for part in (
                way.memory.weights, way.memory.gradients, way.memory.state, way.memory.activations
            )),
            f"{'' if way.planned else '~'}{three(way.nbytes / 1e9)}",
            f"{'' if way.known else '~'}{way.samples}" if way.samples else "none",
            f"{way.samples * (way.plan.data or 1):,}", f"{way.samples * tokens:,}" if tokens else "",
            f"{way.devices:,}" if way.devices else "none",
        ])
    heads = [
        "way", "plan", "weights", "gradients", "state", "activations", "GB in all", "most samples", "of all", "tokens",
        "least devices",
    ]
    return render(heads, lines, words=(0, 1), spare=(8, 9, 3, 4, 5, 2))
