"""Links between ranks: latency and bandwidth from round-trip messages, and whose core copies a message."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

from taskflow.kernels import HOST, ArrayDevice
from taskflow.machine import Ends
from taskflow.runtime.transport import Transport

SIZES = (8, 256, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20)  # bytes of the messages
SECONDS = 0.06  # to spend on a size
LEAST_ROUNDS, MOST_ROUNDS = 5, 60
SWEEP_BYTES = 16 << 20  # of other memory that a core goes through between two messages
AWAY_SECONDS = 0.1  # how long a rank stays out of MPI to see whether the other one can do without it
TRIES = 3


@dataclass(frozen=True, slots=True)
class Fitted:
    """Figures of a kind of link. ``copied_by``: as `Link.occupies_endpoints`. ``what``: what was measured."""

    latency_seconds: float
    bytes_per_second: float
    copied_by: Ends
    what: str


def measure_link(
    transport: Transport, pairs: Sequence[tuple[int, int]], copied: bool, device: ArrayDevice = HOST
) -> Fitted:
    """Measure a kind of link between ``pairs`` of ranks, one pair after the other, and take the medians of their figures. Every
    rank calls it.

    ``copied``: whether the ranks' own cores copy. If so, it is measured which of them do; if not, a network card reads and
    writes memory by itself, which is assumed. Cores that copy share the memory's bandwidth, and during a step the other core is
    busy too. So such messages are measured with another one in the opposite direction at the same time, those of a card
    without.
    """
    tag = transport.reserve_tags(2 * len(SIZES) + 2)
    meeting = tag + 2 * len(SIZES) + 1
    mine: list[tuple[float, float]] = []
    needs: list[tuple[bool, bool]] = []  # whether the receiver can do without the sender, and the other way round
    for a, b in pairs:
        transport.barrier()
        if transport.rank in (a, b):
            peer, first = (b, True) if transport.rank == a else (a, False)
            times = {n: _one_way(transport, n, peer, first, tag + 2 * i, meeting, copied, device) for i, n in enumerate(SIZES)}
            if first:
                mine.append(fit(times))
        if copied:
            needs.append(_without_each_other(transport, a, b, tag + 2 * len(SIZES)))
    gathered = transport.gather((mine, needs))
    result = None
    if gathered is not None:
        found = [each for of_rank, _ in gathered for each in of_rank]
        votes = [tuple(any(of[i][k] for _, of in gathered) for k in (0, 1)) for i in range(len(needs))]
        by: Ends = who_copies(votes) if copied else False
        what = f"messages between {' and '.join(f'ranks {a}, {b}' for a, b in pairs)}"
        result = Fitted(median(latency for latency, _ in found), median(rate for _, rate in found), by, what)
    link: Fitted = transport.broadcast(result)
    return link


def who_copies(votes: Sequence[tuple[bool, ...]]) -> Ends:
    """Decide which end copies. ``votes``: for some pairs, whether the receiver got everything while the sender made no MPI
    calls, and whether the sender finished while the receiver made none. An end that can finish without the other has copied
    alone."""
    if all(alone for alone, _ in votes):
        return "receiver"
    return "sender" if all(alone for _, alone in votes) else True


# ---- one pair --------------------------------------------------------------------------------------------------------
def _one_way(
    transport: Transport, nbytes: int, peer: int, first: bool, tag: int, meeting: int, together: bool, device: ArrayDevice
) -> float:
    """Median time of a message: of two at the same time, there and back, if ``together``; else half of one there and one back.

    Each is written anew before it is sent, as a step's are, so that the receiver does not find in its own caches what
    it copied before. Where cores copy, other memory is read before that, as tasks do between two messages. What a core
    needs to send and to receive has then left its caches, and takes two to three times as long as from one message to
    the next. Neither is timed, and both are ready for each other when the time begins.
    """
    xp = device.xp
    sweep = np.ones(SWEEP_BYTES // 4, np.float32) if together else None
    array, back = xp.ones(nbytes, np.uint8), xp.ones(nbytes, np.uint8)  # written, so that they are in memory
    send = transport.sender(array, peer, tag + (not first))
    receive = transport.receiver(back, peer, tag + first)
    token = xp.ones(1, np.uint8)
    ready = transport.receiver(token, peer, meeting) if first else transport.sender(token, peer, meeting)
    times: list[float] = []
    rounds = LEAST_ROUNDS
    while len(times) < rounds:
        if first and len(times) == LEAST_ROUNDS - 1:  # the last that both count on: its first byte says how many follow
            rounds = _rounds(times)
        if sweep is not None:
            sweep.sum()
        array.fill(rounds)
        device.synchronize()
        if first:
            ready.start()
            transport.wait(ready, "measure: the other side is ready")
        start = perf_counter()
        receive.start()
        if not first:
            transport.wait(ready, "measure: ready, round before")
            ready.start()
            if not together:
                transport.wait(receive, "measure: ping")
        send.start()
        transport.wait(receive, "measure: pong")
        transport.wait(send, "measure: sent")
        times.append(perf_counter() - start)
        if not first and len(times) == LEAST_ROUNDS:
            rounds = int(back[0])
    return median(times[1:]) / (1 if together else 2)


def _rounds(times: Sequence[float]) -> int:
    """Number of round trips that fit into the time for a size."""
    return int(min(MOST_ROUNDS, max(LEAST_ROUNDS, SECONDS / max(median(times[1:]), 1e-9))))


def _without_each_other(transport: Transport, a: int, b: int, tag: int) -> tuple[bool, bool]:
    """For each end of a large message from ``a`` to ``b``, as one rank sees it, True if it is finished there while the other
    end makes no MPI calls. Every rank calls it. It takes the best of a few tries, since a busy machine may keep a rank from
    running."""
    array = np.ones(SIZES[-1], np.uint8)
    channel = None
    if transport.rank == a:
        channel = transport.sender(array, b, tag)
    elif transport.rank == b:
        channel = transport.receiver(array, a, tag)
    alone = [False, False]
    for who, away in ((0, a), (1, b)):
        for _ in range(TRIES):
            transport.barrier()
            if channel is None:
                continue
            start = perf_counter()
            channel.start()
            if transport.rank == away:
                time.sleep(AWAY_SECONDS)
            transport.wait(channel, "measure: one side away")
            if transport.rank != away and perf_counter() - start < AWAY_SECONDS / 2:
                alone[who] = True
    return alone[0], alone[1]


def fit(times: Mapping[int, float]) -> tuple[float, float]:
    """Return (latency in seconds, bytes a second) that fit ``times`` (message size -> seconds) with the least squares of
    relative errors.

    Raises ValueError for fewer than two sizes.
    """
    if len(times) < 2:
        raise ValueError(f"fit: needs times of at least 2 sizes, got {len(times)}")
    sizes, seconds = np.array(list(times), float), np.maximum(np.array(list(times.values())), 1e-9)
    terms = np.stack([1 / seconds, sizes / seconds], axis=1)
    (latency, per_byte), *_ = np.linalg.lstsq(terms, np.ones(len(sizes)), rcond=None)
    if latency < 0 or per_byte <= 0:
        # Noise; then the two ends of the range say which is which.
        small, large = int(sizes.argmin()), int(sizes.argmax())
        return float(seconds[small]), float(sizes[large] / seconds[large])
    return float(latency), float(1 / per_byte)


# ---- one process -----------------------------------------------------------------------------------------------------
def measure_local_copies(device: ArrayDevice = HOST) -> Fitted:
    """Measure copies between virtual processors of this process, which its only core makes; it acts as the receiver."""
    times: dict[int, float] = {}
    for nbytes in SIZES:
        source, target = device.xp.ones(nbytes, np.uint8), device.xp.zeros(nbytes, np.uint8)
        runs: list[float] = []
        until = perf_counter() + SECONDS
        while len(runs) < LEAST_ROUNDS or (perf_counter() < until and len(runs) < 1000):
            runs.append(device.timed(lambda: np.copyto(target, source)))  # noqa: B023
        times[nbytes] = median(runs[1:])
    return Fitted(*fit(times), "receiver" if device.waits else False, "copies within one process")
