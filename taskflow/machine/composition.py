"""Machine files that begin as another machine (``like``), and say only what differs: other cards, other devices, more nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from taskflow.machine.machine_file import CollectivesEntry, DeviceEntry, MachineFile, NodeEntry
from taskflow.reading import Entry, Name, read_as


def _partly(form: Any, **also: Any) -> Any:
    """A form with the same keys, none of which is required; ``also``: other or more of them."""
    keys = get_type_hints(form, include_extras=True) | also
    return msgspec.defstruct(
        f"Like{form.__name__}", [(key, kind | UnsetType, UNSET) for key, kind in keys.items()], bases=(Entry,), kw_only=True,
        frozen=True, forbid_unknown_fields=True, namespace={"__doc__": form.__doc__}, module=__name__,
    )  # fmt: skip


LIKE_DEVICE = _partly(
    DeviceEntry, like=Annotated[Name, Meta(description="A device of the other machine; what is not said here is as there.")]
)
LIKE_NODE = _partly(
    NodeEntry, like=Annotated[Name, Meta(description="A node of the other machine; what is not said here is as there.")]
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
    ``like`` are those of the other machine with the keys that they say. Raises ValueError that begins with ``where``."""
    if not isinstance(content, dict) or "like" not in content:
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
        result[key] = [_entry(entry, there, f"{where}: {key}[{i}]") for i, entry in enumerate(result[key])]
    return result


def _entry(entry: dict[str, Any], there: dict[str, Any], where: str) -> dict[str, Any]:
    if "like" not in entry:
        return entry
    if entry["like"] not in there:
        raise ValueError(f"{where}.like: must be one of {', '.join(map(repr, there))}, got {entry['like']!r}")
    return {**there[entry["like"]], **{key: value for key, value in entry.items() if key != "like"}}
