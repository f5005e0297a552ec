"""The command line's grammar: the same options everywhere, models of the user's own, tables, completion, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner
from fast_and_slow import fast_among
from starting import run_python

from taskflow.cli.main import COMMANDS, main
from taskflow.cli.model import build_model
from taskflow.cli.tables import nbytes, render, seconds, three
from taskflow.models import MODELS, build

MODEL_FILE = """
import taskflow

def net(width: int = 8, batch: int = 4, deep: bool = False, scale: float | None = None, sizes=(3, 4)):
    graph = taskflow.OperatorGraph()
    x = taskflow.input(graph, (batch, width), name="x")
    for i, size in enumerate(sizes if deep else sizes[:1]):
        x = taskflow.linear(x, size, name=f"fc{i}")
    return graph

def needs(hidden, batch):
    graph = taskflow.OperatorGraph()
    taskflow.linear(taskflow.input(graph, (batch, 3)), int(hidden))
    return graph

def wrong():
    return 7

def broken():
    return 1 / 0
"""


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def commands() -> list[tuple[str, click.Command]]:
    found = []
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        if isinstance(command, click.Group):
            found += [(f"{name} {n}", c) for n, c in command.commands.items()]
        else:
            found.append((name, command))
    return found


@pytest.mark.parametrize(("name", "command"), commands(), ids=[name for name, _ in commands()])
def test_every_command_has_the_common_options_and_examples(name: str, command: click.Command) -> None:
    options = {o: p for p in command.params for o in p.opts}
    for option in ("--json", "--quiet", "-q", "--debug"):
        assert option in options, f"{name} lacks {option}"
    text = run(*name.split(), "--help")
    assert 2 <= text.partition("Examples:")[2].partition("Options:")[0].count("taskflow ") <= 4
    # One name means one thing everywhere.
    short = {"--machine": "-m", "--devices": "-n", "--quiet": "-q"}
    for long, letter in short.items():
        assert long not in options or letter in options or name == "machine measure"
    assert ("--strategy" in options) == ("--mapper" in options), f"{name}: a plan is named by either word everywhere"
    for parameter in command.params:
        assert isinstance(parameter, click.Argument) or getattr(parameter, "help", None), f"{name}: {parameter.name} has no help"


def test_group_help_says_exit_codes() -> None:
    text = run("--help")
    for code in ("0 ", "1 ", "2 ", "130"):
        assert f"  {code}" in text
    listed = [line.split()[0] for line in text.partition("Commands:\n")[2].splitlines() if line[:2] == "  " and line[2:3] != " "]
    assert listed == list(COMMANDS)


# ---- models ----------------------------------------------------------------------------------------------------------
def test_sizes_of_a_built_in_network() -> None:
    graph = build_model("nmt", 8, 4, settings={"hidden": "16", "steps": "4", "vocabulary": "11", "steps_per_operator": "2"})
    same = build("nmt", 8, 4, hidden=16, steps=4, vocabulary=11, steps_per_operator=2)
    assert graph.fingerprint() == same.fingerprint()
    assert build_model("nmt", None, 1, size="small", settings={"padding": "0"}).fingerprint() != build(
        "nmt", None, 1, preset="small").fingerprint()
    assert build_model("nmt", None, 1, size="small", settings={"padding": "none"}).fingerprint() == build(
        "nmt", None, 1, preset="small").fingerprint()
    assert build_model("mlp", None, 1, size="small", settings={"batch": "10"}).nodes[0].space.shape[0] == 10


def test_published_sizes_by_name() -> None:
    given = {"layers": "2", "vocabulary": "64", "steps": "8"}
    by_size = build_model("llama", 4, 1, size="70b", settings=given)
    assert by_size.fingerprint() == build("Llama-70B", 4, layers=2, vocabulary=64, steps=8).fingerprint()
    assert by_size.name == "Llama-70B"
    assert build_model("GPT-3", 4, 1, size="175B", settings=given | {"dropout": "0"}).name == "GPT-3-175B"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("llama", "--size", "7B"), "Llama: no size '7B'; there are paper, small, 8B, 70B, 405B"),
        (("mlp", "--size", "8B"), "MLP: no size '8B'; there are paper, small"),
        (("llama-70b", "--size", "8B"), "Llama-70B: no size '8B'; there are paper, small"),
        (("nmt", "--set", "hiden=3"), "NMT: no size 'hiden' (did you mean hidden?); there are batch (64), steps (40)"),
        (("nmt", "--set", "hidden=many"), "NMT: hidden must be int, got 'many'"),
        (("mlp", "--set", "hidden=x"), "MLP: hidden must be values with commas between them (512,512), got 'x'"),
        (("nmt", "--set", "padding=x"), "NMT: padding must be int or none, got 'x'"),
        (("nmt", "--set", "hidden"), "--set hidden: write KEY=VALUE"),
        (("nmt", "--set", "steps=3", "--set", "steps=4"), "--set steps: given twice"),
        (("nmt", "--set", "batch=3", "--batch", "3"), "say the same twice"),
        (("resnet", "--batch", "8"), "did you mean ResNet-101?"),
        (("{file}:nothing",), "has no 'nothing'; it has net, needs, wrong, broken"),
        (("{file}:nett",), "did you mean net?"),
        (("{file}",), "which function of the file?"),
        (("nowhere.py:net",), "there is no file nowhere.py"),
        (("no_such_package:net",), "cannot import no_such_package"),
        (("{file}:wrong",), "must return a taskflow.OperatorGraph, a torch.nn.Module or an exported program, got int"),
        (("{file}:broken",), "the function raised ZeroDivisionError: division by zero (line "),
        (("{file}:needs",), "needs hidden, batch; give --set hidden=VALUE --batch N"),
        (("{file}:net", "--set", "depth=3"), "no parameter 'depth' (did you mean deep?); there are width, batch, deep, "),
        (("{file}:net", "--set", "deep=maybe"), "deep must be bool, got 'maybe'"),
        (("{file}:wrong", "--batch", "4"), "takes no parameter 'batch'"),
        (("{file}:net", "--size", "small"), "--size small is for built-in networks"),
    ],
)
def test_mistakes_about_models_are_one_line(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "models_of_mine.py").write_text(MODEL_FILE)
    file = str(tmp_path / "models_of_mine.py")
    error = run("simulate", *(a.format(file=file) for a in arguments), "-n", "2", code=2)
    assert message in error and error.count("\n") == 1, error


@pytest.mark.parametrize("text, said", [
    ("import torhc\n", "No module named 'torhc' (line 1 of mine.py); install it where taskflow is installed (pip install torhc)"),
    ("x = 1\ny = {}['k']\n", "KeyError: 'k' (line 2 of mine.py)"), ("def net(:\n", "invalid syntax (mine.py, line 1)"),
])  # fmt: skip
def test_a_file_that_cannot_be_imported_is_said_with_the_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    error = run("simulate", f"{tmp_path / 'mine.py'}:net", "-n", "2", code=2)
    assert said in error and error.count("\n") == 1, error


def test_a_function_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "models_of_mine.py").write_text(MODEL_FILE)
    file = f"{tmp_path / 'models_of_mine.py'}:net"
    graph = build_model(file, 6, 2, settings={"deep": "yes", "scale": "0.5", "sizes": "5,6,7", "width": "3"})
    assert [n.dims[1].size for n in graph if n.parameters] == [5, 6, 7] and graph.name == "net"
    assert graph.nodes[0].space.shape == (6, 3)
    row = json.loads(run("simulate", file, "-n", "2", "--set", "width=16", "--json"))
    assert row["model"] == "net" and row["operators"] == 2 and row["parameters"] == 16 * 3 + 3
    found = json.loads(run("search", file, "-n", "2", "--budget", "20p", "--out", str(tmp_path / "p.json"), "--json"))
    made = json.loads((tmp_path / "p.json").read_text())["made_from"]
    assert made["model"] == file and made["devices"] == 2 and found["iteration_seconds"] > 0


def test_a_module_of_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "models_in_here.py").write_text(MODEL_FILE)
    result = subprocess.run(
        [sys.executable, "-m", "taskflow", "simulate", "models_in_here:net", "-n", "1", "--json"], cwd=tmp_path,
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}, timeout=250,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["model"] == "net"


def test_debug_shows_where_a_mistake_comes_from(tmp_path: Path) -> None:
    (tmp_path / "models_of_mine.py").write_text(MODEL_FILE)
    arguments = ["simulate", f"{tmp_path / 'models_of_mine.py'}:broken", "-n", "1"]
    result = CliRunner().invoke(main, [*arguments, "--debug"])
    assert isinstance(result.exception, ValueError) and isinstance(result.exception.__cause__, ZeroDivisionError)
    assert isinstance(CliRunner().invoke(main, arguments).exception, SystemExit)


# ---- tables and units ------------------------------------------------------------------------------------------------
def test_tables_fit_and_never_cut_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["a very long name of an operator " * 3, "123,456,789.25", "9.75"], ["b", "1", "2"]]
    narrow = render(["operator", "seconds", "share"], rows, width=40)
    assert "123,456,789.25" in narrow and "9.75" in narrow and max(map(len, narrow.splitlines())) <= 40
    assert "".join(narrow.split()).count("operator") == 1 + 3  # folded, not cut
    tiny = render(["operator", "seconds", "share"], rows, width=10)
    assert "123,456,789.25" in tiny and "9.75" in tiny and "…" not in tiny
    monkeypatch.setenv("COLUMNS", "200")
    piped = render(["operator", "seconds", "share"], rows)
    assert len(piped.splitlines()) == 4 and rows[0][0].strip() in piped and "\x1b" not in piped
    monkeypatch.delenv("COLUMNS")
    piped = render(["operator", "seconds", "share"], [["a name " * 30, "123,456,789.25", "9.75"]])
    assert 100 < max(map(len, piped.splitlines())) <= 120 and "123,456,789.25" in piped and "9.75" in piped
    assert "".join(piped.split()).count("name") == 30 and "\x1b" not in piped


def test_units() -> None:
    assert [seconds(x) for x in (0, 2.5, 0.00125, 3.2e-5, 1e-9)] == ["0 s", "2.5 s", "1.25 ms", "32 us", "0.001 us"]
    assert [nbytes(x) for x in (12, 3_400, 5e6, 7.25e9, 2e12)] == ["12 B", "3.4 kB", "5 MB", "7.25 GB", "2 TB"]
    assert [nbytes(x) for x in (999.7, 999.6e9, 2.71e15, 4.5e18)] == ["1 kB", "1 TB", "2.71 PB", "4,500 PB"]
    assert [three(x) for x in (0.0123, 12.34, 999.7, 44_912)] == ["0.0123", "12.3", "1,000", "44,900"]


# ---- completion ------------------------------------------------------------------------------------------------------
def completions(*words: str) -> list[str]:
    found = BashComplete(main, {}, "taskflow", "_TASKFLOW_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [item.value for item in found]


def test_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("plan.json", "cluster.json", "net.py", "notes.txt"):
        (tmp_path / name).write_text("{}")
    assert completions("") == list(COMMANDS)
    assert completions("search", "res") == ["ResNet-101"]
    assert set(completions("search", "n")) == {"NMT", "net.py"}
    assert set(completions("search", "")) == {*MODELS, "net.py"}
    assert completions("search", "nmt", "--machine", "p1") == ["p100", "p100-peak"]
    assert completions("simulate", "nmt", "-m", "c") == ["cluster.json"]
    assert completions("simulate", "nmt", "--strategy", "") == [
        "data", "model", "expert", "megatron", "round-robin", "random", "cluster.json", "plan.json"]
    assert "--budget" in completions("search", "nmt", "--b")


def test_the_shell_gets_a_script() -> None:
    environ = {**os.environ, "_TASKFLOW_COMPLETE": "zsh_source", "PYTHONPATH": str(Path(__file__).parents[2])}
    code = "import sys; sys.argv[0] = 'taskflow'; from taskflow.cli.main import main; main(prog_name='taskflow')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, timeout=250)
    assert result.returncode == 0 and "_TASKFLOW_COMPLETE=zsh_complete" in result.stdout


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------
PRESSES = """
import os, signal, threading
from taskflow.cli.main import main
from taskflow.optimizer.session import SearchSession

enter, keep, timers = SearchSession.enter, SearchSession._keep, []

def press(run):  # once there is a plan: without one there is nothing to give
    if not timers and run.best is not None and run.phase != "start":
        timers.append(threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]))
        timers[0].start()

def enters(run, phase):
    enter(run, phase)
    press(run)

def keeps(run, strategy):
    keep(run, strategy)
    press(run)

SearchSession.enter, SearchSession._keep = enters, keeps
main(prog_name="taskflow")
"""


def test_ctrl_c_gives_the_best_plan_so_far(tmp_path: Path) -> None:
    """Half a second after the known strategies were looked at, which a busy machine may take long to come to."""
    plan = tmp_path / "plan.json"
    words = ["search", "nmt", "-m", "k80", "-n", "4", "--budget", "200s", "--json", "--out", str(plan)]
    done = subprocess.run(
        [sys.executable, "-c", PRESSES, *words], capture_output=True, text=True, timeout=250,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 130, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["stopped"] == "interrupted" and found["search_seconds"] < 100 and "Traceback" not in done.stderr
    assert found["iteration_seconds"] <= min(found["starts_iteration_seconds"].values())
    assert json.loads(plan.read_text())["format"] == "taskflow-strategy"


@pytest.mark.parametrize("words,kept", fast_among(SEARCHING := [
    (["compare", "nmt"], ["data", "model", "expert", "placement (interrupted)"]),
    (["explain", "expert", "--model", "nmt", "--what-if", "links=2x", "--what-if", "compute=2x", "--search"],
     ["links=2x", "compute=2x"]),
    (["report", "search", "--model", "nmt", "--out", "page.html"], []),
], SEARCHING[1:]))
def test_ctrl_c_ends_all_searches_of_a_command(words: list[str], kept: list[str], tmp_path: Path) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PRESSES, *words, "-m", "k80", "-n", "4", "--budget", "200s", "--json"], capture_output=True,
        text=True, timeout=250, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 130 and "Traceback" not in done.stderr, done.stderr
    assert time.monotonic() - began < 150
    value: dict[str, Any] = json.loads(done.stdout)
    if words[0] == "compare":
        assert [row["name"] for row in value["strategies"] if not row["name"].startswith("grid: ")] == kept
    elif words[0] == "explain":
        assert [o["what_if"] for o in value["what_if"]] == kept and value["critical_path"]
        assert all(o["search"] is None and o["search_interrupted"] for o in value["what_if"])
    else:
        assert value["bytes"] == (tmp_path / "page.html").stat().st_size


def test_ctrl_c_while_a_command_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("taskflow.cli.main.importlib.import_module", pressed)
    result = CliRunner().invoke(main, ["models"])
    assert result.exit_code == 130 and result.output == "taskflow: interrupted\n"


@pytest.mark.parametrize("words,message", [
    (["explain", "other.json"], "other.json: not a strategy file (its format must be 'taskflow-strategy')"),
    (["explain", "plann"], "no strategy 'plann'; use data, model, expert, "),
    (["explain", "."], "no strategy '.'; use data, model, expert, "),
    (["report", "data", "--model", "mlp", "--size", "small", "-m", "k80", "-n", "2", "--out", "/proc/x.html"],
     "taskflow report: /proc/x.html: No such file or directory"),
])
def test_what_is_no_plan_or_cannot_be_written_is_said(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.json").write_text('{"format": "x"}')
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2 and message in result.stderr and result.stderr.count("\n") == 1, result.output


def test_words_of_a_narrow_table_stay_whole() -> None:
    text = render(["critical path", "of", "takes"], [["backward", "relu1 5 us and averyverylongname.of.a.layer", "5 us"]] * 2,
                  words=(0, 1), width=30)  # fmt: skip
    for width in range(20, 80):
        last = render(["critical path", "of", "takes", "bytes"], [["forward", "fc1 5.1 us and 2 more", "25.28 us", ""]],
                      words=(0, 1), width=width)  # fmt: skip
        assert "bytes" in last and "25.28 us" in last, width
    words = text.split()
    assert words.count("backward") == 2 and "critical" in words and "path" in words and "relu1" in words


def test_names_and_help_import_no_command() -> None:
    """So that they come at once."""
    code = (
        "import os, sys\nfrom click.testing import CliRunner\nfrom taskflow.cli.main import main\n"
        "shown = CliRunner().invoke(main, ['--help']).output\n"
        "named = CliRunner().invoke(main, [], prog_name='taskflow', env={'_TASKFLOW_COMPLETE': 'bash_complete', "
        "'COMP_WORDS': 'taskflow s', 'COMP_CWORD': '1'}).output\n"
        "assert 'List the built-in machines.' in shown and 'plain,search' in named, named\n"
        "print('numpy' in sys.modules, 'taskflow.optimizer' in sys.modules)"
    )
    done = run_python("-c", code)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_rarely_used_options_stand_under_headings_of_their_own() -> None:
    text = run("search", "--help")
    text = text[text.index("\nOptions:") :]
    options, constraints, advanced = (text.index(f"\n{heading}:\n") for heading in ("Options", "Constraints", "Advanced"))
    assert options < text.index("--budget") < text.index("--out") < constraints < text.index("--pin ") < advanced
    assert advanced < text.index("--placements") and advanced < text.index("--algorithm")
