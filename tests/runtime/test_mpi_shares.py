"""Updates by shares under real MPI ranks: the same numbers as by a ring of messages, and each rank keeps a share of the state."""

from __future__ import annotations

from typing import Any

import pytest
from language_model import model
from programs.start import rows
from starting import needs_mpi

pytestmark = [pytest.mark.mpi, needs_mpi]
CASES = [f"{rule}:{{}}:{clip}" for rule in ("sgd", "momentum", "adam") for clip in ("", "0.1")]


def trained(ranks: int, processors: int, sync: str) -> list[dict[str, Any]]:
    return rows(ranks, "train_shares.py", str(processors), *(c.format(sync) for c in CASES), limit=150)


@pytest.fixture(scope="module")
def reference() -> list[dict[str, Any]]:
    return trained(1, 4, "ring/spread")


@pytest.mark.parametrize(("ranks", "processors"), [pytest.param(4, 4, marks=pytest.mark.slow), (3, 5)])
def test_the_same_numbers_and_a_share_of_the_state(ranks: int, processors: int, reference: list[dict[str, Any]]) -> None:
    found = trained(ranks, processors, "collective/spread")
    whole = 8 * model().parameter_count
    buffers = {"sgd": 0, "momentum": 1, "adam": 2}
    for row, wanted in zip(found, reference, strict=True):
        assert row["losses"] == pytest.approx(wanted["losses"], rel=1e-11), row["case"]
        assert row["parameters"] == pytest.approx(wanted["parameters"], rel=1e-11)
        state = buffers[row["case"].split(":")[0]] * whole
        assert sum(row["state"]) == state
        share = state * -(-processors // ranks) / processors
        assert max(row["state"]) <= share + 100 * 16  # of each bundle an element more, for those that do not divide


def test_every_rank_of_the_other_way_keeps_all_state() -> None:
    (*_, adam) = trained(2, 2, "collective/every")
    assert adam["state"] == [2 * 8 * model().parameter_count] * 2
