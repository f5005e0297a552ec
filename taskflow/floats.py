"""Float types: bfloat16 and float16 beside float32 and float64, and the type in which numbers of each are summed.

numpy has no bfloat16. The package ml_dtypes has it, and is imported when bfloat16 is first asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

FLOATS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
"""Names of types by their short names, which are understood as well."""
FLOAT32_BYTES = 4


def float_type(dtype: str | np.dtype[Any] | type) -> np.dtype[Any]:
    """Return the numpy type of a name such as "float32", "bfloat16" or "bf16". Raises ImportError if it is bfloat16 and
    ml_dtypes is missing, ValueError if it is no float type."""
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
    """True if it is a 16-bit float type: such numbers are stored and sent, but no arithmetic is done in them."""
    return dtype.itemsize < FLOAT32_BYTES and is_float(dtype)


def sums_in(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which numbers of a float type are computed with, summed, and updated as weights: float32 for 16-bit
    types, else the type itself."""
    return np.dtype(np.float32) if is_narrow(dtype) else dtype


def sum_bytes(itemsize: int) -> int:
    """Return the bytes of a number of type `sums_in`, given the bytes of the float itself."""
    return max(itemsize, FLOAT32_BYTES)
