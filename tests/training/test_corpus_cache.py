"""The corpus cache: when it answers, when it must not, and many processes at once."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from taskflow.cache import cache_folder
from taskflow.training import load_files
from taskflow.training.data import corpus as corpus_module
from taskflow.training.data import text as text_module
from taskflow.training.data.corpus import cached


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat .\n" * 40)
    return path


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file that is tokenised, as it happens."""
    seen: list[Path] = []
    real = text_module.numbered

    def spy(path, *rest):  # type: ignore[no-untyped-def]
        seen.append(path)
        return real(path, *rest)

    monkeypatch.setattr(text_module, "numbered", spy)
    return seen


def test_built_once_then_mapped(text: Path, cache: Path, builds: list[Path]) -> None:
    first, second = load_files([text]), load_files([text])
    assert len(builds) == 1
    assert np.array_equal(first.tokens, second.tokens)
    assert (first.vocabulary, first.splits, first.digest()) == (second.vocabulary, second.splits, second.digest())
    assert first.tokens.dtype == second.tokens.dtype
    base = second.tokens
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    assert [path.suffix for path in cache.iterdir()] == [".bin"]  # nothing temporary is left
    for corpus in (first, second):
        with pytest.raises(ValueError, match="read-only"):
            corpus.tokens[0] = 1


def test_settings_and_files_have_their_own_entries(text: Path, builds: list[Path]) -> None:
    load_files([text])
    load_files([text], vocabulary_size=4)
    load_files([text], valid=0.2)
    load_files([text, text])
    assert len(builds) == 5
    assert len(load_files([text], vocabulary_size=4).vocabulary) == 4
    assert len(builds) == 5


def test_a_changed_file_is_read_again(text: Path, builds: list[Path]) -> None:
    load_files([text])
    text.write_text("the dog sat on the mat .\n" * 40)  # as long as before
    os.utime(text, ns=(1, 1))
    assert "dog" in load_files([text]).vocabulary
    assert len(builds) == 2


@pytest.mark.parametrize("damage", ["cut", "empty", "magic", "token", "word", "header", "longer", "folder"])
def test_a_broken_file_is_rebuilt(text: Path, cache: Path, builds: list[Path], damage: str) -> None:
    good = load_files([text])
    (path,) = cache.iterdir()
    content = path.read_bytes()
    changed = {
        "cut": content[:-2], "empty": b"", "magic": b"?" + content[1:],
        "token": content[:-1] + bytes([content[-1] ^ 1]), "word": content.replace(b'"cat"', b'"cow"'),
        "header": content.replace(b'"splits"', b'"spleen"'),
        "longer": content.replace(b'"count": 3', b'"count": 9'), "folder": b"",
    }  # fmt: skip
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        assert changed[damage] != content
        path.write_bytes(changed[damage])
    again = load_files([text])
    assert len(builds) == 2
    assert again.digest() == good.digest()
    if damage != "folder":
        load_files([text])
        assert len(builds) == 2, "the rebuilt corpus was not kept"


def test_works_without_a_usable_cache(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load_files([text], cache=False).digest()
    (tmp_path / "file").write_text("")
    for folder in ("/proc/no/such/folder", str(tmp_path / "file" / "below")):
        monkeypatch.setenv("TASKFLOW_CACHE", folder)
        assert load_files([text]).digest() == expected
        assert not Path(folder).exists()


def test_works_where_nothing_can_be_written(text: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load_files([text], cache=False).digest()

    def full(*_, **__):  # type: ignore[no-untyped-def]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(corpus_module.os, "replace", full)
    assert load_files([text]).digest() == expected
    assert list(cache.iterdir()) == []  # the half-done file is gone
    monkeypatch.setattr(corpus_module.os, "access", lambda path, mode: mode != os.W_OK)
    assert load_files([text]).digest() == expected


def test_an_error_while_building_frees_the_lock(cache: Path, text: Path) -> None:
    def fail():  # type: ignore[no-untyped-def]
        raise ValueError("no text")

    with pytest.raises(ValueError, match="no text"):
        cached("key", fail)
    assert load_files([text]).vocabulary  # would wait for the lock otherwise


def test_a_lock_held_too_long_is_passed_by(text: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "_LOCK_SECONDS", 0.1)
    cache.mkdir()
    with corpus_module._one_builder(cache):
        assert load_files([text]).vocabulary
    monkeypatch.setattr(corpus_module, "fcntl", None)
    assert load_files([text], vocabulary_size=5).vocabulary


def test_many_processes_at_once(text: Path, cache: Path) -> None:
    program = (
        "import sys, time\n"
        "from taskflow.training import load_files\n"
        "from taskflow.training.data import text\n"
        "real, count = text.numbered, []\n"
        # Slow enough that all processes are here before the first is done.
        "text.numbered = lambda *a: (count.append(1), time.sleep(1.5), real(*a))[2]\n"
        "print(load_files([sys.argv[1]]).digest(), len(count))"
    )
    command = [sys.executable, "-c", program, str(text)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [rank.communicate(timeout=250)[0].split() for rank in ranks]
    assert {digest for digest, _ in answers} == {load_files([text]).digest()}
    assert sum(int(count) for _, count in answers) == 1, "one process builds, the others wait for it"
    assert len(list(cache.iterdir())) == 1


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKFLOW_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("TASKFLOW_CACHE")
    assert cache_folder() == tmp_path / "xdg" / "taskflow"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / ".cache" / "taskflow"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / ".cache" / "taskflow"

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert cache_folder() is None
