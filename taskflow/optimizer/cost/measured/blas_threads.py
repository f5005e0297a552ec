"""BLAS threads: lets numpy's BLAS compute with as many threads while a task is measured as a rank of the machine would have."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class OpenBLAS:
    """Functions of the library with which numpy computes."""

    corename: Any
    get_threads: Any
    set_threads: Any


@cache
def openblas() -> OpenBLAS | None:
    """Return OpenBLAS's functions; None if numpy uses another library, or its symbols cannot be found."""
    library = _library()
    for prefix, suffix in (("scipy_", "64_"), ("", "64_"), ("scipy_", ""), ("", "")):
        try:
            found = [library[f"{prefix}openblas_{name}{suffix}"] for name in ("get_corename", "get_num_threads", "set_num_threads")]
        except (AttributeError, TypeError):
            continue
        found[0].restype = ctypes.c_char_p
        return OpenBLAS(*found)
    return None


@contextmanager
def blas_threads(count: int | None) -> Iterator[None]:
    """Run numpy's matrix products on ``count`` threads within the block (None: unchanged), if that can be set."""
    library = openblas() if count is not None else None
    before = int(library.get_threads()) if library is not None else count
    if library is None or before == count:
        yield
        return
    library.set_threads(count)
    try:
        yield
    finally:
        library.set_threads(before)


def _library() -> Any:
    """numpy's extension module, through which the symbols of its BLAS are found."""
    core = "numpy._core" if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else "numpy.core"
    try:
        return ctypes.CDLL(import_module(f"{core}._multiarray_umath").__file__)
    except (ImportError, OSError):
        return None
