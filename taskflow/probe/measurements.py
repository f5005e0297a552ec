"""Measurements of probes: reading their files, and several of one machine as one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from msgspec import Meta

from taskflow.reading import Count, Entry, NotNegative, Positive, read_format, read_json

LISTS = ("work", "updates", "messages", "parts")
SECONDS = ("seconds", "plain_seconds", "host_seconds", "plain_host_seconds", "slowest_seconds", "spread")
Measured = Mapping[str, Any]


class About(Entry, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The machine, and which versions measured it."""

    kind: Literal["cpu", "cuda"]
    name: str
    torch: str
    jax: str | None = None
    backend: str
    when: str
    memory_bytes: Count
    ranks: Count
    nodes: Annotated[list[Count], Meta(min_length=1)]
    threads: Count
    cores: Count | None = None
    load: tuple[NotNegative, ...] = ()
    """Programs that ran or waited for a core before the probe, in the mean of the last 1, 5 and 15 minutes."""


class TimedRow(Entry, frozen=True, kw_only=True):
    """What rows have in common: seconds of the median rank, and of the slowest."""

    seconds: Positive
    host_seconds: NotNegative = 0.0
    slowest_seconds: Positive = 1.0
    spread: NotNegative = 0.0


class WorkRow(TimedRow, frozen=True, kw_only=True):
    """An operator in one direction."""

    case: int
    group: str
    name: str
    sizes: list[int]
    backward: bool
    dtype: str
    flops: NotNegative
    bytes: NotNegative


class UpdateRow(TimedRow, frozen=True, kw_only=True):
    """An update of a parameter."""

    name: Literal["sgd", "momentum", "adam", "adam_fused"]
    pieces: bool
    elements: Count


class MessageRow(TimedRow, frozen=True, kw_only=True):
    """A collective, or a message between two ranks."""

    what: str
    where: Literal["within", "between", "across"]
    ranks: Annotated[list[int], Meta(min_length=2)]
    bytes: Positive


class PartRow(TimedRow, frozen=True, kw_only=True):
    """A part of a program, and what it takes without what is asked about."""

    what: str
    phase: Literal["forward", "backward"]
    bytes: NotNegative = 0.0
    layers: Count = 1
    plain_seconds: NotNegative = 0.0
    plain_host_seconds: NotNegative = 0.0


class ProbeFile(Entry, frozen=True, kw_only=True):
    """What a probe writes."""

    format: Literal["taskflow-probe"]
    version: Literal[1]
    about: About
    work: list[WorkRow]
    updates: list[UpdateRow]
    messages: list[MessageRow]
    parts: list[PartRow]
    beside: dict[Literal["product_seconds", "sum_seconds", "both_seconds"], Positive]
    host: dict[Literal["start_seconds"], Positive]
    missing: list[str]

    def __post_init__(self) -> None:
        if "start_seconds" not in self.host:
            raise ValueError("'host' must have 'start_seconds'")


@dataclass(frozen=True, slots=True)
class Measurements:
    """What probes of one machine have found. ``about``: the machine and versions. Rows as `script.main` writes them."""

    about: Measured
    work: tuple[Measured, ...] = ()
    updates: tuple[Measured, ...] = ()
    messages: tuple[Measured, ...] = ()
    parts: tuple[Measured, ...] = ()
    beside: Measured = ()  # type: ignore[assignment]
    start_seconds: float = 0.0
    missing: tuple[str, ...] = ()
    files: int = 1

    @property
    def gpu(self) -> bool:
        """Whether its devices are GPUs."""
        return bool(self.about["kind"] == "cuda")

    def of_message(self, what: str, count: int, where: str) -> list[tuple[float, float]]:
        """Return bytes and seconds of an operation among so many ranks, smallest first."""
        return sorted(
            (float(row["bytes"]), float(row["seconds"])) for row in self.messages
            if row["what"] == what and len(row["ranks"]) == count and row["where"] == where
        )

    def of_part(self, what: str, phase: str) -> list[Measured]:
        """Return the rows of a part of a program."""
        return [row for row in self.parts if row["what"] == what and row["phase"] == phase]


def read_probes(paths: Sequence[str]) -> Measurements:
    """Return the measurements of one or several files of one machine: of several, the medians. Raises ValueError for what is no
    probe's file, or if they are of different machines. Warns of cores that were busy before."""
    every = [_read(path) for path in paths]
    for path, about in zip(paths, (one["about"] for one in every)):
        load, cores = (about.get("load") or [0.0])[0], about.get("cores")
        if about["kind"] == "cpu" and cores and load > cores:
            warnings.warn(
                f"{path}: {load:.1f} programs wanted {cores} cores before the probe, which measured them, too; measure again when "
                "nothing else runs", stacklevel=2,
            )  # fmt: skip
    first = every[0]
    for path, other in zip(paths[1:], every[1:]):
        if framework_of(other["about"]) != framework_of(first["about"]):
            raise ValueError(f"{path}: measured by {framework_of(other['about'])}, and {paths[0]} by "
                             f"{framework_of(first['about'])}; build a machine of each")  # fmt: skip
        for key in ("kind", "name", "ranks", "nodes", "threads"):
            if other["about"].get(key) != first["about"].get(key):
                raise ValueError(
                    f"{path}: another machine than {paths[0]}: {key} is {other['about'].get(key)!r}, not "
                    f"{first['about'].get(key)!r}; build a machine of each"
                )
    merged = {name: tuple(_medians(row for one in every for row in one[name])) for name in LISTS}
    beside = _median_of([one["beside"] for one in every if one["beside"]])
    return Measurements(
        first["about"], **merged, beside=beside, start_seconds=median(one["host"]["start_seconds"] for one in every),
        missing=tuple(dict.fromkeys(text for one in every for text in one["missing"])), files=len(every),
    )


def framework_of(about: Measured) -> str:
    """Return the name of the framework that has measured."""
    return "JAX" if about.get("jax") else "PyTorch"


def _read(path: str) -> dict[str, Any]:
    found = read_json(Path(path), "probe's file")
    read_format(ProbeFile, found, path, "a probe's file, as a program of taskflow probe writes it")
    return found  # type: ignore[no-any-return]


def _medians(rows: Iterable[Measured]) -> list[Measured]:
    """Of rows that are equal but for their seconds one, with the medians."""
    by_key: dict[str, list[Measured]] = {}
    for row in rows:
        by_key.setdefault(repr({key: value for key, value in row.items() if key not in SECONDS}), []).append(row)
    return [_median_of(same) for same in by_key.values()]


def _median_of(same: Sequence[Measured]) -> Measured:
    middle: Callable[[str], float] = lambda key: median(row[key] for row in same)  # noqa: E731
    return {key: middle(key) if isinstance(value, float) else value for key, value in same[0].items()} if same else {}
