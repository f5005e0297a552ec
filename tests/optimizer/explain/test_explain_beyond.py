"""What a found plan does that no grid does is said in one paragraph."""

from __future__ import annotations

import pytest

from taskflow.mapper import parse_plan
from taskflow.optimizer.explain import beyond_grid


@pytest.mark.parametrize(("plan", "parts"), [
    ("t1 p1 d64 mb1 zero3 prefetch=2 recompute=full*58,light*22",
     ["Of 80 layers 58 are recomputed in full, 22 are recomputed where that is quick.", "gathered layer by layer, 2 ahead"]),
    ("p2 d2 mb1 stages=3,5 recompute=full*3,none*5",
     ["Of the first stage's 3 layers 3 are recomputed in full, of the last's 5 0", "Stages have 3 to 5 layers."]),
    ("d8 mb1 zero=1*1,3*30,1*1", ["different stages of ZeRO: 1 at stage 1, 30 at stage 3, 1 at stage 1."]),
    ("p2 mb1 schedule=zb-h1 recompute=light", ["All layers are recomputed where that is quick.", "in the order zb-h1"]),
])  # fmt: skip
def test_the_paragraph_names_what_a_grid_has_not(plan: str, parts: list[str]) -> None:
    said = beyond_grid(parse_plan(plan))
    assert said.startswith("What no plan of a grid does: ") and "\n" not in said
    for part in parts:
        assert part in said


@pytest.mark.parametrize("plan", ["t2 p4 d64 mb1 zero1 recompute=full", "d8 mb1 zero3"])
def test_of_other_plans_nothing_is_said(plan: str) -> None:
    assert beyond_grid(parse_plan(plan)) == beyond_grid(None) == ""
