"""The same under mpirun."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.mpi


def test_random_programs_on_three_ranks(ranks):
    out = ranks(3, "tests/api/mpi_program.py", "40")
    assert int(out.split()[1]) > 100


def test_long_messages_to_a_late_rank(ranks):
    assert ranks(2, "tests/api/mpi_large.py").split() == ["right"]
