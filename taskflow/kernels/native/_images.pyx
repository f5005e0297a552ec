"""The compiled kernels for images: checks of the arguments, then the loops of native/dispatch/image.h without the GIL.

Arguments are contiguous numpy arrays of one dtype, float32 or float64; others raise TypeError or ValueError.
taskflow/kernels/definitions/ documents every kernel.
The definition is kernels/definitions/convolutions.py and kernels/definitions/pooling.py and kernels/definitions/channels.py; tests/kernels/test_kernels_images.py holds them equal.
"""

cimport numpy as cnp
from taskflow.kernels.native._arguments cimport flat, real_type, refuse

cnp.import_array()

ctypedef Py_ssize_t Size

cdef extern from "native/dispatch/image.h" nogil:
    ctypedef struct Windows:
        Size planes
        Size size[2]
        Size out[2]
        Size kernel[2]
        Size stride[2]
        Size before[2]
        Size dilation[2]

    void any_max_pool(bint single, Windows* w, void* x, void* out, void* index, int bytes)
    void any_max_pool_backward(bint single, Windows* w, void* dy, void* index, int bytes, void* out, bint add)
    void any_sum_pool(bint single, Windows* w, void* x, void* scale, void* out)
    void any_sum_pool_backward(bint single, Windows* w, void* dy, void* scale, void* out, bint add)
    void any_columns(bint single, Windows* w, Size first_row, Size rows, void* x, void* out)
    void any_add_columns(bint single, Windows* w, Size first_row, Size rows, void* columns, void* out)
    void any_channel_sums(bint single, Size n, Size c, Size p, void* x, double* out)
    void any_channel_moments(bint single, Size n, Size c, Size p, void* x, double* out)
    void any_channel_products(bint single, Size n, Size c, Size p, void* x, void* dy, double* out)
    void any_channel_affine(bint single, Size n, Size c, Size p, void* x, void* scale, void* offset, void* out, bint add)
    void any_channel_scales(
        bint single, Size c, double* sums, double count, double eps, void* weight, void* bias, void* out)
    void any_channel_changes(
        bint single, Size c, double* sums, double count, double eps, void* weight, double* products, double* out)
    void any_channel_running(
        bint single, Size groups, Size c, double* moments, double count, double momentum, double correction, void* mean,
        void* variance, void* new_mean, void* new_variance)


cdef int windows(str kernel, Windows* w, Size planes, tuple image, tuple out, tuple element, tuple stride, tuple padding,
                 tuple dilation) except -1:
    """The geometry. Loops check every position against the image, so any padding is safe."""
    cdef int d
    for d in range(2):
        w.size[d], w.out[d] = image[d], out[d]
        w.kernel[d], w.stride[d], w.dilation[d], w.before[d] = element[d], stride[d], dilation[d], padding[d][0]
        if w.kernel[d] < 1 or w.stride[d] < 1 or w.dilation[d] < 1:
            raise ValueError(
                f"{kernel}: kernel, stride and dilation must be positive, got {element}, {stride} and {dilation}")
    w.planes = planes
    return 0


cdef int pooled(str kernel, Windows* w, cnp.ndarray image, cnp.ndarray out, tuple element, tuple stride, tuple padding,
                tuple dilation) except -1:
    """The geometry of windows ``out`` (N, C, Ho, Wo) over ``image`` (N, C, H, W)."""
    cdef tuple a = (<object>image).shape, b = (<object>out).shape
    if len(a) != 4 or len(b) != 4 or a[:2] != b[:2]:
        raise ValueError(f"{kernel}: needs images (N, C, H, W) and windows (N, C, Ho, Wo), got {a} and {b}")
    return windows(kernel, w, a[0] * a[1], a[2:], b[2:], element, stride, padding, dilation)


cdef void* which(str kernel, cnp.ndarray index, Size size, Size elements) except? NULL:
    """The array of unsigned integers that number the elements of a window."""
    cdef int kind = cnp.PyArray_TYPE(index)
    if kind != cnp.NPY_UINT8 and kind != cnp.NPY_UINT16 and kind != cnp.NPY_UINT32:
        raise TypeError(f"{kernel}: index must be uint8, uint16 or uint32, got {(<object>index).dtype}")
    if elements > <Size>1 << 8 * cnp.PyArray_ITEMSIZE(index):
        raise TypeError(f"{kernel}: {(<object>index).dtype} cannot number the {elements} elements of a window")
    return flat(kernel, "index", index, kind, size, False)


# ---- pooling ----------------------------------------------------------------------------------------------------------

def max_pool2d(cnp.ndarray x not None, tuple kernel, tuple stride, tuple padding, tuple dilation,
               cnp.ndarray out not None, cnp.ndarray index not None):
    cdef int kind = real_type("max_pool2d", x)
    cdef Windows w
    pooled("max_pool2d", &w, x, out, kernel, stride, padding, dilation)
    cdef Size size = cnp.PyArray_SIZE(out)
    cdef void* a = flat("max_pool2d", "x", x, kind, cnp.PyArray_SIZE(x), False)
    cdef void* b = flat("max_pool2d", "out", out, kind, size, True)
    cdef void* i = which("max_pool2d", index, size, w.kernel[0] * w.kernel[1])
    cdef int nbytes = cnp.PyArray_ITEMSIZE(index)
    if not cnp.PyArray_ISWRITEABLE(index):
        refuse("max_pool2d", "index", (<object>out).shape, cnp.PyArray_TYPE(index), index)
    with nogil:
        any_max_pool(kind == cnp.NPY_FLOAT32, &w, a, b, i, nbytes)


def max_pool2d_backward(cnp.ndarray dy not None, cnp.ndarray index not None, tuple kernel, tuple stride, tuple padding,
                        tuple dilation, cnp.ndarray out not None, bint accumulate):
    cdef int kind = real_type("max_pool2d_backward", dy)
    cdef Windows w
    pooled("max_pool2d_backward", &w, out, dy, kernel, stride, padding, dilation)
    cdef Size size = cnp.PyArray_SIZE(dy)
    cdef void* a = flat("max_pool2d_backward", "dy", dy, kind, size, False)
    cdef void* i = which("max_pool2d_backward", index, size, 1)
    cdef void* b = flat("max_pool2d_backward", "out", out, kind, cnp.PyArray_SIZE(out), True)
    cdef int nbytes = cnp.PyArray_ITEMSIZE(index)
    with nogil:
        any_max_pool_backward(kind == cnp.NPY_FLOAT32, &w, a, i, nbytes, b, accumulate)


def sum_pool2d(cnp.ndarray x not None, tuple kernel, tuple stride, tuple padding, cnp.ndarray scale not None,
               cnp.ndarray out not None):
    cdef int kind = real_type("sum_pool2d", x)
    cdef Windows w
    pooled("sum_pool2d", &w, x, out, kernel, stride, padding, (1, 1))
    cdef void* a = flat("sum_pool2d", "x", x, kind, cnp.PyArray_SIZE(x), False)
    cdef void* s = flat("sum_pool2d", "scale", scale, kind, w.out[0] * w.out[1], False)
    cdef void* b = flat("sum_pool2d", "out", out, kind, cnp.PyArray_SIZE(out), True)
    with nogil:
        any_sum_pool(kind == cnp.NPY_FLOAT32, &w, a, s, b)


def sum_pool2d_backward(cnp.ndarray dy not None, tuple kernel, tuple stride, tuple padding, cnp.ndarray scale not None,
                        cnp.ndarray out not None, bint accumulate):
    cdef int kind = real_type("sum_pool2d_backward", dy)
    cdef Windows w
    pooled("sum_pool2d_backward", &w, out, dy, kernel, stride, padding, (1, 1))
    cdef void* a = flat("sum_pool2d_backward", "dy", dy, kind, cnp.PyArray_SIZE(dy), False)
    cdef void* s = flat("sum_pool2d_backward", "scale", scale, kind, w.out[0] * w.out[1], False)
    cdef void* b = flat("sum_pool2d_backward", "out", out, kind, cnp.PyArray_SIZE(out), True)
    with nogil:
        any_sum_pool_backward(kind == cnp.NPY_FLOAT32, &w, a, s, b, accumulate)


# ---- patches as columns -----------------------------------------------------------------------------------------------

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


def columns(cnp.ndarray x not None, tuple size, Size first, tuple stride, tuple padding, tuple dilation,
            cnp.ndarray out not None):
    """x (C, H, W) -> out (C, kh, kw, rows, Wo): what each element of the kernel meets in the windows of the output rows
    from ``first`` on; ``size``: (Ho, Wo) of the whole output."""
    cdef int kind = real_type("columns", x)
    cdef Windows w
    cdef Size rows = column_rows("columns", &w, x, out, size, first, stride, padding, dilation)
    cdef void* a = flat("columns", "x", x, kind, cnp.PyArray_SIZE(x), False)
    cdef void* b = flat("columns", "out", out, kind, cnp.PyArray_SIZE(out), True)
    with nogil:
        any_columns(kind == cnp.NPY_FLOAT32, &w, first, rows, a, b)


def add_columns(cnp.ndarray columns not None, tuple size, Size first, tuple stride, tuple padding, tuple dilation,
                cnp.ndarray out not None):
    """The transpose of `columns`: adds every element of columns (C, kh, kw, rows, Wo) to what it was copied from in out
    (C, H, W)."""
    cdef int kind = real_type("add_columns", columns)
    cdef Windows w
    cdef Size rows = column_rows("add_columns", &w, out, columns, size, first, stride, padding, dilation)
    cdef void* a = flat("add_columns", "columns", columns, kind, cnp.PyArray_SIZE(columns), False)
    cdef void* b = flat("add_columns", "out", out, kind, cnp.PyArray_SIZE(out), True)
    with nogil:
        any_add_columns(kind == cnp.NPY_FLOAT32, &w, first, rows, a, b)


# ---- normalisation of channels ----------------------------------------------------------------------------------------

cdef int three(str kernel, str name, cnp.ndarray array) except -1:
    if cnp.PyArray_NDIM(array) != 3:
        raise ValueError(f"{kernel}: {name} must have 3 dimensions (N, C, P), got {(<object>array).shape}")
    return 0


def channel_sums(cnp.ndarray x not None, cnp.ndarray out not None):
    """Adds to out (C) float64 the sum of every channel of x (N, C, P)."""
    cdef int kind = real_type("channel_sums", x)
    three("channel_sums", "x", x)
    cdef Size n = cnp.PyArray_DIM(x, 0), c = cnp.PyArray_DIM(x, 1), p = cnp.PyArray_DIM(x, 2)
    cdef void* a = flat("channel_sums", "x", x, kind, n * c * p, False)
    cdef double* b = <double*>flat("channel_sums", "out", out, cnp.NPY_FLOAT64, c, True)
    with nogil:
        any_channel_sums(kind == cnp.NPY_FLOAT32, n, c, p, a, b)


def channel_moments(cnp.ndarray x not None, cnp.ndarray out not None):
    cdef int kind = real_type("channel_moments", x)
    three("channel_moments", "x", x)
    cdef Size n = cnp.PyArray_DIM(x, 0), c = cnp.PyArray_DIM(x, 1), p = cnp.PyArray_DIM(x, 2)
    cdef void* a = flat("channel_moments", "x", x, kind, n * c * p, False)
    cdef double* b = <double*>flat("channel_moments", "out", out, cnp.NPY_FLOAT64, 2 * c, True)
    with nogil:
        any_channel_moments(kind == cnp.NPY_FLOAT32, n, c, p, a, b)


def channel_products(cnp.ndarray x not None, cnp.ndarray dy not None, cnp.ndarray out not None):
    cdef int kind = real_type("channel_products", x)
    three("channel_products", "x", x)
    cdef Size n = cnp.PyArray_DIM(x, 0), c = cnp.PyArray_DIM(x, 1), p = cnp.PyArray_DIM(x, 2)
    cdef void* a = flat("channel_products", "x", x, kind, n * c * p, False)
    cdef void* g = flat("channel_products", "dy", dy, kind, n * c * p, False)
    cdef double* b = <double*>flat("channel_products", "out", out, cnp.NPY_FLOAT64, 2 * c, True)
    with nogil:
        any_channel_products(kind == cnp.NPY_FLOAT32, n, c, p, a, g, b)


def channel_affine(cnp.ndarray x not None, cnp.ndarray scale not None, cnp.ndarray offset not None,
                   cnp.ndarray out not None, bint accumulate):
    cdef int kind = real_type("channel_affine", x)
    three("channel_affine", "x", x)
    cdef Size n = cnp.PyArray_DIM(x, 0), c = cnp.PyArray_DIM(x, 1), p = cnp.PyArray_DIM(x, 2)
    cdef void* a = flat("channel_affine", "x", x, kind, n * c * p, False)
    cdef void* s = flat("channel_affine", "scale", scale, kind, c, False)
    cdef void* o = flat("channel_affine", "offset", offset, kind, c, False)
    cdef void* b = flat("channel_affine", "out", out, kind, n * c * p, True)
    with nogil:
        any_channel_affine(kind == cnp.NPY_FLOAT32, n, c, p, a, s, o, b, accumulate)


def channel_scales(cnp.ndarray sums not None, double count, double eps, cnp.ndarray weight not None,
                   cnp.ndarray bias not None, cnp.ndarray out not None):
    cdef int kind = real_type("channel_scales", weight)
    cdef Size c = cnp.PyArray_SIZE(weight)
    cdef double* s = <double*>flat("channel_scales", "sums", sums, cnp.NPY_FLOAT64, 2 * c, False)
    cdef void* w = flat("channel_scales", "weight", weight, kind, c, False)
    cdef void* a = flat("channel_scales", "bias", bias, kind, c, False)
    cdef void* b = flat("channel_scales", "out", out, kind, 2 * c, True)
    with nogil:
        any_channel_scales(kind == cnp.NPY_FLOAT32, c, s, count, eps, w, a, b)


def channel_changes(cnp.ndarray sums not None, double count, double eps, cnp.ndarray weight not None,
                    cnp.ndarray products not None, cnp.ndarray out not None):
    cdef int kind = real_type("channel_changes", weight)
    cdef Size c = cnp.PyArray_SIZE(weight)
    cdef double* s = <double*>flat("channel_changes", "sums", sums, cnp.NPY_FLOAT64, 2 * c, False)
    cdef void* w = flat("channel_changes", "weight", weight, kind, c, False)
    cdef double* a = <double*>flat("channel_changes", "products", products, cnp.NPY_FLOAT64, 2 * c, False)
    cdef double* b = <double*>flat("channel_changes", "out", out, cnp.NPY_FLOAT64, 5 * c, True)
    with nogil:
        any_channel_changes(kind == cnp.NPY_FLOAT32, c, s, count, eps, w, a, b)


def channel_running(cnp.ndarray moments not None, double count, double momentum, double correction,
                    cnp.ndarray mean not None, cnp.ndarray variance not None, cnp.ndarray new_mean not None,
                    cnp.ndarray new_variance not None):
    cdef int kind = real_type("channel_running", mean)
    three("channel_running", "moments", moments)
    cdef Size g = cnp.PyArray_DIM(moments, 0), c = cnp.PyArray_SIZE(mean)
    cdef double* s = <double*>flat("channel_running", "moments", moments, cnp.NPY_FLOAT64, 2 * g * c, False)
    cdef void* m = flat("channel_running", "mean", mean, kind, c, False)
    cdef void* v = flat("channel_running", "variance", variance, kind, c, False)
    cdef void* a = flat("channel_running", "new_mean", new_mean, kind, c, True)
    cdef void* b = flat("channel_running", "new_variance", new_variance, kind, c, True)
    with nogil:
        any_channel_running(kind == cnp.NPY_FLOAT32, g, c, s, count, momentum, correction, m, v, a, b)
