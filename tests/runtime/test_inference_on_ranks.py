"""Weights, checkpoints and predictions under real MPI ranks: what 4 ranks save, 2 load, and one process too."""

from __future__ import annotations

import os

import numpy as np
import pytest
from inference_model import data, network
from language_model import undivided
from programs.start import rows
from starting import needs_mpi

from taskflow.rules import Adam
from taskflow.runtime.executor import Executor
from taskflow.training import load_checkpoint, load_weights

pytest.importorskip("safetensors", reason="safetensors is not installed: pip install 'soap-taskflow[test]'")
pytestmark = [pytest.mark.mpi, needs_mpi]


def start(ranks: int, *arguments: str) -> dict:
    (found,) = rows(ranks, "weights_everywhere.py", *arguments, limit=120)
    return found


def test_four_ranks_save_and_two_load(tmp_path):
    saved = start(4, "save", str(tmp_path), "1")
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.safetensors", "weights.safetensors"]
    loaded = start(2, "load", str(tmp_path), "2")
    assert loaded["position"] == {"batch": 3}
    np.testing.assert_allclose(loaded["losses"], saved["losses"][3:], rtol=1e-9)
    np.testing.assert_allclose(loaded["scores"], saved["scores"], rtol=1e-8)
    assert loaded["errors"] == [1, 1] and saved["errors"] == [1, 1, 1, 1]  # every rank raised
    graph = network()
    run = Executor(graph, undivided(graph), Adam(0.01))
    load_weights(run, tmp_path / "weights.safetensors")
    images = {"images": data(100)["images"]}
    np.testing.assert_allclose(run.predict(images), saved["before"], rtol=1e-9)
    np.testing.assert_allclose(loaded["before"], saved["before"], rtol=1e-9)
    load_checkpoint(run, tmp_path / "checkpoint.safetensors")
    np.testing.assert_allclose([run.train(data(step)) for step in range(3, 6)], saved["losses"][3:], rtol=1e-9)


@pytest.mark.slow  # other ranks go on every time, and one process bit for bit (tests/training/test_weights.py)
def test_resuming_on_the_same_ranks_is_bitwise_equal(tmp_path):
    saved = start(3, "save", str(tmp_path), "5")
    loaded = start(3, "load", str(tmp_path), "5")
    assert loaded["losses"] == saved["losses"][3:]
    assert loaded["mine"] == saved["mine"] and loaded["scores"] == saved["scores"]
