"""taskflow doctor: lists what taskflow finds on this machine, and how to install what is missing."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from taskflow.cli.doctor_checks import findings
from taskflow.cli.finding import MISSING, NOTE, OK, WRONG, Finding
from taskflow.cli.options import FAILED, emit, output_options
from taskflow.cli.progress import working
from taskflow.cli.tables import render

MARKS = {OK: "ok", NOTE: "-", MISSING: "missing", WRONG: "WRONG"}


@click.command("doctor")
@output_options
def doctor_command(as_json: bool, quiet: bool) -> None:
    """Say what taskflow finds (Python, MPI, kernels, memory, GPUs, optional packages, caches), and which command installs or
    repairs what is missing.

    Exit code 0 if taskflow can run (perhaps without MPI, oneDNN or a GPU), 1 if it cannot. --quiet leaves out what is in order.

    \b
    Examples:
      taskflow doctor
      taskflow doctor --quiet
      taskflow doctor --json
    """
    with working("looking") as display:
        found = findings(display.say)
    wrong = [finding for finding in found if finding.state == WRONG]
    if as_json:
        emit({"can_run": not wrong, "findings": [asdict(finding) for finding in found]})
    else:
        click.echo(_table([f for f in found if f.state in (MISSING, WRONG) or not quiet]))
        click.echo("taskflow cannot run here" if wrong else "taskflow can run here")
    if wrong:
        sys.exit(FAILED)


def _table(found: list[Finding]) -> str:
    if not found:
        return "nothing is missing"
    rows = [[f.about, MARKS[f.state], f.found + (f"; remedy: {f.remedy}" if f.remedy else "")] for f in found]
    return render(["", "", "found"], rows, words=(0, 1, 2))
