"""What finding overlaps and analysing launches costs as the number of pieces grows.

    python benchmarks/overlaps.py [--json FILE] [--pieces 4,16,64,256,1024] [--repeat 5]

First table: `overlaps(p, q)` of two partitions of P pieces each. Its time an overlap should stay as it is while P
grows; the column "all pairs" is the time of testing every pair of pieces, which grows with P x P (left out above 256
pieces). Second table: the dependence analysis of a stencil, point tasks that read a tile with its halo of one region
and write the tile of another, which swap every iteration: microseconds a launch, of the first iteration (in which all
instances are made) and of later ones. Times are processor time, the best of ``--repeat`` runs,
on one thread.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from taskflow.partition import Image, Partition, Tile, overlaps
from taskflow.regions import Analysis, LogicalRegion, Privilege, Rect, Requirement

TILE = 60  # points of a tile along every dimension that is cut
ITERATIONS = 4


def widen(rect: Rect) -> Rect:
    """A halo of one point on every side."""
    return Rect(tuple(x - 1 for x in rect.lo), tuple(x + 1 for x in rect.hi))


def tilings(pieces: int) -> dict[str, Tile]:
    """Tilings into this many pieces: a line, columns of a matrix, and a square of tiles."""
    side = round(pieces**0.5)
    return {
        "1-D": Tile((TILE * pieces,), (pieces,)),
        "2-D, columns": Tile((TILE, TILE * pieces), (1, pieces)),
        "2-D, square": Tile((TILE * side, TILE * side), (side, side)),
    }


def partition_pairs(pieces: int) -> Iterator[tuple[str, Partition, Partition]]:
    """Two partitions of one space, of about this many pieces each."""
    for name, tiles in tilings(pieces).items():
        image = Image(tiles, widen, tiles.space)
        yield f"{name}: halo, tiles", image, tiles
        yield f"{name}: tiles, halo", tiles, image


def best(repeat: int, run: Callable[[], object]) -> float:
    """The shortest time of ``run`` in seconds."""
    times = []
    for _ in range(repeat):
        start = process_time()
        run()
        times.append(process_time() - start)
    return min(times)


def all_pairs(left: Partition, right: Partition) -> int:
    """How many pairs of pieces overlap, by testing each."""
    others = right.rects()
    return sum(a.overlaps(b) for a in left.rects() for b in others)


def measure_overlaps(pieces: int, repeat: int) -> Iterator[dict[str, Any]]:
    for name, left, right in partition_pairs(pieces):
        found = sum(1 for _ in overlaps(left, right))
        seconds = best(repeat, lambda: sum(1 for _ in overlaps(left, right)))  # noqa: B023 (called at once)
        row = {
            "case": name, "pieces": len(left), "overlaps": found, "microseconds": seconds * 1e6,
            "microseconds_per_overlap": seconds * 1e6 / found,
        }
        if pieces <= 256:
            start = process_time()
            assert all_pairs(left, right) == found
            row["all_pairs_microseconds"] = (process_time() - start) * 1e6
        yield row


def stencil(tiles: Tile, exact: bool, processors: int) -> tuple[list[float], int]:
    """Seconds of each iteration's analysis, and how many copies the last one asks for."""
    halo = Image(tiles, widen, tiles.space).rects()
    regions = [LogicalRegion(name, tiles.space, np.dtype(np.float32)) for name in "ab"]
    analysis = Analysis(exact=exact)
    seconds, copies = [], 0
    for iteration in range(ITERATIONS):
        source, target = regions[iteration % 2], regions[1 - iteration % 2]
        points = [
            (Requirement(source, wide, Privilege.READ), Requirement(target, tile, Privilege.WRITE))
            for wide, tile in zip(halo, tiles.rects())
        ]
        start = process_time()
        launched = [analysis.launch(point, i * processors // len(points)) for i, point in enumerate(points)]
        seconds.append(process_time() - start)
        copies = sum(len(x.copies) for x in launched)
    return seconds, copies


def measure_analysis(pieces: int, repeat: int) -> Iterator[dict[str, Any]]:
    for name, tiles in tilings(pieces).items():
        for exact in (False, True):
            runs = [stencil(tiles, exact, processors=len(tiles)) for _ in range(repeat)]
            per_launch = [min(run[0][i] for run in runs) * 1e6 / len(tiles) for i in range(ITERATIONS)]
            yield {
                "case": f"{name}, {'exact' if exact else 'reuse'}", "pieces": len(tiles), "copies": runs[0][1],
                "first_microseconds_per_launch": per_launch[0],
                "later_microseconds_per_launch": sum(per_launch[2:]) / (ITERATIONS - 2),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to this file")
    parser.add_argument("--pieces", default="4,16,64,256,1024", help="numbers of pieces (squares), with commas")
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    counts = [int(text) for text in given.pieces.split(",")]
    found = [row for count in counts for row in measure_overlaps(count, given.repeat)]
    launches = [row for count in counts for row in measure_analysis(count, given.repeat)]
    print(f"{'overlaps':26} {'pieces':>6} {'overlaps':>8} {'us':>10} {'us/overlap':>10} {'all pairs, us':>13}")
    for row in sorted(found, key=lambda r: (r["case"], r["pieces"])):
        pairs = f"{row['all_pairs_microseconds']:13.0f}" if "all_pairs_microseconds" in row else f"{'-':>13}"
        print(
            f"{row['case']:26} {row['pieces']:6} {row['overlaps']:8} {row['microseconds']:10.1f} "
            f"{row['microseconds_per_overlap']:10.2f} {pairs}"
        )
    print(f"\n{'analysis of a stencil':26} {'tiles':>6} {'copies':>8} {'us/launch, first':>17} {'later':>17}")
    for row in sorted(launches, key=lambda r: (r["case"], r["pieces"])):
        print(
            f"{row['case']:26} {row['pieces']:6} {row['copies']:8} {row['first_microseconds_per_launch']:17.1f} "
            f"{row['later_microseconds_per_launch']:17.1f}"
        )
    if given.json:
        given.json.write_text(json.dumps({"overlaps": found, "analysis": launches}, indent=1) + "\n")


if __name__ == "__main__":
    main()
