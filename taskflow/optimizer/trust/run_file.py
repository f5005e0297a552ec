"""Runs: steps that a user has measured, each a JSON file in a folder, with what was predicted for it.

A file says what was run in the words of the command line, so that its prediction can be made again: by another machine file, or by
a later version. Beside it stand the prediction and the features that trust compares plans by. docs/guide/trust.md describes it.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from taskflow import __version__
from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, unparse
from taskflow.mapper import MadeFrom, Strategy, as_content, paths_of
from taskflow.optimizer.trust.features import Features, features
from taskflow.reading import Count, Entry, Name, Positive, form_of, read_as, read_format, read_json, value_of
from taskflow.writing import json_text, path_text, replacing

FORMAT, VERSION = "taskflow-run", 1


if TYPE_CHECKING:
    FeaturesEntry: TypeAlias = Any
else:
    FeaturesEntry = form_of(Features)


class RunFile(Entry, frozen=True, kw_only=True):
    """A measured step."""

    format: Literal["taskflow-run"]
    version: Literal[1]
    when: Annotated[datetime, Meta(description="Time of the run, or of its record.")]
    plan: Annotated[Name, Meta(description="The plan in notation, or the strategy's name.")]
    model: Annotated[Name, Meta(description="The network's name.")]
    graph: Annotated[Name, Meta(description="Its fingerprint.")]
    samples: Annotated[Count, Meta(description="Samples a step.")]
    machine: Annotated[Name, Meta(description="The machine's name.")]
    device: Annotated[Name, Meta(description="The kind of its devices.")]
    devices: Annotated[Count, Meta(description="How many of them.")]
    program: Annotated[str, Meta(description="What drove them. Empty: not known.")] = ""
    measured_seconds: Annotated[Positive, Meta(description="Of a step, the median.")]
    steps: Annotated[Count, Meta(description="How many steps were measured.")] = 1
    memory_bytes: Annotated[Count, Meta(description="Measured on the device that needed the most.")] | UnsetType = UNSET
    predicted_seconds: Annotated[Positive, Meta(description="Of a step.")]
    predicted_bytes: Annotated[Count, Meta(description="Predicted on the device that needs the most.")] | UnsetType = UNSET
    predicted_by: Annotated[Name, Meta(description="The version of taskflow that predicted it.")]
    machine_state: Annotated[Name, Meta(description="Checksum of the machine's file and program at that time.")]
    features: FeaturesEntry
    made_from: Annotated[MadeFrom, Meta(description="Options of the command line that make the network and the machine again.")]
    strategy: Annotated[
        Any, Meta(description="The contents of a strategy file, for a plan that no notation says.")
    ] = UNSET
    note: str = ""

    @property
    def task(self) -> tuple[str, int, str, int, str]:
        """What runs have in common whose times can be compared: network, samples, machine, devices, and the program."""
        return self.graph, self.samples, self.machine, self.devices, self.program

    @property
    def which(self) -> str:
        """What plans of one task are told apart by: the notation, or all that a strategy's file says."""
        return self.plan if self.strategy is UNSET else json_text({**self.strategy, "name": ""})


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run and its file. It is one of the measured plans that `trust` compares a plan with."""

    path: Path
    file: RunFile

    @property
    def seconds(self) -> float:
        return self.file.measured_seconds

    @property
    def predicted(self) -> float:
        return self.file.predicted_seconds

    @property
    def source(self) -> str:
        return str(self.path)

    @property
    def device(self) -> str:
        return self.file.device

    @property
    def program(self) -> str:
        return self.file.program

    @property
    def features(self) -> Features:
        """What its plan is compared by."""
        found: Features = value_of(self.file.features)
        return found

    def __str__(self) -> str:
        file = self.file
        return f"yours of {file.when:%a %Y-%m-%d}, {file.model} on {file.devices} {file.device}, {file.plan}"

    def stale(self, name: str, state: str) -> bool:
        """True if its prediction is by another version, or by another state of the machine of this name (`state_of`)."""
        file = self.file
        return file.predicted_by != __version__ or (file.machine == name and file.machine_state != state)


def state_of(machine: Cluster) -> str:
    """Return a checksum of what a machine's file says of its devices, nodes, collectives and network, and of its program."""
    stem = unparse(machine)
    parts = [stem.get(key) for key in ("devices", "nodes", "collectives", "network")]
    return sha256(json_text(parts).encode()).hexdigest()[:16]


def run_file(
    graph: OperatorGraph, strategy: Strategy, machine: Cluster, made_from: dict[str, Any], measured: float, predicted: float, *,
    steps: int = 1, when: datetime | None = None, memory: int | None = None, predicted_memory: int | None = None, note: str = "",
) -> RunFile:
    """Return the record of a step of ``measured`` seconds under a strategy for which ``predicted`` are expected. ``made_from``: as
    strategy files have it; ``memory``: bytes on the fullest device. Raises ValueError for figures that no run has."""
    devices = {p.device.kind: p.device for p in machine.processors}
    programs = sorted({device.program.name for device in devices.values() if device.program is not None})
    content = {
        "format": FORMAT, "version": VERSION, "when": when or datetime.now().astimezone().replace(microsecond=0),
        "plan": str(strategy.plan) if strategy.plan is not None else strategy.name or "plan", "model": graph.name,
        "graph": graph.fingerprint(), "samples": graph.nodes[0].space.shape[0], "machine": machine.name,
        "device": "+".join(devices), "devices": len(machine.processors), "program": "+".join(programs),
        "measured_seconds": measured, "steps": steps, "predicted_seconds": predicted, "predicted_by": __version__,
        "machine_state": state_of(machine), "features": asdict(features(graph, strategy, machine)),
        "made_from": paths_of({key: value for key, value in made_from.items() if value is not None}, path_text), "note": note,
        **({} if memory is None else {"memory_bytes": memory}),
        **({} if predicted_memory is None else {"predicted_bytes": predicted_memory}),
        **({} if strategy.plan is not None else {"strategy": as_content(strategy, graph, machine.name)}),
    }  # fmt: skip
    return read_as(RunFile, content, "run")


def read_run(path: str | Path) -> MeasuredRun:
    """Read a run's file. Raises FileNotFoundError if there is none, ValueError if it is no such file."""
    return MeasuredRun(Path(path), read_format(RunFile, read_json(path, "run"), str(path), "the file of a run"))


def read_runs(folder: str | Path) -> list[MeasuredRun]:
    """Read all runs of a folder, the oldest first. Raises ValueError if there is no such folder, or if a file in it whose name
    ends in ``.json`` is no run's."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"runs {folder}: there is no such folder; `taskflow runs add` makes it")
    return sorted((read_run(path) for path in sorted(folder.glob("*.json"))), key=lambda run: (run.file.when, run.path.name))


def write_run(file: RunFile, path: str | Path) -> None:
    """Write a run's file."""
    text = json_text(msgspec.to_builtins(file), 1) + "\n"
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


def free_name(file: RunFile, folder: Path) -> Path:
    """Return a name in a folder that no file has: the run's date, model and plan, and a number if need be."""
    stem = re.sub(r"[^\w.=-]+", "-", f"{file.when:%Y-%m-%d}-{file.model}-{file.plan}")[:100].strip("-")
    path, number = folder / f"{stem}.json", 1
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}.json"
    return path
