"""The same under mpirun."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(("programs", "replays"), [(15, 30), pytest.param(40, 100, marks=pytest.mark.slow)])
def test_random_programs_on_three_ranks(ranks, programs, replays):
    out = ranks(3, "tests/api/mpi_program.py", str(programs))
    assert int(out.split()[1]) > replays


def test_long_messages_to_a_late_rank(ranks):
    assert ranks(2, "tests/api/mpi_large.py").split() == ["right"]
