"""Rank agreement: preparation that every rank does for itself before a run, with errors that all ranks raise and data that all
compare.

Otherwise a file that is missing on one node would end only that rank, and one that differs would silently train on other
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from taskflow.runtime.transport import Transport
from taskflow.writing import unwritable

T = TypeVar("T")
_MENDED = (ValueError, OSError, ImportError)  # what the user can correct


def on_all_ranks(transport: Transport, act: Callable[[], T]) -> T:
    """Return the result of ``act`` on this rank. If it raises ValueError, OSError or ImportError on any rank, all raise: the
    same error if it is the same everywhere, else a ValueError that says on which rank. Every rank calls it."""
    mine: Exception | None = None
    answer: T | None = None
    try:
        answer = act()
    except _MENDED as error:
        mine = error
    found = transport.gather(None if mine is None else str(mine))
    problem = transport.broadcast(None if found is None else _verdict(found))
    if problem is None:
        return answer  # type: ignore[return-value]
    if mine is not None and str(mine) == problem:
        raise mine
    raise ValueError(problem)


def writable(transport: Transport, path: str | None, what: str) -> None:
    """Raise OSError on every rank if rank 0 cannot write the file ``path`` (None: not checked), so that a run fails at its
    beginning and not at its end. Every rank calls it."""
    problem = unwritable(path) if transport.rank == 0 and path is not None else None
    if (problem := transport.broadcast(problem)) is not None:
        raise OSError(f"cannot write {what} {path}: {problem}")


def same_options(transport: Transport, options: Mapping[str, object]) -> None:
    """Raise ValueError on every rank unless all were started with the same options: they would wait for each other. Every rank
    calls it."""
    found = transport.gather({name: "none" if value is None else str(value) for name, value in options.items()})
    problem = None if found is None else next((
        f"rank {rank} of {transport.size} has {name} {value}, and rank 0 {found[0].get(name)}; start all ranks by the same command"
        for rank, each in enumerate(found) for name, value in each.items() if value != found[0].get(name)
    ), None)  # fmt: skip
    if (problem := transport.broadcast(problem)) is not None:
        raise ValueError(problem)


def same_everywhere(transport: Transport, digest: Callable[[], str], what: str) -> None:
    """Raise ValueError on every rank unless ``digest`` returns one text on all of them; ``what``: its subject, for the message.
    Every rank calls it."""
    if transport.size == 1:
        return
    found = transport.gather(on_all_ranks(transport, digest))
    others = None if found is None else [rank for rank, each in enumerate(found) if each != found[0]]
    if others := transport.broadcast(others):
        who = f"rank {others[0]}" if len(others) == 1 else f"{len(others)} ranks (the first is {others[0]})"
        raise ValueError(
            f"{what}: {who} of {transport.size} read other data than rank 0; every rank must be given the same, so compare the "
            "files that --data names (and the installed packages, without it) on the ranks' nodes"
        )


def _verdict(found: Sequence[str | None]) -> str | None:
    """The error that every rank has, or the first one with its rank; None if there is none."""
    wrong = [(rank, text) for rank, text in enumerate(found) if text is not None]
    if not wrong:
        return None
    rank, text = wrong[0]
    if len(wrong) == len(found) and all(each == text for _, each in wrong):
        return text
    others = "the others do not" if len(wrong) == 1 else f"and {len(wrong) - 1} others"
    return f"{text} (rank {rank} says this, {others}; every rank must see the same files and options)"
