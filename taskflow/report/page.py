"""page: the report as one HTML file that contains its styles, scripts and data."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskflow.report.columns import pack
from taskflow.report.data import Report
from taskflow.report.pipeline import pipeline_section
from taskflow.report.tables import comparison, facts, headline, machine_tables, operator_table
from taskflow.writing import replacing

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
