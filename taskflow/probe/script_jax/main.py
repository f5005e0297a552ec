"""The probe: measures what a machine's JAX does in what time, and writes it as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter, strftime
from typing import Any

import jax
import jax.numpy as jnp

from taskflow.probe.cases import OF_A_PLAN, Case, cases_of, usual
from taskflow.probe.script_jax.clock import taken
from taskflow.probe.script_jax.messages import measured
from taskflow.probe.script_jax.work import everywhere, timed_case

FORMAT, VERSION = "taskflow-probe", 1
SECONDS = 150.0
SHARES = {"work": 0.6, "messages": 0.3, "updates": 0.07, "start": 0.03}
TYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
COUNT = 8  # parameters of an update
KERNELS = 50  # in a row, that are too small to take time themselves
PREALLOCATED = 0.75  # of a GPU's memory, that JAX takes unless it is told otherwise


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="probe.json", help="the file to write")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="to spend, beside compiling (default: %(default)s)")
    parser.add_argument("--only-plan", action="store_true", help="of operators, those of the plan alone")
    options = parser.parse_args(arguments)
    found = probed(options.seconds, options.only_plan)
    with open(options.out, "w") as file:
        json.dump(found, file, indent=1)
        file.write("\n")
    print(f"wrote {options.out}: {len(found['work'])} rows of operators, {len(found['messages'])} of messages; missing: "
          f"{len(found['missing'])}")  # fmt: skip


def probed(seconds: float, only_plan: bool = False) -> dict[str, Any]:
    """Return the measurements of this process's devices as JSON."""
    began, missing, devices = perf_counter(), list[str](), jax.local_devices()
    gpu = devices[0].platform != "cpu"
    about = described(devices, gpu)
    cases = cases_of([*([] if only_plan else usual(gpu)), *OF_A_PLAN])
    found: dict[str, Any] = {"format": FORMAT, "version": VERSION, "about": about}
    found["work"] = operators(cases, devices, gpu, SHARES["work"] * seconds, missing)
    found["updates"] = updates(devices, gpu, SHARES["updates"] * seconds)
    found["messages"] = measured(devices, gpu, SHARES["messages"] * seconds, missing) if len(devices) > 1 else []
    found |= {"parts": [], "beside": {}, "host": {"start_seconds": starting(devices, SHARES["start"] * seconds)}}
    about |= {"took_seconds": perf_counter() - began, "load_after": list(os.getloadavg())}
    return found | {"missing": list(dict.fromkeys(missing))}


def operators(
    cases: Sequence[Case], devices: Sequence[Any], gpu: bool, seconds: float, missing: list[str]
) -> list[dict[str, Any]]:
    """Return rows of forward and backward of each case in each type."""
    rows, names = [], list(TYPES) if gpu else ["float32"]
    for number, case in enumerate(cases):
        for name in names:
            try:
                took = timed_case(case, TYPES[name], devices, seconds / len(cases) / len(names))
            except Exception as error:  # too large, or not there: compilers fail in many ways
                missing.append(f"{case.name} {name}: {str(error).splitlines()[0][:120]}")
                continue
            rows += [{
                "case": number, "group": case.group, "name": case.name, "sizes": list(case.sizes), "backward": bool(backward),
                "dtype": name, "flops": case.flops, "bytes": case.nbytes(TYPES[name].dtype.itemsize), "seconds": one.seconds,
                "host_seconds": 0.0, "spread": one.spread,
            } for backward, one in enumerate(took)]  # fmt: skip
    return rows


def updates(devices: Sequence[Any], gpu: bool, seconds: float) -> list[dict[str, Any]]:
    """Return what each update takes for a parameter, by its elements: all of some parameters in one compiled function."""
    rows, sizes = [], (1 << 12, 1 << 20, 1 << 24) if gpu else (1 << 9, 1 << 14, 1 << 18)
    for name, (update, arrays) in UPDATES.items():
        for elements in sizes:
            given = [[jnp.ones(elements) for _ in range(arrays)] for _ in range(COUNT)]
            compiled = jax.jit(lambda many, update=update: [update(*one) for one in many])
            took = taken(everywhere(compiled, devices, given), seconds / len(UPDATES) / len(sizes))
            rows.append({"name": name, "pieces": len(devices) > 1, "elements": elements, "seconds": took.seconds / COUNT,
                         "host_seconds": 0.0, "spread": took.spread})  # fmt: skip
    return rows


def momentum(weight: Any, gradient: Any, speed: Any) -> Any:
    """SGD with momentum."""
    speed = 0.9 * speed + gradient
    return weight - 1e-4 * speed, speed


def adam(weight: Any, gradient: Any, first: Any, second: Any) -> Any:
    """Adam."""
    first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient * gradient
    return weight - 1e-4 * first / (jnp.sqrt(second) + 1e-8), first, second


UPDATES: dict[str, tuple[Callable[..., Any], int]] = {
    "sgd": (lambda weight, gradient: (weight - 1e-4 * gradient,), 2), "momentum": (momentum, 3), "adam": (adam, 4),
    "adam_fused": (adam, 4),
}


def starting(devices: Sequence[Any], seconds: float) -> float:
    """Return what one small kernel of many in a compiled function takes."""
    weight = jnp.eye(8)

    def many(x: Any) -> Any:
        for _ in range(KERNELS):
            x = x @ weight
        return x

    return taken(everywhere(jax.jit(many), devices, weight), seconds).seconds / KERNELS


def described(devices: Sequence[Any], gpu: bool) -> dict[str, Any]:
    """Return what the machine is, and which versions measure it."""
    about: dict[str, Any] = {
        "when": strftime("%Y-%m-%dT%H:%M:%S"), "python": platform.python_version(), "torch": "none", "jax": jax.__version__,
        "cuda": None, "backend": f"xla {devices[0].client.platform_version}".splitlines()[0][:80],
        "system": f"{platform.system()} {platform.machine()}", "kind": "cuda" if gpu else "cpu", "ranks": len(devices),
        "nodes": [len(devices)], "threads": os.cpu_count() or 1,
    }  # fmt: skip
    if gpu:
        part = float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", PREALLOCATED))
        limit = (devices[0].memory_stats() or {}).get("bytes_limit", 0)
        return about | {"name": devices[0].device_kind, "memory_bytes": max(1, int(limit / part))}
    name, total = platform.machine(), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError), open("/proc/cpuinfo") as file:
        name = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), name)
    return about | {"name": name, "memory_bytes": total // len(devices), "load": list(os.getloadavg())}


if __name__ == "__main__":
    main()
