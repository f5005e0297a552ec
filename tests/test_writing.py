"""Files are replaced whole or not at all, also where a disk is full."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from click.testing import CliRunner
from starting import environment

from taskflow.checkpoint import read_weights
from taskflow.checkpoint.safetensors_file import write_safetensors
from taskflow.cli.main import main
from taskflow.reading import path_here
from taskflow.training.data import text
from taskflow.writing import beside, path_text, replacing, unwritable

NETWORK = """
import taskflow
def build(batch=8):
    graph = taskflow.OperatorGraph()
    taskflow.linear(taskflow.input(graph, (batch, 16), name="x"), 8, name="fc")
    return graph
"""
FULL = "No space left on device"
SEARCH = """
import errno, sys
from pathlib import Path

def full(self, text, encoding):
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
    monkeypatch.setattr(text.tempfile, "TemporaryFile", lambda buffering, dir: io.FileIO("/dev/full", "w"))
    with pytest.raises(OSError, match=f"cannot be kept in {tmp_path}: {FULL}; make room there, or set TASKFLOW_CACHE"):
        text.on_disk(iter([np.zeros(9, np.int32)]), np.dtype(np.int32))


# ---- killed writers --------------------------------------------------------------------------------------------------
WRITER = """
import sys, time
from taskflow.writing import replacing
with replacing(sys.argv[1]) as fresh:
    fresh.write_text("half")
    print("there", flush=True)
    time.sleep(100)
"""


def writer(path: Path) -> subprocess.Popen[str]:
    started = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, env=environment())
    assert started.stdout is not None and started.stdout.readline() == "there\n"
    return started


def test_the_next_write_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    path, other = tmp_path / "a.json", tmp_path / "b.json"
    path.write_text("old")
    killed, living, elsewhere = writer(path), writer(path), writer(other)
    try:
        killed.kill()
        killed.wait()
        theirs = {name for name in os.listdir(tmp_path) if f".{living.pid}." in name or name.startswith("b.json")}
        assert len(theirs) == 2 and len(os.listdir(tmp_path)) == 4
        with replacing(path) as fresh:
            fresh.write_text("new")
        assert set(os.listdir(tmp_path)) == {"a.json", *theirs} and path.read_text() == "new"
    finally:
        for each in (killed, living, elsewhere):
            each.kill()
            each.communicate()


def test_only_what_the_dead_of_this_host_left_is_removed(tmp_path: Path) -> None:
    """Names of older versions have no host. A lock says that somebody writes whose process cannot be seen from here."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host = beside(tmp_path / "a").name.split(".")[1]
    dead, alive = ended.pid, os.getppid()
    gone = {f"a.json.{dead}.tmp", f"a.json.{host}.{dead}.tmp", f"a.json.{10**30}.tmp"}
    kept = {
        f"a.json.{alive}.tmp", f"a.json.{host}.{alive}.tmp", f"a.json.another.{dead}.tmp", f"b.json.{dead}.tmp",
        "a.json.x.tmp", f"a.json.{dead}.tmp.more", f"a.json.{dead}.tmp2", f"aajson.{dead}.tmp",
    }  # fmt: skip
    for name in gone | kept | {f"c.{host}.{dead}.tmp"}:
        (tmp_path / name).touch()
    with replacing(tmp_path / "a.json") as fresh:
        fresh.touch()
    assert set(os.listdir(tmp_path)) == {*kept, "a.json", f"c.{host}.{dead}.tmp"}
    with open(tmp_path / f"c.{host}.{dead}.tmp") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with replacing(tmp_path / "c") as fresh:
            fresh.touch()
        assert (tmp_path / f"c.{host}.{dead}.tmp").exists()
    with replacing(tmp_path / "c") as fresh:
        fresh.touch()
    assert not (tmp_path / f"c.{host}.{dead}.tmp").exists()


def test_two_threads_may_write_one_file(tmp_path: Path) -> None:
    def write(text: str) -> None:
        with replacing(tmp_path / "a") as fresh:
            fresh.write_text(text)
            both.wait(10)

    both = Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, ["one", "two"]))
    assert os.listdir(tmp_path) == ["a"] and (tmp_path / "a").read_text() in ("one", "two")


def test_a_file_reaches_the_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its name after that: the calls that a power failure tells apart, in their order."""
    calls: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def flushed(file: int) -> None:
        calls.append(("fsync", os.readlink(f"/proc/self/fd/{file}")))
        fsync(file)

    def replaced(old: Path, new: Path) -> None:
        calls.append(("replace", str(new)))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", replaced)
    with replacing(tmp_path / "a") as fresh:
        fresh.write_text("new")
    assert calls == [("fsync", str(beside(tmp_path / "a"))), ("replace", str(tmp_path / "a")), ("fsync", str(tmp_path))]


# ---- names -----------------------------------------------------------------------------------------------------------
def test_links_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/a")
    with replacing(tmp_path / "link") as fresh:
        fresh.write_text("new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "folder" / "a").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE, text=True)
    with replacing(tmp_path / "pipe") as fresh:
        fresh.write_text("through")
    assert reader.communicate(timeout=60)[0] == "through" and (tmp_path / "pipe").is_fifo()
    assert unwritable("/dev/null") is None
    with replacing("/dev/null") as fresh:
        fresh.write_text("nothing")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("letter", ["a", "é", "\udcff"])
def test_names_up_to_the_limit_can_be_written(tmp_path: Path, letter: str) -> None:
    most, size = os.pathconf(tmp_path, "PC_NAME_MAX"), len(os.fsencode(letter))
    for length in range((most - 40) // size, most // size + 1):
        path = tmp_path / (letter * length)
        assert unwritable(path) is None
        with replacing(path) as fresh:
            fresh.write_text("new")
        assert os.listdir(tmp_path) == [path.name]
        path.unlink()
    too_long = str(tmp_path / (letter * (most // size + 1)))
    assert "File name too long: 25" in str(unwritable(too_long))
    with pytest.raises(OSError, match="File name too long"), replacing(too_long) as fresh:
        fresh.write_text("new")
    assert not os.listdir(tmp_path)


def test_what_a_killed_writer_of_a_long_name_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 250)
    killed = writer(path)
    killed.kill()
    killed.communicate()
    assert len(os.listdir(tmp_path)) == 1
    with replacing(path) as fresh:
        fresh.write_text("new")
    assert os.listdir(tmp_path) == [path.name]


def test_the_longest_path(tmp_path: Path) -> None:
    folder = tmp_path
    while len(str(folder)) < 3800:
        folder /= "d" * 200
    folder.mkdir(parents=True)
    for length in range(4050, 4100):
        path = folder / ("f" * (length - len(str(folder)) - 1))
        refused = unwritable(path)
        if refused is None:
            with replacing(path) as fresh:
                fresh.write_text("new")
        else:
            assert "File name too long" in refused and length > 4095 - 85


@pytest.mark.parametrize(
    "words",
    [
        ("search", "mlp", "--size", "small", "-m", "p100", "-n", "2", "--budget", "5p", "--out"),
        ("report", "data", "--model", "mlp", "--size", "small", "-m", "p100", "-n", "2", "--out"),
        ("train", "mlp", "--steps", "1", "--checkpoint"), ("train", "mlp", "--steps", "1", "--trace"),
        ("machine", "measure", "--out"),
    ],
)
def test_a_name_that_is_too_long_is_refused_before_the_work(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, [*words, "x" * 251 + ".json"])
    assert result.exit_code == 2 and "File name too long: 256 bytes; most file systems take 255" in result.stderr, result.output
    assert not os.listdir(tmp_path) and result.stderr.count("\n") == 1 and not result.stdout


@pytest.mark.parametrize("ascii_only", [False, True])
def test_paths_that_are_not_utf8_are_written_and_read_again(tmp_path: Path, ascii_only: bool) -> None:
    """Also by another locale than they were written under, and where a file says the path of another."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/f\xff\xe9"))
    folder.mkdir()
    (folder / "n\udcff.py").write_text(NETWORK)
    plan = str(folder / "p\udcff.json")
    words = ["search", f"{folder}/n\udcff.py:build", "-m", "p100", "-n", "2", "--rule", "none", "--budget", "5p", "--out", plan]
    assert CliRunner().invoke(main, words).exit_code == 0
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"} if ascii_only else {"LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [sys.executable, "-m", "taskflow", "report", plan, "--out", str(folder / "r\udcff.html")],
        env=environment(plain), capture_output=True, timeout=100, check=False,
    )
    assert done.returncode == 0 and (folder / "r\udcff.html").is_file(), done.stderr
    assert b".html: " in done.stdout
    written = set(os.listdir(os.fsencode(folder))) - {b"__pycache__"}  # of n.py, unless bytecode is not written
    assert sorted(written) == [b"n\xff.py", b"p\xff.json", b"r\xff.html"]


def test_a_path_in_a_file_does_not_depend_on_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.json", "é.json", "\udcff\udce9"):
        assert path_here(path_text(name)) == name
    text = path_text("é\udcff")
    monkeypatch.setattr(os, "fsencode", lambda name: name.encode("latin-1"))  # as under an ISO-8859-1 locale
    monkeypatch.setattr(os, "fsdecode", lambda name: name.decode("latin-1"))
    assert path_here(text).encode("latin-1") == b"\xc3\xa9\xff" and path_text(path_here(text)) == text


def test_checkpoints_of_paths_that_are_not_utf8(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.safetensors"))
    write_safetensors(path, {"a": np.arange(3.0)}, {})
    assert read_weights(path)["a"].tolist() == [0, 1, 2] and os.listdir(os.fsencode(tmp_path)) == [b"\xff.safetensors"]
