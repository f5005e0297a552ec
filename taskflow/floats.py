"""Float types: the 16-bit ones (bfloat16, float16) beside float32 and float64, and the type that numbers of each are summed in.

numpy has no bfloat16: the package ml_dtypes brings it, and is imported when a bfloat16 is first asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

FLOATS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
"""Names of types by their short names, which are understood as well."""
FLOAT32_BYTES = 4


def float_type(dtype: str | np.dtype[Any] | type) -> np.dtype[Any]:
    """The numpy type of a name such as "float32", "bfloat16" or "bf16". ImportError if it is bfloat16 and ml_dtypes is not there;
    ValueError if it is no type of floats."""
    name = FLOATS.get(dtype, dtype) if isinstance(dtype, str) else dtype
    if name == "bfloat16":
        return _bfloat16()
    try:
        found = np.dtype(name)
    except TypeError:
        found = None
    if found is None or not is_float(found):
        raise ValueError(f"dtype must be a type of floats ({', '.join(FLOATS.values())}), got {dtype!r}")
    return found


def _bfloat16() -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError("bfloat16 needs the package ml_dtypes, which is missing here: pip install ml_dtypes") from error
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


def is_float(dtype: np.dtype[Any]) -> bool:
    """True if numbers of this type are floats: gradients flow through them."""
    return dtype.kind == "f" or dtype.name == "bfloat16"  # to numpy bfloat16 is of kind "V", a type that is not its own


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """True if it is a float type of 16 bits: such numbers are stored and sent, but not calculated with."""
    return dtype.itemsize < FLOAT32_BYTES and is_float(dtype)


def sums_in(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which numbers of a float type are calculated with and summed, and weights of it are updated: float32 for those of
    16 bits, else their own."""
    return np.dtype(np.float32) if is_narrow(dtype) else dtype


def sum_bytes(itemsize: int) -> int:
    """Bytes of a number of type `sums_in`, from those of a float."""
    return max(itemsize, FLOAT32_BYTES)
