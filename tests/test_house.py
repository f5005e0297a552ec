"""The house rules of docs/design.md, read from the source: imports only go down, files stay short, everything is documented."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import taskflow.machine
import taskflow.mapper

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "taskflow"
FILES = sorted(PACKAGE.rglob("*.py"))

# Lowest first; rooms of one row do not import each other (but the faces may, see FACES).
ROWS = (
    ("floats",), ("kernels", "cache", "option_types", "collector", "drawing", "lazy", "reading", "wording", "working", "writing"),
    ("regions",), ("partition", "programs"),
    ("machine", "machines"), ("operators",), ("graph",),
    ("rules", "loss_scaling"), ("mapper",), ("tasks", "annotations"), ("optimizer", "runtime"), ("checkpoint",),
    ("models",), ("export",), ("probe", "trial"), ("training", "cli", "report", "__main__"),
)
LEVEL = {room: level for level, row in enumerate(ROWS) for room in row}
FACES = set(ROWS[-1])  # these may use each other: a command trains a model
FORBIDDEN_NAMES = ("util", "manager", "helper", "misc", "common")
MOST_LINES = 400
TRAINS = {"train.py", "profile.py"}  # commands that run training steps


def room_of(module: str) -> str:
    """``taskflow.regions.rect`` is in the room ``regions``; the package itself is in none."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def module_of(path: Path, package: Path = PACKAGE) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parsed(source: str) -> ast.Module:
    """All rules read the same files."""
    return ast.parse(source)


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All of a tree, in the order of `ast.walk`."""
    return tuple(ast.walk(tree))


def imports(tree: ast.AST, module: str, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Line and full name of every module of ours that is imported, also inside functions and TYPE_CHECKING blocks."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == "taskflow")
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")[: None if is_package and node.level == 1 else -node.level + is_package]
                base = ".".join([*above, *([base] if base else [])])
            if base.split(".")[0] == "taskflow":
                # "from taskflow import regions" names a room, "from taskflow.regions import Rect" a thing in it.
                yield from ((node.lineno, f"{base}.{a.name}" if base == "taskflow" else base) for a in node.names)


def offences(source: str, module: str, is_package: bool = False) -> list[str]:
    """The imports of one module that do not go down."""
    here = room_of(module)
    found = []
    for line, name in imports(parsed(source), module, is_package):
        there = room_of(name)
        if there == here or (here in FACES and there in FACES) or name == "taskflow.__version__":
            continue
        if there not in LEVEL:
            found.append(f"{module}:{line} imports {name}, which is in no room")
        elif LEVEL[there] >= LEVEL[here]:
            where = "beside" if LEVEL[there] == LEVEL[here] else "below"
            found.append(f"{module}:{line} imports {name}, but {here} lies {where} {there}")
    return found


def test_commands_that_do_not_train_import_nothing_of_training() -> None:
    """What other commands share with those that do lies below both."""
    found = {
        path.name for path in (PACKAGE / "cli").glob("*.py")
        for _, name in imports(parsed(path.read_text()), module_of(path)) if room_of(name) == "training"
    }
    assert found <= TRAINS, f"{found - TRAINS} import taskflow.training; put what they share in a room below (taskflow/asking.py)"


# Packages whose __init__ does not export what others import, and why.
IMPORTED_DIRECTLY = {
    "taskflow.operators": "its __init__ exports the builders, which a star import brings to users",
    "taskflow.kernels.native": "compiled modules, which may be missing",
    "taskflow.kernels.onednn": "a compiled module, which may be missing",
    "taskflow.kernels.gpu": "needs CuPy, which may be missing",
    "taskflow.training.networks": "one program a network, loaded by name",
    "taskflow.cli": "one command a module, loaded by name",
}
NEEDS_A_COMPILER = {"taskflow.optimizer.evaluate.compiled", "taskflow.optimizer.bounds.partial_plan"}  # may be missing, too
MODULES = {module_of(path) for path in FILES}
PACKAGES = {module_of(path) for path in FILES if path.name == "__init__.py"}


def imported_past(source: str, module: str, is_package: bool = False) -> list[str]:
    """The imports of one module that take a name from inside another package instead of from its ``__init__``. Modules of
    its own package and of the packages around it are its own."""
    package = module if is_package else module.rpartition(".")[0]
    found = []
    for line, name in imports(parsed(source), module, is_package):
        owner, _, last = name.rpartition(".")
        if name in PACKAGES | NEEDS_A_COMPILER or name not in MODULES or last.startswith("_"):
            continue
        if owner == "taskflow" or owner in IMPORTED_DIRECTLY:
            continue
        if package != owner and not package.startswith(owner + "."):
            found.append(f"{module}:{line} imports {name}: import from {owner}, and export the name there")
    return found


def test_packages_import_from_each_other_by_their_inits() -> None:
    found = [
        offence for path in FILES
        for offence in imported_past(path.read_text(), module_of(path), path.name == "__init__.py") if path.parent != PACKAGE
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("module,source,wrong", [
    ("taskflow.cli.search", "from taskflow.optimizer.cost.analytic import AnalyticCosts", True),
    ("taskflow.cli.search", "from taskflow.optimizer.cost import AnalyticCosts", False),
    ("taskflow.optimizer.search", "from taskflow.optimizer.cost.analytic import AnalyticCosts", True),
    ("taskflow.optimizer.cost.choose", "from taskflow.optimizer.cost.analytic import AnalyticCosts", False),
    ("taskflow.optimizer.cost.measured.model", "from taskflow.optimizer.cost.model import CostModel", False),
    ("taskflow.mapper.rules", "from taskflow.operators.operator import Operator", False),
])
def test_the_test_sees_what_is_imported_past_an_init(module: str, source: str, wrong: bool) -> None:
    assert bool(imported_past(source, module)) is wrong


def taken_from(sources: Iterable[str]) -> dict[str, set[str]]:
    """The names that are imported from each module, by its full name."""
    found: dict[str, set[str]] = {}
    for source in sources:
        for node in nodes(parsed(source)):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                found.setdefault(node.module, set()).update(alias.name for alias in node.names)
    return found


def test_what_a_package_exports_is_named_or_used() -> None:
    """A name that an ``__init__`` imports is in its ``__all__``, which documents name, or somebody takes it from there."""
    taken = taken_from(path.read_text() for room in ("taskflow", "tests", "benchmarks") for path in (ROOT / room).rglob("*.py"))
    found = {}
    for path in FILES:
        tree = parsed(path.read_text())
        if path.name == "__init__.py" and all(isinstance(node, (ast.Expr, ast.ImportFrom, ast.Assign)) for node in tree.body):
            lists = [node.value for node in tree.body if isinstance(node, ast.Assign)]
            names = {alias.asname or alias.name for node in nodes(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
            listed = {name for value in lists for name in ast.literal_eval(value)}
            found[module_of(path)] = names - listed - {"annotations"} - taken.get(module_of(path), set())
    assert len(found) > 20 and not any(found.values()), {package: names for package, names in found.items() if names}


@pytest.mark.parametrize("package", [taskflow.mapper, taskflow.machine])
def test_a_list_has_what_documents_name(package: ModuleType) -> None:
    documents = [path for folder in ("guide", "reference") for path in (ROOT / "docs" / folder).glob("*.md")]
    text = "\n".join(path.read_text() for path in (*documents, ROOT / "docs" / "concepts.md", ROOT / "README.md"))
    assert not [name for name in package.__all__ if not re.search(rf"\b{name}\b", text)]


def test_the_test_sees_what_is_taken_from_where() -> None:
    assert taken_from(["from a.b import f, h", "from a import g"]) == {"a.b": {"f", "h"}, "a": {"g"}}


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules that import each other in a circle (Tarjan's strongly connected components of more than one)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(v: str) -> None:
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in edges.get(v, set()):
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            at = stack.index(v)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for v in sorted(edges):
        if v not in index:
            visit(v)
    return found


class _Running(ast.NodeVisitor):
    """Collects the imports that run: all but those for types."""

    def __init__(self, module: str, is_package: bool) -> None:
        self.module, self.is_package, self.names = module, is_package, set[str]()

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.dump(node.test):
            self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.names |= {
            full if (full := f"{name}.{alias.name}") in MODULES else name
            for _, name in imports(node, self.module, self.is_package) for alias in node.names
        }


def test_no_imports_in_a_circle() -> None:
    """Imports inside functions count, those for types do not. A package stands for all that its ``__init__`` imports; the
    packages around a module are not among what it imports."""
    edges: dict[str, set[str]] = {}
    for path in FILES:
        module, tree, is_package = module_of(path), parsed(path.read_text()), path.name == "__init__.py"
        running = _Running(module, is_package)
        running.visit(tree)
        names = {name for _, name in imports(tree, module, True)} if is_package else running.names
        edges[module] = {name for name in names if not f"{module}.".startswith(f"{name}.")}
    del edges["taskflow"]  # re-exports names of all rooms, lazily
    assert not circles(edges), "\n".join(map(str, circles(edges)))


def test_the_test_sees_circles() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_class_names_are_unique() -> None:
    """So that a reader who meets a name finds one class."""
    where: dict[str, list[str]] = {}
    for path in FILES:
        for node in nodes(parsed(path.read_text())):
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    twice = {name: paths for name, paths in where.items() if len(paths) > 1}
    assert not twice, "\n".join(f"{name}: {', '.join(paths)}" for name, paths in sorted(twice.items()))


def test_every_module_has_a_room() -> None:
    rooms = {room_of(module_of(path)) for path in FILES} - {""}
    assert rooms <= set(LEVEL), f"give {rooms - set(LEVEL)} a place in ROWS and in docs/design.md section 4"


def test_imports_only_go_down() -> None:
    # taskflow/__init__.py is exempt: it re-exports names of all rooms, lazily.
    found = [
        offence
        for path in FILES if room_of(module_of(path))
        for offence in offences(path.read_text(), module_of(path), path.name == "__init__.py")
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("module,source,wrong", [
    ("taskflow.kernels.blas", "from taskflow.regions import Rect", True),
    ("taskflow.regions.rect", "def f():\n    import taskflow.partition.grid", True),
    ("taskflow.runtime.executor", "from taskflow.optimizer import search", True),
    ("taskflow.optimizer.search", "from taskflow.runtime.executor import Executor", True),
    ("taskflow.tasks.lower.lower", "from ...runtime import executor", True),
    ("taskflow.tasks.lower.lower", "from taskflow import models", True),
    ("taskflow.tasks.lower.lower", "import taskflow", True),
    ("taskflow.tasks.lower.lower", "from taskflow import Executor", True),
    ("taskflow.tasks.lower.lower", "from taskflow import __version__", False),
    ("taskflow.tasks.lower.lower", "from .emit import Emitter", False),
    ("taskflow.tasks.lower.lower", "from ...mapper import Strategy\nimport numpy", False),
    ("taskflow.cli.train", "from taskflow.models.rnnlm import rnnlm", False),
    ("taskflow.models.gpt", "from taskflow.training import Cosine", True),
])
def test_the_test_sees_what_goes_up(module: str, source: str, wrong: bool) -> None:
    assert bool(offences(source, module)) is wrong


SOURCES = sorted(
    path for pattern in ("*.py", "*.pyx", "*.pxd", "*.pyi", "*.h", "*.cu", "*.js", "*.css") for path in PACKAGE.rglob(pattern)
)


def test_files_are_short() -> None:
    lines = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in SOURCES}
    long = [f"{path} has {count} lines, at most {MOST_LINES}: split it" for path, count in lines.items() if count > MOST_LINES]
    assert lines and not long, "\n".join(long)


def test_names_say_what_is_inside() -> None:
    for path in [*PACKAGE.rglob("*.py*"), *PACKAGE.rglob("*/")]:
        assert not any(word in path.stem.lower() for word in FORBIDDEN_NAMES), f"{path}: name it after what it does"
    for path in FILES:
        for node in nodes(parsed(path.read_text())):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                words = node.name.lower()
                assert not any(word in words for word in ("manager", "helper")), f"{path}:{node.lineno} {node.name}"


def test_test_modules_have_names_of_their_own() -> None:
    """Pytest imports them by their last name, so two of one name cannot run together."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert len(names) == len(set(names)), sorted(name for name in set(names) if names.count(name) > 1)


# ---- docstrings ------------------------------------------------------------------------------------------------------


@cache
def classes() -> dict[str, tuple[str, ast.ClassDef]]:
    """Every class of taskflow by its name (names are unique enough for looking up bases)."""
    return {
        node.name: (str(path.relative_to(ROOT)), node)
        for path in FILES for node in nodes(parsed(path.read_text())) if isinstance(node, ast.ClassDef)
    }


def inherits_documentation(owner: ast.ClassDef, method: str) -> bool:
    """True if a base class of ours documents a method of this name."""
    for base in owner.bases:
        name = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else None
        if name not in classes():
            continue
        above = classes()[name][1]
        for item in above.body:
            if isinstance(item, ast.FunctionDef) and item.name == method and ast.get_docstring(item):
                return True
        if inherits_documentation(above, method):
            return True
    return False


def plain_view(function: ast.FunctionDef) -> bool:
    """A property or protocol member whose name and type say all: one line of code."""
    decorated = any(isinstance(d, ast.Name) and d.id == "property" for d in function.decorator_list)
    return decorated and len(function.body) == 1


def undocumented(tree: ast.Module, owner: ast.ClassDef | None = None) -> Iterator[tuple[int, str]]:
    """Line and name of every public class, function and method without a docstring. Dunder methods, overrides of documented
    methods and one-line properties need none, nor does what is nested in a function."""
    for node in (owner or tree).body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name.startswith("_"):
            continue
        named = f"{owner.name}.{node.name}" if owner else node.name
        if not ast.get_docstring(node):
            excused = isinstance(node, ast.FunctionDef) and owner is not None and (
                plain_view(node) or inherits_documentation(owner, node.name)
            )
            if not excused:
                yield node.lineno, named
        if isinstance(node, ast.ClassDef):
            yield from undocumented(tree, node)


def test_everything_public_is_documented() -> None:
    missing = []
    for path in FILES:
        tree = parsed(path.read_text())
        if not ast.get_docstring(tree):
            missing.append(f"{path}: the first line must say what the module is")
        missing += [f"{path}:{line} {name} needs a docstring" for line, name in undocumented(tree)]
    assert FILES and not missing, "\n".join(missing)


def test_the_test_sees_missing_docstrings() -> None:
    source = (
        '"""M."""\nclass A:\n    """A."""\n    def f(self): ...\n    def _g(self): ...\n'
        "    @property\n    def p(self): return 1\ndef h(): ..."
    )
    assert [name for _, name in undocumented(parsed(source))] == ["A.f", "h"]
