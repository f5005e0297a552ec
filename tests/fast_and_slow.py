"""Which cases of a test run every time, and which with the slow ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def fast_among(cases: Iterable[Any], fast: Collection[Any]) -> list[Any]:
    """All cases for `pytest.mark.parametrize`; those that are not in ``fast`` are marked slow. ValueError where ``fast`` has
    one that is no case."""
    known = list(cases)
    if unknown := [case for case in fast if case not in known]:
        raise ValueError(f"fast_among: {unknown} are no cases of {known}")
    return [case if case in fast else _slow(case) for case in known]


def _slow(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
