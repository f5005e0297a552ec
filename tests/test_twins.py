"""Every compiled file says what defines it, and which test holds the two equal; the definition says the same."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "taskflow"
COMPILED = sorted(path for pattern in ("*.pyx", "optimizer/**/*.h") for path in PACKAGE.rglob(pattern))
# The headers of kernels/ are the loops of one .pyx file each, and named by it.

DEFINED = re.compile(r"The definition is (.+?); (tests/\S+\.py) holds them equal\.")
BOUND = re.compile(r"There is no twin: .+?; (tests/\S+\.py) holds it\.")
PARTS = ("tasks/lower/", "regions/", "partition/")
"""Parts of one definition, each with a header for its twin. `PythonEvaluator` calls them, and names the twin for all."""
OF_ALL = "optimizer/evaluate/evaluator.py"
NAMES_BACK = {"tasks/lower/gradient_sync.py"}  # although it is a part
NAMED_BY_ITS_DEFINITION_ALONE = {"optimizer/evaluate/folded/_arrays.pyx"}


def named(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def opening(path: Path) -> str:
    """The docstring, or a header's first comment, in one line."""
    text = path.read_text()
    if path.suffix == ".py":
        return " ".join((ast.get_docstring(ast.parse(text)) or "").split())
    if path.suffix == ".pyx":
        return " ".join(text.split('"""')[1].split())
    return " ".join(" ".join(line.lstrip("/ ") for line in text.partition("#pragma once")[0].splitlines()).split())


def twins(text: str) -> tuple[list[str], str] | None:
    """The definitions that an opening names, none for what has none, and its test; nothing where it names neither."""
    if found := DEFINED.search(text):
        return found[1].split(" and "), found[2]
    return ([], found[1]) if (found := BOUND.search(text)) else None


def test_there_are_compiled_files() -> None:
    assert {"optimizer/evaluate/_core.pyx", "optimizer/bounds/jackson.h", "kernels/native/_rows.pyx"} <= set(map(named, COMPILED))


@pytest.mark.parametrize("path", COMPILED, ids=named)
def test_a_compiled_file_names_its_definition_and_their_test(path: Path) -> None:
    found = twins(opening(path))
    if named(path) in NAMED_BY_ITS_DEFINITION_ALONE:
        assert found is None, f"{path}: it names its test now; take it out of NAMED_BY_ITS_DEFINITION_ALONE"
        assert re.search(rf"{path.name}; tests/\S+\.py holds them equal", opening(path.with_name("arrays.py")))
        return
    assert found is not None, (
        f"{path}: write 'The definition is PATH; tests/... holds them equal.' at its beginning, "
        "or 'There is no twin: REASON; tests/... holds it.'"
    )
    definitions, test = found
    assert (ROOT / test).is_file(), f"{path}: there is no {test}"
    for definition in definitions:
        assert (PACKAGE / definition).is_file(), f"{path}: there is no {definition}"
        where = OF_ALL if definition.startswith(PARTS) and definition not in NAMES_BACK else definition
        says = opening(PACKAGE / where)
        if where == OF_ALL:
            assert "optimizer/evaluate/_core.pyx; tests/optimizer/evaluate/test_core_equal.py holds them equal" in says
        else:
            assert re.search(rf"\b{path.name}\b(?:(?!tests/).)*{test}", says), (
                f"{where}: say that its compiled twin is {path.name}, and that {test} holds them equal"
            )


@pytest.mark.parametrize("test", sorted({found[1] for path in COMPILED if (found := twins(opening(path)))}))
def test_their_tests_use_compiled_code(test: str) -> None:
    """By its module, which they skip without, or by a name that means the fast one where there is one."""
    compiled = (
        "evaluate.compiled", "native.kernels", "kernels.busy", "onednn", "bounds.partial_plan", "tasks._places", "make_evaluator",
        "test_core_equal",
    )
    assert any(name in (ROOT / test).read_text() for name in compiled)


@pytest.mark.parametrize(("text", "found"), [
    ("X. The definition is a/b.py; tests/c.py holds them equal.", (["a/b.py"], "tests/c.py")),
    ("The definition is a.py and b.py; tests/c.py holds them equal. More.", (["a.py", "b.py"], "tests/c.py")),
    ("There is no twin: it is a bound; tests/c.py holds it.", ([], "tests/c.py")),
    ("The compiled twin of a.py.", None),
])
def test_the_test_reads_openings(text: str, found: object) -> None:
    assert twins(text) == found
