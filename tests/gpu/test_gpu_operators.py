"""Every operator on the GPU's kernels does what it does on numpy's, piece by piece: on the host with the kernels compiled for it
(whose arrays refuse what a GPU's would), and on a GPU where there is one."""

from __future__ import annotations

from typing import Any

import pytest
from on_device import compare
from operator_bench import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_are_what_the_reference_gives(kind: str, kernels: Any) -> None:
    for seed in range(6):
        compare(kind, seed, kernels)
