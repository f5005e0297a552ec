"""A signal that comes while oneDNN multiplies harms nothing (oneDNN's issue 4845: its code lends the stack pointer to data)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fast_and_slow import fast_among

pytest.importorskip("taskflow.kernels.onednn._onednn", reason="built without oneDNN")

# Alarms come five thousand times a second while large matrices are multiplied; around them lie arrays that must stay as they are.
# As many products are taken as it takes alarms to come, however busy the machine: fewer alarms in as long a time prove less.
PROGRAM = """
import signal, sys
import numpy as np
from taskflow.kernels.onednn import library as onednn_library

library, threads, came = onednn_library.load(), int(sys.argv[1]), 0

def comes(*_):
    global came
    came += 1

signal.signal(signal.SIGALRM, comes)
random = np.random.default_rng(0)
for m, k, n, by_rows in ((64, 128, 4000, False), (64, 4000, 128, True), (256, 784, 1024, False)):
    a = random.standard_normal((m, k), np.float32)
    b = random.standard_normal((k, n), np.float32) if by_rows else random.standard_normal((n, k), np.float32).T
    out, beside = np.empty((m, n), np.float32), [np.full(20_000, 7) for _ in range(40)]
    assert library.multiply(a, b, out, False, threads)
    wanted, enough = out.copy(), came + 400
    signal.setitimer(signal.ITIMER_REAL, 2e-4, 2e-4)
    while came < enough:
        library.multiply(a, b, out, False, threads)
        assert np.array_equal(out, wanted)
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert all((array == 7).all() for array in beside)
assert came >= 1200, came
print("unharmed")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no alarms")
@pytest.mark.parametrize("threads", fast_among([1, 2], [2]))
def test_signals_while_multiplying(threads: int) -> None:
    from taskflow.kernels.onednn import library as onednn_library

    try:
        onednn_library.load()
    except ImportError as error:
        pytest.skip(f"oneDNN is not there: {error}")
    where = os.environ.get("PYTHONPATH") or str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(threads)], capture_output=True, text=True, timeout=250,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": where},
    )
    assert (done.returncode, done.stdout) == (0, "unharmed\n"), done.stderr
