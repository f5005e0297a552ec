"""Trace files: JSON, gzipped if the name says so, written completely or not at all."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taskflow import __version__
from taskflow.reading import parse_json
from taskflow.writing import json_text, replacing

_FORMAT, _VERSION = "taskflow-trace", 1
HEADER: Mapping[str, Any] = {"format": _FORMAT, "version": _VERSION, "taskflow": __version__}
"""What a trace's ``otherData`` begins with."""


def write_trace(content: Mapping[str, Any], path: str | Path) -> None:
    """Write a trace to ``path``, gzipped if that ends in ``.gz``. Readers see no file, the old one or the complete new one.
    Raises OSError if it cannot be written."""
    data = json_text(content, packed=True).encode()
    if Path(path).suffix == ".gz":
        data = gzip.compress(data, compresslevel=5, mtime=0)
    with replacing(path) as file:
        file.write_bytes(data)


def read_trace(path: str | Path) -> dict[str, Any]:
    """Return a trace that taskflow wrote. Raises FileNotFoundError, or ValueError if it is something else."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"trace file {path} does not exist")
    data = path.read_bytes()
    try:
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path}: not a trace: {error}") from error
    content = parse_json(text, str(path))
    about = content.get("otherData") if isinstance(content, dict) else None
    if not isinstance(about, dict) or about.get("format") != _FORMAT:
        raise ValueError(f"{path}: not a trace of taskflow; write one with --trace FILE")
    if about.get("version") != _VERSION:
        raise ValueError(f"{path}: version {about.get('version')} of traces; this taskflow reads {_VERSION}")
    return content  # type: ignore[no-any-return]
