"""Text and tokens larger than memory: read, numbered, kept and trained on with a limit on what a process may allocate."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from taskflow.training.data import tokens as tokens_module
from taskflow.training.data.text import load_files, on_disk

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limit on private memory is Linux's")

# Everything that is needed is loaded and warmed up before the limit, so that what remains is for the text alone.
PROGRAM = """
import json, resource, sys
import numpy as np
from taskflow.training import LanguageModelBatches, load_files
from taskflow.training.data import tokens
from taskflow.training.data import text
tokens._CHUNK = text.PART = 1 << 16
path, small, level, room = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
load_files([small], level=level)
(used,) = [int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmData")]
resource.setrlimit(resource.RLIMIT_DATA, (used + room, used + room))
try:
    np.ones(2 * room, np.uint8)
    sys.exit("the limit does not hold")
except MemoryError:
    pass
for _ in range(2):  # built, then from the cache
    corpus = load_files([path], level=level)
    batches = LanguageModelBatches(corpus.split("train"), 32, 20, "int64")
    total = sum(int(batches.at(k).inputs.sum()) for k in range(0, len(batches), 50))
    print(json.dumps([len(corpus.tokens), len(corpus.vocabulary), corpus.digest(), total]))
"""
ROOM = 4 << 20  # bytes that the process may allocate for itself


@pytest.mark.parametrize("level", ["byte", "word"])
def test_a_text_larger_than_memory(tmp_path: Path, cache: Path, level: str) -> None:
    line = " ".join(f"word{i}" for i in range(40)) + "\n"
    text, small = tmp_path / "text.txt", tmp_path / "small.txt"
    count = 50_000  # 2 million words: 8 MB as they are numbered at first, 4 MB in the end
    with open(text, "w") as file:
        for _ in range(count // 100):
            file.write(line * 100)
    small.write_text(line * 100)
    assert text.stat().st_size > 2 * ROOM
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(text), str(small), level, str(ROOM)], text=True, capture_output=True, timeout=250
    )
    assert done.returncode == 0, done.stderr[-2000:]
    built, mapped = (json.loads(line) for line in done.stdout.splitlines())
    assert built == mapped
    expected = count * (41 if level == "word" else len(line))
    assert built[:2] == [expected, 42 if level == "word" else 256]
    if level == "word":
        assert built[2] == load_files([text], cache=False).digest()  # without a limit, in pieces of the usual size


def test_tokens_on_disk_leave_no_file(cache: Path) -> None:
    tokens = on_disk(iter([tokens_module.np.arange(5), tokens_module.np.arange(3)]), tokens_module.token_type(9))
    assert tokens.tolist() == [0, 1, 2, 3, 4, 0, 1, 2] and tokens.dtype == tokens_module.token_type(9)
    assert list(cache.iterdir()) == []
    assert len(on_disk(iter([]), tokens_module.token_type(9))) == 0
