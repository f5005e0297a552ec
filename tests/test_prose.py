"""The documents keep their shape: short lines, short pages, results with a day and a command, decisions with what holds them.
Docstrings are read like them: their sentences are short."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import starting
from click.testing import CliRunner
from document_blocks import PAGES, ROOT

from taskflow.cli.main import main

COLUMNS, README_LINES, DESIGN_LINES, SENTENCE_WORDS = 120, 150, 200, 40
TEXTS = [*PAGES, ROOT / "CHANGELOG.md"]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"), key=lambda page: int(page.name.split("-")[0]))
NOTES = sorted((ROOT / "docs" / "notes").glob("[0-9]*.md"))
PARTS = ("Decision", "Reason", "Rejected", "Held by")
DAY = re.compile(r"\b20\d\d-\d\d-\d\d\b")


def named(pages: list[Path]) -> list[object]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


def too_long(text: str) -> list[str]:
    """The lines of more than 120 columns. Not counted are those that Markdown cannot wrap: rows of tables, commands and
    their output, and lines that are one word (an address)."""
    found: list[str] = []
    language: str | None = None
    for number, line in enumerate(text.split("\n"), 1):
        fence = re.match(r"\s*```(\w*)", line)
        if fence:
            language = fence[1] if language is None else None
        elif len(line) > COLUMNS and not line.startswith("|") and language not in ("sh", "text") and len(line.split()) > 1:
            found.append(f"{number}: {line[:60]}...")
    return found


def test_lines_are_short() -> None:
    wide = [page.name for page in TEXTS if too_long(page.read_text())]
    assert TEXTS and not wide, f"wrap at {COLUMNS} columns: {wide}"


def test_long_lines_are_found() -> None:
    long = "word " * 30
    assert too_long(f"first\n{long}") and too_long(f"```python\n{long}\n```") and too_long(f"```sh\na\n```\n{long}")
    assert not too_long(f"| {long} |\n```sh\n{long}\n```\nhttps://{'a' * 130}")


@pytest.mark.parametrize("name, most", [("README.md", README_LINES), ("docs/design.md", DESIGN_LINES)])
def test_pages_are_short(name: str, most: int) -> None:
    lines = len((ROOT / name).read_text().splitlines())
    assert lines <= most, f"{name} has {lines} lines, at most {most}; put the rest behind links"


@pytest.mark.parametrize("page", named(DECISIONS))
def test_a_decision_says_what_why_what_not_and_what_holds_it(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"^\*\*([\w ]+)\.\*\*", text, re.MULTILINE) == list(PARTS)
    assert re.search(r"`tests/[\w/]+\.py`", text[text.index("**Held by.**") :]), f"{page.name}: which test holds it?"


def test_indexes_have_every_page() -> None:
    for pages in (DECISIONS, NOTES):
        assert pages
        listed = re.findall(r"\]\(([\w.-]+\.md)\)", (pages[0].parent / "index.md").read_text())
        assert [name for name in listed if name[0].isdigit()] == [page.name for page in pages]
    assert [page.name.split("-")[0] for page in DECISIONS] == [f"{number:02}" for number in range(1, len(DECISIONS) + 1)]
    assert all(DAY.match(page.name) for page in NOTES)


def test_results_have_a_day_and_a_command() -> None:
    """The page of results has, for each area, the day and the command. GPUs are the area without results."""
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    for area in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title = area.split("\n", 1)[0]
        if title != "GPUs":
            assert DAY.search(area), f"{title}: when was it measured?"
            command = re.search(r"^(python benchmarks/|taskflow )|`(pytest|taskflow) ", area, re.MULTILINE)
            assert command, f"{title}: by which command?"
            assert "| " in area, f"{title}: where is the table?"


def sentences(source: str) -> list[tuple[int, str]]:
    """The sentences of a module's docstrings, with the line of what they describe. Blocks that are indented further are no
    prose (examples, tables of exit codes); an item of a list begins a sentence."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        text, line = ast.get_docstring(node, clean=False), getattr(node, "lineno", 1)
        if not text:
            continue
        for paragraph in re.split(r"\n(?:[ \t]*\n)+|\n(?=[ \t]*[-*] )", text):
            block = paragraph.startswith(" " * (node.body[0].col_offset + 1)) or paragraph.lstrip().startswith("\b")
            if not block:
                found += [(line, one) for one in re.split(r"(?<=[.!?])[)\"'`*]*\s+", " ".join(paragraph.split()))]
    return found


def test_sentences_of_docstrings_are_short() -> None:
    """Who reads a docstring once has understood it."""
    assert not [
        f"{path.relative_to(ROOT)}:{line}: {words} words: {sentence[:80]}..."
        for path in sorted((ROOT / "taskflow").rglob("*.py"))
        for line, sentence in sentences(path.read_text())
        if (words := len(sentence.split())) > SENTENCE_WORDS
    ]


def test_long_sentences_are_found() -> None:
    words = "word " * 25
    source = f'class Here:\n    """First.\n\n    {words}\n    {words}end.\n\n        {words * 2}\n    - {words}\n    - {words}"""\n'
    assert [len(one.split()) for _, one in sentences(source)] == [1, 51, 26, 26]
    assert [len(one.split()) for _, one in sentences(f'def f():\n    """{words}; {words}: {words}. {words}"""\n')] == [78, 25]


@pytest.mark.timeout(300)
def test_the_picture_of_timelines_is_what_the_commands_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/draw_timelines.py names the commands; budgets of proposals make the plan the same everywhere."""
    source = (ROOT / "docs" / "draw_timelines.py").read_text()
    lines = re.findall(r"^    ((?:taskflow|python) .+)$", source, re.MULTILINE)
    assert len(lines) == 4
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKFLOW_CACHE", str(tmp_path / "cache"))
    for line in lines:
        first, *words = shlex.split(line.replace("docs/timelines.svg", "timelines.svg"))
        if first == "taskflow":
            done = CliRunner().invoke(main, words)
            assert done.exit_code == 0, done.output
        else:
            program = [sys.executable, str(ROOT / words.pop(0)), *words]
            subprocess.run(program, check=True, capture_output=True, timeout=250, env=starting.environment())
    assert (tmp_path / "timelines.svg").read_text() == (ROOT / "docs" / "timelines.svg").read_text()
