"""Messages that are timed: collectives within a node, between nodes and over all ranks, and messages between two ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from taskflow.export.pytorch.support import gather, reduce_scatter
from taskflow.probe.cases import groups_of, sizes_of
from taskflow.probe.script.clock import SLEEPS, busy, mean_of, seconds_between

LEAST_ROUNDS, MOST_ROUNDS = 5, 200
ROW = 5  # messages on a GPU that follow each other


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


def timed(
    action: Callable[[], Any], rounds: int, group: Any, device: torch.device, before: Callable[[], Any] | None = None
) -> tuple[float, float]:
    """Return the seconds of an operation, begun by all ranks of a group at about the same time: mean and spread. The mean, since a
    step adds messages up, and one of several waits for a core. Each rank counts from its own begin on, behind a barrier and what
    comes ``before`` the operation. On a GPU several follow each other, as in nccl-tests, and the device alone counts."""
    found = []
    for _ in range(-(-rounds // ROW) if device.type == "cuda" else rounds):
        meet(group, device)
        if device.type == "cuda":
            found.append(_in_a_row(action, device))
            continue
        if before is not None:
            before()
        began = perf_counter()
        action()
        found.append(perf_counter() - began)
    found.sort()
    return mean_of(found), (found[3 * len(found) // 4] - found[len(found) // 4]) / median(found)


def meet(group: Any, device: torch.device) -> None:
    """Wait for the other ranks of a group. NCCL is told the device: some versions of torch take the one of the rank's number in
    the group."""
    dist.barrier(group=group, **({"device_ids": [device.index]} if device.type == "cuda" else {}))


def _in_a_row(action: Callable[[], Any], device: torch.device) -> float:
    """Seconds of a device for one of several messages, which it begins when the host has started them all."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    torch.cuda._sleep(SLEEPS[0])
    first.record()
    for _ in range(ROW):
        action()
    last.record()
    torch.cuda.synchronize(device)
    return seconds_between(first, last) / ROW


def measured(nodes: Sequence[int], device: torch.device, seconds: float, missing: list[str]) -> list[dict[str, Any]]:
    """Return a row for each operation, group and size, the mean of its ranks. ``seconds``: to spend, of all. Collectives on a CPU
    follow computing; a message between two is one that a stage waits for."""
    rows: list[dict[str, Any]] = []
    groups, sizes, rank = groups_of(nodes), sizes_of(device.type == "cuda"), dist.get_rank()
    computing = busy(device)
    each = seconds / max(1, len(groups) * len(sizes) * 7)
    for kind, ranks in groups:
        group = dist.new_group(ranks)  # by all ranks
        if rank in ranks:
            for nbytes in sizes:
                actions: list[tuple[str, Any, Any]] = [(*one, computing) for one in collectives(nbytes, len(ranks), device, group)]
                if len(ranks) == 2:
                    actions += [(*one, None) for one in between_two(nbytes, ranks[ranks[0] == rank], rank == ranks[0], device)]
                for what, action, before in actions:
                    timing = partial(timed, action, group=group, device=device, before=before)
                    rows += _row(what, timing, kind, ranks, nbytes, each, group, device, missing)
        dist.barrier()
    return rows


def _row(
    what: str, timing: Callable[[int], tuple[float, float]], kind: str, ranks: Sequence[int], nbytes: int, seconds: float,
    group: Any, device: torch.device, missing: list[str],
) -> list[dict[str, Any]]:
    """``timing``: returns the seconds and spread of so many rounds. ``seconds``: to spend."""
    try:
        timing(1)
    except (RuntimeError, ValueError, NotImplementedError) as error:  # on all ranks alike
        if (text := f"{what}: {str(error).splitlines()[0][:120]}") not in missing:
            missing.append(text)
        return []
    began = perf_counter()
    timing(2)
    once = torch.tensor((perf_counter() - began) / 2, device=device)
    dist.all_reduce(once, dist.ReduceOp.MAX, group=group)
    rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, round(seconds / max(1e-6, float(once)))))
    found = torch.tensor(timing(rounds), device=device)
    slowest = found.clone()
    dist.all_reduce(found, group=group)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    took, spread = (found / len(ranks)).tolist()
    return [{"what": what, "where": kind, "ranks": list(ranks), "bytes": nbytes, "seconds": took, "spread": spread,
             "slowest_seconds": float(slowest[0])}]  # fmt: skip
