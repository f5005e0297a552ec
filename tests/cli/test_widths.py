"""Tables that are piped fit into COLUMNS, or 120 columns where it is not set."""

from __future__ import annotations

import pytest
from fast_and_slow import fast_among
from starting import run_python

EXPLAIN = ("explain", "expert", "--model", "lenet", "-m", "k80", "-n", "4")
COMMANDS = [EXPLAIN, ("simulate", "lenet", "-m", "k80", "-n", "4", "--strategy", "expert")]


@pytest.mark.parametrize(("command", "columns"), fast_among(
    [(command, columns) for command in COMMANDS for columns in ("", "80")],
    [(COMMANDS[0], "80"), (COMMANDS[1], "")],
), ids=str)
def test_piped_tables_fit(command: tuple[str, ...], columns: str) -> None:
    ended = run_python("-m", "taskflow", *command, extra={"COLUMNS": columns})
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    rules = [at for at, line in enumerate(lines) if line.startswith("──")]
    assert rules
    for rule in rules:
        assert len(lines[rule]) <= int(columns or 120), lines[rule]
        until = next((at for at in range(rule, len(lines)) if not lines[at]), len(lines))
        rows = [line for line in lines[rule + 1 : until] if "  " in line.strip()]
        assert rows and all(len(line) <= int(columns or 120) for line in rows), rows
