"""Constants of the optimizer: a table with a reason for each, written by ``python tests/test_constants.py``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "taskflow" / "optimizer"
PAGE = ROOT / "docs" / "reference" / "constants.md"
HEAD = """# Constants of the optimizer

Numbers that the search, its evaluators and its costs rest on, by file of `taskflow/optimizer/`, with what each is for.
Written from the source by `python tests/test_constants.py`.

| file | constant | value | for |
|---|---|---|---|
"""
NAME = re.compile(r"_?[A-Z][A-Z0-9_]*")
PARTS = ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Tuple, ast.Load


def constants(path: Path) -> Iterator[tuple[str, str, str]]:
    """Names, value and reason of each assignment of numbers: the comment behind it, the text below it or the lines above it."""
    text = path.read_text()
    lines, body = text.splitlines(), ast.parse(text).body
    for at, one in enumerate(body):
        targets = one.targets if isinstance(one, ast.Assign) else [one.target] if isinstance(one, ast.AnnAssign) else []
        names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        value = one.value if isinstance(one, (ast.Assign, ast.AnnAssign)) else None
        numbers = value is not None and all(
            isinstance(part, PARTS) and not isinstance(getattr(part, "value", 0), (str, bytes)) for part in ast.walk(value)
        )
        if not (value and numbers and names and all(map(NAME.fullmatch, names))):
            continue
        below = body[at + 1] if at + 1 < len(body) else None
        behind = lines[(one.end_lineno or 1) - 1].partition("  # ")[2]
        above = [line.lstrip("# ") for line in _comments_above(lines, one.lineno - 2)]
        said = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
        number = ", ".join(map(ast.unparse, value.elts)) if isinstance(value, ast.Tuple) else ast.unparse(value)
        yield ", ".join(names), number, " ".join((behind or str(said) or " ".join(above)).split())


def _comments_above(lines: list[str], at: int) -> list[str]:
    found: list[str] = []
    while at >= 0 and lines[at].startswith("# ") and not lines[at].startswith("# ---"):
        found.insert(0, lines[at])
        at -= 1
    return found


def rows() -> list[tuple[str, str, str, str]]:
    return [(path.relative_to(PACKAGE).as_posix(), *found) for path in sorted(PACKAGE.rglob("*.py")) for found in constants(path)]


def page() -> str:
    return HEAD + "".join(
        f"| `{file}` | `{names}` | `{value}` | {why.replace('|', chr(92) + '|')} |\n" for file, names, value, why in rows()
    )


def test_every_constant_says_what_it_is_for() -> None:
    found = rows()
    assert len(found) > 150
    assert not [row for row in found if not row[3]], "write a comment behind it, or a text below"


def test_the_page_has_all_constants() -> None:
    assert PAGE.read_text() == page(), "python tests/test_constants.py writes it anew"


if __name__ == "__main__":
    PAGE.write_text(page())
