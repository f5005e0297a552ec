"""What taskflow does on a GPU: one script; it needs cupy, numpy, mpi4py, click and msgspec, and builds the extensions itself.

    python benchmarks/gpu.py --smoke
    python benchmarks/gpu.py --out gpu.json [--parts device,tests] [--wheels DIR] [--limit 570] [--resume] [--quick] [--json]

Parts, in the order in which they are worth their time (training goes precision by precision, PyTorch compiled last):
- device: what is there, and the rate of large products at each precision.
- smoke: a minute in which each thing that the others need is tried alone (gpu_smoke.py). --smoke: these two.
- losses: of the six networks, small, over 20 steps in fp32, against the CPU's, under data parallel, expert and random strategies.
- training: a step at the paper's sizes against PyTorch eager and torch.compile: samples a second, part of the products' rate.
- accuracy: predicted and measured steps, and whether the order of strategies is kept.
- ranks: losses of 2, 4 and 16 ranks that share the GPU, against the CPU's.
- launch: the same step asked for kernel by kernel, without CUDA graphs: what the program needs to ask for it.
- tests: those marked gpu, with every failure's name.
- cpu (only if it is named): examples/rnnlm.py on 1 to 16 ranks of this machine's cores, and benchmarks/accuracy.py with 16.

Each measurement runs in a process of its own with a time limit, and the script goes on after one that fails: ``failed`` has the
errors with all that was said (tracebacks, and where it stood if it took too long), ``left`` what there was no time for. --out is
written after each, so that what is stopped keeps what it has, and --resume goes on from there: with what was never tried, then with
what failed. --wheels: wheels that were brought to a machine without a registry.
Without a GPU: one line on stderr, exit code 2; with failures: 1.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import geometric_mean
from time import perf_counter
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gpu_processes import ROOT, Failed, run
from gpu_wheels import environment, installed

WORKER, SMOKE = ROOT / "benchmarks" / "gpu_worker.py", ROOT / "benchmarks" / "gpu_smoke.py"
NETWORKS = ("AlexNet", "Inception-v3", "ResNet-101", "RNNTC", "RNNLM", "NMT")
PRECISIONS = ("fp32", "tf32", "bf16")
PARTS = ("device", "smoke", "losses", "training", "accuracy", "ranks", "launch", "tests", "cpu")
NEEDED = ("numpy", "mpi4py", "click", "msgspec")
RANKS = (2, 4, 16)
CPU_RANKS = (1, 2, 4, 8, 16)
SECONDS = {"smoke": 180, "tests": 240, "training": 120, "accuracy": 120, "cpu": 300}
"""A measurement's limit by part; 90 where nothing is said."""
WRONG = 4  # gpu_smoke.py's exit code if a check failed
WHEELS_VARIABLE = "TASKFLOW_GPU_WHEELS"  # which wheels this process has been started with
LOG = 60_000  # characters of what pytest says
Task = tuple[str, str, Callable[[float], Any]]
"""Part, name, and what measures it within so many seconds."""


def worker(kind: str, seconds: float, settings: dict[str, str]) -> dict[str, Any]:
    """One measurement of gpu_worker.py."""
    options = [part for key, value in settings.items() for part in (f"--{key}", value)]
    return last_object(run([sys.executable, str(WORKER), kind, *options], seconds))


def last_object(out: str) -> Any:
    """The JSON that a program prints last. Failed if it prints none."""
    try:
        return json.loads(out.splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise Failed(f"the last line is no JSON: {error}", out) from error


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

    torch = importlib.util.find_spec("torch") is not None

    def training(some: tuple[str, ...], sides: tuple[str, ...]) -> Iterator[Task]:
        for precision in some if "training" in parts else ():
            for network in networks:
                for side in sides:
                    yield "training", f"{network} {precision} {side}", measured(side, network=network, precision=precision)

    if "device" in parts:
        yield "device", "device", measured("device")
    if "smoke" in parts:
        yield "smoke", "smoke", lambda s: smoke(s, "host" if device == "cpu" else device)
    if "losses" in parts:
        for network in networks:
            yield "losses", network, measured("losses", network=network)
    yield from training(precisions[:1], ("taskflow", "eager") if torch else ("taskflow",))
    if "accuracy" in parts:
        for network in networks:
            yield "accuracy", network, measured("accuracy", network=network, precision=precisions[0])
    if "ranks" in parts:
        for count in (1, *RANKS):
            yield "ranks", str(count), lambda s, count=count: rank_losses(count, "cpu" if count == 1 else device, s)
    yield from training(precisions[1:], ("taskflow", "eager") if torch else ("taskflow",))
    if "launch" in parts:
        for network in networks:
            yield "launch", network, measured("one-by-one", network=network, precision=precisions[0])
    if "tests" in parts:
        yield "tests", "kernel by kernel", lambda s: tests(s, "not graphs", "0")
        yield "tests", "graphs", lambda s: tests(s, "graphs", "1")
    yield from training(precisions if torch else (), ("compile",))
    if "cpu" in parts:
        for count in CPU_RANKS:
            yield "cpu", f"rnnlm {count}", lambda s, count=count: rnnlm(count, s)
        yield "cpu", "accuracy", lambda s: last_object(
            run([sys.executable, "benchmarks/accuracy.py", "--ranks", "16", "--rounds", "3", "--json"], s)
        )


def tests(seconds: float, which: str, graphs: str) -> dict[str, Any]:
    """The tests marked gpu, with or without those of recorded steps: how many passed, and what the others said."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-k", which, "tests/gpu", "-p", "no:cacheprovider"]
    command += ["-rfE", "--tb=short"]
    out = run(command, seconds, (0, 1), TASKFLOW_GRAPHS=graphs)
    lines = out.strip().splitlines()
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"summary": lines[-1], "failures": failures, **({"log": out[-LOG:]} if failures else {})}


def smoke(seconds: float, device: str) -> dict[str, Any]:
    """All checks of gpu_smoke.py, in as many processes as they need: what kills one, or the GPU in it, costs the others nothing."""
    rows: list[dict[str, Any]] = []
    until, after = perf_counter() + seconds, ""
    while True:
        failed: Failed | None = None
        try:
            out = run([sys.executable, str(SMOKE), "--device", device, "--after", after], until - perf_counter(), (0, WRONG))
        except Failed as error:
            out, failed = error.out, error
        said = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        rows += [row for row in said if "check" in row]
        started = [row["starts"] for row in said if "starts" in row]
        if failed is not None and not started:
            raise failed
        if failed is not None and (not rows or rows[-1]["check"] != started[-1]):
            rows.append({"check": started[-1], "ok": False, "error": str(failed), "log": failed.log})
        if failed is None or perf_counter() > until - 5:
            break
        after = started[-1]
    wrong = [row for row in rows if not row["ok"]]
    return {
        "summary": f"{len(rows) - len(wrong)} of {len(rows)} checks are fine", "failures": [row["check"] for row in wrong],
        "checks": rows, "log": "\n\n".join(f"{row['check']}: {row['error']}\n{row['log']}" for row in wrong),
    }


def rank_losses(count: int, which: str, seconds: float) -> list[float]:
    """Of a small training on ranks that share the device."""
    out = run(mpirun(count, str(ROOT / "tests" / "gpu" / "ranks_program.py"), which, "16"), seconds)
    found: list[float] = last_object(out)["losses"]
    return found


def rnnlm(count: int, seconds: float) -> dict[str, Any]:
    """What the example says about itself, on some of the CPU's cores."""
    out = run(
        mpirun(count, "examples/rnnlm.py", "--steps", "20", "--json", "--quiet"), seconds, OPENBLAS_NUM_THREADS="1",
        OMP_NUM_THREADS="1",
    )
    found: dict[str, Any] = last_object(out)
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
        [sys.executable, "setup.py", "build_ext", "--inplace", "-j", str(min(8, os.cpu_count() or 1))], cwd=ROOT,
        capture_output=True, text=True, check=False,
    )
    return None if done.returncode == 0 else f"building the extensions failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}"


def with_wheels(folder: Path) -> None:
    """Start again as a process that finds the wheels of a folder."""
    try:
        where = environment(installed(folder), os.environ)
    except RuntimeError as error:
        click.echo(f"gpu.py: {error}", err=True)
        sys.exit(2)
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.argv], {**where, WHEELS_VARIABLE: str(folder.resolve())})


def planned(result: dict[str, Any], todo: Iterator[Task]) -> list[Task]:
    """What ``result`` lacks: first what was never tried, then what failed before."""
    before = {row["what"] for row in result.get("failed", [])}

    def lacks(part: str, name: str) -> bool:
        found = result.get(part, {}).get(name)
        return found is None or (isinstance(found, dict) and bool(found.get("failures")))

    return sorted((task for task in todo if lacks(*task[:2])), key=lambda task: f"{task[0]} {task[1]}" in before)


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
@click.option("--smoke", "only_smoke", is_flag=True, help="The parts device and smoke, nothing else.")
@click.option("--wheels", type=click.Path(file_okay=False, path_type=Path), help="Wheels for a machine without a registry.")
@click.option("--quick", is_flag=True, help="Small presets: whether it works, not how fast.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--device", type=click.Choice(["gpu", "cpu"]), default="gpu", hidden=True)
def main(
    parts: tuple[str, ...], networks: tuple[str, ...], precisions: tuple[str, ...], steps: int, limit: float, out: Path | None,
    resume: bool, only_smoke: bool, wheels: Path | None, quick: bool, as_json: bool, device: str,
) -> None:
    began = perf_counter()
    if wheels is not None and os.environ.get(WHEELS_VARIABLE) != str(wheels.resolve()):
        with_wheels(wheels)
    if said := missing(device):
        click.echo(f"gpu.py: {said}", err=True)
        sys.exit(2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # of what is ended
    result: dict[str, Any] = {}
    if resume and out is not None and out.exists():
        result = json.loads(out.read_text(encoding="utf-8"))
    settings = {"preset": "small" if quick else "paper", "steps": str(steps), "device": device}
    todo = planned(result, tasks(("device", "smoke") if only_smoke else parts, networks, precisions, settings))
    result |= {"failed": [], "left": []}
    if problem := built():  # then numpy's kernels and the search's Python twin serve on the host
        result["failed"].append({"what": "build", "error": problem})
        click.echo(f"gpu.py: {problem}; going on without them", err=True)
    for part, name, measure in todo:
        remaining = limit - (perf_counter() - began)
        if remaining < 5:
            result["left"].append(f"{part} {name}")
            continue
        start, allowed = perf_counter(), SECONDS.get(part, 90)
        try:
            found = measure(min(allowed, remaining))
            result.setdefault(part, {})[name] = found
            said = "done"
            if part in ("smoke", "tests"):
                said = found["summary"]
                if found["failures"]:
                    result["failed"].append({"what": f"{part} {name}", "error": said, "log": found.get("log", "")})
        except Exception as error:
            said = f"failed: {error}"
            if isinstance(error, Failed) and remaining < allowed and perf_counter() - start >= remaining:
                result["left"].append(f"{part} {name}")  # the end of everything came, not its own
            else:
                row = {"what": f"{part} {name}", "error": f"{type(error).__name__}: {error}"}
                result["failed"].append({**row, "log": error.log if isinstance(error, Failed) else traceback.format_exc()})
        click.echo(f"{perf_counter() - began:6.1f} s  {part} {name}: {said} ({perf_counter() - start:.1f} s)", err=True)
        result["judged"] = judged(result)
        if out is not None:
            out.write_text(json.dumps(result, indent=1), encoding="utf-8")
    if out is not None:
        out.write_text(json.dumps(result, indent=1), encoding="utf-8")
    for row in result["failed"]:
        click.echo(f"failed: {row['what']}: {row['error'][:300]}", err=True)
    for name, row in result.get("judged", {}).get("networks", {}).items():
        click.echo(f"{name}: " + ", ".join(f"{key} {value:.3g}" for key, value in row.items()), err=True)
    if as_json:
        click.echo(json.dumps(result))
    sys.exit(1 if result["failed"] else 0)


if __name__ == "__main__":
    main()
