"""One measurement of benchmarks/gpu.py, in a process of its own: what it prints last is a JSON object.

    python benchmarks/gpu_worker.py KIND [--network NAME] [--precision fp32] [--steps 20] [--preset paper] [--device gpu]

KIND: device (what is there, and how fast its products are), taskflow, one-by-one (taskflow without CUDA graphs), eager and compile
(PyTorch), losses (against the CPU's), accuracy (predicted against measured, several strategies).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import click
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
TF32_MODES = {"fp32": False, "tf32": True}
PROCESSORS = 4
LOSS_STEPS = 20
PRODUCT = 8192
"""Rows and columns of the product that says what a precision reaches."""
STRATEGIES = ("data", "model", "expert", "random")


def made(name: str, preset: str) -> tuple[str, Any, Any, dict[str, Any]]:
    """The network's name as it is known, its config, graph and a batch."""
    from taskflow.models import build, find
    from taskflow.training.data import random_feeds

    known, model = find(name)
    config = getattr(model, preset)
    graph = build(known, config.batch, preset=preset)
    return known, config, graph, random_feeds(graph)


def flops(graph: Any) -> int:
    """Of one training step: forward and backward of every operator."""
    from taskflow.operators.operator import iteration_space

    total = 0
    for node in graph:
        space = iteration_space(node.operator, node.specs)
        total += node.operator.flops(node.specs, space) + node.operator.backward_flops(node.specs, space)
    return total


def timed_steps(step: Callable[[], object], warm: int, steps: int) -> float:
    """The median's seconds of a step, which ends when its loss is known."""
    for _ in range(warm):
        step()
    times = []
    for _ in range(steps):
        began = perf_counter()
        step()
        times.append(perf_counter() - began)
    return median(times)


# ---- kinds -----------------------------------------------------------------------------------------------------------
def device_facts(device: str) -> dict[str, Any]:
    """The device, its libraries, and the products' rate at each precision."""
    from taskflow.kernels import kernels_on

    found: dict[str, Any] = {"flops_per_second": {}}
    for precision in ("fp32", "tf32", "bf16"):
        os.environ["TASKFLOW_PRECISION"] = precision
        kernels = kernels_on(device)
        of: Any = kernels.device
        size = PRODUCT if device == "gpu" else 256
        a, b, out = (kernels.xp.ones((size, size), np.float32) for _ in range(3))
        product = partial(kernels.matmul, a, b, out=out)
        for _ in range(3):
            product()
        seconds = median(of.timed(product) for _ in range(5))
        found["flops_per_second"][precision] = 2 * size**3 / seconds
        found |= {"name": of.name, "without_cudnn": getattr(kernels, "without_cudnn", ""), **(of.facts if device == "gpu" else {})}
        if device == "gpu":
            found["libraries"] = of.libraries
    return found


def ours(network: str, precision: str, steps: int, device: str, preset: str, graphs: bool) -> dict[str, Any]:
    """A training step of taskflow on one processor: seconds, what it takes to ask for it, and what cuDNN did not do."""
    import taskflow
    from taskflow.kernels import kernels_on

    os.environ["TASKFLOW_PRECISION"], os.environ["TASKFLOW_GRAPHS"] = precision, "1" if graphs else "0"
    _, config, graph, batch = made(network, preset)
    kernels = kernels_on(device)
    strategy, _ = taskflow.choose("data", graph, taskflow.host(1))
    run = taskflow.Executor(graph, strategy, taskflow.SGD(0.01), kernels=kernels)
    seconds = timed_steps(lambda: run.train(batch), 4, steps)
    program = run.program("train")
    asks = []
    for _ in range(5):
        kernels.device.synchronize()
        began = perf_counter()
        program.run()
        asks.append(perf_counter() - began)
    kernels.device.synchronize()
    convolutions = getattr(kernels, "convolutions", None)
    return {
        "batch": config.batch, "step_seconds": seconds, "ask_seconds": median(asks), "tasks": len(program.actions),
        "recorded_tasks": program.recording.recorded if program.recording else 0, "flops": flops(graph), "loss": run.train(batch),
        "declined": {} if convolutions is None else convolutions.declined, "without_cudnn": getattr(kernels, "without_cudnn", ""),
        "device": kernels.device.name,
    }


def theirs(side: str, network: str, precision: str, steps: int, device: str, preset: str) -> dict[str, Any]:
    """PyTorch, eager or compiled."""
    import torch
    import torch_networks

    if device == "gpu" and not torch.cuda.is_available():
        raise RuntimeError("PyTorch is installed without CUDA, or sees no GPU")
    there = "cuda" if device == "gpu" else "cpu"
    allowed = TF32_MODES.get(precision, True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    torch.manual_seed(0)
    known, config, graph, batch = made(network, preset)
    net = torch_networks.NETWORKS[known](config).to(there)
    run = torch.compile(net) if side == "compile" else net
    rule = torch.optim.SGD(net.parameters(), lr=0.01)

    def step() -> float:
        given = {key: torch.from_numpy(value).to(there) for key, value in batch.items()}
        with torch.autocast(there, torch.bfloat16, enabled=precision == "bf16"):
            loss = run(**given)
        rule.zero_grad()
        loss.backward()
        rule.step()
        return float(loss.detach())

    return {"batch": config.batch, "step_seconds": timed_steps(step, 5, steps), "torch": torch.__version__, "flops": flops(graph)}


def losses(network: str, device: str) -> dict[str, Any]:
    """The largest relative difference of losses from the CPU's over some steps in fp32, by strategy, on virtual processors."""
    import taskflow
    from taskflow.kernels import NumpyKernels, kernels_on

    os.environ["TASKFLOW_PRECISION"] = "fp32"
    _, _, graph, batch = made(network, "small")
    kernels, found = kernels_on(device), {}

    def run(of: Any, strategy: Any) -> np.ndarray:
        trained = taskflow.Executor(graph, strategy, taskflow.SGD(0.01, momentum=0.9), seed=1, kernels=of)
        return np.array([trained.train(batch) for _ in range(LOSS_STEPS)])

    one, _ = taskflow.choose("data", graph, taskflow.host(1))
    expected = run(NumpyKernels(), one)
    for name in ("data", "expert", "random"):
        strategy, _ = taskflow.choose(name, graph, taskflow.host(PROCESSORS), seed=1)
        found[name] = float(np.max(np.abs(run(kernels, strategy) / expected - 1)))
    return {"steps": LOSS_STEPS, "processors": PROCESSORS, "relative_difference": found, "within": max(found.values()) < 1e-3}


def accuracy(network: str, precision: str, steps: int, device: str, preset: str) -> dict[str, Any]:
    """Predicted and measured steps of one processor, and of several virtual ones that share it: these take turns, so the sum of
    their tasks' seconds is predicted. Kendall's tau says whether the order is kept."""
    import taskflow
    from taskflow.kernels import kernels_on
    from taskflow.machine import load_machine, save
    from taskflow.optimizer import make_evaluator
    from taskflow.optimizer.cost import choose_costs
    from taskflow.runtime.calibrate import measure
    from taskflow.runtime.transport import LocalTransport
    from taskflow.tasks import Kind

    os.environ["TASKFLOW_PRECISION"] = precision
    _, _, graph, batch = made(network, preset)
    kernels, rule = kernels_on(device), taskflow.SGD(0.01)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "here.json"
        save(measure(LocalTransport(), "here", kernels, processors=PROCESSORS), path)
        machine = load_machine(str(path))
        costs = choose_costs("measured", graph, machine, rule, ranks=1, kernels=kernels, folder=Path(folder))
        evaluator = make_evaluator(graph, machine, costs=costs, rule=rule)
        for name, processors in (("one", 1), *((name, PROCESSORS) for name in STRATEGIES)):
            chosen, _ = taskflow.choose("data" if processors == 1 else name, graph, taskflow.host(processors), seed=1)
            tasks = evaluator.lowered(on_all(chosen, PROCESSORS))
            of = machine.processors[0].device
            predicted = sum(
                costs.memory_seconds(Kind.MOVE, 2 * t.nbytes, 0, device=of, runs=max(t.runs)) if t.kind is Kind.COPY
                else evaluator.costs.task(t)
                for t in tasks
            )
            run = taskflow.Executor(graph, chosen, rule, kernels=kernels)
            measured = timed_steps(lambda run=run: run.train(batch), 3, steps)
            rows.append({"strategy": name, "predicted_seconds": predicted, "measured_seconds": measured,
                         "error": predicted / measured - 1})
            run.close()
            del run
    signs = [
        np.sign((a["predicted_seconds"] - b["predicted_seconds"]) * (a["measured_seconds"] - b["measured_seconds"]))
        for a, b in combinations(rows, 2)
    ]
    return {"strategies": rows, "error": rows[0]["error"], "kendall_tau": float(np.mean(signs))}


def on_all(strategy: Any, processors: int) -> Any:
    """The same strategy, for a machine of more processors."""
    from dataclasses import replace

    return replace(strategy, processors=processors)


@click.command()
@click.argument("kind")
@click.option("--network", default="RNNLM")
@click.option("--precision", default="fp32")
@click.option("--steps", default=20)
@click.option("--preset", default="paper")
@click.option("--device", default="gpu")
def main(kind: str, network: str, precision: str, steps: int, preset: str, device: str) -> None:
    """Measure one thing."""
    try:
        if kind == "device":
            row = device_facts(device)
        elif kind in ("taskflow", "one-by-one"):
            row = ours(network, precision, steps, device, preset, kind == "taskflow")
        elif kind in ("eager", "compile"):
            row = theirs(kind, network, precision, steps, device, preset)
        elif kind == "losses":
            row = losses(network, device)
        elif kind == "accuracy":
            row = accuracy(network, precision, steps, device, preset)
        else:
            raise ValueError(f"kind must be device, taskflow, one-by-one, eager, compile, losses or accuracy, got {kind!r}")
        click.echo(json.dumps(row))
    except Exception as error:
        traceback.print_exc()
        click.echo(f"{type(error).__name__}: {' '.join(str(error).split())}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
