"""What README.md and docs/ show is what happens: their Python runs and prints what they say, their commands start."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]*))?\)")
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
LIMIT_SECONDS = 90

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


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the number of lines before its first, and its text."""

    language: str
    line: int
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(m[1], text.count("\n", 0, m.start(2)), m[2]) for m in FENCE.finditer(text)]


def python_blocks(page: Path) -> list[tuple[Block, str | None]]:
    """Every Python block with the output that is shown right below it, None if none is."""
    found, text = blocks(page), page.read_text()
    lines = text.splitlines()
    result: list[tuple[Block, str | None]] = []
    for block, following in zip(found, [*found[1:], None]):
        if block.language == "python":
            end = block.line + block.text.count("\n")  # the line of the closing fence
            between = lines[end + 1 : following.line - 1] if following is not None else []
            shown = following is not None and following.language == "text" and not "".join(between).strip()
            result.append((block, following.text if shown else None))
    return result


def environment(folder: Path) -> dict[str, str]:
    launchers = ("PMI", "OMPI_", "SLURM_", "HYDRA_", "MPI_LOCAL", "MV2_")
    variables = {key: value for key, value in os.environ.items() if not key.startswith(launchers)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{variables.get('PATH', '')}"
    return {**variables, "PYTHONPATH": str(ROOT), "PATH": path, "TASKFLOW_CACHE": str(folder / "cache"),
            "TASKFLOW_WATCHDOG_SECONDS": "60"}


def write_modules(page: Path, folder: Path) -> None:
    """Blocks whose first line is ``# name.py`` are files."""
    for block, _ in python_blocks(page):
        if named := re.match(r"# (\w+\.py)\n", block.text):
            (folder / named[1]).write_text(block.text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_print_what_is_shown(page: Path, tmp_path: Path) -> None:
    pairs = python_blocks(page)
    if not pairs:
        assert page.name in ("design.md", "benchmarks.md"), f"{page.name} shows no Python: its first word must be written ```python"
        return
    write_modules(page, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, page.name], input=json.dumps([(b.line, b.text) for b, _ in pairs]),
        cwd=tmp_path, env=environment(tmp_path), text=True, capture_output=True, timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    compared = 0
    for (block, shown), printed in zip(pairs, json.loads(done.stdout)):
        compared += shown is not None
        assert printed == (shown or ""), f"{page.name}, block at line {block.line}:\n{printed}"
    assert compared, f"{page.name}: no output is shown"


def commands(page: Path) -> list[str]:
    """The commands of a page that can be run here, one a line."""
    lines = [line.strip() for b in blocks(page) if b.language in ("sh", "bash") for line in b.text.splitlines()]
    return [line for line in lines if line.startswith(("python examples/", "mpirun ", "taskflow "))]


@pytest.mark.mpi
@pytest.mark.skipif(MPIRUN is None, reason="there is no mpirun beside this python or on PATH")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_commands_run(page: Path, tmp_path: Path) -> None:
    """In order and in one folder, since one writes what another reads; on two ranks and for two steps."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 1000)
    for language, numbers in (("en", "one two three"), ("de", "eins zwei drei")):
        (tmp_path / f"news.{language}").write_text("\n".join(f"{n} {numbers} {n}" for n in range(400)))
    write_modules(page, tmp_path)
    for command in commands(page):
        short = re.sub(r"-n \d+|--processors \d+", lambda m: f"{m[0].split()[0]} 2", command)
        assert not set(short) & set("$|;&<>`"), f"{command}: too clever to be run here"
        words = short.split()
        if any(word.startswith("examples/") for word in words):
            words += ["--steps", "2"]
        if "examples/rnnlm.py" in words:
            words += ["--data", "text.txt", "--quiet"]
        if {"examples/nmt.py", "examples/transformer.py"} & set(words):
            words += ["--sentences", "2", "--quiet", *([] if "--data" in words else ["--data", "news.en", "--data", "news.de"])]
        job = subprocess.Popen(
            words, cwd=tmp_path, env=environment(tmp_path), text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True, executable=shutil.which(words[0], path=environment(tmp_path)["PATH"]),
        )
        try:
            _, error = job.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)  # the group of its own that start_new_session made
            pytest.fail(f"{command}: still running after {LIMIT_SECONDS} s: {job.communicate()}")
        assert job.returncode == 0, f"{command}:\n{error}"


def test_readme_shows_commands() -> None:
    assert any(command.startswith("mpirun") for command in commands(ROOT / "README.md"))
    assert any(command.startswith("python") for command in commands(ROOT / "README.md"))


def heading(text: str) -> str:
    """The anchor that a Markdown heading gets."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(FENCE.sub("", page.read_text())):
        if target.startswith("http"):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.is_file(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.MULTILINE)
            assert anchor in map(heading, headings), f"{page.name} links to {target}#{anchor}"


def test_paths_in_the_readme_exist() -> None:
    for path in re.findall(r"`((?:taskflow|examples|docs|tests)/[\w./]*)`", (ROOT / "README.md").read_text()):
        assert (ROOT / path).exists(), path


def test_the_guide_names_every_builder() -> None:
    from taskflow import operators

    text = (ROOT / "docs" / "guide.md").read_text()
    listed = text[text.index("The builders, by") : text.index("They follow PyTorch's names")]
    assert sorted(re.findall(r"`(\w+)`", listed)) == sorted(operators.__all__)


@pytest.mark.timeout(300)
def test_the_guides_operator_holds_the_property_suite(tmp_path: Path) -> None:
    """The operator that the guide shows is held to all that is asked of the built-in ones."""
    (source,) = [b.text for b, _ in python_blocks(ROOT / "docs" / "guide.md") if b.text.startswith("# echo.py\n")]
    (tmp_path / "echo.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "echo", "-k", "echo", "tests/operators/test_properties.py"],
        cwd=ROOT, env={**environment(tmp_path), "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}, text=True, capture_output=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    properties = (ROOT / "tests" / "operators" / "test_properties.py").read_text().count("\ndef test_")
    assert int(passed) >= properties, done.stdout
