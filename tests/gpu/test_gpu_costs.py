"""Costs and machines measured where kernels run behind the program's back: on the host's emulation, and on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taskflow.machine import host
from taskflow.models import build
from taskflow.operators.operator import iteration_space
from taskflow.optimizer.cost.measured.cache_state import CacheState
from taskflow.optimizer.cost.measured.model import MeasuredCosts
from taskflow.rules import SGD
from taskflow.runtime.calibrate import links as measure_links
from taskflow.runtime.calibrate import machine as module
from taskflow.runtime.calibrate.machine import measure
from taskflow.runtime.transport.local import LocalTransport
from taskflow.tasks.task import Kind


@pytest.fixture
def machine(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "GPU_EDGE", 16)
    monkeypatch.setattr(module, "GPU_STREAM_BYTES", 1 << 16)
    monkeypatch.setattr(module, "SECONDS", 0.005)
    monkeypatch.setattr(measure_links, "SECONDS", 0.002)
    return measure(LocalTransport(), "here", kernels, processors=2)


def test_a_machine_of_gpus(machine: Any, kernels: Any) -> None:
    first = machine.processors[0]
    assert (first.kind, len(machine.processors)) == ("gpu", 2)
    assert first.memory_bytes == kernels.device.facts["memory_bytes"] // 2
    assert first.device.multiprocessors == kernels.device.facts["multiprocessors"]
    assert kernels.device.name in first.device.source and "from the host's pinned memory" in first.device.source
    assert min(first.flops_per_second, first.bytes_per_second, first.overhead_seconds) > 0
    (link,) = machine.route(0, 1)
    assert link.bytes_per_second > 0 and not link.occupies_endpoints


def test_costs_are_timed_on_the_device(machine: Any, kernels: Any, tmp_path: Path) -> None:
    asked: list[float] = []
    timed = type(kernels.device).timed

    def counted(self: Any, action: Any) -> float:
        asked.append(timed(self, action))
        return asked[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(kernels.device), "timed", counted)
        costs = MeasuredCosts(machine, kernels, tmp_path, seconds=0.002, between=CacheState(1 << 12))
        graph = build("LeNet", preset="small")
        for node in graph:
            if node.specs and node.operator.kind in ("conv2d", "linear", "cross_entropy", "max_pool2d"):
                piece = iteration_space(node.operator, node.specs)
                for backward in (False, True):
                    wanted = tuple(spec.differentiable for spec in node.specs)
                    found = costs.measurement(node.operator, tuple(node.specs), piece, backward, wanted)
                    assert found.seconds > 0 and found.repeats >= 5
        assert costs.memory_seconds(Kind.UPDATE, 4096, 0, device=machine.processors[0].device, rule=SGD(0.1)) > 0
    assert len(asked) > 5 * costs.measured > 0
    assert kernels.device.name in costs.name and costs.identity["processor"] == kernels.device.name
    assert len(list(tmp_path.iterdir())) == 1


def test_other_machines_are_refused(kernels: Any) -> None:
    with pytest.raises(ValueError, match="timed on the GPU at hand, but machine host-2 has cpu"):
        MeasuredCosts(host(2), kernels)
