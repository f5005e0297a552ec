"""Measurements beside other processes that do the same."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from taskflow.kernels import default_kernels
from taskflow.machine import host
from taskflow.operators.linear import Linear
from taskflow.operators.operator import Spec
from taskflow.optimizer.cost.measured.bench import memory_action, piece_action
from taskflow.optimizer.cost.measured.contention import ContendingProcesses
from taskflow.optimizer.cost.measured.model import MeasuredCosts
from taskflow.regions import Rect
from taskflow.tasks.task import Kind


def test_others_run_while_the_block_runs():
    company = ContendingProcesses(2)
    for nbytes in (1 << 12, 1 << 16):
        with company.beside(partial(memory_action, Kind.SUM, nbytes, None, default_kernels())) as runs:
            assert runs == []
            total = sum(i for i in range(300_000))
        assert total and len(runs) == 2 and min(runs) >= 1
    operator, inputs = Linear(8), (Spec((6, 4), np.dtype(np.float32)),)
    piece = Rect((0, 0, 0), (6, 8, 4))
    with company.beside(partial(piece_action, operator, inputs, piece, True, (True,), default_kernels(), ())) as runs:
        pass
    assert min(runs) >= 1
    processes = list(company._processes)
    company.close()
    assert [process.poll() for process in processes] == [0, 0]


def test_ctrl_c_is_for_the_one_who_measures():
    """A terminal sends it to all: the others go on, and where it broke off what is said to them, others begin."""
    company = ContendingProcesses(1, threads=1)
    make = partial(memory_action, Kind.SUM, 1 << 12, None, default_kernels())
    with company.beside(make) as runs:
        pass
    (process,) = company._processes
    process.send_signal(signal.SIGINT)
    with company.beside(make) as runs:
        pass
    assert min(runs) >= 1 and company._processes == [process]
    with pytest.raises(KeyboardInterrupt), company.beside(make):
        raise KeyboardInterrupt  # while the task is being measured
    with company.beside(make) as runs:
        pass
    assert min(runs) >= 1 and company._processes == [process]
    with pytest.raises(KeyboardInterrupt), company._in_order():
        raise KeyboardInterrupt
    assert company._processes == [] and process.poll() is not None
    with company.beside(make) as runs:
        pass
    assert min(runs) >= 1
    company.close()


def test_what_cannot_be_sent_or_run_is_measured_alone():
    company = ContendingProcesses(1)

    @dataclass(frozen=True)
    class Local:
        """Nobody else can import it."""

    with company.beside(partial(memory_action, Kind.SUM, 64, Local(), default_kernels())) as runs:
        pass
    assert runs == []
    with company.beside(partial(memory_action, Kind.UPDATE, 64, None, default_kernels())) as runs:  # raises there
        pass
    assert runs == []
    with company.beside(partial(memory_action, Kind.SUM, 64, None, default_kernels())) as runs:
        pass
    assert len(runs) == 1  # and goes on
    company.close()
    with pytest.raises(ValueError, match="at least 0"):
        ContendingProcesses(-1)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="company needs another core")
def test_measurements_in_company_are_kept_apart(tmp_path: Path) -> None:
    alone = MeasuredCosts(host(2), folder=tmp_path, seconds=1e-3)
    beside = MeasuredCosts(host(2), folder=tmp_path, seconds=1e-3, company=1)
    for costs in (alone, beside):
        assert costs.memory_seconds(Kind.SUM, 3000, 1000) > 0
        assert costs.measured == 2  # the sizes above and below
    beside._company.close()
    again = MeasuredCosts(host(2), folder=tmp_path, seconds=1e-3, company=1)
    again.memory_seconds(Kind.SUM, 3000, 1000)
    assert again.measured == 0
