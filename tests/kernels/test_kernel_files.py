"""How many files a kernel of the CPU's is in, and which: what CONTRIBUTING.md says, counted in the source."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from taskflow.kernels import KERNELS, NumpyKernels, native_built

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "taskflow" / "kernels"
GUIDE = (ROOT / "CONTRIBUTING.md").read_text().partition("## Add a kernel\n")[2].partition("\n## ")[0]
TEXTS = {
    path: path.read_text() for path in sorted(OURS.rglob("*"))
    if path.suffix in (".py", ".pyx", ".pyi", ".pxd", ".h") and not {"gpu", "onednn"} & set(path.relative_to(OURS).parts)
}
MOST = 4


def says(text: str, kernel: str) -> bool:
    """Whether a file has a function of this name, in Python, Cython or C, or a loop, or the choice of its type."""
    return re.search(rf"\bdef {kernel}\(|\bF\({kernel}\)\(|#define any_{kernel}\(|\bvoid any_{kernel}\(", text) is not None


def used(text: str, kernel: str) -> set[str]:
    """The words of a kernel's method in a .pyx file, and of the functions of that file that it calls."""
    blocks = re.split(r"^(?=(?:    )?(?:def|cdef|cpdef|class)\b)", text, flags=re.MULTILINE)
    functions: dict[str, str] = {}
    for block in blocks:
        if found := re.match(r"\s*(?:def|cdef|cpdef)\b[^(\n]*?(\w+)\(", block):
            functions[found[1]] = block
    words: set[str] = set()
    ahead = [kernel]
    while ahead:
        new = set(re.findall(r"\w+", functions.get(ahead.pop(), ""))) - words
        words |= new
        ahead += [word for word in new if word in functions]
    return words


def loops(texts: dict[Path, str], words: set[str]) -> set[Path]:
    """The headers that have the loops of these words: the choice of a type and what it chooses lie in one header."""
    found = set()
    for path, text in texts.items():
        for choice, loop in re.findall(r"#define (any_\w+)\(\.\.\.\) EITHER\((\w+),", text):
            if choice in words:
                assert re.search(rf"\bF\({loop}\)\(", text), f"{path.name} chooses a type for {loop}, whose loop is elsewhere"
                found.add(path)
    return found


def files_of(kernel: str, texts: dict[Path, str] = TEXTS) -> set[Path]:
    """Those that name it, those with its loops, and of the tests that its definition names the first with it."""
    found = {path for path, text in texts.items() if says(text, kernel) and path.name != "device.py"}  # its own activate()
    for path in list(found):
        if path.suffix == ".pyx":
            found |= loops(texts, used(texts[path], kernel))
        if path.parent.name == "definitions":
            tests = [ROOT / test for test in re.findall(r"tests/kernels/\w+\.py", texts[path].split('"""')[1])]
            found.add(next((test for test in tests if f".{kernel}(" in test.read_text()), tests[0]))
    return found


def kind(path: Path) -> str:
    """How the guide names it: by its path, with GROUP for what stands for a group of kernels."""
    if not path.is_relative_to(OURS):
        return "test_kernels_GROUP.py"
    found = path.relative_to(OURS).as_posix()
    found = re.sub(r"native/_\w+\.", "native/_GROUP.", found)
    return re.sub(r"(definitions|native/loops)/\w+\.", r"\1/GROUP.", found)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_in_at_most_four_files_and_in_none_twice_over(name: str) -> None:
    files = files_of(name)
    kinds = sorted(map(kind, files))
    assert len(files) <= MOST, files
    assert len(kinds) == len(set(kinds)) and "definitions/GROUP.py" in kinds, kinds


def test_the_guide_lists_just_these_files() -> None:
    listed = set(re.findall(r"`((?:\w+/)*\w+\.\w+)`", GUIDE))
    found = [files_of(name) for name in KERNELS]
    assert {kind(path) for files in found for path in files} == listed
    assert f"at most {MOST} files" in " ".join(GUIDE.split())
    assert max(map(len, found)) == MOST


def test_a_fifth_file_is_seen() -> None:
    """A method that calls a compiled function from elsewhere, or a loop that lies apart from the choice of its type."""
    stub = {**TEXTS, OURS / "native" / "_losses.pyi": "class NativeLosses:\n    def softmax(self, x: Array) -> None: ..."}
    assert len(files_of("softmax", stub)) == MOST + 1
    header = OURS / "native" / "loops" / "losses.h"
    apart = {**TEXTS, header: TEXTS[header].replace("F(softmax)(", "F(softmax_of_rows)(")}
    with pytest.raises(AssertionError, match="whose loop is elsewhere"):
        files_of("softmax", apart)


@pytest.mark.skipif(not native_built(), reason="the compiled kernels are not built")
@pytest.mark.parametrize("name", KERNELS)
def test_a_compiled_kernel_takes_what_its_definition_takes(name: str) -> None:
    """So that the stub of its group, which says no more than that, is right: names, order and defaults."""
    from taskflow.kernels.native.kernels import NativeKernels

    def parameters(function: Callable[..., object]) -> list[tuple[str, object]]:
        return [(p.name, p.default) for p in inspect.signature(function).parameters.values()]

    assert parameters(getattr(NativeKernels, name)) == parameters(getattr(NumpyKernels, name))
