"""What docstrings and comments of taskflow refer to is there: names between backticks, files beside a file, tests and documents."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [path for path in sorted((ROOT / "taskflow").rglob("*")) if path.suffix in (".py", ".pyx", ".h", ".cu")]
PYTHON = [path for path in SOURCES if path.suffix == ".py"]
NAME = re.compile(r"(?<!`)`([A-Za-z_][\w./]*)(?:\(\))?`(?!`)")
BESIDE = re.compile(r"``([a-z_]+\.(?:py|pyx|h|json))``")
ELSEWHERE = re.compile(r"(?<![\w/])((?:tests|docs|examples|benchmarks)/[\w./-]+\.(?:py|md|json))")
OF_OTHERS = {"use_kernel_func_from_hub_with_fallback", "functional_call"}  # of transformers, of torch.func
OF_PLANS = {"tN", "cN", "v2"}  # words of plans
CALLED_SO = {"rnnlm.py"}  # an example's name as a user types it


def said_by(text: str) -> set[str]:
    """All names that a file of Python defines or uses, those in short texts among them (kinds of operators, names of fields)."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        for field in ("id", "attr", "name", "arg"):
            if isinstance(name := getattr(node, field, None), str):
                found.update(name.split("."))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 80:
            found.update(re.findall(r"\w+", node.value))
    return found


def known() -> set[str]:
    """Every name of the package, of its files and folders, and of Python itself."""
    found = {*dir(builtins), *keyword.kwlist, *OF_OTHERS, *OF_PLANS}
    for path in SOURCES:
        text = path.read_text()
        found |= said_by(text) if path.suffix == ".py" else set(re.findall(r"\w+", text))
        found |= {*path.relative_to(ROOT).parts, path.stem}
    return found | {"py", "h", "pyx"}


def missing(text: str, names: set[str]) -> list[str]:
    """References by name that nothing is called."""
    return [found[1] for found in NAME.finditer(text) if not names.issuperset(filter(None, re.split(r"[./]", found[1])))]


def test_names_between_backticks_are_there() -> None:
    names = known()
    wrong = {str(path.relative_to(ROOT)): found for path in PYTHON if (found := missing(path.read_text(), names))}
    assert not wrong, f"nothing is called so any more: {wrong}"


def test_files_that_are_named_are_there() -> None:
    wrong = []
    for path in PYTHON:
        text = path.read_text()
        beside = [name for name in BESIDE.findall(text) if name not in CALLED_SO]
        wrong += [(path.name, name) for name in beside if not any((at / name).exists() for at in (path.parent, ROOT / "taskflow"))]
        wrong += [(path.name, name) for name in ELSEWHERE.findall(text) if not (ROOT / name).exists()]
    assert not wrong, f"no such file: {wrong}"


def test_what_is_gone_is_found() -> None:
    assert missing("as `Executor.train` does, or `executor_of_old`; ``trace`` is no name", known()) == ["executor_of_old"]
