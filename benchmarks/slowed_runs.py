"""Runs of exported modules that are slowed on purpose, read back: whether the first cause is what was slowed.

    python benchmarks/slowed_runs.py [--networks llama gpt vit mlp] [--probes FILE ...] [--json]

Each network's data-parallel plan runs on two gloo ranks under PyTorch's profiler: as it is, by which the machine of the probe is
calibrated; with a rank that sleeps before each layer; with a loopback of few bytes a second (tc in a network namespace of its own:
needs root); and with an activation that is computed many times. `taskflow profile --torch` then says what explains the difference.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import export_steps
from export_steps import ROOT, SIZES

ACTIVATIONS = {"llama": "silu", "gpt": "gelu", "vit": "gelu", "mlp": "relu"}
EXPECTED = {"rank": "computes more slowly", "link": "messages: sums of gradients", "kernel": "forward"}
RATE = "300mbit"  # of the slow link
SLEEP_SECONDS, TIMES = 0.01, 200  # before each layer of the slow rank; that the slow activation is computed
STEPS = 8


@dataclass(frozen=True, slots=True)
class Slowed:
    """A run: what was slowed, its step beside the plain one's, what of it has a name, the first causes, and whether the first is
    right."""

    network: str
    slowed: str
    plain_seconds: float
    seconds: float
    named: float
    causes: tuple[tuple[str, float], ...]

    @property
    def right(self) -> bool:
        """Whether the first cause is what was slowed."""
        return EXPECTED[self.slowed] in self.causes[0][0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(ACTIVATIONS), default=list(ACTIVATIONS))
    parser.add_argument("--probes", nargs="+", help="files of probes, instead of a new one")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "export"), os.getcwd()]
    if options.worker:
        worker(*options.worker, options.networks[0])
        return
    with tempfile.TemporaryDirectory() as folder:
        probes = options.probes or [export_steps.probe(Path(folder), "before", 20.0)]
        found = [row for name in options.networks for row in slowed_runs(name, probes, Path(folder))]
    if options.json:
        print(json.dumps([asdict(row) | {"right": row.right} for row in found]))
        return
    print("| network | slowed | step | plain | named | first causes |\n|---|---|---|---|---|---|")
    for row in found:
        causes = ", ".join(f"{what} {1e3 * seconds:+.1f} ms" for what, seconds in row.causes)
        print(f"| {row.network} | {row.slowed}{'' if row.right else ' (missed)'} | {1e3 * row.seconds:.0f} ms | "
              f"{1e3 * row.plain_seconds:.0f} | {row.named:.1%} | {causes} |")  # fmt: skip


def slowed_runs(name: str, probes: list[str], folder: Path) -> list[Slowed]:
    """The three slowed runs of a network's data-parallel plan."""
    import taskflow
    from taskflow.export import exported
    from taskflow.optimizer import make_evaluator
    from taskflow.probe import built, calibrated, joined, read_kineto, read_probes

    graph = export_steps.graph_of(name)
    plan = exported(graph, taskflow.choose("data", graph, taskflow.load_machine("p100", 2))[0], "torch", "plan.py")
    folder.joinpath("plan.py").write_text(str(plan.files["plan.py"]))
    machine, rule = built(read_probes(probes), "probed").machine, taskflow.SGD(lr=0.1, momentum=0.9)

    def traces(how: str) -> list[Any]:
        run(folder, how, name)
        return [read_kineto(str(folder / f"{how}_{rank}.json")) for rank in range(2)]

    plain, found = traces("plain"), []
    evaluator = make_evaluator(graph, machine, rule=rule)
    evaluator.set(plan.nearest)
    machine, _ = calibrated(machine, evaluator, plan.nearest, plain)
    evaluator = make_evaluator(graph, machine, rule=rule)
    evaluator.set(plan.nearest)
    for how in EXPECTED:
        answer = joined(evaluator, plan.nearest, traces(how))
        causes = tuple((cause.what, cause.seconds) for cause in answer.causes[:3])
        found.append(Slowed(name, how, median(plain[0].seconds), answer.measured_seconds, answer.named, causes))
    return found


def run(folder: Path, how: str, name: str) -> None:
    """Start two ranks with a thread each, whose messages go over a slow loopback if the link is to be slowed."""
    words = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
             str(Path(__file__).resolve()), "--worker", str(folder), how, "--networks", name]  # fmt: skip
    if how == "link":
        limit = f"ip link set lo up && tc qdisc add dev lo root tbf rate {RATE} burst 128kb latency 400ms"
        words = ["unshare", "--net", "bash", "-c", f'{limit} && exec "$@"', "slow", *words]
    path = os.pathsep.join((str(ROOT), str(ROOT / "benchmarks")))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(words, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name}, {how}: {done.stderr[-1500:]}")
    print(f"{name}: {how}", file=sys.stderr, flush=True)


# ---- one of the ranks ------------------------------------------------------------------------------------------------
def worker(folder: str, how: str, name: str) -> None:
    """Trace some steps of a network's plan, slowed as is said."""
    import importlib

    import torch
    import torch.distributed as dist

    from taskflow.trial.script.timing import step_of

    networks = export_steps.networks_here()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sys.path.insert(0, folder)
    inputs, target = networks.batch_of(name, torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    model = importlib.import_module("plan").parallelize(networks.MODULES[name](**SIZES[name]), "cpu")
    step = step_of(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), networks.loss, inputs, target)
    if how == "rank" and dist.get_rank() == 1:
        for layer in (layer for part in model.parts for layer in part.modules()):
            if isinstance(layer, torch.nn.Linear):
                layer.register_forward_hook(lambda *_: time.sleep(SLEEP_SECONDS))
    if how == "kernel":
        slow_down(ACTIVATIONS[name])
    for _ in range(2):
        step()
    export_steps.traced(step, Path(folder, f"{how}_{dist.get_rank()}.json"), STEPS)
    dist.barrier()
    dist.destroy_process_group()


def slow_down(activation: str) -> None:
    """Have an activation computed many times."""
    import torch

    def slower(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(x: Any, *args: Any, **kwargs: Any) -> Any:
            for _ in range(TIMES):
                function(x.detach(), *args, **kwargs)
            return function(x, *args, **kwargs)

        return call

    for place in (torch, torch.nn.functional):
        if hasattr(place, activation):
            setattr(place, activation, slower(getattr(place, activation)))


if __name__ == "__main__":
    main()
