"""What ``import taskflow`` costs and offers, and what the wheel holds."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest
from distributing import copied, source_distribution, tracked, tried, verify
from fast_and_slow import fast_among

import taskflow
from taskflow.kernels import native_built

ROOT = Path(__file__).resolve().parent.parent

LOOK = """
import json, sys, threading, time
before = set(sys.modules)
began = time.process_time()  # however busy the machine
import taskflow
seconds = time.process_time() - began
new = sorted({name.split(".")[0] for name in set(sys.modules) - before})
print(json.dumps({
    "seconds": seconds, "new": new, "threads": threading.active_count(),
    "ours": sorted(name for name in sys.modules if name.split(".")[0] == "taskflow"),
    "foreign": sorted(set(new) - set(sys.stdlib_module_names) - {"taskflow"}),
}))
"""


def look(**environment: str) -> dict:
    """What a fresh interpreter sees when it imports taskflow."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI_COMM_", "PYTEST", "COV"))}
    done = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=ROOT, env={**variables, **environment}, text=True, capture_output=True, timeout=250,
        check=True,
    )
    return json.loads(done.stdout)


def test_import_starts_nothing() -> None:
    seen = look()
    # Only the launch module, which reads the environment (ranks, cores) before numpy may be imported, and the standard library.
    assert seen["ours"] == [
        "taskflow", "taskflow.lazy", "taskflow.runtime", "taskflow.runtime.job", "taskflow.runtime.job.launch",
        "taskflow.runtime.job.polling", "taskflow.runtime.job.slurm",
    ]
    assert seen["foreign"] == [], "no numpy, no mpi4py, nothing that is not Python's own"
    assert seen["threads"] == 1
    assert min(seen["seconds"], *(look()["seconds"] for _ in range(2))) < 1


@pytest.mark.parametrize("torch", fast_among([True, False], [False]))
def test_importing_every_room_starts_no_mpi_and_no_thread(torch: bool) -> None:
    """Without PyTorch (which is kept away where it is installed) too: only what reads its modules needs it. Without CuPy always."""
    code = (
        "import importlib, pkgutil, sys, threading, taskflow\n"
        f"torch = {torch and find_spec('torch') is not None}\n"
        "if not torch:\n"
        "    sys.modules['torch'] = None\n"
        "sys.modules |= dict.fromkeys(('cupy', 'cupy_backends', 'cudnn'))\n"
        "for m in pkgutil.walk_packages(taskflow.__path__, 'taskflow.'):\n"
        "    if m.name.startswith(('taskflow.export.jax.support', 'taskflow.probe.script_jax.')):\n"
        "        continue  # needs JAX, which starts threads\n"
        "    of = ('taskflow.models.pytorch.', 'taskflow.export.pytorch.support.', 'taskflow.probe.script.',\n"
        "          'taskflow.trial.script.', 'taskflow.trial.with_numbers', 'taskflow.export.pytorch.without_numbers')\n"
        "    if torch or not m.name.startswith(of):\n"
        "        importlib.import_module(m.name)\n"
        "assert 'taskflow.runtime.transport.mpi' in sys.modules\n"
        "print('mpi4py.MPI' in sys.modules, threading.active_count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, timeout=250, check=True
    )
    assert done.stdout.split() == ["False", "1"]


def test_every_lazy_name_is_what_its_type_says() -> None:
    """The imports for type checkers name the same objects as those that are made when a name is used."""
    (block,) = [node for node in ast.parse(Path(taskflow.__file__).read_text()).body if isinstance(node, ast.If)]
    found = set()
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom) and statement.module
        for one in statement.names:
            if statement.module != "taskflow.operators":
                name = one.asname or one.name
                assert getattr(taskflow, name) is getattr(importlib.import_module(statement.module), one.name)
                found.add(name)
    assert found == set(taskflow.__all__)


def lazy_names() -> list[tuple[str, str]]:
    """Packages, and the names that they import when these are first used."""
    found = [("taskflow", name) for name in importlib.import_module("taskflow.operators").__all__]
    for path in sorted((ROOT / "taskflow").rglob("__init__.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "lazily":
                package, where = ".".join(path.parent.relative_to(ROOT).parts), ast.literal_eval(call.args[1])
                found += [(package, name.split(" as ")[-1]) for names in where.values() for name in names]
    return found


def test_lazy_names_are_there() -> None:
    for package, name in lazy_names():
        assert getattr(importlib.import_module(package), name) is not None


def test_no_lazy_name_is_a_module_s() -> None:
    """Python would put the module in its place as soon as anybody imports that."""
    names = lazy_names()
    assert {package for package, _ in names} >= {"taskflow", "taskflow.runtime", "taskflow.runtime.job"}
    hidden = [f"{package}.{name}" for package, name in names if find_spec(f"{package}.{name}") is not None]
    assert not hidden, f"name these modules in another way: {hidden}"


def test_names() -> None:
    from taskflow import operators

    assert {*taskflow.__all__, *operators.__all__} <= set(dir(taskflow))
    assert not [name for name in dir(taskflow) if name.startswith("_") and not name.startswith("__")]
    assert not {"importlib", "lazily", "Any", "TYPE_CHECKING"} & set(dir(taskflow))
    for name in operators.__all__:
        assert getattr(taskflow, name) is getattr(operators, name)
    for name in ("nonsense", "_private", "numpy"):
        with pytest.raises(AttributeError, match=f"'taskflow' has no attribute '{name}'"):
            getattr(taskflow, name)
    stars: dict = {}
    exec("from taskflow import *", stars)
    assert set(taskflow.__all__) <= set(stars) and "input" not in stars


def test_version_is_the_one_of_pyproject() -> None:
    (version,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert taskflow.__version__ == version


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of what git tracks. Building it takes minutes."""
    return build(tmp_path_factory.mktemp("wheel"))


def build(folder: Path, also: Iterable[str] = (), **environment: str) -> Path:
    """The wheel of what git tracks, and ``also`` of other files."""
    tree = copied(folder / "tree", also)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--quiet", "-w", str(folder)],
        cwd=tree, env={**os.environ, **environment}, check=True, timeout=840,
    )
    (found,) = folder.glob("soap_taskflow-*.whl")
    return found


def install(wheel: Path, folder: Path) -> Callable[..., str]:
    """Into an environment of its own; dependencies are those of this one. What it returns runs a program of it in ``folder``, and
    returns what that printed; no compiler is on PATH."""
    home = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=200)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True, timeout=200)
    (packages,) = (home / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def run(program: str, *words: str) -> str:
        done = subprocess.run(
            [str(home / "bin" / program), *words], cwd=folder, env={"PATH": str(home / "bin"), "HOME": str(folder)}, text=True,
            capture_output=True, timeout=100, check=True,
        )
        return done.stdout

    assert run("python", "-c", "import taskflow; print(taskflow.__file__)").startswith(str(packages))
    return run


def translated() -> list[str]:
    """The C that Cython wrote of our sources when this checkout was built, if it is of them as they are now: 12 s less to build."""
    sources = [ROOT / name for name in tracked() if name.endswith((".pyx", ".pxd"))]
    written = [path.with_suffix(end) for path in sources for end in (".c", ".cpp") if path.with_suffix(end).is_file()]
    last = max(path.stat().st_mtime for path in sources)
    return [str(path.relative_to(ROOT)) for path in written if path.stat().st_mtime > last]


COMPILED_FROM = (".pyx", ".pxd", ".pyi", ".h", ".cu")  # with the stubs by which users' types are checked
SEARCH = ("search", "MLP", "--machine", "p100", "--devices", "4", "--budget", "100p", "--json")


@pytest.mark.timeout(400)
def test_without_a_compiler_it_builds_plans_and_trains(tmp_path: Path) -> None:
    wheel = build(tmp_path, translated(), CC="no-such-compiler", CXX="no-such-compiler")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
        (metadata,) = [archive.read(name).decode() for name in archive.namelist() if name.endswith("METADATA")]
    about, _, description = metadata.partition("\n\n")
    assert not re.findall(r"\]\((?!https?:)[^)]*\)", description), "links of README.md must work on a package index"
    assert "(`docs/guide/export.md`)" in description and "Description-Content-Type: text/markdown" in about
    needed = [line for line in about.splitlines() if line.startswith("Requires-Dist: ") and "extra ==" not in line]
    assert needed and not [line for line in needed if "mpi" in line], "planning needs no MPI"
    run = install(wheel, tmp_path)
    assert json.loads(run("taskflow", *SEARCH))["proposals"] == 100
    found = {finding["about"]: finding["state"] for finding in json.loads(run("taskflow", "doctor", "--json"))["findings"]}
    assert found["training"] == "ok" and found["compiled loops"] == found["oneDNN"] == found["search"] == "missing"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_holds_the_extension_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    modules = {name for name in tracked() if name.startswith("taskflow/") and name.endswith((".py", *COMPILED_FROM, ".json"))}
    assert modules <= names and "taskflow/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"taskflow", f"soap_taskflow-{taskflow.__version__}.dist-info"}
    assert not [name for name in names if {"test", "tests", "examples"} & set(name.lower().split("/"))]
    assert not [name for name in names if name.endswith((".c", ".cpp"))], "what Cython writes stays at home"
    if native_built():
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        assert {f"{name.removesuffix('.pyx')}{suffix}" for name in modules if name.endswith(".pyx")} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names), "the licence must travel with the wheel"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_works(wheel: Path, tmp_path: Path) -> None:
    run = install(wheel, tmp_path)
    built = "from taskflow.kernels import native_built; print(native_built())"
    assert run("python", "-c", built).strip() == str(native_built())
    assert run("python", "-m", "taskflow", "--version").strip() == f"taskflow, version {taskflow.__version__}"
    for program in (("taskflow",), ("python", "-m", "taskflow")):
        assert json.loads(run(*program, *SEARCH))["proposals"] == 100


@pytest.mark.slow
def test_the_source_distribution_has_what_is_tracked_and_nothing_generated(tmp_path: Path) -> None:
    verify(source_distribution(tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_source_distribution_installs_and_plans_without_mpi(tmp_path: Path) -> None:
    tried(source_distribution(tmp_path))


def test_planning_needs_no_mpi() -> None:
    code = (
        "import sys; sys.modules['mpi4py'] = None\n"
        "from taskflow.cli.main import main; main(['search', 'MLP', '-m', 'p100', '-n', '4', '--budget', '20p', '-q'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, timeout=250, check=False)
    assert done.returncode == 0 and "20 proposals" in done.stdout, done.stderr


def test_links_become_addresses_where_the_repository_is_known() -> None:
    """What setup.py does to README.md, run apart from the rest of it."""
    functions = [node for node in ast.parse((ROOT / "setup.py").read_text()).body if isinstance(node, ast.FunctionDef)]
    found: dict = {"re": re}
    exec(compile(ast.Module([f for f in functions if f.name == "description"], []), "setup.py", "exec"), found)
    text = "![a plan](docs/a.svg) and [guide](docs/b.md#part), [site](https://x.org), [below](#status)"
    assert found["description"](text, "https://x.org/t/blob/v1/") == (
        "![a plan](https://x.org/t/blob/v1/docs/a.svg) and [guide](https://x.org/t/blob/v1/docs/b.md#part), [site](https://x.org), "
        "[below](#status)"
    )
    assert found["description"](text, None) == "(a plan) and guide (`docs/b.md`), [site](https://x.org), below"


def test_the_version_is_semantic_and_the_changelog_begins_with_it() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", taskflow.__version__)
    (first, *_) = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first == taskflow.__version__


def test_the_licence_is_apache() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text
