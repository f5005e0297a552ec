"""Messages that are timed: collectives within a node, between nodes and over all ranks, and messages between two ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from taskflow.export.pytorch.support import gather, reduce_scatter
from taskflow.probe.cases import groups_of, sizes_of

LEAST_ROUNDS, MOST_ROUNDS = 5, 200


def collectives(nbytes: int, count: int, device: torch.device, group: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield each operation on an array of so many bytes: that is summed, of which all get all, of which each gets a sum."""
    elements = max(1, nbytes // 4 // count) * count
    whole, part = torch.zeros(elements, device=device), torch.zeros(elements // count, device=device)
    other = torch.zeros(elements, device=device)
    yield "all_reduce", lambda: dist.all_reduce(whole, group=group)
    yield "all_gather", lambda: gather(whole, part, group=group)
    yield "reduce_scatter", lambda: reduce_scatter(part, whole, group=group)
    yield "all_to_all", lambda: dist.all_to_all_single(other, whole, group=group)
    yield "broadcast", lambda: dist.broadcast(whole, dist.get_global_rank(group, 0), group=group)


def between_two(nbytes: int, peer: int, first: bool, device: torch.device) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield a message one way (with the answer of a few bytes, half of which is not counted), and both ways at once."""
    value, found, few = (torch.zeros(max(1, n // 4), device=device) for n in (nbytes, nbytes, 4))

    def passed(*messages: Any) -> None:
        for work in dist.batch_isend_irecv([dist.P2POp(*message) for message in messages]):
            work.wait()

    def one_way() -> None:
        passed((dist.isend, value, peer) if first else (dist.irecv, found, peer))
        passed((dist.irecv, few, peer) if first else (dist.isend, few, peer))

    yield "one_way", one_way
    yield "both_ways", lambda: passed((dist.isend, value, peer), (dist.irecv, found, peer))


def timed(action: Callable[[], Any], rounds: int, group: Any, device: torch.device) -> tuple[float, float]:
    """Return the seconds of an operation, begun by all ranks of a group at about the same time: median and spread. Each rank counts
    from the last one's begin on, as far as a barrier tells."""
    found = []
    for _ in range(rounds):
        dist.barrier(group=group)
        _finish(device)
        began = perf_counter()
        action()
        _finish(device)
        found.append(perf_counter() - began)
    found.sort()
    middle = median(found)
    return middle, (found[3 * len(found) // 4] - found[len(found) // 4]) / middle


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measured(nodes: Sequence[int], device: torch.device, seconds: float, missing: list[str]) -> list[dict[str, Any]]:
    """Return a row for each operation, group and size, the slowest rank's. ``seconds``: to spend, of all."""
    rows: list[dict[str, Any]] = []
    groups, sizes, rank = groups_of(nodes), sizes_of(device.type == "cuda"), dist.get_rank()
    each = seconds / max(1, len(groups) * len(sizes) * 7)
    for kind, ranks in groups:
        group = dist.new_group(ranks)  # by all ranks
        if rank in ranks:
            for nbytes in sizes:
                actions = list(collectives(nbytes, len(ranks), device, group))
                if len(ranks) == 2:
                    actions += between_two(nbytes, ranks[ranks[0] == rank], rank == ranks[0], device)
                for what, action in actions:
                    rows += _row(what, action, kind, ranks, nbytes, each, group, device, missing)
        dist.barrier()
    return rows


def _row(
    what: str, action: Callable[[], Any], kind: str, ranks: Sequence[int], nbytes: int, seconds: float, group: Any,
    device: torch.device, missing: list[str],
) -> list[dict[str, Any]]:
    try:
        action()
    except (RuntimeError, ValueError, NotImplementedError) as error:  # on all ranks alike
        if (text := f"{what}: {str(error).splitlines()[0][:120]}") not in missing:
            missing.append(text)
        return []
    once = torch.tensor(timed(action, 2, group, device)[0], device=device)
    dist.all_reduce(once, dist.ReduceOp.MAX, group=group)
    rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, round(seconds / max(1e-6, float(once)))))
    found = torch.tensor(timed(action, rounds, group, device), device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    took, spread = found.tolist()
    return [{"what": what, "where": kind, "ranks": list(ranks), "bytes": nbytes, "seconds": took, "spread": spread}]
