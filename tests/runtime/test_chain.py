"""The watchdog follows ranks that wait for each other to the one that hangs, and names that one."""

from __future__ import annotations

import pytest
from fast_and_slow import fast_among
from programs.start import Ended, mpirun
from starting import needs_mpi

from taskflow.runtime.job.chain import Wait, explain, needed

HANGS = "2"  # seconds of the watchdog
CHAINS = [("hang", 3), ("late", 4), ("sum", 4), ("hang", 4), ("late", 3)]


def wait(*peers: int, what: str = "task") -> Wait:
    return Wait(peers, what, f"receive from {peers}", 2.0)


def test_a_chain_ends_with_the_one_that_does_not_answer() -> None:
    said = explain(0, {0: wait(1), 1: wait(2), 2: None})
    assert said.startswith("Rank 1 has waited 2.0 s in task to receive from (2,). Rank 2 waits for nobody: it hangs, or computes")


def test_a_cycle_is_named_without_those_that_only_lead_to_it() -> None:
    said = explain(0, {0: wait(1), 1: wait(2), 2: wait(3), 3: wait(1)})
    assert said.endswith("Ranks 1, 2, 3 wait for each other in a cycle, so that none of them can go on")


def test_of_a_sum_the_rank_counts_that_has_not_joined() -> None:
    waits = {0: wait(1, 2, what="sum"), 1: wait(0, 2, what="sum"), 2: wait(3), 3: None}
    assert needed(0, waits) == [2]
    said = explain(0, waits)
    assert "Rank 1 " not in said and said.endswith("Rank 3 waits for nobody: it hangs, or computes for longer than the limit")
    waits[3] = wait(0)
    assert "Ranks 0, 2, 3 wait for each other in a cycle" in explain(0, waits)


def test_all_in_one_sum() -> None:
    for ranks in ((0, 1), (0, 1, 2)):
        others = {rank: tuple(peer for peer in ranks if peer != rank) for rank in ranks}
        assert "a message was lost" in explain(0, {rank: Wait(others[rank], "sum", "add up 4 bytes", 2.0) for rank in ranks})
    assert "in a cycle" in explain(0, {0: wait(1), 1: wait(0)})
    said = explain(0, {0: wait(1, 2), 1: None, 2: None})
    assert said == "Ranks 1, 2 wait for nobody: they hang, or compute for longer than the limit"


def test_a_long_chain_is_shortened() -> None:
    said = explain(0, {**{rank: wait(rank + 1) for rank in range(20)}, 20: None})
    assert "11 more wait behind it" in said and "Rank 20 waits for nobody" in said


def test_a_wait_is_sent_whole() -> None:
    assert Wait.unpack(wait(3, 4, what="Übergang").pack()) == wait(3, 4, what="Übergang")


def run(case: str, ranks: int) -> Ended:
    ended = mpirun(ranks, "chain.py", case, HANGS, since="ready\n")
    assert ended.code != 0 and ended.seconds < 15
    assert ended.text.count("taskflow: rank") == 1, ended.text
    return ended


@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize(("case", "ranks"), fast_among(CHAINS, CHAINS[:3]))
def test_the_last_of_the_chain_is_named(case: str, ranks: int) -> None:
    ended = run(case, ranks)
    assert f"Rank {ranks - 1} waits for nobody" in ended.text, ended.text
    if case == "late":  # the first reaches its limit first, and knows the whole chain
        assert all(f"in task {rank} to receive 32 bytes from rank {rank + 1}" in ended.text for rank in range(ranks - 1))


@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize("ranks", fast_among([2, 3], [3]))
def test_a_cycle_is_named(ranks: int) -> None:
    assert "wait for each other in a cycle" in run("cycle", ranks).text
