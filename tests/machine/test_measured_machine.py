"""Measuring a machine: the fit, where ranks are, and the whole under mpirun."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from programs.start import mpirun
from starting import needs_mpi

from taskflow.machine import load_machine, transfer_seconds
from taskflow.runtime.calibrate import machine as module
from taskflow.runtime.calibrate.links import SIZES, Fitted, fit, who_copies
from taskflow.runtime.calibrate.machine import group, measure
from taskflow.runtime.transport.local import LocalTransport


def test_fit_finds_the_line() -> None:
    times = {n: 3e-6 + n / 5e9 for n in SIZES}
    assert fit(times) == (pytest.approx(3e-6), pytest.approx(5e9))
    noise = np.random.default_rng(0).uniform(0.9, 1.1, len(times))
    latency, rate = fit({n: t * x for (n, t), x in zip(times.items(), noise)})
    assert (latency, rate) == (pytest.approx(3e-6, rel=0.1), pytest.approx(5e9, rel=0.1))
    assert fit({8: 5.0, 1000: 4.0}) == (5.0, 250.0)  # no line with positive figures goes through these
    with pytest.raises(ValueError, match="at least 2 sizes, got 1"):
        fit({8: 1.0})


def test_ranks_of_a_node_are_neighbours() -> None:
    assert group(["a"]) == [1]
    assert group(["a", "a", "b", "c", "c", "c"]) == [2, 1, 3]
    with pytest.raises(ValueError, match="rank 2 is on the node of rank 0"):
        group(["a", "b", "a"])


def test_nodes_share_a_card() -> None:
    rates = {
        "memory_bytes": 1e9, "float32": 1e11, "float64": 5e10, "memory_bytes_per_second": 1e10, "launch_seconds": 1e-6,
    }  # fmt: skip
    links = {"within": Fitted(1e-6, 8e9, "receiver", "x"), "between": Fitted(4e-6, 1e9, False, "y")}
    machine = module._machine("m", [2, 2, 3], rates, links)
    assert [p.node for p in machine.processors] == [0, 0, 1, 1, 2, 2, 2]
    assert transfer_seconds(machine.route(0, 1), 8_000_000) == pytest.approx(1e-6 + 1e-3)
    assert transfer_seconds(machine.route(1, 6), 1_000_000) == pytest.approx(4e-6 + 1e-3)
    assert [k.occupies_endpoints for k in machine.route(0, 1)] == ["receiver"]
    assert not any(k.occupies_endpoints for k in machine.route(0, 2))
    assert set(machine.route(0, 2)) & set(machine.route(1, 4))
    assert module._pairs([2, 2, 3]) == ([(0, 1), (2, 3)], [(0, 2), (2, 4)])


def test_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.01)
    machine = measure(LocalTransport(), "alone")
    assert str(machine) == "alone: 1 x cpu on 1 node"
    plausible(machine)


def test_a_core_that_is_half_a_core_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([1e11, 5e10, 1.01e11, 5e10, 0.99e11])

    def rate(kernels: object, memory_bytes: int) -> dict[str, float]:
        one = next(rates)
        others = {"float64": one / 2, "memory_bytes_per_second": 1e10, "launch_seconds": 1e-6}
        return {"memory_bytes": memory_bytes, "float32": one, **others}

    monkeypatch.setattr(module, "_processor", rate)
    monkeypatch.setattr(module, "REST_SECONDS", 0.0)
    machine = measure(LocalTransport())
    assert dict(machine.processors[0].device.flops_per_second)["float32"] == pytest.approx(0.99e11) and next(rates, None) is None


def test_virtual_processors_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.01)
    said: list[str] = []
    machine = measure(LocalTransport(), processors=3, say=said.append)
    plausible(machine)
    assert len(machine.processors) == 3 and len(said) == 2
    (link,) = machine.route(0, 2)
    assert link.occupies_endpoints == "receiver" and 1e7 < link.bytes_per_second < 1e13
    assert measure(LocalTransport(), processors=1).route(0, 0) == ()
    with pytest.raises(ValueError, match="virtual ones, 1 or more"):
        measure(LocalTransport(), processors=0)


def test_who_can_do_without_the_other_has_copied_alone() -> None:
    assert who_copies([(True, False), (True, False)]) == "receiver"
    assert who_copies([(False, True)]) == "sender"
    assert who_copies([(False, False)]) is True
    assert who_copies([(True, False), (False, False)]) is True  # pairs differ: say what is true of all


def plausible(machine) -> None:  # type: ignore[no-untyped-def]
    (device,) = machine.kinds
    assert all(1e8 < device.rate(dtype) < 1e14 for dtype in ("float32", "float64"))
    assert 1e8 < device.memory_bytes_per_second < 1e13
    assert 1e-8 < device.launch_seconds < 1e-2
    assert device.memory_bytes > 1 << 26


@pytest.mark.slow  # tests/cli/test_machine_command.py measures two ranks every time
@pytest.mark.mpi
@needs_mpi
def test_two_ranks(tmp_path: Path) -> None:
    ended = mpirun(2, "measuring.py", str(tmp_path / "here.json"), extra={"OPENBLAS_NUM_THREADS": "1"})
    assert (ended.code, ended.text) == (0, "here: 2 x cpu on 1 node\n")
    machine = load_machine(tmp_path / "here.json")
    plausible(machine)
    (link,) = machine.route(0, 1)
    assert link.occupies_endpoints in (True, "sender", "receiver")
    assert 1e-8 < link.latency_seconds < 0.1
    assert 1e6 < link.bytes_per_second < 1e12
