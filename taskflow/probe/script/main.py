"""The probe: measures what a machine's PyTorch does in what time, and writes it as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from statistics import median
from time import perf_counter, strftime
from typing import Any

import torch
import torch.distributed as dist

from taskflow.probe.cases import OF_A_PLAN, Case, cases_of, usual
from taskflow.probe.script.clock import LEAST_CHUNKS, Taken, busy, finish, taken
from taskflow.probe.script.cut import changes, cut_operators
from taskflow.probe.script.messages import measured
from taskflow.probe.script.parts import (
    COUNT,
    beside,
    compiled,
    placed_parameters,
    stages,
    units,
    updates,
)
from taskflow.probe.script.work import arrays_of, phases_of

FORMAT, VERSION = "taskflow-probe", 1
SECONDS = 150.0
SHARES = {"work": 0.36, "messages": 0.22, "units": 0.2, "cut": 0.06, "changes": 0.07, "stages": 0.04, "updates": 0.03, "rest": 0.02}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write what was found on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="probe.json", help="the file to write")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="to spend, beside starting (default: %(default)s)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", action="store_true", help="do not try torch.compile")
    parser.add_argument("--only-plan", action="store_true", help="of operators, those of the plan alone")
    options = parser.parse_args(arguments)
    device = started(options.device)
    found = probed(device, options.seconds, options.only_plan, not options.no_compile)
    if dist.get_rank() == 0:
        with open(options.out, "w") as file:
            json.dump(found, file, indent=1)
            file.write("\n")
        print(f"wrote {options.out}: {len(found['work'])} rows of operators, {len(found['messages'])} of messages; missing: "
              f"{len(found['missing'])}")  # fmt: skip
    dist.destroy_process_group()


def started(kind: str) -> torch.device:
    """Start the process group, of one rank without torchrun, and return this rank's device."""
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_free_port()))
        os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
    device = torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        device = torch.device("cuda", torch.cuda.current_device())
    if not dist.is_initialized():
        dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    return device


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def probed(device: torch.device, seconds: float, only_plan: bool = False, compiling: bool = True) -> dict[str, Any]:
    """Return the measurements of a machine as JSON, the same on all ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    began, missing = perf_counter(), list[str]()
    about = described(device)
    budget = {name: share * seconds for name, share in SHARES.items()}
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    cases = cases_of([*([] if only_plan else usual(device.type == "cuda")), *OF_A_PLAN])
    work = operators(cases, device, budget["work"], missing)
    if device.type == "cuda":
        work += eight_bits(device, budget["rest"], missing)
    found: dict[str, Any] = {"format": FORMAT, "version": VERSION, "about": about, "work": together(work)}
    found["updates"] = together(all_updates(mesh, device, budget["updates"], missing))
    found["messages"] = measured(about["nodes"], device, budget["messages"], missing) if dist.get_world_size() > 1 else []
    parts = units(mesh, device, budget["units"], missing) if dist.get_world_size() > 1 else []
    parts += cut_operators(mesh, device, budget["cut"], missing)
    parts += stages(device, budget["stages"], missing)
    parts += changes(mesh, device, budget["changes"], missing) if dist.get_world_size() > 1 else []
    parts += compiled(device, budget["rest"], missing) if compiling else []
    found["parts"] = together(parts)
    found["beside"] = beside(device, budget["rest"]) if dist.get_world_size() > 1 else {}
    found["host"] = {"start_seconds": starting(device, budget["rest"])}
    found["missing"], about["took_seconds"] = list(dict.fromkeys(missing)), perf_counter() - began
    about |= afterwards(device)
    return found


def types(device: torch.device) -> list[torch.dtype]:
    """Return the types that are measured."""
    return [torch.float32, torch.bfloat16] if device.type == "cuda" else [torch.float32]


def operators(cases: Sequence[Case], device: torch.device, seconds: float, missing: list[str]) -> list[dict[str, Any]]:
    """Return rows of forward and backward of each case in each type."""
    rows, kinds = [], types(device)
    for number, case in enumerate(cases):
        for dtype in kinds:
            took, each = None, seconds / len(cases) / len(kinds)
            try:
                took = timed_case(case, dtype, device, each)
            except (RuntimeError, AttributeError, TypeError) as error:  # too large, or not there
                if (text := f"{case.name} {dtype}: {str(error).splitlines()[0][:120]}") not in missing:
                    missing.append(text)
            for backward, one in enumerate(took or ()):
                rows.append({
                    "case": number, "group": case.group, "name": case.name, "sizes": list(case.sizes), "backward": bool(backward),
                    "dtype": str(dtype).removeprefix("torch."), "flops": case.flops, "bytes": case.nbytes(dtype.itemsize),
                    "seconds": one.seconds, "host_seconds": one.host_seconds, "spread": one.spread,
                })  # fmt: skip
    return rows


def timed_case(case: Case, dtype: torch.dtype, device: torch.device, seconds: float) -> list[Taken]:
    """Return what forward and backward of a case take, on as many copies of its arrays as there is time for."""
    (first,) = phases_of(case, arrays_of(case, dtype, device, 1))[:1]
    first()
    finish(device)
    began = perf_counter()
    first()
    finish(device)
    once = 3 * (perf_counter() - began)  # backward takes twice as long as forward
    arrays = arrays_of(case, dtype, device, seconds / (LEAST_CHUNKS + 2) / max(1e-7, once))
    return taken(phases_of(case, arrays), len(arrays), device, seconds)


def eight_bits(device: torch.device, seconds: float, missing: list[str]) -> list[dict[str, Any]]:
    """Return rows of products of 8-bit floats, where there are any."""
    rows = []
    for number, (n, k, m) in enumerate(((4096, 4096, 4096), (8192, 8192, 8192))):
        try:
            a = torch.randn(n, k, device=device).to(torch.float8_e4m3fn)
            b, one = torch.randn(m, k, device=device).to(torch.float8_e4m3fn).t(), torch.ones((), device=device)
            action = partial(torch._scaled_mm, a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
            (took,) = taken([action], 1, device, seconds / 4)
        except (RuntimeError, AttributeError, TypeError, ValueError) as error:
            missing.append(f"float8: {str(error).splitlines()[0][:120]}")
            return []
        rows.append({
            "case": -1 - number, "group": "product", "name": "linear", "sizes": [n, k, m], "backward": False, "dtype": "float8",
            "flops": 2.0 * n * k * m, "bytes": n * k + k * m + 2 * n * m, "seconds": took.seconds,
            "host_seconds": took.host_seconds, "spread": took.spread,
        })  # fmt: skip
    return rows


def all_updates(mesh: Any, device: torch.device, seconds: float, missing: list[str]) -> list[dict[str, Any]]:
    """Return what each update takes for a parameter, by its elements; on plain tensors and on pieces."""
    rows = []
    sizes = (1 << 12, 1 << 20, 1 << 24) if device.type == "cuda" else (1 << 9, 1 << 14, 1 << 18)
    between = busy(device)
    for name, make in updates(device):
        for where in (None, mesh):
            for elements in sizes:
                try:
                    optimizer = make(placed_parameters(elements, where, device))
                    *_, took = taken([between, optimizer.step], COUNT, device, seconds / 24)
                except (RuntimeError, ValueError, TypeError, ImportError, NotImplementedError) as error:
                    missing.append(f"{name}: {str(error).splitlines()[0][:120]}")
                    continue
                rows.append({"name": name, "pieces": where is not None, "elements": max(8, elements // 64) * 64,
                             "seconds": took.seconds, "host_seconds": took.host_seconds, "spread": took.spread})  # fmt: skip
    return rows


def starting(device: torch.device, seconds: float) -> float:
    """Return what the host needs to start one small kernel of many in a row."""
    value = torch.zeros(16, device=device)

    def many() -> None:
        for _ in range(100):
            value.add_(1.0)

    (one,) = taken([many], 100, device, min(seconds, 0.5))
    return one.host_seconds or one.seconds


def together(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows whose seconds are medians over the ranks, with the slowest rank's beside them. Rows that not all ranks have are
    left out."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, rows)
    what = ("seconds", "plain_seconds", "host_seconds", "plain_host_seconds", "spread")
    by_key: dict[str, list[dict[str, Any]]] = {}
    for of_rank in every:
        for row in of_rank:
            by_key.setdefault(json.dumps({k: v for k, v in row.items() if k not in what}), []).append(row)
    return [
        {**same[0], **{k: median(row[k] for row in same) for k in what if k in same[0]},
         "slowest_seconds": max(row["seconds"] for row in same)}
        for same in by_key.values() if len(same) == len(every)
    ]


def described(device: torch.device) -> dict[str, Any]:
    """Return what the machine is, and which versions measure it."""
    names: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(names, (socket.gethostname(), os.environ.get("GROUP_RANK")))  # torchrun's number of a node
    nodes = [len(list(of_node)) for _, of_node in groupby(names)]
    found: dict[str, Any] = {
        "when": strftime("%Y-%m-%dT%H:%M:%S"), "python": platform.python_version(), "torch": torch.__version__,
        "cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None), "backend": dist.get_backend(),
        "system": f"{platform.system()} {platform.machine()}", "kind": device.type, "ranks": len(names), "nodes": nodes,
        "threads": torch.get_num_threads(), "arguments": sys.argv[1:],
    }  # fmt: skip
    return found | (_gpu(device) if device.type == "cuda" else _cpu(nodes[0]))


def _gpu(device: torch.device) -> dict[str, Any]:
    facts, (free, total) = torch.cuda.get_device_properties(device), torch.cuda.mem_get_info(device)
    found = {
        "name": facts.name, "memory_bytes": total, "free_bytes": free, "multiprocessors": facts.multi_processor_count,
        "cache_bytes": getattr(facts, "L2_cache_size", 0), "capability": [facts.major, facts.minor],
        "nccl": list(torch.cuda.nccl.version()) if dist.get_backend() == "nccl" else None,
    }
    return found | _running(device, "")


def _cpu(ranks: int) -> dict[str, Any]:
    name, total = platform.processor() or platform.machine(), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError), open("/proc/cpuinfo") as file:
        name = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), name)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_AVPHYS_PAGES" in os.sysconf_names else total
    return {"name": name, "memory_bytes": total // ranks, "free_bytes": free // ranks, "cores": os.cpu_count(),
            "load": list(os.getloadavg())}  # fmt: skip


def afterwards(device: torch.device) -> dict[str, Any]:
    """Return what the machine is like after all that: the load of others, clocks and power, memory that the allocator lost."""
    if device.type != "cuda":
        return {"load_after": list(os.getloadavg())}
    found: dict[str, Any] = {
        "allocator_bytes": torch.cuda.memory_reserved(device), "allocator_used_bytes": torch.cuda.memory_allocated(device),
    }
    return found | _running(device, "_after")


def _running(device: torch.device, when: str) -> dict[str, float]:
    """Clock and power, which are not known without nvidia-ml-py."""
    found: dict[str, float] = {}
    with suppress(Exception):
        found[f"clock{when}_hertz"] = torch.cuda.clock_rate(device) * 1e6
        found[f"power{when}_watts"] = torch.cuda.power_draw(device) / 1e3
    return found


if __name__ == "__main__":
    main()
