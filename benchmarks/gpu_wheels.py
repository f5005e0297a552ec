"""Wheels that were brought to a machine without a registry: installed in a folder of their own, for this script and its ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from tempfile import gettempdir

DONE = "installed"  # a file that says that all of it is there


def installed(folder: Path) -> Path:
    """Where the wheels of a folder are installed; a second call finds them. (``pip --target`` would drop MPICH's programs and
    libraries, which are a wheel's data.) RuntimeError if there are none, or with pip's message."""
    wheels = sorted(str(wheel.resolve()) for wheel in folder.glob("*.whl"))
    if not wheels:
        raise RuntimeError(f"{folder} has no wheels; docs/guide/gpus.md says which to bring")
    names = "\n".join(Path(wheel).name for wheel in wheels)
    place = Path(gettempdir()) / f"taskflow-wheels-{os.getuid()}-{sha256(names.encode()).hexdigest()[:12]}"
    if not (place / DONE).exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--ignore-installed"]
        done = subprocess.run([*command, "--prefix", str(place), *wheels], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"pip cannot install the wheels of {folder}: {done.stderr.strip()[-1000:]}")
        (place / DONE).write_text(names, encoding="utf-8")
    return place


def environment(place: Path, before: Mapping[str, str]) -> dict[str, str]:
    """What a process needs to find what was installed at ``place``, before what the machine has."""
    packages = sorted({str(path) for name in ("site-packages", "dist-packages") for path in place.glob(f"**/python3*/{name}")})
    added = {"PYTHONPATH": packages, "PATH": [str(place / "bin")], "LD_LIBRARY_PATH": [str(place / "lib")]}
    return {**before, **{key: os.pathsep.join([*paths, *filter(None, [before.get(key)])]) for key, paths in added.items()}}
