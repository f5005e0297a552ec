"""Gemm: batched products of row-major matrices, expressed as the column-major call of cuBLAS. Pure: no array is touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Matrices:
    """Layout of an operand. ``transposed``: its columns, not its rows, are contiguous. ``pitch``: elements from one row (or
    column) to the next. ``step``: elements from one matrix of the batch to the next."""

    transposed: bool
    pitch: int
    step: int


@dataclass(frozen=True, slots=True)
class Gemm:
    """``count`` products (rows, inner) @ (inner, columns). A row-major matrix is its transpose in column-major order. So cuBLAS
    is asked for out^T = b^T a^T: its first operand is b, and its m is ``columns``."""

    rows: int
    columns: int
    inner: int
    count: int
    a: Matrices
    b: Matrices
    out: Matrices


def plan(
    a: Shape, a_strides: Shape, b: Shape, b_strides: Shape, out: Shape, out_strides: Shape
) -> Gemm | None:
    """Return the call for a (..., M, K) @ b (..., K, N) -> out (..., M, N); strides in elements. None if no call can read an
    operand's layout, so that it must be copied first. Raises ValueError if the shapes do not fit."""
    if not (len(a) == len(b) == len(out) >= 2 and a[:-2] == b[:-2] == out[:-2]) or (
        a[-1] != b[-2] or (a[-2], b[-1]) != out[-2:]
    ):
        raise ValueError(f"matmul: a (..., M, K) and b (..., K, N) must give out (..., M, N), got {a}, {b}, {out}")
    operands = [matrices(shape, strides) for shape, strides in ((a, a_strides), (b, b_strides), (out, out_strides))]
    left, right, into = operands
    if left is None or right is None or into is None or into.transposed:
        return None
    count = 1
    for size in out[:-2]:
        count *= size
    return Gemm(out[-2], out[-1], a[-1], count, left, right, into)


def matrices(shape: Shape, strides: Shape) -> Matrices | None:
    """Return the layout of a stack of matrices (..., R, C). None if neither rows nor columns are contiguous, if they overlap,
    or if the distance between matrices varies."""
    step = _step(shape[:-2], strides[:-2])
    (rows, columns), (down, along) = shape[-2:], strides[-2:]
    if step is None:
        return None
    if (along == 1 or columns == 1) and (rows == 1 or down >= columns):
        return Matrices(False, down if rows > 1 else max(columns, 1), step)
    if (down == 1 or rows == 1) and (columns == 1 or along >= rows):
        return Matrices(True, along if columns > 1 else max(rows, 1), step)
    return None


def _step(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """Elements from one to the next if all dimensions are walked as one, or None if they are not equally far apart."""
    step: int | None = None
    size = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent == 1:
            continue
        if step is None:
            step = stride
        elif stride != step * size:
            return None
        size *= extent
    return 0 if step is None else step


@dataclass(frozen=True, slots=True)
class ColumnMajor:
    """Arguments of cublasGemmStridedBatchedEx. First operand: b, second: a; transpositions are 0 or 1."""

    transpose_first: int
    transpose_second: int
    m: int
    n: int
    k: int
    first_pitch: int
    first_step: int
    second_pitch: int
    second_step: int
    out_pitch: int
    out_step: int
    count: int


def column_major(gemm: Gemm) -> ColumnMajor:
    """Return the arguments for a `Gemm`."""
    a, b, out = gemm.a, gemm.b, gemm.out
    return ColumnMajor(
        int(b.transposed), int(a.transposed), gemm.columns, gemm.rows, gemm.inner, b.pitch, b.step, a.pitch, a.step,
        out.pitch, out.step, gemm.count,
    )
