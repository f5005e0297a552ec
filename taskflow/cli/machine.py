"""taskflow machine: measure the machine at hand, show any machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from taskflow.cli import completing
from taskflow.cli.options import emit, output_options, writable
from taskflow.cli.tables import render, tell
from taskflow.machine import Cluster, Link, load_machine, save, transfer_seconds, unparse
from taskflow.option_types import Seconds, check_processors
from taskflow.probe import Built, built, is_nccl_tests, measurements_of, read_probes
from taskflow.working import Working
from taskflow.writing import shown, unwritable

MOST_SECONDS = 60.0


@click.group("machine")
def machine_group() -> None:
    """Measure the machine at hand, build one of a probe's measurements, or show any machine."""


# ---- measure ---------------------------------------------------------------------------------------------------------
@machine_group.command("measure", short_help="Measure this machine, with one processor for each rank.")
@click.option("--out", type=click.Path(dir_okay=False), help="Write the machine to this file; --machine FILE reads it again.")
@click.option("--name", help="Its name in results (default: the file's name, or `measured`).")
@click.option("--processors", type=click.IntRange(1), help="Without mpirun: number of virtual processors of this process.")
@click.option("--device", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True, help="What each rank computes on.")
@click.option("--timeout", type=Seconds(min=0, min_open=True), default=MOST_SECONDS, show_default=True, metavar="SECONDS",
              help="End the job if a rank waits longer for another.")
@output_options
def measure_command(
    out: str | None, name: str | None, processors: int | None, device: str, timeout: float, as_json: bool, quiet: bool
) -> None:
    """Measure this machine.

    Each rank is a processor. Compute rates are measured while all ranks compute. Messages within a node and between nodes are
    measured pair by pair, while the other ranks wait. Nothing else should run meanwhile. Use as many ranks and threads as
    training will have.

    \b
    Examples:
      mpirun -n 2 taskflow machine measure --out mine.json
      taskflow machine measure --processors 2 --name laptop --json
      taskflow search lenet --machine mine.json
    """
    from taskflow.kernels import kernels_on
    from taskflow.runtime import connect
    from taskflow.runtime.calibrate import measure

    if out == "":
        raise ValueError("the name of the file to write is empty")
    if out and not out.endswith(".json"):
        raise ValueError(f"--out must end in .json, so that --machine takes it for a file; got {out}")
    transport = connect(watchdog_seconds=timeout)
    try:
        check_processors(processors, transport.size)
        _first_may_write(transport, out)
        called = name or (shown(Path(out).stem) if out else "measured")
        with Working("measuring", quiet or transport.rank > 0, elsewhere="each") as line:
            machine = measure(
                transport, called, kernels_on(device), processors=processors, say=lambda text: line.say(f"measuring {text}")
            )
        if transport.rank == 0:
            if out:
                save(machine, out)
            if as_json:
                emit(unparse(machine))
            else:
                tell(describe(machine))
                if out and not quiet:
                    tell(f"written to {out}; use it with --machine {out}")
    finally:
        transport.close()


def _first_may_write(transport: Any, out: str | None) -> None:
    """Better to fail before the work. ValueError on every rank if rank 0 cannot write the file."""
    problem = unwritable(out) if out and transport.rank == 0 else None
    if (problem := transport.broadcast(problem)) is not None:
        raise ValueError(f"cannot write {out}: {problem}")


# ---- show ------------------------------------------------------------------------------------------------------------
@machine_group.command("show", short_help="Show processors, rates, memory and links.")
@click.argument("machine", shell_complete=completing.machines)
@click.option("--devices", "-n", type=click.IntRange(1), help="Use its first N devices (default: all).")
@output_options
def show_command(machine: str, devices: int | None, as_json: bool, quiet: bool) -> None:
    """Show MACHINE (a name or FILE.json): processors, links, and the kinds of routes between processors.

    \b
    Examples:
      taskflow machine show k80
      taskflow machine show mine.json --devices 2 --json
    """
    cluster = load_machine(machine, devices)
    if as_json:
        emit(summary(cluster))
    else:
        tell(describe(cluster))


def summary(machine: Cluster) -> dict[str, Any]:
    """Return a machine in numbers: kinds of devices and their counts, the links of one node of each kind, and the routes that
    differ in rate, each with two processors that it connects."""
    used = [p.kind for p in machine.processors]
    return {
        "name": machine.name,
        "source": machine.source,
        "devices": len(machine.processors),
        "nodes": machine.node_count,
        "kinds": [
            {
                "kind": d.kind, "processors": used.count(d.kind), "memory_bytes": d.memory_bytes,
                "flops_per_second": dict(d.flops_per_second), "products": d.products,
                "memory_bytes_per_second": d.memory_bytes_per_second,
                "launch_seconds": d.launch_seconds, "source": d.source,
            }
            for d in machine.kinds if d.kind in used
        ],
        "links": [
            {
                "node": node.name, "mesh" if wire.mesh else "between": list(wire.between),
                "bytes_per_second": wire.bytes_per_second, "latency_seconds": wire.latency_seconds,
                "duplex": "full" if wire.full_duplex else "half", "occupies_endpoints": wire.occupies_endpoints,
                "source": wire.source,
            }
            for node in machine.nodes for wire in node.wires
        ],
        "routes": [_route(machine, a, b) for a, b in _kinds_of_routes(machine)],
    }  # fmt: skip


def _kinds_of_routes(machine: Cluster) -> list[tuple[int, int]]:
    """One route of each kind, from the first processor of each kind of node."""
    found: dict[tuple[tuple[float, float, object], ...], tuple[int, int]] = {}
    first = [next(p.number for p in machine.processors if p.node == n) for n in range(min(machine.node_count, 2))]
    for a in first:
        for p in machine.processors[: a + 4096]:
            links = machine.route(a, p.number)
            kind = tuple((k.bytes_per_second, k.latency_seconds, k.occupies_endpoints) for k in links)
            if links:
                found.setdefault(kind, (a, p.number))
    return list(found.values())


def _route(machine: Cluster, a: int, b: int) -> dict[str, Any]:
    links: tuple[Link, ...] = machine.route(a, b)
    return {
        "from": a, "to": b, "same_node": machine.processors[a].node == machine.processors[b].node,
        "links": [k.name for k in links],
        "latency_seconds": sum(k.latency_seconds for k in links),
        "bytes_per_second": min(k.bytes_per_second for k in links),
        "copied_by": _copied_by(links),
        "mebibyte_seconds": transfer_seconds(links, 1 << 20),
    }


def _copied_by(links: tuple[Link, ...]) -> str:
    ends = [name for name, used in (("sender", any(k.occupies_sender for k in links)),
                                    ("receiver", any(k.occupies_receiver for k in links))) if used]  # fmt: skip
    return " and ".join(ends) or "hardware"


def describe(machine: Cluster) -> str:
    """Return `summary` as text for people."""
    value = summary(machine)
    lines = [str(machine) + (f" ({machine.source})" if machine.source else "")]
    for kind in value["kinds"]:
        rates = ", ".join(f"{rate / 1e9:,.4g} GFLOP/s {dtype}" for dtype, rate in kind["flops_per_second"].items())
        if kind["products"] != "float32":
            rates += f" (at which products of float32 arrays run: {kind['products']})"
        lines.append(
            f"  {kind['processors']} x {kind['kind']}: {kind['memory_bytes'] / 2**30:.3g} GiB, {rates}, memory "
            f"{kind['memory_bytes_per_second'] / 1e9:.4g} GB/s, {kind['launch_seconds'] * 1e6:.2g} us to start a kernel"
        )
    for route in value["routes"]:
        lines.append(
            f"  processor {route['from']} to {route['to']}: {route['bytes_per_second'] / 1e9:.4g} GB/s, "
            f"{route['latency_seconds'] * 1e6:.3g} us, copied by {route['copied_by']}, over {', '.join(route['links'])}"
        )
    return "\n".join(lines)


# ---- build ---------------------------------------------------------------------------------------------------------
@machine_group.command("build", short_help="Build a machine of a probe's measurements.")
@click.argument("files", nargs=-1, required=True)
@click.option("--out", type=click.Path(dir_okay=False), required=True, help="The machine file to write; -m FILE reads it.")
@click.option("--like", shell_complete=completing.machines, help="A machine that has what was not measured (needed for GPUs).")
@click.option("--name", help="Its name in results (default: the file's name).")
@output_options
def build_command(files: tuple[str, ...], out: str, like: str | None, name: str | None, as_json: bool, quiet: bool) -> None:
    """Build a machine of FILES: what `taskflow probe`'s program wrote, or outputs of nccl-tests.

    Several files of one machine are taken together, by the medians. Measured operators keep their times; rates between measured
    sizes, curves of collectives and the program's figures are fitted, with their errors. What was not measured is as in --like, and
    is listed.

    \b
    Examples:
      taskflow machine build probe.json --like h100 --out mine.json
      taskflow machine build monday.json tuesday.json --like h200 --out mine.json
      taskflow machine build all_reduce_perf.txt --like h100 --out network.json
    """
    writable(out)
    if not out.endswith(".json"):
        raise ValueError(f"--out must end in .json, so that --machine takes it for a file; got {out}")
    base = load_machine(like) if like else None
    texts = [path for path in files if is_nccl_tests(path)]
    if texts and len(texts) < len(files):
        other = next(path for path in files if path not in texts)
        raise ValueError(f"{texts[0]} is of nccl-tests, and {other} is not; build them apart")
    found = measurements_of(texts) if texts else read_probes(files)
    result = built(found, name or Path(out).stem, base)
    save(result.machine, out)
    summary = _summary(result, list(found.missing))
    if as_json:
        emit({"written": out, **summary})
        return
    if not quiet:
        tell(_text(summary))
    tell(f"wrote {out}: {result.machine}; use it with --machine {out}")


def _summary(result: Built, missing: list[str]) -> dict[str, Any]:
    return {"machine": result.machine.name, "errors": dict(result.errors), "kept": list(result.kept), "missing": missing}


def _text(summary: dict[str, Any]) -> str:
    rows = [(what, f"{error:.1%}") for what, error in summary["errors"].items()]
    parts = [render(("fitted", "mean error"), rows, words=(0,))] if rows else []
    parts += [f"not measured: {text}" for text in (*summary["kept"], *summary["missing"])]
    return "\n".join(parts)
