"""How exact predictions are: predicted against measured step times on this machine, for strategies that nothing was fitted to.

    python benchmarks/accuracy.py [--networks RNNLM ...] [--rounds 9] [--json]      # 2 ranks under mpirun, a core each
    python benchmarks/accuracy.py --ranks 16                                        # as many ranks as the machine has cores
    python benchmarks/accuracy.py --virtual                                         # one process, two virtual processors
    python benchmarks/accuracy.py --alone                                           # costs measured while the other core is idle

Kernels are timed one by one (a time for each cost key), links by messages of their own; no step is run to predict another. A
step's measured time is the median over rounds of the fastest of a few steps; strategies take turns, so that a busy moment meets
all of them, and rounds in which other programs ran are repeated while there is patience. A machine's speed may drift by a fifth
within minutes: so all kernels are timed anew in each of --passes, with rounds of steps after each, and predicted is the median of
what the passes' times predict (``predictions``: each of them). With --virtual, one core runs both
processors' tasks in turn: predicted is the sum of their seconds, measured the processor time of a step (the median, as
kernels' times are), which other programs disturb less; what it leaves out is waiting. Kendall's tau is given for all pairs of
strategies and for those that measuring tells apart: one was faster than the other in every round.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from statistics import mean, median
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import click
from several import Several, one_of

ROOT = Path(__file__).resolve().parents[1]
SIZES: dict[str, dict[str, Any]] = {
    "RNNLM": {"batch": 64, "steps": 20, "vocabulary": 4000, "hidden": 256, "dropout": 0.2, "steps_per_operator": 5},
    "NMT": {"batch": 64, "steps": 20, "vocabulary": 2000, "hidden": 192, "dropout": 0.2, "steps_per_operator": 5},
    "AlexNet": {"batch": 16, "image": 127, "classes": 100, "channels": (32, 64, 96, 64, 64), "pooled": 3, "hidden": 512},
    "Transformer": {"batch": 16, "steps": 32, "vocabulary": 4000, "hidden": 192, "inner": 768, "heads": 4, "layers": 2},
}
STRATEGIES = 8
RANDOM = 2  # of them with random cuts and places of all operators; the rest has them for a part of the operators
SECONDS = 0.06  # to spend on a kernel's repeats
STEPS = 3  # in a row, of one strategy
LEAST = 4  # rounds in which the same one of two strategies must be faster
FOREIGN = 0.03  # part of the machine that other programs may use while a round counts as undisturbed


# ---- one job: all networks, all strategies ---------------------------------------------------------------------------
def work(networks: tuple[str, ...], rounds: int, passes: int, budget: str, patience: float, virtual: bool, alone: bool) -> None:
    """What each rank does; rank 0 prints a JSON object a network."""
    import taskflow
    from taskflow.models import build
    from taskflow.runtime.calibrate import measure

    transport = taskflow.connect()
    first = transport.rank == 0
    count = 2 if virtual else transport.size
    machine = measure(transport, processors=2 if virtual else None)
    rule = taskflow.SGD(lr=1e-3, momentum=0.9)
    for network in networks:
        graph = build(network, **SIZES[network])
        inputs, predictor = feeds(graph), Predictor(graph, machine, rule, virtual, alone)
        strategies = transport.broadcast(strategies_of(graph, machine, predictor.search(budget)) if first else None)
        executors = [taskflow.Executor(graph, s, rule, transport=transport, machine=machine) for s in strategies]
        predictions: list[list[float]] = []
        times: list[list[Round]] = [[] for _ in executors]
        for number in range(passes):
            if first:
                predictions.append(predictor.predict(strategies, anew=number > 0))
            transport.barrier()
            some = rounds_of(executors, inputs, transport, number, -(-rounds // passes), patience / passes, virtual)
            for results, more in zip(times, some):
                results += more
        if first:
            link = machine.route(0, 1)[0] if count > 1 else None
            print(json.dumps({
                "network": network, "operators": len(graph), "parameters": graph.parameter_count, "costs": predictor.used,
                "foreign_load": median(r.foreign for results in times for r in results),
                "strategies": [row(s, p, t) for s, p, t in zip(strategies, zip(*predictions), times)],
                "link": link and {"bytes_per_second": link.bytes_per_second, "latency_seconds": link.latency_seconds,
                                  "occupies_endpoints": link.occupies_endpoints},
            }), flush=True)
        for executor in executors:
            executor.close()
    transport.close()


class Round(NamedTuple):
    """A few steps of one strategy: in which pass, and which round of it; what other programs took; seconds."""

    in_pass: int
    number: int
    foreign: float
    seconds: float


def row(strategy: Any, predictions: Sequence[float], rounds: Sequence[Round]) -> dict[str, Any]:
    """One strategy's figures."""
    return {
        "strategy": strategy.name, "predicted_seconds": median(predictions), "predictions": list(predictions),
        **measured(rounds),
    }


def measured(rounds: Sequence[Round]) -> dict[str, Any]:
    """What was measured of one strategy, as `told_apart` takes it."""
    seconds = [r.seconds for r in rounds]
    return {
        "measured_seconds": median(seconds), "fastest_seconds": min(seconds), "slowest_seconds": max(seconds),
        "rounds": {f"{r.in_pass}.{r.number}": r.seconds for r in rounds},
    }


class Predictor:
    """Step times of one graph's strategies from kernels timed one by one; on one rank."""

    def __init__(self, graph: Any, machine: Any, rule: Any, virtual: bool, alone: bool) -> None:
        self._graph, self._machine, self._rule, self._virtual = graph, machine, rule, virtual
        self._company = 0 if alone else None
        self.used: dict[str, Any] = {"measured_keys": [], "disturbed": [], "spread": []}

    def _time_kernels(self) -> None:
        from taskflow.optimizer import make_evaluator
        from taskflow.optimizer.cost import choose_costs

        self._folder = tempfile.TemporaryDirectory()  # measured now, not found from another day
        self._costs: Any = choose_costs(
            "measured", self._graph, self._machine, self._rule, ranks=1 if self._virtual else len(self._machine.processors),
            folder=Path(self._folder.name), seconds=SECONDS, company=self._company,
        )
        self.used |= {"reuse_bytes": self._costs.between.nbytes, "aged": str(self._costs.between.age)}
        self._evaluator = make_evaluator(self._graph, self._machine, costs=self._costs, rule=self._rule)

    def search(self, budget: str) -> Any:
        """The strategy that a search finds with these predictions."""
        from taskflow.optimizer import search
        from taskflow.optimizer.space import SpaceOptions

        self._time_kernels()
        began, space = perf_counter(), SpaceOptions("powers", reduction=False)
        found = search(self._graph, self._machine, budget=budget, seed=0, use=self._evaluator, space=space, memory=False)
        self.used |= {"name": self._costs.name, "search_seconds": perf_counter() - began}
        return found.strategy

    def predict(self, strategies: Sequence[Any], anew: bool) -> list[float]:
        """Seconds of a step under each. ``anew``: by kernels that are timed again."""
        if anew:
            self._time_kernels()
        found = [self._seconds(strategy) for strategy in strategies]
        self.used["measured_keys"].append(self._costs.measured)
        self.used["disturbed"].append(self._costs.disturbed)
        self.used["spread"].append(self._costs.spread)
        return found

    def _seconds(self, strategy: Any) -> float:
        from taskflow.tasks import Kind

        if not self._virtual:
            return float(self._evaluator.set(strategy))
        return sum(
            self._costs.memory_seconds(Kind.MOVE, 2 * t.nbytes, 0, runs=max(t.runs)) if t.kind is Kind.COPY
            else self._evaluator.costs.task(t)
            for t in self._evaluator.lowered(strategy)
        )


def strategies_of(graph: Any, machine: Any, searched: Any) -> list[Any]:
    """Different strategies: those that people write, the one that was found, and random ones."""
    from dataclasses import replace
    from random import Random

    import taskflow
    from taskflow.optimizer.space import SearchSpace, SpaceOptions

    chosen = {"searched": searched}
    for name in ("data", "model", "expert"):
        chosen[name], _ = taskflow.choose(name, graph, machine)
    for seed in range(1, RANDOM + 1):
        chosen[f"random {seed}"], _ = taskflow.choose("random", graph, machine, seed=seed)
    space = SearchSpace(graph, len(machine.processors), SpaceOptions("powers"))
    for seed in range(STRATEGIES):
        random = Random(seed)
        start = chosen[random.choice(("data", "model"))]
        some = [node for node in graph if random.random() < 0.3]
        chosen[f"mixed {seed}"] = replace(start, configs={**start.configs, **{n.name: space[n].draw(random) for n in some}})
    different: dict[str, Any] = {}
    for name, strategy in chosen.items():
        if not any(strategy.configs == other.configs and strategy.syncs == other.syncs for other in different.values()):
            different[name] = replace(strategy, name=name)
    return list(different.values())[:STRATEGIES]


def feeds(graph: Any) -> dict[str, Any]:
    """Random numbers for every input, classes below 100."""
    import numpy as np

    random = np.random.default_rng(0)
    return {
        node.name: random.standard_normal(spec.shape).astype(spec.dtype) if spec.dtype.kind == "f"
        else random.integers(0, 100, spec.shape)
        for node in graph if node.operator.kind == "input" for spec in [node.outputs[0].spec]
    }


# ---- measuring -------------------------------------------------------------------------------------------------------
def rounds_of(
    executors: list[Any], inputs: dict[str, Any], transport: Any, in_pass: int, rounds: int, patience: float, virtual: bool
) -> list[list[Round]]:
    """For each executor the fastest step of each round of a pass (virtual: the median one); known on rank 0. Rounds are
    repeated until enough were undisturbed, or for ``patience`` seconds; then the least disturbed of the others count too."""
    for executor in executors:
        for _ in range(2):
            executor.train(inputs)
    found: list[list[Round]] = [[] for _ in executors]
    until = perf_counter() + patience
    going = True
    while going:
        for executor, results in zip(executors, found):
            load = Load()
            seconds = [step(executor, inputs, transport, virtual) for _ in range(STEPS)]
            used = transport.gather(load.own())
            if used is not None:
                foreign = load.foreign(sum(used))
                results.append(Round(in_pass, len(results), foreign, median(seconds) if virtual else min(seconds)))
        calm = min(sum(r.foreign <= FOREIGN for r in results) for results in found)
        enough = min(len(results) for results in found) >= rounds
        going = transport.broadcast(not enough or (calm < rounds and perf_counter() < until))
    return [
        sorted(results, key=lambda r: r.foreign)[: max(rounds, sum(r.foreign <= FOREIGN for r in results))] for results in found
    ]


def step(executor: Any, inputs: dict[str, Any], transport: Any, virtual: bool) -> float:
    """Seconds of one step that all ranks begin together (their clocks are the same machine's)."""
    if virtual:
        began = thread_time()
        executor.train(inputs)
        return thread_time() - began
    start = transport.broadcast(perf_counter() + 2e-3)
    while perf_counter() < start:
        pass
    executor.train(inputs)
    ends = transport.gather(perf_counter())
    return max(ends) - start if ends is not None else 0.0


class Load:
    """How much of the machine other programs use, from Linux's counters."""

    def __init__(self) -> None:
        self._busy, self._own, self._began = self._all(), sum(os.times()[:2]), perf_counter()

    def own(self) -> float:
        """Processor seconds of this process since the start."""
        return sum(os.times()[:2]) - self._own

    def foreign(self, ours: float) -> float:
        """Part of all cores that neither was idle nor ours."""
        wall, cores = perf_counter() - self._began, len(os.sched_getaffinity(0))
        return max(0.0, (self._all() - self._busy - ours) / (wall * cores))

    @staticmethod
    def _all() -> float:
        user, nice, system, _, _, irq, soft, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
        return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


# ---- judging ---------------------------------------------------------------------------------------------------------
def judge_network(row: dict[str, Any]) -> None:
    """Add errors, Kendall's tau (Kendall, Biometrika 30, 1938) and the regret of the plan that is predicted to be best."""
    plans = row["strategies"]
    for plan in plans:
        plan["error"] = plan["predicted_seconds"] / plan["measured_seconds"] - 1
    pairs = list(combinations(plans, 2))
    apart = [(a, b) for a, b in pairs if told_apart(a, b)]
    row["kendall_tau"], row["pairs"] = tau(pairs), len(pairs)
    row["kendall_tau_told_apart"], row["pairs_told_apart"] = tau(apart), len(apart)
    row["mean_error"] = mean(abs(p["error"]) for p in plans)
    row["maximum_error"] = max(abs(p["error"]) for p in plans)
    chosen = min(plans, key=lambda p: p["predicted_seconds"])["measured_seconds"]
    row["regret"] = chosen / min(p["measured_seconds"] for p in plans) - 1


def told_apart(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether measuring says which of two is faster: the same one in every round that counts for both, in which they took
    turns, and there are enough of these."""
    signs = [a["rounds"][number] < b["rounds"][number] for number in a["rounds"].keys() & b["rounds"].keys()]
    return len(signs) >= LEAST and len(set(signs)) == 1


def tau(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> float:
    """Pairs predicted in the measured order less those in the other, of all; 1 for none."""
    signs = [
        (a["predicted_seconds"] - b["predicted_seconds"]) * (a["measured_seconds"] - b["measured_seconds"]) for a, b in pairs
    ]
    return (sum(s > 0 for s in signs) - sum(s < 0 for s in signs)) / len(signs) if signs else 1.0


def launch(
    networks: tuple[str, ...], rounds: int, passes: int, budget: str, patience: float, virtual: bool, alone: bool, ranks: int = 2
) -> list[dict[str, Any]]:
    """Run the job in processes of its own; its rows."""
    command = [__file__, "--worker", "--rounds", str(rounds), "--passes", str(passes)]
    command += ["--budget", budget, "--patience", str(patience)]
    command += [part for network in networks for part in ("--networks", network)] + ["--virtual"] * virtual + ["--alone"] * alone
    rows = []
    for row in rows_of(command, 0 if virtual else ranks):
        judge_network(row)
        report(row)
        rows.append(row)
    return rows


def rows_of(command: Sequence[str], ranks: int) -> Iterator[dict[str, Any]]:
    """What a job of this Python prints, a JSON object a line: on so many ranks (0: without mpirun), each with one thread."""
    name = Path(command[0]).stem
    whole = [sys.executable, *command]
    if ranks:
        mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        if mpirun is None:
            raise SystemExit(f"{name}: there is no mpirun; pip install mpich mpi4py{', or use --virtual' * (name == 'accuracy')}")
        whole = [mpirun, "-n", str(ranks), *whole]
    # The machine's setting that holds OpenBLAS to AVX2 is lifted, for kernels' measurements and steps alike.
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"} | {
        "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT),
    }
    with subprocess.Popen(whole, stdout=subprocess.PIPE, text=True, env=environment) as job:
        assert job.stdout is not None
        for line in job.stdout:
            yield json.loads(line)
    if job.returncode:
        raise SystemExit(f"{name}: the job ended with {job.returncode}")


def report(row: dict[str, Any]) -> None:
    """One network, for people."""
    click.echo(
        f"{row['network']}: {row['operators']} operators; mean error {row['mean_error']:.1%}, at most {row['maximum_error']:.1%}, "
        f"tau {row['kendall_tau']:.2f} (of {row['pairs_told_apart']} of {row['pairs']} pairs that differ in every round "
        f"{row['kendall_tau_told_apart']:.2f}), regret {row['regret']:.1%}; foreign load {row['foreign_load']:.0%}; "
        f"{row['costs']['name']}, {max(row['costs']['measured_keys'])} keys beside {row['costs']['reuse_bytes'] >> 20} MiB",
        err=True,
    )
    for plan in sorted(row["strategies"], key=lambda p: p["measured_seconds"]):
        click.echo(
            f"  {plan['strategy']:<10} predicted {plan['predicted_seconds'] * 1e3:8.2f} ms, measured "
            f"{plan['measured_seconds'] * 1e3:8.2f} (fastest {plan['fastest_seconds'] * 1e3:.2f}): {plan['error']:+.1%}", err=True,
        )


@click.command(cls=Several, help=__doc__.split("\n\n")[0])
@click.option("--networks", multiple=True, type=one_of(SIZES), default=tuple(SIZES), help="One or several.")
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(1), help="Of a few steps each, of all passes together.")
@click.option("--passes", default=3, show_default=True, type=click.IntRange(1), help="How often kernels are timed, then steps.")
@click.option("--budget", default="15s", show_default=True, help="Of the search for one of the strategies.")
@click.option("--patience", default=60.0, show_default=True, help="Seconds a network to wait for undisturbed rounds.")
@click.option("--ranks", default=2, show_default=True, type=click.IntRange(1), help="A core each.")
@click.option("--virtual", is_flag=True, help="One process with two virtual processors instead of two ranks.")
@click.option("--alone", is_flag=True, help="Measure costs while the other core is idle, to see what company changes.")
@click.option("--json", "as_json", is_flag=True)
@click.option("--worker", is_flag=True, hidden=True)
def main(
    networks: tuple[str, ...], rounds: int, passes: int, budget: str, patience: float, ranks: int, virtual: bool, alone: bool,
    as_json: bool, worker: bool,
) -> None:
    if worker:
        work(networks, rounds, passes, budget, patience, virtual, alone)
        return
    rows = launch(networks, rounds, passes, budget, patience, virtual, alone, ranks)
    plans = [plan for row in rows for plan in row["strategies"]]
    result = {
        "benchmark": "accuracy", "mode": "virtual" if virtual else "ranks", "ranks": 1 if virtual else ranks,
        "mean_error": mean(abs(p["error"]) for p in plans), "maximum_error": max(abs(p["error"]) for p in plans),
        "kendall_tau": mean(row["kendall_tau"] for row in rows),
        "kendall_tau_told_apart": mean(row["kendall_tau_told_apart"] for row in rows), "regret": max(row["regret"] for row in rows),
        "foreign_load": max(row["foreign_load"] for row in rows), "load_average": os.getloadavg()[0], "networks": rows,
    }
    click.echo(
        f"{len(plans)} strategies of {len(rows)} networks: mean error {result['mean_error']:.1%}, at most "
        f"{result['maximum_error']:.1%}, tau {result['kendall_tau']:.2f} (told apart {result['kendall_tau_told_apart']:.2f}), "
        f"regret at most {result['regret']:.1%}; "
        f"foreign load up to {result['foreign_load']:.0%}, load average {result['load_average']:.1f}", err=True,
    )
    if as_json:
        click.echo(json.dumps(result))


if __name__ == "__main__":
    main()
