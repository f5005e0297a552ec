"""Step times of exported modules on two gloo ranks (one thread each), beside what a probe's machine predicts for their plans.

    python benchmarks/export_steps.py [--networks llama ...] [--rounds 5] [--seconds 30] [--keep FOLDER] [--json]

A probe runs before each network and once more behind them, and has never seen them; the machine is built of all (medians).
Networks of tests/export/networks.py, somewhat larger, and of own_networks.py. The plans of a network take turns; measured is the
median of all steps, each until the slower rank is done, the update (SGD with momentum) included. Other programs on the machine
disturb all of this, the probe as much as the steps. ``--probes FILE ...``: those instead of new ones. Behind the rounds some
steps of each plan are traced and read back: the last columns have the part of the traced step that has a name, and what a plan is
predicted to take once the run of another plan of its network was read back (mean error over these). ``--networks bert mobilenet
unet dlrm``: networks that the probe was not made with.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SHARED = ["data", "d2 zero1 bucket=layer overlap=all", "d2 zero3"]
PLANS = {
    "llama": [*SHARED, "t2", "p2 mb2"], "gpt": [*SHARED, "t2", "p2 mb2"], "mixtral": ["data", "d2 zero3", "t2"],
    "resnet": ["data", "d2 zero1 bucket=layer overlap=all"], "vit": [*SHARED, "t2"], "mlp": [*SHARED, "t2", "p2 mb128"],
    "mixer": [*SHARED, "t2", "p2 mb2"], "convnext": [*SHARED, "t2", "p2 mb2"], "lstm": SHARED, "t5": [*SHARED, "t2"],
    "bert": [*SHARED, "t2", "p2 mb2"], "mobilenet": SHARED, "unet": [*SHARED, "p2 mb2"], "dlrm": [*SHARED, "t2"],
}  # fmt: skip
OTHERS = ("mixer", "convnext", "lstm", "t5", "bert", "mobilenet", "unet", "dlrm")  # beside those that the probe was made with
SIZES: dict[str, dict[str, int]] = {
    "llama": {"width": 256, "heads": 8, "depth": 2}, "gpt": {"width": 256, "heads": 8, "depth": 2},
    "mixtral": {"width": 128, "depth": 2}, "resnet": {"channels": 48}, "vit": {}, "mlp": {},
    "mixer": {}, "convnext": {}, "lstm": {}, "t5": {"width": 192},
    "bert": {}, "mobilenet": {}, "unet": {}, "dlrm": {},
}  # fmt: skip
BATCH, STEPS, WORDS = 8, 128, 1024
IN_A_ROW = 2  # steps of one plan
TRACED = 3  # steps of each plan behind the rounds


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds of a step. ``nearest``: whether the plan is one near what was asked for. ``low``, ``high``: quartiles. ``named``: the
    part of the traced step that has a name. ``read_back``: what is predicted once each of the network's other plans was read back,
    in their order."""

    network: str
    plan: str
    nearest: bool
    predicted: float
    measured: float
    low: float
    high: float
    named: float
    read_back: tuple[float, ...]

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1

    @property
    def errors_read_back(self) -> list[float]:
        """The same once each of the other plans was read back."""
        return [seconds / self.measured - 1 for seconds in self.read_back]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(PLANS), default=[name for name in PLANS if name not in OTHERS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--visits", type=int, default=1, help="of each network, one after the other: a machine's speed changes")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each probe")
    parser.add_argument("--probes", nargs="+", help="files of probes, instead of new ones")
    parser.add_argument("--keep", help="a folder for the probes, the machine and what was measured")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "export"), os.getcwd()]
    if options.worker:
        worker(options.worker, options.networks[0], options.rounds)
        return
    with tempfile.TemporaryDirectory() as own:
        folder = Path(options.keep or own).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        probes, steps = list(options.probes or ()), dict[str, list[list[float]]]()
        for visit in range(options.visits):
            for name in options.networks:
                if not options.probes:
                    probes.append(probe(folder, f"{visit}_before_{name}", options.seconds))
                found_now = measured(name, options.rounds, folder)
                steps[name] = [[*before, *now] for before, now in zip(steps.get(name, [[]] * len(found_now)), found_now)]
        if not options.probes:
            probes.append(probe(folder, "behind", options.seconds))
        found, errors = rows(steps, probes, folder)
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in found], "fits": errors}))
        return
    print("| network | plan | predicted ms | measured ms | quartiles | predicted / measured | named | another read back |\n"
          + "|---" * 8 + "|")  # fmt: skip
    for row in found:
        near = " (nearest)" if row.nearest else ""
        print(f"| {row.network} | {row.plan}{near} | {1e3 * row.predicted:.1f} | {1e3 * row.measured:.1f} | "
              f"{1e3 * row.low:.1f} to {1e3 * row.high:.1f} | {row.predicted / row.measured:.2f} | {row.named:.1%} | "
              f"{fmean(map(abs, row.errors_read_back)):.1%} |")  # fmt: skip
    print(f"\nonce another plan was read back: mean error {fmean(abs(e) for row in found for e in row.errors_read_back):.1%}")
    print(f"mean error {fmean(abs(row.error) for row in found):.1%}, largest {max((row.error for row in found), key=abs):+.1%}")
    for name in options.networks:
        print(f"tau of {name}: {tau([row for row in found if row.network == name]):.2f}")


def tau(of: Sequence[Row]) -> float:
    """Kendall's rank correlation of predicted and measured."""
    pairs = [(a.predicted - b.predicted) * (a.measured - b.measured) for a, b in combinations(of, 2)]
    return (sum(pair > 0 for pair in pairs) - sum(pair < 0 for pair in pairs)) / len(pairs) if pairs else 1.0


def probe(folder: Path, when: str, seconds: float) -> str:
    """Run the probe on two ranks; its file."""
    from taskflow.probe import probe_text

    out = folder / f"probe_{when}.json"
    folder.joinpath("probe.py").write_text(probe_text("probe.py"))
    torchrun(folder, "probe.py", "--no-compile", "--seconds", str(seconds), "--out", str(out))
    return str(out)


def torchrun(folder: Path, *words: str) -> None:
    """Start two ranks with a thread each."""
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words],
        cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def networks_here() -> Any:
    """The networks at this benchmark's sizes."""
    import networks
    import own_networks

    networks.BATCH, networks.STEPS, networks.WORDS = BATCH, STEPS, WORDS
    own_networks.join(networks)
    return networks


def graph_of(name: str) -> Any:
    """A network's graph."""
    import taskflow

    networks = networks_here()
    return taskflow.from_torch(networks.MODULES[name](**SIZES[name]), *networks.examples(name), name=name)


def exported_plans(name: str) -> tuple[Any, list[Any]]:
    """A network's graph, and its plans as PyTorch can express them."""
    import taskflow
    from taskflow.export import exported

    graph, machine = graph_of(name), taskflow.load_machine("p100", 2)
    return graph, [exported(graph, taskflow.choose(plan, graph, machine)[0], "torch", "plan.py") for plan in PLANS[name]]


def measured(name: str, rounds: int, folder: Path) -> list[list[float]]:
    """The seconds of all steps of each plan."""
    _, plans = exported_plans(name)
    place = folder / name
    place.mkdir(exist_ok=True)
    for number, found in enumerate(plans):
        place.joinpath(f"plan_{number}.py").write_text(str(found.files["plan.py"]))
    torchrun(place, str(Path(__file__).resolve()), "--worker", str(place), "--networks", name, "--rounds", str(rounds))
    steps: list[list[float]] = json.loads(place.joinpath("measured.json").read_text())
    print(f"{name}: measured", file=sys.stderr, flush=True)
    return steps


def rows(steps: dict[str, list[list[float]]], probes: Sequence[str], folder: Path) -> tuple[list[Row], dict[str, float]]:
    """The plans' predictions on the machine of the probes, beside what was measured."""
    import taskflow
    from taskflow.machine import save
    from taskflow.optimizer import make_evaluator
    from taskflow.probe import built, calibrated, joined, read_kineto, read_probes

    result = built(read_probes(probes), "probed")
    save(result.machine, folder / "machine.json")
    found = []
    for name, of_plans in steps.items():
        graph, plans = exported_plans(name)
        rule = taskflow.SGD(lr=0.1, momentum=0.9)
        evaluator = make_evaluator(graph, result.machine, rule=rule)
        predicted, named, behind = [], [], []
        for number, (plan, times) in enumerate(zip(plans, of_plans)):
            traces = [read_kineto(str(folder / name / f"trace_{number}_{rank}.json")) for rank in range(2)]
            predicted.append(float(evaluator.set(plan.nearest)))
            named.append(joined(evaluator, plan.nearest, traces).named)
            machine, _ = calibrated(result.machine, evaluator, plan.nearest, traces, median(times))
            after = make_evaluator(graph, machine, rule=rule)
            behind.append([float(after.set(other.nearest)) for other in plans])
        for number, (plan, exported, times) in enumerate(zip(PLANS[name], plans, of_plans)):
            low, middle, high = quantiles(times, n=4)
            others = tuple(seconds[number] for read, seconds in enumerate(behind) if read != number)
            found.append(Row(name, plan, bool(exported.differences), predicted[number], middle, low, high, named[number], others))
    return found, result.errors


# ---- one of the ranks ------------------------------------------------------------------------------------------------
def worker(folder: str, name: str, rounds: int) -> None:
    """Times a network's plans in turn."""
    import importlib

    import torch
    import torch.distributed as dist

    from taskflow.trial.script.timing import step_of

    networks = networks_here()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sys.path.insert(0, folder)
    batch = networks.batch_of(name, torch.Generator().manual_seed(1))
    steps: list[Callable[[], None]] = []
    for number in range(len(PLANS[name])):
        torch.manual_seed(0)
        model = importlib.import_module(f"plan_{number}").parallelize(networks.MODULES[name](**SIZES[name]), "cpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        steps.append(step_of(model, optimizer, networks.loss, *batch))
    found = in_rounds(steps, rounds)
    if dist.get_rank() == 0:
        Path(folder, "measured.json").write_text(json.dumps(found))
    for number, step in enumerate(steps):
        traced(step, Path(folder, f"trace_{number}_{dist.get_rank()}.json"))
    dist.barrier()
    dist.destroy_process_group()


def traced(step: Callable[[], None], path: Path, count: int = TRACED) -> None:
    """Write a trace of so many steps in a row."""
    import torch
    import torch.distributed as dist

    step()
    dist.barrier()
    with torch.profiler.profile() as profiler:
        for _ in range(count):
            step()
    profiler.export_chrome_trace(str(path))


def in_rounds(steps: Sequence[Callable[[], None]], rounds: int) -> list[list[float]]:
    """The seconds of all steps of each plan until the slower of the two ranks is done. Plans take turns."""
    import torch

    from taskflow.trial.script.timing import timed_steps

    for step in steps:
        step()
        step()
    found: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for step, times in zip(steps, found):
            times += timed_steps(step, IN_A_ROW, torch.device("cpu"))
    return found


if __name__ == "__main__":
    main()
