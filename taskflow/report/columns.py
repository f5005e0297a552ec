"""Columns: named arrays of numbers in as few bytes as a browser can still read at once.

Layout of the packed text: base64 of gzip of [length of the JSON: 4 bytes, little endian][JSON, UTF-8][column after column].
Each column is stored byte plane by byte plane (all lowest bytes first), which gzip shrinks further; a rising column is stored
as differences. The JSON's ``columns`` say name, bytes a number, length, the largest number, and whether differences are stored.
"""

from __future__ import annotations

import base64
import gzip
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
