"""Machines by name or file: the built-in clusters of taskflow/machines, and the user's own JSON files."""

from __future__ import annotations

import os
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from taskflow.machine.cluster import PRECISIONS, Cluster
from taskflow.machine.host import host
from taskflow.machine.machine_file import CollectivesEntry, DeviceEntry, MachineFile, NodeEntry, parse, unparse
from taskflow.reading import Entry, Name, like_path, read_as, read_json
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
        close = " or ".join(get_close_matches(name, preset_names(), 3))
        raise ValueError(
            f"no machine {text!r}{f' (did you mean {close}?)' if close else ''}; use one that 'taskflow machines' lists, or a "
            "machine file FILE.json"
        )
    machine = parse(machine_content(path), str(path))
    return machine if devices is None else machine.prefix(devices)


def machine_content(path: Path, on_the_way: tuple[Path, ...] = ()) -> Any:
    """Return the JSON value of a machine file, made whole if it begins as another machine (`composed`). ``on_the_way``: the files
    that begin as this one. Raises as `load_machine` does."""

    def other(name: str) -> Any:
        there = like_path(name, path, FOLDER, "machine", on_the_way)
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


def _partly(form: Any, **also: Any) -> Any:
    """A form with the same keys, none of which is required; ``also``: other or more of them."""
    keys = get_type_hints(form, include_extras=True) | also
    return msgspec.defstruct(
        f"Like{form.__name__}", [(key, kind | UnsetType, UNSET) for key, kind in keys.items()], bases=(Entry,), kw_only=True,
        frozen=True, forbid_unknown_fields=True, namespace={"__doc__": form.__doc__}, module=__name__,
    )  # fmt: skip


LIKE_DEVICE = _partly(
    DeviceEntry, like=Annotated[Name, Meta(
        description="A device of the other machine, or MACHINE/DEVICE of a third; what is not said here is as there."
    )]
)
LIKE_NODE = _partly(
    NodeEntry, like=Annotated[Name, Meta(
        description="A node of the other machine, or MACHINE/NODE of a third; what is not said here is as there."
    )]
)
LIKE_MACHINE = _partly(
    MachineFile,
    like=Annotated[Name, Meta(description="The machine as which this one begins: a preset, or a machine file beside this one.")],
    devices=Annotated[list[LIKE_DEVICE], Meta(  # type: ignore[valid-type]
        description="Kinds of processors, in place of the other machine's."
    )],
    nodes=Annotated[list[LIKE_NODE], Meta(  # type: ignore[valid-type]
        description="Kinds of nodes, in place of the other machine's."
    )],
    collectives=Annotated[_partly(CollectivesEntry), Meta(description="What differs of the collective library.")],
)
"""Form of a machine file with ``like``: docs/schema/machine-like.json."""


def composed(content: Any, where: str, other: Callable[[str], Any]) -> Any:
    """Return the JSON value of a whole machine file for one that may begin as another; ``other`` returns that of the machine it
    names. Keys of the file replace those of the other machine; those of ``collectives`` one by one. Devices and nodes with
    ``like`` are those of the other machine, or of a third (``a100/dgx-a100``), with the keys that they say. Raises ValueError
    that begins with ``where``."""
    if not isinstance(content, dict):
        return content
    if "like" not in content:
        for key in ("devices", "nodes"):
            entries = content.get(key)
            for i, entry in enumerate(entries if isinstance(entries, list) else ()):
                if isinstance(entry, dict) and "like" in entry:
                    raise ValueError(f"{where}: {key}[{i}].like: the file must say 'like' too, the machine as which it begins")
        return content
    read_as(LIKE_MACHINE, content, where)
    for key in ("format", "version", "name"):
        if key not in content:
            raise ValueError(f"{where}: {key!r} is missing")
    base = other(content["like"])
    result = {**base, **{key: value for key, value in content.items() if key != "like"}}
    if "collectives" in content:
        result["collectives"] = {**base.get("collectives", {}), **content["collectives"]}
    for key, name in (("devices", "kind"), ("nodes", "name")):
        there = {entry[name]: entry for entry in base[key]}
        result[key] = [*result[key]]
        for i, entry in enumerate(result[key]):
            if "like" in entry:
                machine, apart, of = entry["like"].rpartition("/")
                found = {one[name]: one for one in other(machine)[key]} if apart else there
                if of not in found:
                    raise ValueError(
                        f"{where}: {key}[{i}].like: must be one of {', '.join(map(repr, found))}"
                        f"{apart and f' of {machine}'}, got {of!r}{'; of another machine: MACHINE/NAME' * (not apart)}"
                    )
                result[key][i] = {**found[of], **{key: value for key, value in entry.items() if key != "like"}}
    return result
