"""Files are replaced whole or not at all, also where a disk is full."""

from __future__ import annotations

import errno
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from taskflow.training.data import token_file
from taskflow.writing import replacing

FULL = "No space left on device"
SEARCH = """
import errno, sys
from pathlib import Path

def full(self, text):
    self.touch()
    raise OSError(errno.ENOSPC, "No space left on device")

Path.write_text = full
sys.argv = ["taskflow", "search", "lenet", "-m", "k80", "-n", "2", "--budget", "20p", "--out", "plan.json"]
from taskflow.cli.main import main
main()
"""


def test_a_file_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with replacing(path) as fresh:
        fresh.write_text("new")
        assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, FULL), KeyboardInterrupt(), ValueError("not JSON")])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(type(error)) as raised, replacing(path) as fresh:
        fresh.write_text("ne")
        raise error
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    assert path.read_text() == "old"
    if isinstance(raised.value, OSError):
        assert raised.value.filename == str(path)


def test_a_found_plan_is_printed_if_it_cannot_be_written(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SEARCH], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == f"taskflow search: plan.json: {FULL}"
    assert "\nconv1: " in ended.stdout  # the plan, operator by operator
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_tokens_that_find_no_room_say_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TASKFLOW_CACHE", str(tmp_path))
    monkeypatch.setattr(token_file.tempfile, "TemporaryFile", lambda buffering, dir: io.FileIO("/dev/full", "w"))
    with pytest.raises(OSError, match=f"cannot be kept in {tmp_path}: {FULL}; make room there, or set TASKFLOW_CACHE"):
        token_file.on_disk(iter([np.zeros(9, np.int32)]), np.dtype(np.int32))
