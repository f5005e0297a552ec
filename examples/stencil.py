"""Heat on a square plate: a five-point stencil, cut into tiles that read their neighbours' borders.

    python examples/stencil.py --processors 4              # four virtual processors in one process
    mpirun -n 4 python examples/stencil.py                 # four ranks

The result is compared with the same steps in plain numpy: it is equal to the last bit on any number of processors.
"""

from __future__ import annotations

from math import isqrt
from time import perf_counter
from typing import Any

import click
import numpy as np

import taskflow
from taskflow.partition import Image, Tile
from taskflow.regions import Rect
from taskflow.writing import json_text

ALPHA = 0.2


@taskflow.task(new="write", old="read")
def heat(new: Any, old: Any, color: tuple[int, int], degrees: tuple[int, int]) -> None:
    """``old`` is ``new``'s tile and one cell more on every side that is not an edge of the plate, whose cells stay."""
    new[...] = old[tuple(slice(int(c > 0), int(c > 0) + n) for c, n in zip(color, new.shape))]
    inner = tuple(slice(int(c == 0), n - int(c == d - 1)) for c, d, n in zip(color, degrees, new.shape))
    new[inner] += ALPHA * (
        old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:] - 4 * old[1:-1, 1:-1]
    )


@taskflow.task(plate="read")
def warmth(plate: Any) -> float:
    return float(plate.sum())


def degrees_for(processors: int) -> tuple[int, int]:
    """The factors of ``processors`` that are nearest to a square."""
    rows = max(i for i in range(1, isqrt(processors) + 1) if processors % i == 0)
    return rows, processors // rows


def start(size: int) -> Any:
    """A warm top edge and a spot."""
    plate = np.zeros((size, size))
    plate[0] = 1.0
    plate[size // 3 : size // 2, size // 4 : size // 2] = np.arange(size // 2 - size // 4) % 7
    return plate


def plain(size: int, steps: int) -> Any:
    """The same in numpy."""
    old = start(size)
    for _ in range(steps):
        new = old.copy()
        new[1:-1, 1:-1] += ALPHA * (old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:] - 4 * old[1:-1, 1:-1])
        old = new
    return old


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--size", type=click.IntRange(4), default=256, show_default=True, help="Cells along each side.")
@click.option("--steps", type=click.IntRange(1), default=200, show_default=True, help="Time steps, rounded up to even.")
@click.option("--processors", type=click.IntRange(1), help="Virtual processors (default: one a rank).")
@click.option("--trace", metavar="FILE", help="Write three replays for ui.perfetto.dev or chrome://tracing.")
@click.option("--json", "as_json", is_flag=True, help="Last line of stdout: one JSON object with the results.")
def main(size: int, steps: int, processors: int | None, trace: str | None, as_json: bool) -> None:
    with taskflow.TaskRuntime(processors) as rt:
        degrees = degrees_for(rt.processors)
        if size < 2 * max(degrees):
            raise click.UsageError(f"--size must be at least {2 * max(degrees)} for {rt.processors} processors, got {size}")
        u, v = rt.region((size, size), name="u"), rt.region((size, size), name="v")
        rt.write(u, start(size))
        tiles = Tile((size, size), degrees)
        halo = Image(tiles, lambda r: Rect((r.lo[0] - 1, r.lo[1] - 1), (r.hi[0] + 1, r.hi[1] + 1)), u.rect)

        def two_steps() -> Any:
            rt.launch(heat, over=tiles, new=(v, tiles), old=(u, halo), degrees=degrees)
            rt.launch(heat, over=tiles, new=(u, tiles), old=(v, halo), degrees=degrees)
            return rt.launch(warmth, over=tiles, plate=(u, tiles), reduce="sum")

        step = rt.trace(two_steps, name="two steps")
        if trace is not None:
            rt.record_replays(trace)
        pairs = -(-steps // 2)
        began = perf_counter()
        for _ in range(pairs):
            total = step()
        seconds = perf_counter() - began
        found = rt.read(u)
        if rt.rank == 0:
            difference = float(np.abs(found - plain(size, 2 * pairs)).max())
            report = {
                "size": size, "steps": 2 * pairs, "processors": rt.processors, "ranks": rt.transport.size,
                "seconds": seconds, "cells_per_second": size * size * 2 * pairs / seconds, "total": total.get(),
                "replays": step.replays, "max_difference": difference,
            }
            click.echo(
                f"{size} x {size} cells, {2 * pairs} steps on {degrees[0]} x {degrees[1]} processors: {seconds:.3f} s, "
                f"largest difference to numpy {difference:g}", err=True,
            )
            if as_json:
                click.echo(json_text(report))
            if difference != 0.0:
                raise SystemExit(f"stencil.py: the result must equal numpy's, but differs by {difference:g}")


if __name__ == "__main__":
    main()
