"""How many files a kernel of the CPU's is in, and which: what CONTRIBUTING.md says, counted in the source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from taskflow.kernels import KERNELS as NAMES

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "taskflow" / "kernels"
GUIDE = (ROOT / "CONTRIBUTING.md").read_text().partition("## Add a kernel\n")[2].partition("\n## ")[0]
OF_THE_CPU = [
    path for path in sorted(KERNELS.rglob("*"))
    if path.suffix in (".py", ".pyx", ".pyi", ".pxd", ".h") and not {"gpu", "onednn"} & set(path.relative_to(KERNELS).parts)
]


def defines(text: str, kernel: str) -> bool:
    """A Python or Cython function of that name, or a loop, or the macro that chooses its type."""
    return re.search(rf"\bdef {kernel}\(|\bF\({kernel}\)\(|#define any_{kernel}\(|\bvoid any_{kernel}\(", text) is not None


FILES = {name: [path for path in OF_THE_CPU if defines(path.read_text(), name)] for name in NAMES}


def kind(path: Path) -> str:
    """How the guide names it: by its path, with GROUP for what stands for a group of kernels."""
    found = path.relative_to(KERNELS).as_posix()
    found = re.sub(r"native/_\w+\.", "native/_GROUP.", found)
    found = re.sub(r"definitions/\w+\.py", "definitions/GROUP.py", found)
    return re.sub(r"native/(loops|dispatch)/\w+\.h", r"native/\1/GROUP.h", found)


LISTED = set(re.findall(r"`((?:\w+/)*\w+\.\w+)`", GUIDE))
BY_CHANCE = {("activate", "device.py")}  # of a device, not of a kernel


def test_the_guide_says_in_how_many_files_a_kernel_is_at_most() -> None:
    most = max(map(len, FILES.values()))
    assert f"at most {most} files" in " ".join(GUIDE.split()), {name: len(files) for name, files in FILES.items()}


def test_the_guide_lists_files_that_are_there() -> None:
    assert {kind(path) for name, files in FILES.items() for path in files if (name, kind(path)) not in BY_CHANCE} == LISTED


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_is_in_no_file_twice_over(name: str) -> None:
    """In one group of definitions, one of compiled loops, and one class of compiled kernels."""
    kinds = [kind(path) for path in FILES[name] if (name, kind(path)) not in BY_CHANCE]
    assert kinds.count("definitions/GROUP.py") == 1 and len(kinds) == len(set(kinds)), kinds
    assert len({"native/kernels.py", "native/images.py"} & set(kinds)) <= 1, kinds
