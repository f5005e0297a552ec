"""Whatever subcommand there is keeps the grammar: --json, --quiet, exit codes, no traceback, completion, a narrow terminal.

`CASES` has a line for each subcommand of the click tree, which the first test compares with the tree itself: a new one that
has no line here fails.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete, get_completion_class
from click.testing import CliRunner
from fast_and_slow import fast_among

from taskflow.cli.main import COMMANDS, main
from taskflow.models import MODELS
from taskflow.training.program.example import RankCommand

ROOT = Path(__file__).resolve().parents[2]
ON = ("-m", "k80", "-n", "2")
MODEL = ("mlp", "--size", "small", *ON)
PLAN = ("data", "--model", "mlp", "--size", "small", *ON)
RUNS = tempfile.mkdtemp()  # of files that commands write anew
shutil.copytree(ROOT / "tests" / "cli" / "runs", RUNS, dirs_exist_ok=True)
atexit.register(shutil.rmtree, RUNS)
NETWORKS = str(ROOT / "tests" / "export" / "networks.py")
IMPORTED = ("data", "--model", f"{NETWORKS}:graph", "--module", f"{NETWORKS}:Llama", *ON)
PROBED = str(ROOT / "tests" / "probe" / "two_cores.json")
# subcommand -> (arguments that work, arguments with a mistake, what is said of it)
CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "search": ((*MODEL, "--budget", "20p"), (*MODEL, "--budget", "soon"), "soon"),
    "simulate": (MODEL, (*MODEL, "--strategy", "luck"), "no strategy 'luck'"),
    "compare": ((*MODEL, "--budget", "20p"), ("mlpp", *ON), "mlpp"),
    "share": (("mlp", "mlp", *MODEL[1:], "--budget", "20p"), ("mlp", *MODEL[1:]), "needs two jobs or more, got 1"),
    "fit": (MODEL, ("mlpp", *ON), "mlpp"),
    "explain": (PLAN, (*PLAN, "--what-if", "luck=2x"), "luck"),
    "strategy show": (PLAN, ("gone.json",), "gone.json does not exist"),
    "strategy diff": (("data", "expert", *PLAN[1:]), ("gone.json", "data"), "gone.json does not exist"),
    "strategy check": (PLAN, ("gone.json",), "gone.json does not exist"),
    "report": ((*PLAN, "--out", "report.html"), (*PLAN, "--out", "nowhere/report.html"), "nowhere/report.html"),
    "export": (("t2", "--model", "gpt-2", "--size", "small", "--set", "steps=8", *ON, "--to", "megatron", "--out", "plan.args"),
               (*PLAN, "--to", "megatron", "--out", "plan.args"), "trains Transformers"),
    "try": ((*IMPORTED, "--out", "tries"), (*IMPORTED, "--out", "nowhere/tries"), "cannot write nowhere/tries"),
    "train mlp": (("--steps", "1"), ("--steps", "1", "--data", "nowhere"), "nowhere is no folder"),
    "profile": (("mlp", "--size", "small", "--devices", "2", "--costs", "analytic", "--steps", "1", "--warmup", "1"),
                ("--trace", "gone.json"), "gone.json"),
    "runs add": ((*PLAN, "--measured", "2ms"), PLAN, "give either --measured SECONDS or --torch TRACE"),
    "runs list": (("--runs", RUNS), (), "there is no such folder"),
    "runs predict": (("--runs", RUNS), ("--runs", "gone"), "runs gone: there is no such folder"),
    "rank": (("--measured", RUNS), ("plan", "--measured", RUNS), "give strategy files"),
    "doctor": ((), ("luck",), "unexpected extra argument"),
    "probe": ((), ("--out", "probe.json"), "must end in .py"),
    "machine build": ((PROBED, "--out", "mine.json"), ("gone.json", "--out", "mine.json"), "gone.json"),
    "machine measure": (("--processors", "1"), ("--out", "mine.txt"), "must end in .json"),
    "machine show": (("k80",), ("k81",), "k81"),
    "machines": ((), ("luck",), "unexpected extra argument"),
    "programs": ((), ("luck",), "unexpected extra argument"),
    "models": ((), ("luck",), "unexpected extra argument"),
}  # fmt: skip
NEED_TORCH = {"try"}
EXIT_CODES = {"strategy diff": 1}  # the plans differ
AS_MLP = {f"train {name.lower()}" for name in MODELS} - {"train mlp"}  # made by the same `example`, see below


def tree(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:  # type: ignore[assignment]
    """Every subcommand that is no group, by its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from tree(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def run(folder: Path, name: str, *arguments: str) -> Any:
    here = os.getcwd()
    os.chdir(folder)
    try:
        return CliRunner().invoke(main, [*name.split(), *arguments])
    finally:
        os.chdir(here)


def test_every_subcommand_is_here() -> None:
    found = dict(tree())
    assert {name.split()[0] for name in found} == set(COMMANDS)
    assert set(found) - AS_MLP == set(CASES)
    for name in AS_MLP & set(found):
        assert isinstance(found[name], RankCommand), "its options are those of taskflow train mlp, or it needs a case of its own"
    options = [{option for p in found[name].params for option in p.opts} for name in found if name.startswith("train ")]
    assert all({"--json", "--quiet", "-q", "--debug"} <= of for of in options)


# What measures a machine takes as long as all others together; tests/cli/test_machine_command.py has its JSON and its silence.
@pytest.mark.parametrize("name", fast_among(CASES, CASES.keys() - {"machine measure"}))
def test_json_is_one_object_and_quiet_says_less(name: str, tmp_path: Path) -> None:
    if name in NEED_TORCH:
        pytest.importorskip("torch")
    good, code = CASES[name][0], EXIT_CODES.get(name, 0)
    plain, short, value = (run(tmp_path, name, *good, *more) for more in ((), ("--quiet",), ("--json",)))
    for result in (plain, short, value):
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
    assert isinstance(json.loads(value.stdout), dict) and value.stdout.count("\n") == 1
    assert 0 < len(short.output) <= len(plain.output)
    assert plain.stdout == "" or plain.output.strip().splitlines() != [], "there is a result"
    both = run(tmp_path, name, *good, "--json", "--quiet")
    assert set(json.loads(both.stdout)) == set(json.loads(value.stdout)) and both.stderr == ""


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_said_without_a_traceback(name: str, tmp_path: Path) -> None:
    _, bad, message = CASES[name]
    for arguments, said in ((bad, message), (("--no-such-option",), "No such option"), (("--json", *bad), message)):
        result = run(tmp_path, name, *arguments)
        assert result.exit_code == 2, result.output
        assert said in " ".join(result.stderr.split()) and "Traceback" not in result.output and result.stdout == ""
        lines = result.stderr.strip().splitlines()
        assert len(lines) == 1 or (lines[0].startswith("Usage: ") and lines[-1].startswith("Error: ")), lines


@pytest.mark.parametrize("name", [*CASES, *sorted(AS_MLP & {name for name, _ in tree()})])
def test_help_has_examples_and_is_narrow(name: str) -> None:
    result = CliRunner().invoke(main, [*name.split(), "--help"])
    assert result.exit_code == 0 and "Examples:" in result.output and f"taskflow {name.split()[0]}" in result.output
    usage, _, rest = result.output.partition("Examples:")
    assert max(map(len, usage.splitlines())) <= 80 and "--help" in usage + rest


@pytest.mark.parametrize("group", ["", "strategy", "machine", "train"])
def test_help_of_groups_fits_and_cuts_nothing_off(group: str) -> None:
    result = CliRunner().invoke(main, [*group.split(), "--help"])
    commands = result.output.partition("Commands:")[2]
    assert result.exit_code == 0 and commands and "..." not in commands
    shown = [line for line in result.output.splitlines() if "mpirun" not in line]
    assert max(map(len, shown)) <= 80, max(shown, key=len)


# ---- completion ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", CASES)
def test_options_of_every_subcommand_complete(name: str) -> None:
    found = ShellComplete(main, {}, "taskflow", "_TASKFLOW_COMPLETE").get_completions(name.split(), "--")
    assert {"--json", "--quiet", "--debug", "--help"} <= {item.value for item in found}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells(shell: str) -> None:
    """The line that docs/guide/planning.md shows for each: it gives a script, which asks in the way that is answered here."""
    page = (ROOT / "docs" / "guide" / "planning.md").read_text()
    assert re.search(rf"^{shell}: .*_TASKFLOW_COMPLETE={shell}_source taskflow", page, re.MULTILINE)
    assert get_completion_class(shell) is not None
    asked = {"COMP_WORDS": "taskflow machine sh", "COMP_CWORD": "sh" if shell == "fish" else "2"}
    script, answer = (
        CliRunner().invoke(main, [], prog_name="taskflow", env={**asked, "_TASKFLOW_COMPLETE": f"{shell}_{what}"})
        for what in ("source", "complete")
    )
    assert script.exit_code == 0 and f"_TASKFLOW_COMPLETE={shell}_complete" in script.stdout, script.output
    assert "show" in re.split(r"[\s,]+", answer.stdout), answer
    if (there := shutil.which(shell)) is not None:
        subprocess.run([there, "-n"], input=script.stdout, text=True, check=True, timeout=250)


# ---- terminals -------------------------------------------------------------------------------------------------------
def on_a_terminal(folder: Path, columns: int, *arguments: str) -> tuple[int, str]:
    """The exit code and what a terminal so wide would show in the end, without its colours."""
    code, text = sent_to_a_terminal(folder, columns, *arguments)
    return code, shown_in_the_end(text)


def sent_to_a_terminal(folder: Path, columns: int, *arguments: str) -> tuple[int, str]:
    """The exit code and all that a terminal so wide gets."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environ = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    job = subprocess.Popen(
        [sys.executable, "-m", "taskflow", *arguments], cwd=folder, stdin=follower, stdout=follower, stderr=follower,
        env={**environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
    )
    os.close(follower)
    got = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        got += part
    os.close(leader)
    return job.wait(timeout=250), got.decode()


def shown_in_the_end(text: str) -> str:
    """What is on a terminal after a text with the codes that rich writes: up, to the line's begin, erase the line."""
    lines, row, column = [""], 0, 0
    for count, code, character in re.findall(r"\x1b\[[?]?([0-9;]*)([A-Za-z])|(.)", text, re.DOTALL):
        if code == "A":
            row = max(0, row - int(count or 1))
        elif code == "K":
            lines[row] = ""
        elif character == "\r":
            column = 0
        elif character == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif character:
            lines[row] = lines[row].ljust(column)[:column] + character + lines[row][column + 1 :]
            column += 1
    return "\n".join(lines)


def test_progress_of_several_lines_is_gone_in_the_end() -> None:
    gone = "\r\x1b[2K\x1b[1A\x1b[2K"
    shown = f"a long\r\nnote{gone}another\r\nnote{gone}\x1b[1mrow\x1b[0m 1\r\nrow 2\r\n"
    assert shown_in_the_end(shown) == "row 1\nrow 2\n"


@pytest.mark.parametrize("columns", fast_among([80, 200], [80]))
@pytest.mark.parametrize("arguments", [
    ("explain", "expert", "--model", "lenet", "-m", "k80", "-n", "4"),
    ("explain", "expert", "fc1", "--model", "lenet", "-m", "k80", "-n", "4", "--what-if", "links=2x"),
    ("strategy", "diff", "data", "expert", "--model", "lenet", "-m", "k80", "-n", "4"),
    ("compare", "lenet", "-m", "k80", "-n", "4", "--budget", "20p"),
    ("profile", "lenet", "--size", "small", "--devices", "2", "--costs", "analytic"),
    ("models",),
    ("machine", "show", "k80"),
], ids=lambda words: " ".join(words[:2]) if isinstance(words, tuple) else str(words))
def test_output_fits_the_terminal(arguments: tuple[str, ...], columns: int, tmp_path: Path) -> None:
    code, text = on_a_terminal(tmp_path, columns, *arguments)
    assert code == EXIT_CODES.get(" ".join(arguments[:2]), 0), text
    assert max(map(len, text.splitlines())) <= columns, text
    assert "…" not in text and "Traceback" not in text
    assert ("a wider terminal also shows" in text) <= (columns == 80)


def test_what_takes_longer_shows_progress_on_a_terminal_only(tmp_path: Path) -> None:
    words = ("search", "lenet", "-m", "k80", "-n", "4", "--budget", "1s")
    assert "proposals (" in sent_to_a_terminal(tmp_path, 80, *words)[1].partition("LeNet:")[0]
    assert "proposals (" not in sent_to_a_terminal(tmp_path, 80, *words, "--quiet")[1].partition("LeNet:")[0]
    piped = CliRunner().invoke(main, words)
    assert piped.exit_code == 0 and piped.stderr == "" and piped.stdout.startswith("LeNet:")
