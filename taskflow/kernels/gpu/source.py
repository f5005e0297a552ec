"""Source: the text of the kernels, for NVRTC, nvcc, or (in tests) the host's own compiler."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

FILES = ("base.cu", "pointwise.cu", "random.cu", "rows.cu", "losses.cu", "channels.cu", "images.cu")
REALS = {"float32": "float", "float64": "double"}
_KERNEL = re.compile(r'extern "C" __global__ void (\w+)\(\s*([^)]*)\)')


@dataclass(frozen=True, slots=True)
class Kernel:
    """Signature of a kernel: its name, and the type and name of each parameter."""

    name: str
    parameters: tuple[tuple[str, str], ...]


def text(dtype: np.dtype[np.generic] | str) -> str:
    """Return the source of all kernels for arrays of a type. Raises ValueError for a type that they are not written for."""
    name = np.dtype(dtype).name
    if name not in REALS:
        raise ValueError(f"GPU kernels: arrays must be {' or '.join(REALS)}, got {name}")
    return "\n".join([f"#define REAL {REALS[name]}", *map(_read, FILES)])


@lru_cache(maxsize=1)
def kernels() -> dict[str, Kernel]:
    """Return every kernel's signature by name."""
    found = {}
    whole = "\n".join(map(_read, FILES))
    macro = re.search(r"#define SLIDING \\\n((?:.*\\\n)*.*)\n", whole)
    assert macro is not None
    sliding = " ".join(macro[1].replace("\\", " ").split())
    for match in _KERNEL.finditer(whole):
        parameters = match[2].replace("SLIDING", sliding)
        found[match[1]] = Kernel(match[1], tuple(_parameter(one) for one in parameters.split(",")))
    return found


def _parameter(declaration: str) -> tuple[str, str]:
    kind, star, name = declaration.strip().rpartition("*")
    if star:
        return f"{kind.strip()} *", name.strip()
    kind, _, name = declaration.strip().rpartition(" ")
    return kind, name


@lru_cache(maxsize=len(FILES))
def _read(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
