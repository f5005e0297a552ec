"""Convolutions and matrix products by oneDNN: chains of its primitives, made once for shapes and then run on arrays.

`take` hands over the library's functions before anything else is called. Arrays are float32. What a chain needs beside
its arguments lies in one block of memory for the whole process, which grows to what the largest chain needs.
taskflow/kernels/onednn/kernels.py decides which chain serves a kernel.
The definition is kernels/kernel_set.py; tests/kernels/test_onednn_kernels.py holds them equal.
"""

import threading

import numpy as np

cimport numpy as cnp
from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memset

cnp.import_array()

cdef extern from "onednn/chain.h" nogil:
    enum:
        ONEDNN_COUNT, ALIGNED
    ctypedef struct Chain:
        size_t nbytes
        char info[48]
    ctypedef struct Geometry:
        int direction, bias, add, layout, weight_dims
        int64_t x[4]
        int64_t weight[5]
        int64_t y[4]
        int64_t strides[2]
        int64_t dilates[2]
        int64_t before[2]
        int64_t after[2]
    const char* const* onednn_names
    void onednn_take(int index, uintptr_t address)
    void onednn_take_threads(uintptr_t address)
    int onednn_start()
    void (*set_threads)(int threads)
    void chain_free(Chain* chain)
    int chain_convolution(Chain* chain, const Geometry* geometry)
    ctypedef struct Shape:
        int64_t m, k, n, a_rows, b_rows, b_columns, out_rows
        int packed, add
    int chain_product(Chain* pack, Chain* multiply, size_t* b_nbytes, const Shape* shape)
    int chain_run(Chain* chain, char* block, void** arrays)
    int product_run(
        char transa, char transb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
        const float* b, int64_t ldb, float beta, float* c, int64_t ldc)

FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT = 0, 1, 2
PREFERRED, PLAIN, CHANNELS_LAST = 0, 1, 2

cdef bint started = False


class OneDNNError(RuntimeError):
    """oneDNN refused; the message has its status (oneDNN's enumeration dnnl_status_t)."""


def names():
    """The functions that `take` wants, in its order."""
    return [onednn_names[i].decode() for i in range(ONEDNN_COUNT)]


def take(list addresses, uintptr_t threads):
    """Use the library whose functions lie at ``addresses``, and its omp_set_num_threads (0: it has one thread)."""
    global started
    cdef int i
    if len(addresses) != ONEDNN_COUNT:
        raise ValueError(f"take: needs {ONEDNN_COUNT} addresses, got {len(addresses)}")
    for i in range(ONEDNN_COUNT):
        onednn_take(i, addresses[i])
    onednn_take_threads(threads)
    check("start", onednn_start())
    started = True


cdef int check(str what, int status) except -1:
    if status:
        raise OneDNNError(f"{what}: oneDNN's status is {status}")
    return 0


cdef int use_threads(int threads) except -1:
    if not started:
        raise RuntimeError("oneDNN is not loaded: call taskflow.kernels.onednn.library.load() first")
    if set_threads != NULL:
        set_threads(threads)
    return 0


# ---- the block that chains work in ----------------------------------------------------------------------------------

cdef object lock = threading.Lock()  # one chain at a time: they share the block
cdef object memory = np.empty(0, np.uint8)
cdef char* block = NULL
cdef size_t block_nbytes = 0


cdef char* room(size_t nbytes) except? NULL:
    """The block, of at least so many bytes."""
    global memory, block, block_nbytes
    if nbytes > block_nbytes or block == NULL:
        memory = None  # the old block goes before the new one comes
        memory = np.empty(nbytes + ALIGNED, np.uint8)
        block = <char*>((<uintptr_t>cnp.PyArray_DATA(memory) + ALIGNED - 1) // ALIGNED * ALIGNED)
        block_nbytes = nbytes
    return block


def working_nbytes():
    """Bytes of the block that chains work in."""
    return block_nbytes


cdef int run(str what, Chain* chain, int threads, void** arrays) except -1:
    cdef int status
    cdef char* where
    with lock:
        use_threads(threads)
        where = room(chain.nbytes)
        with nogil:
            status = chain_run(chain, where, arrays)
    return check(what, status)


cdef void* data(str name, object array, tuple shape) except NULL:
    """Where a C-contiguous float32 array of this shape lies."""
    cdef cnp.ndarray given = array
    if (
        cnp.PyArray_TYPE(given) != cnp.NPY_FLOAT32 or not cnp.PyArray_ISCARRAY_RO(given)
        or (<object>given).shape != shape
    ):
        raise ValueError(
            f"{name} must be contiguous float32 {shape}, got {array.dtype} {array.shape} with strides {array.strides}")
    return cnp.PyArray_DATA(given)


# ---- convolution ----------------------------------------------------------------------------------------------------

cdef class Convolution:
    """One direction of a convolution of fixed shapes.

    Args: x (N, C, H, W), weight (K, C / groups, kh, kw) and y (N, K, Ho, Wo) are shapes. ``layout``: of the x and
    y that oneDNN works on: PREFERRED by it, PLAIN as they lie, or CHANNELS_LAST. ``add``: to what the result holds. Raises OneDNNError.
    """

    cdef Chain chain
    cdef int direction, threads, bias
    cdef tuple x, weight, y

    def __cinit__(self):
        memset(&self.chain, 0, sizeof(Chain))

    def __init__(self, int direction, tuple x, tuple weight, tuple y, stride, padding, dilation, int groups, bint bias,
                 bint add, int layout, int threads):
        cdef Geometry g
        self.direction, self.threads, self.bias = direction, threads, bias
        self.x, self.weight, self.y = x, weight, y
        g.direction, g.bias, g.add, g.layout = direction, bias, add, layout
        g.weight_dims = 4 if groups == 1 else 5
        dims = weight if groups == 1 else (groups, weight[0] // groups, *weight[1:])
        for i, size in enumerate(dims):
            g.weight[i] = size
        for i in range(4):
            g.x[i], g.y[i] = x[i], y[i]
        for i in range(2):
            g.strides[i], g.dilates[i] = stride[i], dilation[i] - 1
            g.before[i], g.after[i] = padding[i]
        use_threads(threads)
        check("convolution", chain_convolution(&self.chain, &g))

    def __dealloc__(self):
        if started:
            chain_free(&self.chain)

    @property
    def info(self):
        """oneDNN's name of the implementation."""
        return (<bytes>self.chain.info).decode()

    @property
    def nbytes(self):
        """What it needs of the block."""
        return self.chain.nbytes

    def __call__(self, first, second, out, bias=None):
        """Inputs: x and weight, dy and weight, or x and dy, as the direction wants; their result goes to ``out``."""
        cdef void* arrays[4]
        shapes = ((self.x, self.weight, self.y), (self.y, self.weight, self.x), (self.x, self.y, self.weight))
        one, two, three = shapes[self.direction]
        arrays[0], arrays[1] = data("first", first, one), data("second", second, two)
        arrays[2], arrays[3] = data("out", out, three), NULL
        if self.bias:
            arrays[3] = data("bias", bias, self.y[1:2])
        run("convolution", &self.chain, self.threads, arrays)


# ---- matrix products ------------------------------------------------------------------------------------------------

cdef struct Matrix:
    void* data
    Py_ssize_t leading  # elements from row to row (of the transpose if ``transposed``)
    bint transposed


cdef bint matrix(cnp.ndarray array, bint write, Matrix* out):
    """A float32 matrix as a BLAS wants it; False if its strides do not allow it."""
    if (
        cnp.PyArray_NDIM(array) != 2 or cnp.PyArray_TYPE(array) != cnp.NPY_FLOAT32 or not cnp.PyArray_ISALIGNED(array)
        or not cnp.PyArray_ISNOTSWAPPED(array) or (write and not cnp.PyArray_ISWRITEABLE(array))
    ):
        return False
    cdef Py_ssize_t rows = cnp.PyArray_DIM(array, 0), columns = cnp.PyArray_DIM(array, 1)
    cdef Py_ssize_t down = cnp.PyArray_STRIDE(array, 0), along = cnp.PyArray_STRIDE(array, 1)
    out.data = cnp.PyArray_DATA(array)
    if (columns == 1 or along == 4) and (rows == 1 or (down >= 4 * columns and down % 4 == 0)):
        out.leading, out.transposed = (columns if rows == 1 else down // 4), False
        return True
    if (rows == 1 or down == 4) and (columns == 1 or (along >= 4 * rows and along % 4 == 0)):
        out.leading, out.transposed = (rows if columns == 1 else along // 4), True
        return not write
    return False


def multiply(cnp.ndarray a not None, cnp.ndarray b not None, cnp.ndarray out not None, bint accumulate, int threads):
    """out (M, N) = or += a (M, K) @ b (K, N), not empty. Returns False, with nothing done, for other strides than a
    BLAS takes, other dtypes, or more dimensions. Raises ValueError for shapes that do not fit, OneDNNError."""
    cdef Matrix x, y, z
    cdef int status
    if not (matrix(a, False, &x) and matrix(b, False, &y) and matrix(out, True, &z)):
        return False
    cdef int64_t m = cnp.PyArray_DIM(a, 0), k = cnp.PyArray_DIM(a, 1), n = cnp.PyArray_DIM(b, 1)
    if cnp.PyArray_DIM(b, 0) != k or cnp.PyArray_DIM(out, 0) != m or cnp.PyArray_DIM(out, 1) != n:
        raise ValueError(f"matmul: {(m, k)} @ {(<object>b).shape} does not fit out {(<object>out).shape}")
    use_threads(threads)
    cdef char ta = b"T" if x.transposed else b"N", tb = b"T" if y.transposed else b"N"
    with nogil:
        status = product_run(ta, tb, m, n, k, 1.0, <float*>x.data, x.leading, <float*>y.data, y.leading,
                             1.0 if accumulate else 0.0, <float*>z.data, z.leading)
    check("sgemm", status)
    return True


cdef class Product:
    """Products a (m, k) @ b (k, n) -> out (m, n), where b is the transpose of a contiguous matrix (n, k).

    Args: ``packed``: b will come as `pack` lays it out, which pays for many products with one b; else as it is. ``add``:
    to what out holds. a and out are contiguous. Raises OneDNNError.
    """

    cdef Chain packing, multiplying
    cdef Shape shape
    cdef int threads
    cdef size_t b_nbytes

    def __cinit__(self):
        memset(&self.packing, 0, sizeof(Chain))
        memset(&self.multiplying, 0, sizeof(Chain))

    def __init__(self, int64_t m, int64_t k, int64_t n, bint packed, bint add, int threads):
        self.threads = threads
        self.shape.m, self.shape.k, self.shape.n = m, k, n
        self.shape.a_rows, self.shape.b_rows, self.shape.b_columns, self.shape.out_rows = k, 1, k, n
        self.shape.packed, self.shape.add = packed, add
        use_threads(threads)
        check("matmul", chain_product(&self.packing, &self.multiplying, &self.b_nbytes, &self.shape))

    def __dealloc__(self):
        if started:
            chain_free(&self.packing)
            chain_free(&self.multiplying)

    @property
    def nbytes(self):
        """Of b as `__call__` takes it."""
        return self.b_nbytes

    @property
    def info(self):
        """oneDNN's name of the implementation."""
        return (<bytes>self.multiplying.info).decode()

    def pack(self, b not None, cnp.ndarray into not None):
        """b into a contiguous array of `nbytes` bytes."""
        cdef void* arrays[4]
        if not self.shape.packed:
            raise ValueError("pack: this product takes b as it is")
        if (<object>into).nbytes != self.b_nbytes or not cnp.PyArray_ISCARRAY(into):
            raise ValueError(f"pack: into must be contiguous and of {self.b_nbytes} bytes, got {(<object>into).nbytes}")
        arrays[0], arrays[1] = data("the transpose of b", b.T, (self.shape.n, self.shape.k)), cnp.PyArray_DATA(into)
        arrays[2] = arrays[3] = NULL
        run("pack", &self.packing, self.threads, arrays)

    def __call__(self, a, cnp.ndarray b not None, out):
        """Multiply; b packed or not, as announced."""
        cdef void* arrays[4]
        arrays[0] = data("a", a, (self.shape.m, self.shape.k))
        arrays[2], arrays[3] = data("out", out, (self.shape.m, self.shape.n)), NULL
        if self.shape.packed:
            if (<object>b).nbytes != self.b_nbytes:
                raise ValueError(f"matmul: the packed matrix must have {self.b_nbytes} bytes, got {(<object>b).nbytes}")
            arrays[1] = cnp.PyArray_DATA(b)
        else:
            arrays[1] = data("the transpose of b", b.T, (self.shape.n, self.shape.k))
        run("matmul", &self.multiplying, self.threads, arrays)
