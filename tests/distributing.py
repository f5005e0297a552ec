"""Builds the source distribution and the wheel, and tries each in an environment of its own, away from the sources.

    python tests/distributing.py FOLDER        both files, tried, in FOLDER; needs a package index for the dependencies
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATED = (".c", ".cpp", ".so", ".pyc")
HOOK = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
PLAN = ("search", "MLP", "--machine", "p100", "--devices", "4", "--budget", "100p", "--json")


def tracked() -> list[str]:
    """Return the files that are of the project: what git tracks, or all of an unpacked source distribution."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=False)
    return done.stdout.split() if done.returncode == 0 else [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.is_file()]


def copied(folder: Path, also: Iterable[str] = ()) -> Path:
    """Return a copy of the sources, and of ``also`` of other files, in which builds may leave what they make."""
    for name in [*tracked(), *also]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def source_distribution(folder: Path) -> Path:
    """Build the source distribution of what is tracked."""
    with tempfile.TemporaryDirectory() as tree:
        subprocess.run([sys.executable, "-c", HOOK, str(folder.resolve())], cwd=copied(Path(tree)), check=True, timeout=600)
    (found,) = folder.glob("soap_taskflow-*.tar.gz")
    return found


def verify(sdist: Path) -> None:
    """Raise ValueError if a source distribution lacks something that is tracked, or has what a tool wrote."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    if lacks := {name for name in tracked() if not name.startswith(".")} - names:
        raise ValueError(f"{sdist}: lacks {', '.join(sorted(lacks)[:5])}: see MANIFEST.in")
    if written := sorted(name for name in names.difference(tracked()) if name.endswith(GENERATED)):
        raise ValueError(f"{sdist}: has {', '.join(written[:5])}, which a tool wrote: see MANIFEST.in")


def tried(file: Path, *more: str) -> None:
    """Install a distribution in a new environment, find a plan there, and see that no MPI came along. ``more``: words for pip."""
    with tempfile.TemporaryDirectory() as home:
        subprocess.run([sys.executable, "-m", "venv", home], check=True, timeout=300)
        commands = Path(home) / "bin"
        subprocess.run([commands / "pip", "install", "--quiet", *more, str(file.resolve())], cwd=home, check=True, timeout=7200)
        done = subprocess.run([commands / "taskflow", *PLAN], cwd=home, text=True, capture_output=True, timeout=300, check=True)
        where = [commands / "python", "-c", "import taskflow; print(taskflow.__file__)"]
        place = subprocess.run(where, cwd=home, text=True, capture_output=True, check=True).stdout
        has = subprocess.run([commands / "python", "-c", "import mpi4py"], capture_output=True, check=False).returncode == 0
    if json.loads(done.stdout)["proposals"] != 100 or not place.startswith(home) or has:
        raise ValueError(f"{file}: taskflow of {place.strip()} said {done.stdout}; mpi4py {'came' if has else 'is not'} there")


def main() -> None:
    """Build and try both."""
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sdist = source_distribution(folder)
    verify(sdist)
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(sdist)]
    subprocess.run(wheel, check=True, timeout=7200)
    for file in sorted(folder.iterdir()):
        tried(file)
        print(f"{file}: {file.stat().st_size / 1e6:.2f} MB, installs and plans")


if __name__ == "__main__":
    main()
