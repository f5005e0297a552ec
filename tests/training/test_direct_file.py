"""DirectFile: bytes as they are given, whatever their pieces, the file system and its errors."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from random import Random

import pytest
from starting import files_up_to

from taskflow.checkpoint import safetensors_file
from taskflow.checkpoint.safetensors_file import DirectFile

SHM = Path("/dev/shm")


def pieces(seed: int) -> list[bytes]:
    """Up to 5 MB: pieces of some bytes, of whole pages, and longer than what is written at once."""
    random = Random(seed)
    some = [0, 1, 8, 4096, 8192]
    sizes = [random.choice([*some, random.randrange(9000), random.randrange(3_000_000)]) for _ in range(random.randrange(9))]
    return [random.randbytes(size) for size in sizes]


def written(path: Path, parts: list[bytes]) -> bytes:
    path.touch()
    with DirectFile(path) as file:
        for part in parts:
            file.write(part)
    return path.read_bytes()


@pytest.mark.parametrize("together", [4096, 1 << 20, 8 << 20])
@pytest.mark.parametrize("seed", range(6))
def test_bytes_are_as_they_were_given(tmp_path: Path, seed: int, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_file, "_TOGETHER", together)
    parts = pieces(seed)
    assert written(tmp_path / "file", parts) == b"".join(parts)


@pytest.mark.parametrize("fails", [0, 1, 2])
def test_short_and_refused_direct_writes(tmp_path: Path, fails: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that takes a part only, and a file system that says at the first or a later write that it cannot."""
    plain, calls = os.write, [0]

    def write(file: int, data: memoryview) -> int:
        calls[0] += 1
        if calls[0] == fails + 1 and fails < 2:
            raise OSError(errno.EINVAL, "no direct writes")
        return plain(file, data[:4000] if fails == 2 and len(data) > 4000 else data)

    monkeypatch.setattr(safetensors_file, "_TOGETHER", 65536)
    monkeypatch.setattr(safetensors_file, "_made_direct", lambda file: True)
    monkeypatch.setattr(os, "write", write)
    parts = [bytes([k]) * 50_000 for k in range(7)]
    assert written(tmp_path / "file", parts) == b"".join(parts)


def test_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with files_up_to(5000), pytest.raises(OSError) as failed, DirectFile(tmp_path / "file") as file:
        file.write(bytes(20_000))
    assert failed.value.errno == errno.EFBIG


def test_an_error_in_the_block_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyError), DirectFile(tmp_path / "file") as file:
        file.write(b"abc")
        raise KeyError
    assert (tmp_path / "file").read_bytes() == b"" and len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(not SHM.is_dir(), reason="no file system in memory")
def test_a_file_in_memory(tmp_path: Path) -> None:
    path = SHM / f"taskflow-test-{os.getpid()}"
    try:
        assert written(path, [b"x" * 10_000, b"y"]) == b"x" * 10_000 + b"y"
    finally:
        path.unlink()


def test_a_pipe_gets_the_bytes(tmp_path: Path) -> None:
    """A reader that takes a few at a time, who would lose the others of a packet."""
    os.mkfifo(tmp_path / "pipe")
    got: list[bytes] = []

    def read() -> None:
        with open(tmp_path / "pipe", "rb", buffering=0) as pipe:
            while part := pipe.read(100):
                got.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    with DirectFile(tmp_path / "pipe") as file:
        file.write(bytes(range(256)) * 100)
    reader.join()
    assert b"".join(got) == bytes(range(256)) * 100
