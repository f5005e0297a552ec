"""The compiled convolution as matrix products over blocks of rows: checks of the arguments, then the loops of
native/loops/convolutions.h without the GIL.

Arguments are contiguous numpy arrays of one dtype, float32 or float64; others raise TypeError or ValueError.
The definition is kernels/definitions/convolutions.py; tests/kernels/test_kernels_images.py holds them equal.
"""

cimport numpy as cnp
from taskflow.kernels.native._arguments cimport flat, real_type
from taskflow.kernels.native._windows cimport Size, Windows, windows

from taskflow.kernels.definitions.convolutions import ConvolutionKernels
from taskflow.kernels.native.scratch import scratch

cnp.import_array()

# Columns of so many bytes are made and multiplied at a time: fewer stay in a nearer cache, but make the product so narrow
# that packing the weights costs more than it saves (measured from 2^18 to 2^23 on ResNet's layers).
_BLOCK_NBYTES = 1 << 21

# ``single``: the arrays hold float32, else float64.
cdef extern from * nogil:
    """
    #define LOOPS "native/loops/convolutions.h"
    #include "native/loops/types.h"
    """
    void any_columns(bint single, Windows* w, Size first_row, Size rows, void* x, void* out)
    void any_add_columns(bint single, Windows* w, Size first_row, Size rows, void* columns, void* out)


cdef Size column_rows(str kernel, Windows* w, cnp.ndarray image, cnp.ndarray columns, tuple out, Size first,
                      tuple stride, tuple padding, tuple dilation) except -1:
    """The geometry of columns (C, kh, kw, rows, Wo) of an image (C, H, W); returns how many rows they are."""
    cdef tuple a = (<object>image).shape, b = (<object>columns).shape
    if len(a) != 3 or len(b) != 5 or a[0] != b[0] or b[4] != out[1] or not 0 <= first <= out[0] - b[3]:
        raise ValueError(
            f"{kernel}: needs an image (C, H, W) and columns (C, kh, kw, rows, {out[1]}) with rows from {first} on below "
            f"{out[0]}, got {a} and {b}")
    windows(kernel, w, a[0], a[1:], out, b[1:3], stride, padding, dilation)
    return b[3]


cdef int columns_of(cnp.ndarray x, tuple size, Size first, tuple stride, tuple padding, tuple dilation,
                    cnp.ndarray out) except -1:
    """x (C, H, W) -> out (C, kh, kw, rows, Wo): what each element of the kernel meets in the windows of the output rows
    from ``first`` on. ``size``: (Ho, Wo) of the whole output."""
    cdef int kind = real_type("columns", x)
    cdef Windows w
    cdef Size rows = column_rows("columns", &w, x, out, size, first, stride, padding, dilation)
    cdef void* a = flat("columns", "x", x, kind, cnp.PyArray_SIZE(x), False)
    cdef void* b = flat("columns", "out", out, kind, cnp.PyArray_SIZE(out), True)
    with nogil:
        any_columns(kind == cnp.NPY_FLOAT32, &w, first, rows, a, b)
    return 0


cdef int add_columns(cnp.ndarray columns, tuple size, Size first, tuple stride, tuple padding, tuple dilation,
                cnp.ndarray out) except -1:
    """The transpose of `columns_of`: adds every element of columns (C, kh, kw, rows, Wo) to what it was copied from in out
    (C, H, W)."""
    cdef int kind = real_type("add_columns", columns)
    cdef Windows w
    cdef Size rows = column_rows("add_columns", &w, out, columns, size, first, stride, padding, dilation)
    cdef void* a = flat("add_columns", "columns", columns, kind, cnp.PyArray_SIZE(columns), False)
    cdef void* b = flat("add_columns", "out", out, kind, cnp.PyArray_SIZE(out), True)
    with nogil:
        any_add_columns(kind == cnp.NPY_FLOAT32, &w, first, rows, a, b)
    return 0


class NativeConvolutions(ConvolutionKernels):
    """Convolution that needs no library but the set's matmul."""

    __slots__ = ()

    def conv2d(self, x, weight, bias, stride, padding, dilation, groups, out):
        if _pointwise(weight, stride, padding):
            super().conv2d(x, weight, bias, stride, padding, dilation, groups, out)
            return
        rows = weight.reshape(groups, weight.shape[0] // groups, -1)
        size = out.shape[2:]
        for n, image in enumerate(x):
            target = out[n].reshape(groups, rows.shape[1], size[0] * size[1])
            for first, last, block, columns in _blocks(x, weight, groups, size):
                columns_of(image, size, first, stride, padding, dilation, block)
                self.matmul(rows, columns, out=target[..., first * size[1] : last * size[1]])
        if bias is not None:
            out += bias[:, None, None]

    def conv2d_backward_data(
        self, dy, weight, stride, padding, dilation, groups, out, accumulate=False
    ):
        rows = weight.reshape(groups, weight.shape[0] // groups, -1).swapaxes(1, 2)  # (groups, C/groups kh kw, K/groups)
        size = dy.shape[2:]
        if _pointwise(weight, stride, padding):
            source, target = (a.reshape(len(a), groups, a.shape[1] // groups, size[0] * size[1]) for a in (dy, out))
            for n in range(len(dy)):
                self.matmul(rows, source[n], out=target[n], accumulate=accumulate)
            return
        if not accumulate:
            out[...] = 0
        for n, image in enumerate(out):
            source = dy[n].reshape(groups, rows.shape[2], size[0] * size[1])
            for first, last, block, columns in _blocks(out, weight, groups, size):
                self.matmul(rows, source[..., first * size[1] : last * size[1]], out=columns)
                add_columns(block, size, first, stride, padding, dilation, image)

    def conv2d_backward_weight(
        self, x, dy, stride, padding, dilation, groups, out, accumulate=False
    ):
        if _pointwise(out, stride, padding):
            super().conv2d_backward_weight(x, dy, stride, padding, dilation, groups, out, accumulate)
            return
        target = out.reshape(groups, out.shape[0] // groups, -1)
        size = dy.shape[2:]
        if not accumulate:
            out[...] = 0
        for n, image in enumerate(x):
            source = dy[n].reshape(groups, target.shape[1], size[0] * size[1])
            for first, last, block, columns in _blocks(x, out, groups, size):
                columns_of(image, size, first, stride, padding, dilation, block)
                part = source[..., first * size[1] : last * size[1]]
                self.matmul(part, columns.swapaxes(1, 2), out=target, accumulate=True)


def _pointwise(weight, stride, padding):
    """Whether the image is its own columns."""
    return weight.shape[2:] == (1, 1) and tuple(stride) == (1, 1) and padding == ((0, 0), (0, 0))


def _blocks(image, weight, groups, size):
    """The output's rows first:last in blocks, each with memory for its columns (C, kh, kw, rows, Wo), and the same memory
    as (groups, C/groups kh kw, rows Wo)."""
    channels, kernel = image.shape[1], weight.shape[2:]
    each = channels // groups * kernel[0] * kernel[1]
    most = max(1, _BLOCK_NBYTES // max(1, groups * each * size[1] * image.itemsize))
    for first in range(0, size[0], most):
        last = min(first + most, size[0])
        block = scratch((channels, *kernel, last - first, size[1]), image.dtype, "columns")
        yield first, last, block, block.reshape(groups, each, (last - first) * size[1])
