"""Step times of exported modules on two gloo ranks (one thread each), beside what taskflow predicts for their plans.

    python benchmarks/export_steps.py [--networks llama ...] [--rounds 5] [--json]

Networks of tests/export/networks.py, somewhat larger. Predictions know gloo's messages (timed between the two ranks) and seconds
of operators, in two ways. ``ours``: taskflow's own kernels, timed one by one. They are not PyTorch's, nor does a module have the
overheads of Python, autograd and DTensor there. ``scaled``: the same times a factor for each network: what its module alone takes
in PyTorch, on both ranks at once with the whole batch, over what is predicted for that on one processor. No step of a plan is run
to predict one. Measured: the median over rounds of the fastest of a few steps, the update included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PLANS = {
    "llama": ["data", "d2 zero1", "d2 zero3", "t2", "p2 mb2"], "gpt": ["data", "t2", "p2 mb2"], "mixtral": ["data", "t2"],
    "resnet": ["data", "d2 zero1"],
}  # fmt: skip
SIZES: dict[str, dict[str, int]] = {
    "llama": {"width": 256, "heads": 8, "depth": 2}, "gpt": {"width": 256, "heads": 8, "depth": 2},
    "mixtral": {"width": 128, "depth": 2}, "resnet": {"channels": 48},
}  # fmt: skip
BATCH, STEPS, WORDS = 8, 128, 1024
IN_A_ROW = 3  # steps of one plan
SMALL, LARGE = 1 << 8, 1 << 22  # bytes that are added up to know gloo
SECONDS = 0.03  # to spend on a kernel's repeats


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds of a step. ``alone``: of the module on one rank; ``nearest``: whether the plan is one near what was asked for."""

    network: str
    plan: str
    nearest: bool
    alone: float
    ours: float
    scaled: float
    measured: float
    slowest: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(PLANS), default=list(PLANS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "export"), os.getcwd()]
    if options.worker:
        worker(options.worker, options.networks[0], options.rounds)
        return
    if not options.json:
        heads = "network | plan | alone ms | ours ms | scaled ms | measured ms | ours / measured | scaled / measured"
        print(f"| {heads} |\n{'|---' * 8}|", flush=True)
    every: list[dict[str, Any]] = []
    for name in options.networks:
        found, gloo = rows(name, options.rounds)
        every += [{**asdict(row), "gloo": gloo} for row in found]
        if options.json:
            continue
        for row in found:
            ms = " | ".join(f"{1e3 * seconds:.1f}" for seconds in (row.alone, row.ours, row.scaled, row.measured))
            ratios = f"{row.ours / row.measured:.2f} | {row.scaled / row.measured:.2f}"
            print(f"| {row.network} | {row.plan}{' (nearest)' if row.nearest else ''} | {ms} | {ratios} |", flush=True)
        print(f"gloo: {gloo['latency_seconds'] * 1e6:.0f} us a message, {gloo['bytes_per_second'] / 1e9:.2f} GB/s", file=sys.stderr)
    if options.json:
        print(json.dumps(every))


def networks_here() -> Any:
    """The networks at this benchmark's sizes."""
    import networks

    networks.BATCH, networks.STEPS, networks.WORDS = BATCH, STEPS, WORDS
    return networks


def graph_of(name: str) -> Any:
    """A network's graph."""
    import taskflow

    networks = networks_here()
    return taskflow.from_torch(networks.MODULES[name](**SIZES[name]), *networks.examples(name), name=name)


def rows(name: str, rounds: int) -> tuple[list[Row], dict[str, float]]:
    """Measure and predict a network's plans."""
    import taskflow
    from taskflow.export import exported

    graph, plans = graph_of(name), []
    with tempfile.TemporaryDirectory() as folder:
        for number, plan in enumerate(PLANS[name]):
            found = exported(graph, taskflow.choose(plan, graph, taskflow.load_machine("p100", 2))[0], "torch", "plan.py")
            Path(folder, f"plan_{number}.py").write_text(str(found.files["plan.py"]))
            plans.append(found)
        subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(Path(__file__)),
             "--worker", folder, "--networks", name, "--rounds", str(rounds)],
            cwd=folder, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )
        measured = json.loads(Path(folder, "measured.json").read_text())
    predictor = Predictor(graph, gloo_machine(measured["gloo"]))
    factor = measured["alone"] / predictor.alone()
    result = [
        Row(name, plan, bool(found.differences), measured["alone"], predictor(found.nearest, 1.0), predictor(found.nearest, factor),
            median(times), max(times))
        for plan, found, times in zip(PLANS[name], plans, measured["steps"])
    ]  # fmt: skip
    predictor.close()
    return result, measured["gloo"]


def gloo_machine(gloo: dict[str, float]) -> Any:
    """Two cores of this machine that exchange messages as gloo does, which copies through sockets: both are busy meanwhile."""
    from taskflow.machine import host

    machine = host(2)
    (node,) = machine.nodes
    (wire,) = node.wires
    wire = replace(
        wire, bytes_per_second=gloo["bytes_per_second"], latency_seconds=gloo["latency_seconds"], occupies_endpoints="both",
        source="gloo on this machine",
    )
    return replace(machine, nodes=(replace(node, wires=(wire,)),))


class Predictor:
    """Step times of a network's plans by the seconds of taskflow's kernels, timed now."""

    def __init__(self, graph: Any, machine: Any) -> None:
        import taskflow
        from taskflow.optimizer.cost import choose_costs

        self.graph, self.machine, self.rule = graph, machine, taskflow.SGD(lr=0.1, momentum=0.9)
        self.folder = tempfile.TemporaryDirectory()
        self.model = choose_costs(
            "measured", graph, machine, self.rule, ranks=2, folder=Path(self.folder.name), seconds=SECONDS
        )  # with a thread for each of two ranks, as torchrun's have

    def alone(self) -> float:
        """Of the whole batch on one processor."""
        import taskflow
        from taskflow.optimizer import make_evaluator

        one = self.machine.prefix(1)
        strategy = taskflow.choose("data", self.graph, one)[0]
        return float(make_evaluator(self.graph, one, costs=self.model, rule=self.rule).set(strategy))

    def __call__(self, strategy: Any, factor: float) -> float:
        """Of a plan. ``factor``: how many times as long everything takes but messages."""
        from taskflow.optimizer import make_evaluator
        from taskflow.optimizer.cost import ModelCosts

        costs = scaled(ModelCosts(self.model, self.graph, self.machine, self.rule), factor)
        return float(make_evaluator(self.graph, self.machine, costs=costs, rule=self.rule).set(strategy))

    def close(self) -> None:
        """End the processes that kept company."""
        getattr(self.model, "close", lambda: None)()
        self.folder.cleanup()


def scaled(costs: Any, factor: float) -> Any:
    """Costs of which all but messages take ``factor`` times as long."""
    from taskflow.optimizer.cost import Costs

    class Scaled(Costs):
        by_runs = property(lambda self: costs.by_runs)  # type: ignore[assignment]

        def piece(self, *what: Any) -> float:
            return factor * float(costs.piece(*what))

        def other(self, *what: Any) -> float:
            return factor * float(costs.other(*what))

        def copy(self, *what: Any) -> float:
            return float(costs.copy(*what))

        def collective(self, *what: Any) -> float:
            return float(costs.collective(*what))

        def processor_class(self, processor: int) -> int:
            return int(costs.processor_class(processor))

        def route_class(self, source: int, target: int) -> tuple[object, ...]:
            return tuple(costs.route_class(source, target))

    return Scaled()


# ---- one of the ranks ------------------------------------------------------------------------------------------------
def worker(folder: str, name: str, rounds: int) -> None:
    """Times gloo, the network's module alone on both ranks, and its plans in turn."""
    import importlib

    import torch
    import torch.distributed as dist

    networks = networks_here()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    gloo = messages()
    batch = networks.batch_of(name, torch.Generator().manual_seed(1))
    alone = step_of(Alone(networks.MODULES[name](**SIZES[name])), networks.loss, batch)
    steps: list[Callable[[], None]] = []
    for number in range(len(PLANS[name])):
        torch.manual_seed(0)
        model = importlib.import_module(f"plan_{number}").parallelize(networks.MODULES[name](**SIZES[name]), "cpu")
        steps.append(step_of(model, networks.loss, batch))
    by_itself, *found = in_rounds([alone, *steps], rounds)
    if dist.get_rank() == 0:
        Path(folder, "measured.json").write_text(json.dumps({"gloo": gloo, "alone": median(by_itself), "steps": found}))
    dist.barrier()
    dist.destroy_process_group()


class Alone:
    """A module by itself, called as an exported one."""

    def __init__(self, module: Any) -> None:
        self.module, self.parameters = module, module.parameters

    def gradients(self, loss: Any, inputs: Sequence[Any], labels: Any) -> None:
        """Forward and backward of the whole batch."""
        loss(self.module(*inputs), labels).backward()


def step_of(model: Any, loss: Any, batch: Any) -> Callable[[], None]:
    """A step of a plan, with its update."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        model.gradients(loss, *batch)
        optimizer.step()

    return step


def in_rounds(steps: Sequence[Callable[[], None]], rounds: int) -> list[list[float]]:
    """Of each the fastest of a few steps in each round; all take turns."""
    for step in steps:
        step()
        step()
    found: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for step, times in zip(steps, found):
            times.append(min(timed(step) for _ in range(IN_A_ROW)))
    return found


def timed(step: Callable[[], None]) -> float:
    """Seconds until the slower of the two ranks is done, which begin together."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    began = perf_counter()
    step()
    took = torch.tensor(perf_counter() - began)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)


def messages() -> dict[str, float]:
    """Gloo between the two ranks: seconds that a message takes in any case, and bytes a second beyond that, from sums of little
    and much over a ring, of which each has two messages one after the other."""
    import torch
    import torch.distributed as dist

    def seconds(nbytes: int) -> float:
        values = torch.zeros(nbytes // 4)
        return median(timed(lambda: dist.all_reduce(values)) for _ in range(30))

    little, much = seconds(SMALL), seconds(LARGE)
    return {"latency_seconds": little / 2, "bytes_per_second": LARGE / (much - little)}


if __name__ == "__main__":
    main()
