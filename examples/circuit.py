"""An electric circuit on a random graph, after Legion's example: wires reduce charge into nodes that pieces share.

    python examples/circuit.py --processors 4
    mpirun -n 4 python examples/circuit.py

The graph is cut into pieces in a row. A wire belongs to the piece of its tail; its head lies in the same piece or, for some,
among the shared nodes of a neighbouring piece. A step has three launches: new currents (read voltages), charges (reduce),
new voltages. The result is compared with a sequential numpy run; only the order of sums differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import click
import numpy as np

import taskflow
from taskflow.partition import Image, Tile
from taskflow.regions import Rect
from taskflow.writing import json_text

STEP_SECONDS = 1e-3
CAPACITY, LEAKAGE = 2.0, 1e-3


@taskflow.task(
    current="read-write", resistance="read", inductance="read", tail="read", head="read", private="read", shared="read"
)
def new_currents(
    current: Any, resistance: Any, inductance: Any, tail: Any, head: Any, private: Any, shared: Any
) -> None:
    """``tail`` and ``head`` count the piece's private nodes first, then the shared ones of its neighbourhood."""
    voltage = np.concatenate([private, shared])
    current += STEP_SECONDS / inductance * (voltage[tail] - voltage[head] - resistance * current)


@taskflow.task(private="read-write", shared="reduce", current="read", tail="read", head="read")
def distribute_charge(private: Any, shared: Any, current: Any, tail: Any, head: Any) -> None:
    moved = STEP_SECONDS * current
    charge = np.zeros(len(private) + len(shared))
    np.subtract.at(charge, tail, moved)
    np.add.at(charge, head, moved)
    private += charge[: len(private)]
    shared += charge[len(private) :]


@taskflow.task(voltage="read-write", charge="read-write")
def new_voltages(voltage: list[Any], charge: list[Any]) -> float:
    """Both lists: the private nodes, the shared ones. Returns the energy in the nodes."""
    energy = 0.0
    for v, q in zip(voltage, charge):
        v += q / CAPACITY
        v *= 1 - LEAKAGE
        q[:] = 0
        energy += 0.5 * CAPACITY * float(v @ v)
    return energy


@dataclass(frozen=True)
class Circuit:
    """Nodes are numbered privates first (piece by piece), then the shared ones. Arrays over wires, piece by piece."""

    pieces: int
    private: int
    shared: int
    tail: Any
    head: Any
    resistance: Any
    inductance: Any
    voltage: Any

    def local(self, node: Any, piece: Any) -> Any:
        """Global numbers of nodes as their pieces' tasks count them."""
        first_shared = self.pieces * self.private
        first_near = np.maximum(piece - 1, 0) * self.shared
        return np.where(node < first_shared, node - piece * self.private, self.private + node - first_shared - first_near)


def draw(pieces: int, nodes: int, wires: int, seed: int) -> Circuit:
    """A random circuit with ``nodes`` nodes, a fifth of them shared, and ``wires`` wires a piece."""
    random = np.random.default_rng(seed)
    shared = max(1, nodes // 5)
    private = nodes - shared
    piece = np.repeat(np.arange(pieces), wires)
    near = np.clip(piece + random.choice([-1, 1], piece.size), 0, pieces - 1)

    def node(of: Any, only_shared: Any) -> Any:
        inside = random.integers(0, nodes, of.size)
        inside = np.where(only_shared, private + random.integers(0, shared, of.size), inside)
        return np.where(inside < private, of * private + inside, pieces * private + of * shared + inside - private)

    crosses = random.random(piece.size) < 0.2
    return Circuit(
        pieces, private, shared, node(piece, False), node(np.where(crosses, near, piece), crosses),
        random.uniform(1, 10, piece.size), random.uniform(0.1, 1, piece.size), random.uniform(-5, 5, pieces * nodes),
    )


def plain(circuit: Circuit, steps: int) -> Any:
    """The voltages after ``steps`` in numpy."""
    voltage, current = circuit.voltage.copy(), np.zeros(len(circuit.tail))
    for _ in range(steps):
        across = voltage[circuit.tail] - voltage[circuit.head]
        current += STEP_SECONDS / circuit.inductance * (across - circuit.resistance * current)
        charge = np.zeros(len(voltage))
        np.subtract.at(charge, circuit.tail, STEP_SECONDS * current)
        np.add.at(charge, circuit.head, STEP_SECONDS * current)
        voltage = (voltage + charge / CAPACITY) * (1 - LEAKAGE)
    return voltage


class Simulation:
    """A circuit as regions, and one step of it as a trace."""

    def __init__(self, rt: taskflow.TaskRuntime, circuit: Circuit) -> None:
        pieces, count = circuit.pieces, len(circuit.tail)
        piece = np.repeat(np.arange(pieces), count // pieces)
        wires = Tile((count,), (pieces,))
        private = Tile((pieces * circuit.private,), (pieces,))
        shared = Tile((pieces * circuit.shared,), (pieces,))
        width = circuit.shared
        near = Image(shared, lambda r: Rect((r.lo[0] - width,), (r.hi[0] + width,)), shared.space)

        def wire(name: str, value: Any, dtype: str = "float64") -> Any:
            region = rt.region((count,), dtype, name=name)
            rt.write(region, value)
            return region, wires

        current = wire("current", 0.0)
        tail = wire("tail", circuit.local(circuit.tail, piece), "int64")
        head = wire("head", circuit.local(circuit.head, piece), "int64")
        resistance, inductance = wire("resistance", circuit.resistance), wire("inductance", circuit.inductance)
        self.private = rt.region(private.space.shape, name="private-voltage")
        self.shared = rt.region(shared.space.shape, name="shared-voltage")
        rt.write(self.private, circuit.voltage[: pieces * circuit.private])
        rt.write(self.shared, circuit.voltage[pieces * circuit.private :])
        private_charge = rt.region(private.space.shape, name="private-charge")
        shared_charge = rt.region(shared.space.shape, name="shared-charge")

        def body() -> Any:
            rt.launch(
                new_currents, over=pieces, current=current, resistance=resistance, inductance=inductance, tail=tail,
                head=head, private=(self.private, private), shared=(self.shared, near),
            )
            rt.launch(
                distribute_charge, over=pieces, private=(private_charge, private), shared=(shared_charge, near),
                current=current, tail=tail, head=head,
            )
            return rt.launch(
                new_voltages, over=pieces, voltage=[(self.private, private), (self.shared, shared)],
                charge=[(private_charge, private), (shared_charge, shared)], reduce="sum",
            )

        self.step = rt.trace(body, name="step")


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--pieces", type=click.IntRange(1), default=4, show_default=True, help="Pieces of the graph.")
@click.option("--nodes", type=click.IntRange(2), default=100, show_default=True, help="Nodes a piece.")
@click.option("--wires", type=click.IntRange(1), default=400, show_default=True, help="Wires a piece.")
@click.option("--steps", type=click.IntRange(1), default=100, show_default=True)
@click.option("--processors", type=click.IntRange(1), help="Virtual processors (default: one a rank).")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--trace", metavar="FILE", help="Write three replays for ui.perfetto.dev or chrome://tracing.")
@click.option("--json", "as_json", is_flag=True, help="Last line of stdout: one JSON object with the results.")
def main(
    pieces: int, nodes: int, wires: int, steps: int, processors: int | None, seed: int, trace: str | None,
    as_json: bool,
) -> None:
    with taskflow.TaskRuntime(processors) as rt:
        circuit = draw(pieces, nodes, wires, seed)
        simulation = Simulation(rt, circuit)
        if trace is not None:
            rt.record_replays(trace)
        began = perf_counter()
        for _ in range(steps):
            energy = simulation.step()
        seconds = perf_counter() - began
        found = np.concatenate([rt.read(simulation.private), rt.read(simulation.shared)])
        if rt.rank == 0:
            difference = float(np.abs(found - plain(circuit, steps)).max())
            report = {
                "pieces": pieces, "nodes": pieces * nodes, "wires": pieces * wires, "steps": steps,
                "processors": rt.processors, "ranks": rt.transport.size, "seconds": seconds, "energy": energy.get(),
                "replays": simulation.step.replays, "max_difference": difference,
            }
            click.echo(
                f"{pieces} pieces, {pieces * nodes} nodes, {pieces * wires} wires, {steps} steps on {rt.processors} "
                f"processors: {seconds:.3f} s, energy {energy.get():.6g}, largest difference to numpy {difference:.1e}",
                err=True,
            )
            if as_json:
                click.echo(json_text(report))
            if not difference < 1e-10:
                raise SystemExit(f"circuit.py: the voltages must equal numpy's up to rounding, but differ by {difference:g}")


if __name__ == "__main__":
    main()
