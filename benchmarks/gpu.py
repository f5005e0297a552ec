"""What taskflow does on a GPU: one script; it needs cupy, numpy, mpi4py and click, and builds the extensions itself.

    python benchmarks/gpu.py --out gpu.json [--parts device,tests,training] [--limit 570] [--resume] [--quick] [--json]

Parts, in the order in which they are worth their time:
- device: what is there, and the rate of large products at each precision.
- tests: those marked gpu, with every failure's name.
- losses: of the six networks, small, over 20 steps in fp32, against the CPU's, under data parallel, expert and random strategies.
- training: a step at the paper's sizes against PyTorch eager and torch.compile: samples a second, part of the products' rate.
- launch: the same step asked for kernel by kernel, without CUDA graphs: what the program needs to ask for it.
- ranks: losses of 2, 4 and 16 ranks that share the GPU, against the CPU's.
- accuracy: predicted and measured steps, and whether the order of strategies is kept.
- cpu (only if it is named): examples/rnnlm.py on 1 to 16 ranks of this machine's cores, and benchmarks/accuracy.py with 16.

Each measurement runs in a process of its own with a time limit, and the script goes on after one that fails: ``failed`` has the
errors, ``left`` what there was no time for. --out is written after each, so that what is stopped keeps what it has, and --resume
goes on from there. Without a GPU: one line on stderr, exit code 2; with failures: 1.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import geometric_mean
from time import perf_counter
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
WORKER = ROOT / "benchmarks" / "gpu_worker.py"
NETWORKS = ("AlexNet", "Inception-v3", "ResNet-101", "RNNTC", "RNNLM", "NMT")
PRECISIONS = ("fp32", "tf32", "bf16")
PARTS = ("device", "tests", "losses", "training", "launch", "ranks", "accuracy", "cpu")
NEEDED = ("numpy", "mpi4py", "click")
RANKS = (2, 4, 16)
CPU_RANKS = (1, 2, 4, 8, 16)
SECONDS = {"tests": 240, "training": 120, "cpu": 300}
"""A measurement's limit by part; 90 where nothing is said."""
Task = tuple[str, str, Callable[[float], Any]]
"""Part, name, and what measures it within so many seconds."""


class Failed(RuntimeError):
    """A measurement that did not end well, and why."""


# ---- processes -------------------------------------------------------------------------------------------------------
def run(command: list[str], seconds: float, **environment: str) -> str:
    """What a command prints. Failed if it fails, or takes longer: then all that it has started is ended."""
    where = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", **environment}
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=where, start_new_session=True
    ) as job:
        try:
            out, err = job.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.communicate()
            raise Failed(f"took more than {seconds:.0f} s") from None
    if job.returncode:
        last = (err.strip() or out.strip()).splitlines()[-1:] or ["no message"]
        raise Failed(f"exit code {job.returncode}: {last[0][-400:]}")
    return out


def worker(kind: str, seconds: float, settings: dict[str, str]) -> dict[str, Any]:
    """One measurement of gpu_worker.py."""
    options = [part for key, value in settings.items() for part in (f"--{key}", value)]
    found: dict[str, Any] = json.loads(run([sys.executable, str(WORKER), kind, *options], seconds).splitlines()[-1])
    return found


def mpirun(count: int, *program: str) -> list[str]:
    return ["mpirun", "-n", str(count), sys.executable, *program]


# ---- parts -----------------------------------------------------------------------------------------------------------
def tasks(
    parts: tuple[str, ...], networks: tuple[str, ...], precisions: tuple[str, ...], settings: dict[str, str]
) -> Iterator[Task]:
    """All measurements, the broad before the deep."""
    device = settings["device"]

    def measured(kind: str, **more: str) -> Callable[[float], Any]:
        return lambda seconds: worker(kind, seconds, {**settings, **more})

    if "device" in parts:
        yield "device", "device", measured("device")
    if "tests" in parts:
        yield "tests", "kernel by kernel", lambda s: tests(s, "not graphs", "0")
        yield "tests", "graphs", lambda s: tests(s, "graphs", "1")
    if "losses" in parts:
        for network in networks:
            yield "losses", network, measured("losses", network=network)
    if "training" in parts:
        sides = ("taskflow", "eager") if importlib.util.find_spec("torch") else ("taskflow",)
        for precision in precisions:
            for network in networks:
                for side in sides:
                    yield "training", f"{network} {precision} {side}", measured(side, network=network, precision=precision)
    if "launch" in parts:
        for network in networks:
            yield "launch", network, measured("one-by-one", network=network, precision=precisions[0])
    if "ranks" in parts:
        for count in (1, *RANKS):
            yield "ranks", str(count), lambda s, count=count: rank_losses(count, "cpu" if count == 1 else device, s)
    if "accuracy" in parts:
        for network in networks:
            yield "accuracy", network, measured("accuracy", network=network, precision=precisions[0])
    if "training" in parts and importlib.util.find_spec("torch"):
        for precision in precisions:
            for network in networks:
                yield "training", f"{network} {precision} compile", measured("compile", network=network, precision=precision)
    if "cpu" in parts:
        for count in CPU_RANKS:
            yield "cpu", f"rnnlm {count}", lambda s, count=count: rnnlm(count, s)
        yield "cpu", "accuracy", lambda s: json.loads(
            run([sys.executable, "benchmarks/accuracy.py", "--ranks", "16", "--rounds", "3", "--json"], s).splitlines()[-1]
        )


def tests(seconds: float, which: str, graphs: str) -> dict[str, Any]:
    """The tests marked gpu, with or without those of recorded steps: how many passed, and what the others said."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-k", which, "tests/gpu", "-p", "no:cacheprovider"]
    command += ["-rfE", "--tb=line"]
    try:
        out = run(command, seconds, TASKFLOW_GRAPHS=graphs, PYTHONUNBUFFERED="1")
    except Failed as error:
        if not str(error).startswith("exit code 1:"):
            raise
        done = subprocess.run(  # the failures alone, to have what they said
            [*command, "--maxfail=40"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TASKFLOW_GRAPHS": graphs},
        )
        lines = done.stdout.strip().splitlines()
        failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        return {"summary": lines[-1] if lines else "no output", "failures": failures}
    return {"summary": out.strip().splitlines()[-1], "failures": []}


def rank_losses(count: int, which: str, seconds: float) -> list[float]:
    """Of a small training on ranks that share the device."""
    out = run(mpirun(count, str(ROOT / "tests" / "gpu" / "ranks_program.py"), which, "16"), seconds)
    found: list[float] = json.loads(out.splitlines()[-1])["losses"]
    return found


def rnnlm(count: int, seconds: float) -> dict[str, Any]:
    """What the example says about itself, on some of the CPU's cores."""
    out = run(
        mpirun(count, "examples/rnnlm.py", "--steps", "20", "--json", "--quiet"), seconds, OPENBLAS_NUM_THREADS="1",
        OMP_NUM_THREADS="1",
    )
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


# ---- what follows from it --------------------------------------------------------------------------------------------
def judged(result: dict[str, Any]) -> dict[str, Any]:
    """Ratios and means of what was measured so far."""
    rows: dict[str, dict[str, float]] = {}
    peaks = result.get("device", {}).get("device", {}).get("flops_per_second", {})
    training = result.get("training", {})
    for key, mine in training.items():
        network, precision, side = key.split()
        if side != "taskflow":
            continue
        row = rows[f"{network} {precision}"] = {
            "samples_per_second": mine["batch"] / mine["step_seconds"], "ask_share": mine["ask_seconds"] / mine["step_seconds"],
        }
        if precision in peaks:
            row["share_of_products"] = mine["flops"] / mine["step_seconds"] / peaks[precision]
        keys = {other: f"{network} {precision} {other}" for other in ("eager", "compile")}
        others = {other: training[at] for other, at in keys.items() if at in training}
        for other, theirs in others.items():
            row[f"against_{other}"] = theirs["step_seconds"] / mine["step_seconds"]
        if others:
            row["against_best"] = min(t["step_seconds"] for t in others.values()) / mine["step_seconds"]
        plain = result.get("launch", {}).get(network)
        if plain and precision == "fp32":
            row["against_one_by_one"] = plain["step_seconds"] / mine["step_seconds"]
    found: dict[str, Any] = {"networks": rows}
    for name in ("against_eager", "against_best"):
        ratios = [row[name] for row in rows.values() if name in row]
        if ratios:
            found[name] = geometric_mean(ratios)
    ranks = result.get("ranks", {})
    if "1" in ranks:
        found["rank_losses_differ_by"] = {
            count: max(abs(a - b) / abs(b) for a, b in zip(losses, ranks["1"])) for count, losses in ranks.items() if count != "1"
        }
    accuracy = result.get("accuracy", {})
    if accuracy:
        found["prediction_errors"] = {network: row["error"] for network, row in accuracy.items()}
        found["kendall_tau"] = {network: row["kendall_tau"] for network, row in accuracy.items()}
    return found


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
    sys.path.insert(0, str(ROOT))
    from taskflow.kernels import native_built

    if native_built():
        return None
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return None if done.returncode == 0 else f"building the extensions failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}"


def comma(allowed: tuple[str, ...]) -> Callable[[Any, Any, str], tuple[str, ...]]:
    """Splits an option at its commas."""

    def split(_: Any, __: Any, value: str) -> tuple[str, ...]:
        named = tuple(part for part in value.split(",") if part)
        if unknown := [part for part in named if part not in allowed]:
            raise click.BadParameter(f"must be of {', '.join(allowed)}, got {unknown[0]!r}")
        return named

    return split


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--parts", default=",".join(PARTS[:-1]), callback=comma(PARTS), help=f"Of {','.join(PARTS)}.")
@click.option("--networks", default=",".join(NETWORKS), callback=comma(NETWORKS), help="With commas between.")
@click.option("--precisions", default=",".join(PRECISIONS), callback=comma(PRECISIONS), help="With commas between.")
@click.option("--steps", default=20, show_default=True, type=click.IntRange(1))
@click.option("--limit", default=570.0, show_default=True, help="Seconds for everything.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Written after each measurement.")
@click.option("--resume", is_flag=True, help="Keep what --out has, and measure what it lacks.")
@click.option("--quick", is_flag=True, help="Small presets: whether it works, not how fast.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--device", type=click.Choice(["gpu", "cpu"]), default="gpu", hidden=True)
def main(
    parts: tuple[str, ...], networks: tuple[str, ...], precisions: tuple[str, ...], steps: int, limit: float, out: Path | None,
    resume: bool, quick: bool, as_json: bool, device: str,
) -> None:
    began = perf_counter()
    for problem in (missing, lambda _: built()):
        if said := problem(device):
            click.echo(f"gpu.py: {said}", err=True)
            sys.exit(2)
    result: dict[str, Any] = {}
    if resume and out is not None and out.exists():
        result = json.loads(out.read_text(encoding="utf-8"))
    result |= {"failed": [], "left": []}
    settings = {"preset": "small" if quick else "paper", "steps": str(steps), "device": device}
    for part, name, measure in tasks(parts, networks, precisions, settings):
        if name in result.get(part, {}):
            continue
        remaining = limit - (perf_counter() - began)
        if remaining < 5:
            result["left"].append(f"{part} {name}")
            continue
        start = perf_counter()
        try:
            found = measure(min(SECONDS.get(part, 90), remaining))
            result.setdefault(part, {})[name] = found
            said = "done"
        except Exception as error:
            result["failed"].append({"what": f"{part} {name}", "error": f"{type(error).__name__}: {error}"})
            said = f"failed: {error}"
        click.echo(f"{perf_counter() - began:6.1f} s  {part} {name}: {said} ({perf_counter() - start:.1f} s)", err=True)
        result["judged"] = judged(result)
        if out is not None:
            out.write_text(json.dumps(result, indent=1), encoding="utf-8")
    if out is not None:
        out.write_text(json.dumps(result, indent=1), encoding="utf-8")
    for name, row in result.get("judged", {}).get("networks", {}).items():
        click.echo(f"{name}: " + ", ".join(f"{key} {value:.3g}" for key, value in row.items()), err=True)
    if as_json:
        click.echo(json.dumps(result))
    sys.exit(1 if result["failed"] else 0)


if __name__ == "__main__":
    main()
