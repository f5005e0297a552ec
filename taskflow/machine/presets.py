"""Machines by name or file: the built-in clusters of taskflow/machines, and the user's own JSON files."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from taskflow.machine.cluster import PRECISIONS, Cluster
from taskflow.machine.composition import composed
from taskflow.machine.host import host
from taskflow.machine.machine_file import parse, unparse
from taskflow.reading import read_json
from taskflow.writing import json_text, replacing

FOLDER = Path(__file__).parent.parent / "machines"
HERE = ("host", "this", "this-gpu")


def preset_names() -> tuple[str, ...]:
    """Return the names that `load_machine` knows."""
    return (*sorted(path.stem for path in FOLDER.glob("*.json")), *HERE)


def load_machine(name: str | Path, devices: int | None = None) -> Cluster:
    """Return a built-in cluster by name, or the machine of a file (any path that ends in ``.json``). ``devices``: only its
    first processors. ``host`` and ``this``: the cores of the machine at hand, ``devices`` of them or all. ``this-gpu``:
    ``devices`` GPUs (default 1) of typical rates, whether or not there are any. With ``:tf32`` or ``:bf16`` after the name,
    matrix products of float32 arrays multiply in that type, on tensor cores (`Cluster.multiplying_in`).

    Raises ValueError for an unknown name, a broken file, too many devices or a precision that they lack; FileNotFoundError for
    a missing file.
    """
    text, _, precision = str(name).rpartition(":")
    if text and precision in PRECISIONS:
        machine = load_machine(text, devices)
        return machine if precision == "fp32" else machine.multiplying_in(precision)
    text = str(name)
    if text == "this-gpu":
        return host(1 if devices is None else devices, "gpu")
    if text in HERE:
        return host(cores() if devices is None else devices)
    path = Path(name) if text.endswith(".json") else FOLDER / f"{text.lower()}.json"
    if not text.endswith(".json") and text.lower() not in preset_names():
        name, _, precision = text.lower().partition(":")
        if precision and name in preset_names():
            raise ValueError(f"machine {text}: no precision {precision!r} of products; use :tf32 or :bf16")
        close = get_close_matches(name, preset_names(), 1)
        raise ValueError(
            f"no machine {text!r}{f' (did you mean {close[0]}?)' if close else ''}; use {', '.join(preset_names())}, or a machine "
            "file FILE.json"
        )
    machine = parse(machine_content(path), str(path))
    return machine if devices is None else machine.prefix(devices)


def machine_content(path: Path, on_the_way: tuple[Path, ...] = ()) -> Any:
    """Return the JSON value of a machine file, made whole if it begins as another machine (`composed`). ``on_the_way``: the files
    that begin as this one. Raises as `load_machine` does."""

    def other(name: str) -> Any:
        there = path.parent / name if name.endswith(".json") else FOLDER / f"{name.lower()}.json"
        if not there.is_file():
            raise ValueError(f"{path}: like: must be a preset with devices of its own or a machine file, got {name!r}")
        if there.resolve() in (of.resolve() for of in (path, *on_the_way)):
            raise ValueError(f"{path}: like: {name!r} begins as this machine")
        content = machine_content(there, (path, *on_the_way))
        parse(content, str(there))
        return content

    return composed(read_json(path, "machine file"), str(path), other)


def save(machine: Cluster, path: str | Path) -> None:
    """Write a machine file. Readers see the old file or the complete new one. Raises ValueError if the machine cannot be
    written (`unparse`)."""
    content = json_text(unparse(machine), 1) + "\n"
    with replacing(path) as file:
        file.write_text(content, encoding="utf-8")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
