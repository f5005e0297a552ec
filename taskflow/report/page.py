"""page: the report as one HTML file that contains its styles, scripts and data."""

from __future__ import annotations

import base64
import gzip
import json
import struct
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskflow.report.data import Report
from taskflow.report.pipeline import pipeline_section
from taskflow.report.tables import comparison, facts, headline, machine_tables, operator_table
from taskflow.writing import replacing

# Columns: named arrays of numbers in as few bytes as a browser can still read at once.
# Layout of the packed text: base64 of gzip of [length of the JSON: 4 bytes, little endian][JSON, UTF-8][column after column].
# Each column is stored byte plane by byte plane (all lowest bytes first), which gzip shrinks further; a rising column is stored
# as differences. The JSON's ``columns`` say name, bytes a number, length, the largest number, and whether differences are
# stored.
Numbers = NDArray[np.int64]


def pack(value: Mapping[str, Any], columns: Mapping[str, Numbers]) -> str:
    """Return one text of letters, digits and ``+/=``, which is safe in HTML. Raises ValueError if a column has negative numbers
    or numbers of 2^53 and more, which a browser cannot represent."""
    specs, planes = [], []
    for name, column in columns.items():
        spec, data = _column(name, np.asarray(column, np.int64))
        specs.append(spec)
        planes.append(data)
    head = json.dumps({**value, "columns": specs}, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    packed = gzip.compress(b"".join([struct.pack("<I", len(head)), head, *planes]), 9, mtime=0)
    return base64.b64encode(packed).decode("ascii")


def unpack(text: str) -> tuple[dict[str, Any], dict[str, Numbers]]:
    """Return what `pack` was given (the browser's side of it, in Python)."""
    raw = gzip.decompress(base64.b64decode(text))
    (length,) = struct.unpack_from("<I", raw)
    value = json.loads(raw[4 : 4 + length])
    place, columns = 4 + length, {}
    for spec in value.pop("columns"):
        width, count = spec["bytes"], spec["length"]
        column = np.zeros(count, np.int64)
        for plane in range(width):
            column += np.frombuffer(raw, np.uint8, count, place).astype(np.int64) << (8 * plane)
            place += count
        columns[spec["name"]] = np.cumsum(column) if spec["delta"] else column
    return value, columns


def _column(name: str, column: Numbers) -> tuple[dict[str, Any], bytes]:
    if len(column) and (column.min() < 0 or column.max() >= 2**53):
        raise ValueError(f"column {name}: numbers must be 0 to 2^53 - 1, got {column.min()} to {column.max()}")
    largest = int(column.max()) if len(column) else 0
    delta = len(column) > 1 and bool((np.diff(column) >= 0).all())
    stored = np.diff(column, prepend=0) if delta else column
    most = int(stored.max()) if len(stored) else 0
    width = max(1, -(-most.bit_length() // 8))
    planes = [((stored >> (8 * plane)) & 255).astype(np.uint8).tobytes() for plane in range(width)]
    return {"name": name, "bytes": width, "length": len(column), "largest": largest, "delta": delta}, b"".join(planes)


# In the order in which they are joined: each may use what those before it define.
SCRIPTS = (
    "data.js", "format.js", "colours.js", "select.js", "layout.js", "graph.js", "details.js", "lanes.js", "timeline.js",
    "charts.js", "memory.js", "search.js", "main.js",
)
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(report: Report) -> str:
    """Return the whole page. It opens no connection (its content policy forbids any). Names of models and operators are
    escaped."""
    value = report.value
    blanks = {
        "title": escape(title(value)),
        "policy": POLICY,
        "style": _static("page.css"),
        "headline": headline(value),
        "facts": facts(value),
        "comparison": comparison(value),
        "pipeline": pipeline_section(value["pipeline"]),
        "pipeline_link": '<a href="#pipeline">Pipeline</a>' if value["pipeline"] is not None else "",
        "operators": operator_table(value),
        "machine": machine_tables(value),
        "script": "\n".join(_static(name) for name in SCRIPTS),
        "data": pack(value, _small(report.columns)),
    }
    text = _static("page.html")
    parts = text.split("{{")  # filled in one pass, so that a value that looks like a blank stays as it is
    return parts[0] + "".join(
        blanks[name] + rest for name, _, rest in (part.partition("}}") for part in parts[1:])
    )


def _small(columns: Mapping[str, NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
    """Ends and busy times as what they differ by from starts and from the whole span: small numbers, which `data.js` adds up."""
    took = columns["end"] - columns["start"]
    idle = took - columns["busy"]
    instead = {"end": ("took", took), "busy": ("idle", idle)}
    if len(idle) and idle.min() < 0:  # joined messages that nothing kept apart
        del instead["busy"]
    return dict(instead.get(name, (name, column)) for name, column in columns.items())


def title(value: dict[str, Any]) -> str:
    """Return model, machine and plan in one line."""
    devices = value["machine"]["all_devices"]
    return (
        f"{value['model']['name']} on {value['machine']['name']}, {devices} device{'s' * (devices != 1)}: "
        f"{value['plan']['name']} plan"
    )


def write_page(report: Report, path: str | Path) -> int:
    """Write the page and return its size in bytes. An interrupted write leaves no partial page. Raises OSError if the file
    cannot be written."""
    data = page(report).encode()
    with replacing(path) as file:
        file.write_bytes(data)
    return len(data)


def _static(name: str) -> str:
    return (files("taskflow.report") / "static" / name).read_text("utf-8")
