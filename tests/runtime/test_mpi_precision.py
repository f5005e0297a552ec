"""Training in 16-bit floats on real MPI ranks: the numbers of virtual processors, and overflows that every rank knows of."""

from __future__ import annotations

import numpy as np
import pytest
from pipelines import tokens
from precisions import CASES, executor
from programs.start import rows
from starting import needs_mpi

from taskflow.tasks import Kind

pytest.importorskip("ml_dtypes")
pytestmark = [pytest.mark.mpi, needs_mpi]


EVERY_CASE = tuple(range(len(CASES)))
# Sharded updates, a ring, steps that overflow, partial values of 16 bits in random strategies; the others run with the slow ones.
FAST = (2, 3, 4, 5)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("ranks", "numbers"), [
    (3, FAST), *(pytest.param(ranks, EVERY_CASE, marks=pytest.mark.slow) for ranks in (2, 3)),
])
def test_ranks_have_the_numbers_of_virtual_processors(ranks: int, numbers: tuple[int, ...]) -> None:
    found = rows(ranks, "train_precisions.py", *map(str, numbers), limit=60 * len(numbers) + 40)
    assert len(found) == len(numbers)
    collectives = set()
    for number, row in zip(numbers, found):
        case, local = CASES[number], executor(number, ranks)
        losses = [local.train(tokens(step)) for step in range(4)]
        total = sum(float(np.abs(v).sum()) for _, v in local.gather(local.master_holdings.values()))
        graph = local.program("train").graph
        together = [task for task in graph if task.kind is Kind.COLLECTIVE]
        types = [(graph.buffers[task.reads[0].buffer].dtype.name, type(task.work).__name__) for task in together]
        collectives |= {kind for kind in types if kind[0] == case.dtype}
        if together:
            # MPI adds float32 in an order of its own; a 16-bit sum that falls to the other side of a tie moves a distance.
            unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[case.dtype]
            assert row["losses"] == pytest.approx(losses, abs=4 * unit), case
            assert row["masters"] == pytest.approx(total, rel=1e-4), case
        else:
            assert (row["losses"], row["masters"]) == (losses, total), case
        assert row["rounded"], case
        scale = 0.0 if local.scaler is None else local.scaler.scale
        assert row["told"] == [[local.state.skipped, scale]] * ranks, case
        assert (local.state.skipped > 0) == (case.scale > 2.0**30), case
    assert collectives >= {
        ("bfloat16", "AllReduce"), ("float16", "AllReduce"), ("bfloat16", "AllGather"), ("float16", "AllGather"),
    }
