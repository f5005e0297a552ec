"""What README.md and docs/ show is what happens: their Python prints what they say, their commands run, all of them."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest
import starting
from document_blocks import (
    ANY_FENCE,
    FENCE,
    NOT_RUN,
    PAGES,
    ROOT,
    SCRIPTS_NOT_RUN,
    TEXTS_NOT_COMPARED,
    Command,
    blocks,
    commands,
    files,
    matches,
    python_blocks,
    reason_not_run,
    with_output,
)

README = ROOT / "README.md"
LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]*))?\)")
LIMIT_SECONDS = 250  # of a command or a page's Python: only so that nothing hangs

# Runs blocks in one namespace, a module of its own, and prints what each printed as JSON. Reads its blocks from stdin.
RUNNER = """
import contextlib, io, json, sys, types
page = types.ModuleType("page")
sys.modules["page"] = page
outputs = []
for line, source in json.load(sys.stdin):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\\n" * line + source, sys.argv[1], "exec"), page.__dict__)
    outputs.append(printed.getvalue())
print(json.dumps(outputs))
"""

# Runs lines of words for taskflow one after another, and prints how each ended and what it printed as JSON: a start takes longer
# than most of them. The folder is not on the path, as where a command starts by itself. Reads its lines from stdin.
TASKFLOW = """
import json, sys
sys.path[:] = filter(None, sys.path)
from click.testing import CliRunner
from taskflow.cli.main import main
ended = [CliRunner().invoke(main, words, prog_name="taskflow") for words in json.load(sys.stdin)]
print(json.dumps([(e.exit_code, e.stdout, e.stderr + repr(e.exception)) for e in ended]))
"""


def named(pages: list[Path]) -> list[object]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


def environment(folder: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return starting.environment({
        "PYTHONPATH": str(ROOT), "PATH": path, "TASKFLOW_CACHE": str(folder / "cache"), "TASKFLOW_WATCHDOG_SECONDS": "120",
        "COLUMNS": "200",
    })


def prepare(page: Path, folder: Path) -> None:
    """What the commands find in their folder: the page's files, the examples, and small data under the names that pages use."""
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 1000)
    (folder / "hosts.txt").write_text("localhost:8\n")
    for language, numbers in (("en", "one two three"), ("de", "eins zwei drei")):
        (folder / f"news.{language}").write_text("\n".join(f"{n} {numbers} {n}" for n in range(400)))
    for name, text in files(page).items():
        (folder / name).write_text(text)


def require_torch(page: Path) -> None:
    """Skip pages whose Python needs PyTorch where it is not installed."""
    if any("import torch\n" in block.text for block, _ in python_blocks(page)):
        pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
    if any("taskflow.models.onnx import" in block.text for block, _ in python_blocks(page)):
        pytest.importorskip("onnx", reason="onnx is not installed: pip install 'soap-taskflow[onnx]'")


# ---- Python ----------------------------------------------------------------------------------------------------------


def run_python(page: Path, folder: Path, slow: bool) -> None:
    """All blocks of a page in order, or all but the slow ones."""
    require_torch(page)
    pairs = [pair for pair in python_blocks(page) if slow or not pair[0].slow]
    prepare(page, folder)
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, page.name], input=json.dumps([(b.line, b.text) for b, _ in pairs]),
        cwd=folder, env=environment(folder), text=True, capture_output=True, timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for (block, shown), printed in zip(pairs, json.loads(done.stdout)):
        assert printed == (shown or ""), f"{page.name}, block at line {block.line}:\n{printed}"
    shows = any(shown for _, shown in pairs) or len(files(page)) == len(pairs)  # what files print, commands show
    assert shows, f"{page.name}: no output is shown"


@pytest.mark.parametrize("page", named([page for page in PAGES if python_blocks(page)]))
def test_python_blocks_print_what_is_shown(page: Path, tmp_path: Path) -> None:
    run_python(page, tmp_path, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", named([page for page in PAGES if any(block.slow for block, _ in python_blocks(page))]))
def test_slow_python_blocks_print_what_is_shown(page: Path, tmp_path: Path) -> None:
    run_python(page, tmp_path, slow=True)


# ---- Commands --------------------------------------------------------------------------------------------------------


def shortened(command: Command) -> list[str]:
    """The same command, less work: two ranks, two steps, small budgets and data. One whose output is shown runs as it is."""
    text = command.text
    assert not set(text) & set("$|;&<>`"), f"{text}: too clever to be run here"
    if command.shown is not None:
        return shlex.split(text)
    if not text.startswith(("taskflow simulate ", "taskflow runs add ", "taskflow export '")):  # plans may say on how many devices
        text = re.sub(r"-n \d+|--processors \d+|--devices \d+", lambda m: f"{m[0].split()[0]} 2", text)
    words = shlex.split(re.sub(r"--budget \S+", "--budget 40p", text).replace(" ResNet-101 ", " ResNet-101 --size small "))
    if words[0] == "make":
        return ["make", "--dry-run", "-C", str(ROOT), *words[1:]]  # the targets exist; CI runs them
    if any(word.startswith("examples/") for word in words) and "taskflow_from_scratch.py" not in text:
        if not {"examples/stencil.py", "examples/circuit.py"} & set(words):
            words += ["--search-budget", "40p"]
        words += ["--steps", "2"]
    if "examples/rnnlm.py" in words:
        words += ["--data", "text.txt", "--quiet"]
    if {"examples/nmt.py", "examples/transformer.py"} & set(words):
        words += ["--sentences", "2", "--quiet", *([] if "--data" in words else ["--data", "news.en", "--data", "news.de"])]
    return words


def run_together(lines: list[list[str]], folder: Path) -> list[tuple[int, str, str]]:
    """How lines for taskflow ended that run in one process: their exit codes, output and errors."""
    done = subprocess.run(
        [sys.executable, "-c", TASKFLOW], input=json.dumps([words[1:] for words in lines]), cwd=folder, env=environment(folder),
        text=True, capture_output=True, timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, f"{lines}:\n{done.stderr}"
    found: list[tuple[int, str, str]] = json.loads(done.stdout)
    return found


def run_alone(words: list[str], folder: Path) -> tuple[int, str, str]:
    """How a command ended: its exit code, output and errors."""
    variables = environment(folder)
    job = subprocess.Popen(
        words, cwd=folder, env=variables, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, executable=shutil.which(words[0], path=variables["PATH"]),
    )
    try:
        printed, error = job.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)  # the group of its own that start_new_session made
        pytest.fail(f"{words}: still running after {LIMIT_SECONDS} s: {job.communicate()}")
    return job.returncode, printed, error


def run_commands(page: Path, folder: Path, slow: bool) -> None:
    """In order and in one folder, since one writes what another reads; ``slow``: all of them, else all but the slow ones. README's
    start as a user starts them, all; of other pages those of taskflow that follow each other share a process."""
    require_torch(page)
    prepare(page, folder)
    chosen = [command for command in commands(page) if slow or not command.slow]
    for together, group in groupby(chosen, lambda command: not slow and page != README and command.text.startswith("taskflow ")):
        some = list(group)
        lines = [shortened(command) for command in some]
        ends = run_together(lines, folder) if together else (run_alone(words, folder) for words in lines)
        for command, (code, printed, error) in zip(some, ends):
            assert code == 0, f"{command.text}:\n{error}"
            if command.shown is not None:
                assert matches(command.shown, printed), f"{page.name}: {command.text} prints\n{printed}"


def having(slow: bool) -> list[object]:
    return named([page for page in PAGES if any(command.slow is slow for command in commands(page))])


@pytest.mark.mpi
@starting.needs_mpi
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("page", having(slow=False))
def test_commands_run(page: Path, tmp_path: Path) -> None:
    run_commands(page, tmp_path, slow=False)


@pytest.mark.slow
@pytest.mark.mpi
@starting.needs_mpi
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("page", having(slow=True))
def test_slow_commands_run(page: Path, tmp_path: Path) -> None:
    run_commands(page, tmp_path, slow=True)


# ---- Nothing is left out in silence ----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", named(PAGES))
def test_every_block_is_run_or_compared_or_says_why_not(page: Path) -> None:
    found = blocks(page)
    assert 2 * len(found) == len(ANY_FENCE.findall(page.read_text())), f"{page.name}: a fence that no test sees"
    followed = {shown for block, shown in with_output(page) if block.language in ("python", "sh")}
    runs = {command.text for command in commands(page)}
    for block in found:
        where = f"{page.name}, block at line {block.line}"
        if block.language == "sh":
            unknown = [line for line in block.lines if line not in runs and reason_not_run(line) is None]
            assert not unknown, f"{where}: {unknown}"
            assert all(re.match(r"[\w./-]+( |$)", line) for line in block.lines if line in runs), where
        elif block.language == "bash":
            assert any(mark in block.text for mark in SCRIPTS_NOT_RUN), f"{where}: write sh, one command a line"
            subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
        elif block.language == "text":
            known = block.text in followed or any(block.text.lstrip().startswith(start) for start in TEXTS_NOT_COMPARED)
            assert known, f"{where}: this is no output of the block before it"
        elif block.language == "json":
            json.loads(block.text)
        else:
            assert block.language == "python", f"{where}: nobody runs {block.language or 'a block without a language'}"


def test_every_exception_is_used() -> None:
    lines = {line for page in PAGES for block in blocks(page) if block.language == "sh" for line in block.lines}
    texts = [block.text.lstrip() for page in PAGES for block in blocks(page)]
    unused = [pattern for pattern in NOT_RUN if not any(re.fullmatch(pattern, line) for line in lines)]
    unused += [start for start in TEXTS_NOT_COMPARED if not any(text.startswith(start) for text in texts)]
    unused += [mark for mark in SCRIPTS_NOT_RUN if not any(mark in text for text in texts)]
    assert not unused, f"no page has {unused}"


def test_the_readme_shows_commands() -> None:
    shown = [command.text for command in commands(README)]
    for program in ("mpirun ", "python ", "taskflow ", "make "):
        assert any(text.startswith(program) for text in shown), program


@pytest.mark.parametrize("shown,printed,equal", [
    ("a 1\nb", "a 1  \nb\n", True), ("a ... s\nb", "a 0.31 s\nb", True), ("a ... s\nb", "a 0.3\ns\nb", False),
    ("a\n...\nd", "a\nb\nc\nd", True), ("a\n...\nd", "a\nb\nc", False), ("1.5", "105", False), ("a", "a\nb", False),
])
def test_shown_output_is_compared(shown: str, printed: str, equal: bool) -> None:
    assert matches(shown, printed) is equal


def test_a_machine_file_and_a_strategy_file_that_are_shown_can_be_read(tmp_path: Path) -> None:
    from taskflow.graph import OperatorGraph
    from taskflow.machine import load_machine
    from taskflow.mapper import load
    from taskflow.operators import input as start
    from taskflow.operators import linear
    from taskflow.programs import load_program

    formats = set()
    for page in PAGES:
        for text in (block.text for block in blocks(page) if block.language == "json"):
            content, path = json.loads(text), tmp_path / "shown.json"
            path.write_text(text)
            formats.add(content["format"])
            if content["format"] == "taskflow-machine":
                assert str(load_machine(str(path)))
            elif content["format"] == "taskflow-program":
                assert load_program(str(path)).host_seconds > 0
            else:
                graph = OperatorGraph()
                linear(start(graph, (8, 3), name="x"), 4, name="layer")
                assert load(path, graph, content["processors"])["x"].degrees == (2, 1)
    assert formats == {"taskflow-machine", "taskflow-program", "taskflow-strategy"}


# ---- Links and names -------------------------------------------------------------------------------------------------


def heading(text: str) -> str:
    """The anchor that a Markdown heading gets."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    text = FENCE.sub("", path.read_text())
    return {*map(heading, re.findall(r"^#+ (.+)$", text, re.MULTILINE)), *re.findall(r"^::: (\S+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("page", named(PAGES))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(FENCE.sub("", page.read_text())):
        if target.startswith("http"):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.is_file(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(path), f"{page.name} links to {target}#{anchor}"


@pytest.mark.parametrize("page", named(PAGES))
def test_paths_that_are_named_exist(page: Path) -> None:
    for path in re.findall(r"`((?:taskflow|examples|docs|tests|benchmarks)/[\w./]*)`", page.read_text()):
        assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_the_guide_names_every_builder() -> None:
    from taskflow import operators

    text = (ROOT / "docs" / "guide" / "models.md").read_text()
    listed = text[text.index("The builders, by") : text.index("They follow PyTorch's names")]
    assert sorted(re.findall(r"`(\w+)`", listed)) == sorted(operators.__all__)


# ---- The site --------------------------------------------------------------------------------------------------------


def referenced() -> set[str]:
    """The full names that the reference shows."""
    pages = (ROOT / "docs" / "reference").glob("*.md")
    return {name for page in pages for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)}


def test_the_reference_has_every_public_name() -> None:
    import taskflow
    from taskflow import operators

    found = []
    for name in sorted(referenced()):
        module, _, attribute = name.rpartition(".")
        found.append(getattr(importlib.import_module(module), attribute))  # fails if it is gone
    missing = [
        name for names, room in ((taskflow.__all__, taskflow), (operators.__all__, operators)) for name in names
        if not any(getattr(room, name) is thing for thing in found)
    ]
    assert not missing, f"docs/reference lacks {missing}"
    table = (ROOT / "docs" / "reference" / "index.md").read_text()
    assert set(re.findall(r"^\| \[`(\w+)`\]", table, re.MULTILINE)) == set(taskflow.__all__)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("reference", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_site_builds_without_a_warning(reference: bool, tmp_path: Path) -> None:
    """Its own links and anchors are checked by mkdocs, and every page is built. ``reference``: with what is read of taskflow's
    modules, which takes most of the time; without it there are no anchors for these."""
    pytest.importorskip("mkdocs", reason="needs pip install 'soap-taskflow[docs]'")
    config, site = tmp_path / "mkdocs.yml", tmp_path / "site"
    config.write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: {ROOT / 'docs'}\n" + "plugins: []\n" * (not reference))
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--no-strict", "--site-dir", str(site), "--config-file", str(config)],
        cwd=ROOT, text=True, capture_output=True, timeout=280,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
    )
    warnings = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("WARNING")]
    warnings = [line for line in warnings if reference or "does not contain an anchor '#taskflow." not in line]
    assert done.returncode == 0 and not warnings, "\n".join(warnings)
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").is_file(), page
    if reference:
        html = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
        missing = [name for name in referenced() if f'id="{name}"' not in html]
        assert not missing, missing
    for page in site.rglob("*.html"):  # it loads nothing from other servers
        assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(?:https?:)?//", page.read_text()), page


# ---- The operator of the guide ---------------------------------------------------------------------------------------


@pytest.mark.timeout(500)
def test_the_guides_operator_holds_the_property_suite(tmp_path: Path) -> None:
    """The operator that the guide shows is held to all that is asked of the built-in ones."""
    (tmp_path / "echo.py").write_text(files(ROOT / "docs" / "guide" / "operators.md")["echo.py"])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "echo", "-k", "echo", "tests/operators/test_properties.py"],
        cwd=ROOT, env={**environment(tmp_path), "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}, text=True, capture_output=True,
        timeout=450,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    properties = (ROOT / "tests" / "operators" / "test_properties.py").read_text().count("\ndef test_")
    assert int(passed) >= properties, done.stdout
