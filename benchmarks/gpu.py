"""What taskflow does on a GPU: one script, a few minutes; it needs cupy, numpy and mpi4py, and builds the extensions itself.

    python benchmarks/gpu.py [--networks AlexNet ...] [--precisions fp32 ...] [--json] [--quick]

- tests: those marked gpu, counted.
- networks: a training step at the paper's sizes, as samples a second and as part of what the card's matrix products reach; against
  PyTorch eager and torch.compile where PyTorch for CUDA is installed; what the program needs to ask for a step (``ask_seconds``),
  with how many tasks; and the step time that the simulator predicts from kernels measured one by one.
- ranks: losses of 1, 2, 4 and 16 ranks that share the GPU, against the CPU's.
- cpu (--cpu): examples/rnnlm.py on 1 to 16 ranks of this machine's cores, and benchmarks/accuracy.py.

Each measurement runs in a process of its own, so that one network's memory is not another's. ``unproved`` lists what could not be
run, and why. Without a GPU: one line on stderr, exit code 2.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
NETWORKS = ("AlexNet", "Inception-v3", "ResNet-101", "RNNTC", "RNNLM", "NMT")
SIDES = ("taskflow", "eager", "compile")
TF32_MODES = {"fp32": False, "tf32": True}
NEEDED = ("numpy", "mpi4py", "click")
RANKS = (2, 4, 16)
WORKER_SECONDS = 600


# ---- one network in one process --------------------------------------------------------------------------------------
def work(side: str, name: str, precision: str, steps: int, device: str, preset: str) -> dict[str, Any]:
    """Steps of one side: the median's seconds, and what is known beside them."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from taskflow.models import build, find
    from taskflow.training.synthetic import random_feeds

    known, model = find(name)
    config = getattr(model, preset)
    graph = build(known, config.batch, preset=preset)
    batch = random_feeds(graph)
    row: dict[str, Any] = {"batch": config.batch}
    if side == "taskflow":
        row |= ours(graph, batch, precision, steps, device)
    else:
        row |= theirs(side, known, config, batch, precision, steps)
    row["samples_per_second"] = config.batch / row["step_seconds"]
    row["flops_per_second"] = flops(graph) / row["step_seconds"]
    return row


def flops(graph: Any) -> int:
    """Of one training step: forward and backward of every operator."""
    from taskflow.operators.operator import iteration_space

    total = 0
    for node in graph:
        space = iteration_space(node.operator, node.specs)
        total += node.operator.flops(node.specs, space) + node.operator.backward_flops(node.specs, space)
    return total


def ours(graph: Any, batch: dict[str, Any], precision: str, steps: int, device: str) -> dict[str, Any]:
    """taskflow under data parallelism on one processor."""
    import taskflow
    from taskflow.kernels import kernels_on
    from taskflow.machine import load_machine, save
    from taskflow.optimizer.cost_measured import MeasuredCosts
    from taskflow.optimizer.cost_reuse import reuse_bytes
    from taskflow.optimizer.search import make_evaluator
    from taskflow.runtime.local import LocalTransport
    from taskflow.runtime.measure import measure

    os.environ["TASKFLOW_PRECISION"] = precision
    kernels, rule = kernels_on(device), taskflow.SGD(0.01)
    strategy, _ = taskflow.choose("data", graph, taskflow.host(1))
    run = taskflow.Executor(graph, strategy, rule, kernels=kernels)
    for _ in range(3):
        run.train(batch)
    times = []
    for _ in range(steps):
        began = perf_counter()
        run.train(batch)
        times.append(perf_counter() - began)
    program = run.program("train")
    kernels.device.synchronize()
    began = perf_counter()
    program.run()
    ask = perf_counter() - began
    kernels.device.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "here.json"
        save(measure(LocalTransport(), "here", kernels, processors=1), path)
        machine = load_machine(str(path))
        costs = MeasuredCosts(machine, kernels, Path(folder), reuse_bytes=reuse_bytes(graph, 1, rule))
        predicted = float(make_evaluator(graph, machine, costs=costs, rule=rule).set(strategy))
    peak = machine.processors[0].flops_per_second
    return {
        "step_seconds": median(times), "ask_seconds": ask, "tasks": len(program.graph), "predicted_seconds": predicted,
        "prediction_error": predicted / median(times) - 1, "matmul_flops_per_second": peak, "device": kernels.device.name,
    }


def theirs(side: str, name: str, config: Any, batch: dict[str, Any], precision: str, steps: int) -> dict[str, Any]:
    """PyTorch, eager or compiled, on its GPU."""
    import torch
    import torch_networks

    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch is installed without CUDA, or sees no GPU")
    allowed = TF32_MODES.get(precision, True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    torch.manual_seed(0)
    net = torch_networks.NETWORKS[name](config).cuda()
    run = torch.compile(net) if side == "compile" else net
    rule = torch.optim.SGD(net.parameters(), lr=0.01)

    def step() -> float:
        given = {key: torch.from_numpy(value).cuda() for key, value in batch.items()}
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            loss = run(**given)
        rule.zero_grad()
        loss.backward()
        rule.step()
        return float(loss)

    for _ in range(5):
        step()
    times = []
    for _ in range(steps):
        began = perf_counter()
        step()
        times.append(perf_counter() - began)
    return {"step_seconds": median(times), "torch": torch.__version__}


# ---- the whole -------------------------------------------------------------------------------------------------------
def missing(device: str) -> str | None:
    """What keeps this script from running, in one sentence."""
    for module in NEEDED:
        if importlib.util.find_spec(module) is None:
            return f"needs {module}: pip install {' '.join(NEEDED)} cupy-cuda13x"
    if device == "cpu":
        return None
    sys.path.insert(0, str(ROOT))
    from taskflow.kernels.gpu import gpu_missing

    return gpu_missing()


def built() -> str | None:
    """Build the compiled parts if they are not there; what went wrong, if anything did."""
    from taskflow.kernels import native_built

    if native_built():
        return None
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return None if done.returncode == 0 else f"building the extensions failed: {done.stderr.strip().splitlines()[-1]}"


def in_process(*arguments: str) -> dict[str, Any]:
    """This script again, for one measurement. {"error": ...} if it fails."""
    command = [sys.executable, str(Path(__file__).resolve()), *arguments]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=WORKER_SECONDS, env=environment
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {WORKER_SECONDS} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_tests() -> dict[str, Any]:
    """The tests marked gpu."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/gpu", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    lines = done.stdout.strip().splitlines()
    return {"returncode": done.returncode, "summary": lines[-1] if lines else done.stderr.strip()[-300:]}


def ranks_agree(device: str, counts: tuple[int, ...]) -> dict[str, Any]:
    """The largest relative difference of losses from the CPU's, by number of ranks that share the GPU."""
    found: dict[str, Any] = {}
    reference: list[float] | None = None
    program = str(ROOT / "tests" / "gpu" / "ranks_program.py")
    for count, which in ((1, "cpu"), *((n, device) for n in counts)):
        command = ["mpirun", "-n", str(count), sys.executable, program, which, "16"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=WORKER_SECONDS, env=environment
            )
            losses = json.loads(done.stdout.splitlines()[-1])["losses"]
        except (OSError, IndexError, ValueError, subprocess.TimeoutExpired) as error:
            found[str(count)] = {"error": f"{type(error).__name__}: {error}"}
            continue
        if reference is None:
            reference = losses
        else:
            found[str(count)] = max(abs(a - b) / abs(b) for a, b in zip(losses, reference))
    return found


def on_the_cpu() -> dict[str, Any]:
    """Scaling of the example and the simulator's accuracy with real ranks, as their own scripts report them."""
    found: dict[str, Any] = {"rnnlm": {}}
    for count in (1, 2, 4, 8, 16):
        command = ["mpirun", "-n", str(count), sys.executable, "examples/rnnlm.py", "--steps", "20", "--json", "--quiet"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=WORKER_SECONDS)
        ok = done.returncode == 0
        found["rnnlm"][str(count)] = json.loads(done.stdout.splitlines()[-1]) if ok else {"error": done.stderr.strip()[-300:]}
    done = subprocess.run(
        [sys.executable, "benchmarks/accuracy.py", "--json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    found["accuracy"] = json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr.strip()[-300:]}
    return found


@click.command()
@click.option("--networks", multiple=True, default=NETWORKS, help="May be repeated.")
@click.option("--precisions", multiple=True, type=click.Choice(["fp32", "tf32", "bf16"]), default=("fp32", "tf32", "bf16"))
@click.option("--steps", default=20, show_default=True, type=click.IntRange(1))
@click.option("--quick", is_flag=True, help="Small presets and no tests: whether it works, not how fast.")
@click.option("--cpu", is_flag=True, help="Also what this machine's CPU cores do under mpirun.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--device", type=click.Choice(["gpu", "cpu"]), default="gpu", hidden=True)
@click.option("--worker", nargs=3, type=str, hidden=True)
def main(
    networks: tuple[str, ...], precisions: tuple[str, ...], steps: int, quick: bool, cpu: bool, as_json: bool, device: str,
    worker: tuple[str, str, str] | None,
) -> None:
    """Measure taskflow on this machine's GPU."""
    if problem := missing(device):
        click.echo(f"gpu.py: {problem}", err=True)
        sys.exit(2)
    sys.path.insert(0, str(ROOT))
    preset = "small" if quick else "paper"
    if worker:
        try:
            click.echo(json.dumps(work(*worker, steps, device, preset)))
        except Exception as error:
            click.echo(f"{type(error).__name__}: {' '.join(str(error).split())}", err=True)
            sys.exit(1)
        return
    if problem := built():
        click.echo(f"gpu.py: {problem}", err=True)
        sys.exit(2)
    result: dict[str, Any] = {"networks": [], "unproved": []}
    if not quick:
        result["tests"] = run_tests()
    torch = importlib.util.find_spec("torch") is not None
    for name in networks:
        for precision in precisions:
            row: dict[str, Any] = {"network": name, "precision": precision}
            for side in SIDES if torch and device == "gpu" else SIDES[:1]:
                options = ("--steps", str(steps), "--device", device, *(("--quick",) if quick else ()))
                row[side] = in_process("--worker", side, name, precision, *options)
            result["networks"].append(row)
            click.echo(describe(row), err=True)
    result["ranks"] = ranks_agree(device, (2,) if quick else RANKS)
    if cpu:
        result["cpu"] = on_the_cpu()
    if not torch:
        result["unproved"].append("speed against PyTorch: it is not installed")
    result["unproved"] += [
        f"{row['network']} {row['precision']} {side}: {row[side]['error']}"
        for row in result["networks"] for side in SIDES if "error" in row.get(side, {})
    ]
    if as_json:
        click.echo(json.dumps(result))
    elif "tests" in result:
        click.echo(f"tests: {result['tests']['summary']}")


def describe(row: dict[str, Any]) -> str:
    """One line about a network."""
    mine = row["taskflow"]
    if "error" in mine:
        return f"{row['network']} {row['precision']}: {mine['error']}"
    others = [
        f"{row[side]['step_seconds'] / mine['step_seconds']:.2f}x {side}"
        for side in SIDES[1:] if "step_seconds" in row.get(side, {})
    ]
    part = mine["flops_per_second"] / mine["matmul_flops_per_second"]
    return ", ".join([
        f"{row['network']} {row['precision']}: {mine['step_seconds'] * 1e3:.2f} ms a step",
        f"{mine['ask_seconds'] * 1e3:.2f} ms to ask for it",
        f"{mine['samples_per_second']:,.0f} samples/s", f"{part:.0%} of the product's rate",
        f"predicted {mine['prediction_error']:+.1%}", *others,
    ])


if __name__ == "__main__":
    main()
