"""The compiled twin of arrays.py."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

def simulate_arrays(
    processors: int, occupied: Sequence[tuple[int, ...]], together: Sequence[bool], seconds: np.ndarray[Any, Any],
    place: np.ndarray[Any, Any], after_offset: np.ndarray[Any, Any], after: np.ndarray[Any, Any],
    checkpoint: Callable[[], object],
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]: ...
