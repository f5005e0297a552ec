"""Shared space: whether the ranks of a node fit into /dev/shm, looked at before MPI starts; MPICH's message is a crash."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from taskflow.runtime.job import segments
from taskflow.runtime.job.launch import LaunchError, say_once
from taskflow.runtime.job.segments import LEAN_BYTES, RANK_BYTES

VARIABLE = "UCX_TLS"
LEAN = "^posix"
"""UCX's own segments as System V's, which need nothing of /dev/shm; as fast (4 kB to 40 MB)."""
_ENDING_SECONDS = 2.0
"""How long what was removed, or a job before, may take to be gone."""
MORE = "docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm"


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes of /dev/shm: that are ``free`` for a job, what its own ranks have taken already included, and in ``total``."""

    free: int
    total: int


def room(parent: int = 0) -> Room | None:
    """Return what there is for the ranks that process ``parent`` has started; None where there is no /dev/shm."""
    found = segments.space(parent)
    return None if found is None else Room(*found)


def make_room(ranks: int, library: str) -> None:
    """Before MPICH starts: remove what this user's failed jobs have left in /dev/shm, and let UCX do without it if ``ranks`` of
    this node do not fit, which rank 0 says. ``library``: what MPI says of itself. Raises LaunchError if there is too little even
    so."""
    if "MPICH" not in library:
        return
    segments.remove_unmapped(segments.left_behind())
    until = time.monotonic() + _ENDING_SECONDS
    while (there := room(os.getppid())) is not None:
        try:
            note = setting(ranks, there, os.environ, "ucx" in library)
        except LaunchError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
            continue
        if note:
            os.environ[VARIABLE] = LEAN
            say_once(f"note: {note}")
        return


def setting(ranks: int, there: Room, environment: Mapping[str, str], ucx: bool) -> str:
    """Return what to say if UCX must do without /dev/shm; empty if all fits. Raises LaunchError if nothing helps."""
    own = environment.get(VARIABLE)
    lean = not ucx or (own not in (None, "all") and not {"shm", "sm", "posix", "mm"} & set(str(own).split(",")))
    if ranks * (LEAN_BYTES if lean else RANK_BYTES) <= there.free:
        return ""
    has = f"/dev/shm has {_mb(there.free)} of {_mb(there.total)} free"
    if ranks * LEAN_BYTES > there.free or own is not None:
        most = there.free // (LEAN_BYTES if lean or own is None else RANK_BYTES)
        fewer = f"start at most {most} ranks on this node" if most > 1 else "remove what is there (ls -l /dev/shm)"
        unset = "" if own is None else f" (with {VARIABLE}={own})"
        need = ranks * (LEAN_BYTES if lean or own is None else RANK_BYTES)
        raise LaunchError(f"connect: {has}, but MPICH needs {_mb(need)} for {ranks} ranks{unset}; give more ({MORE}), or {fewer}")
    return f"{has}, {_mb(ranks * RANK_BYTES)} are wanted for {ranks} ranks: UCX shares memory without it ({VARIABLE}={LEAN})"


def in_words(there: Room) -> str:
    """Return how much there is, and for how many ranks."""
    ranks, lean = there.free // RANK_BYTES, there.free // LEAN_BYTES
    has = f"/dev/shm has {_mb(there.free)} of {_mb(there.total)} free"
    if lean < 2:
        return f"{has}: no ranks of MPICH start"
    return f"{has}: for {ranks} ranks of MPICH on this node, {lean} with {VARIABLE}={LEAN}, which is set where it is needed"


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
