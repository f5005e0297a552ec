"""Checks of the arguments that the compiled kernels share: each gives the address of an array's first element, and strides in
bytes, or raises what was required and given."""

cimport numpy as cnp


cdef struct Rows:
    void* data
    Py_ssize_t stride  # bytes from row to row


cdef inline int real_type(str kernel, cnp.ndarray array) except -1:
    """NPY_FLOAT32 or NPY_FLOAT64."""
    cdef int kind = cnp.PyArray_TYPE(array)
    if kind != cnp.NPY_FLOAT32 and kind != cnp.NPY_FLOAT64:
        raise TypeError(
            f"{kernel}: needs float32 or float64 arrays, got {(<object>array).dtype}; NumpyKernels takes other dtypes")
    return kind


cdef inline int refuse(str kernel, str name, tuple shape, int kind, object array) except -1:
    wanted = {
        int(cnp.NPY_FLOAT32): "float32", int(cnp.NPY_FLOAT64): "float64", int(cnp.NPY_BOOL): "bool",
    }.get(kind, "int64")
    raise ValueError(
        f"{kernel}: {name} must be {wanted} {shape}, aligned, with contiguous rows and writeable if it is an output, "
        f"got {array.dtype} {array.shape}, strides {array.strides}, writeable {array.flags.writeable}"
    )


cdef inline bint usable(cnp.ndarray array, int kind, bint write):
    return (
        cnp.PyArray_TYPE(array) == kind and cnp.PyArray_ISALIGNED(array) and cnp.PyArray_ISNOTSWAPPED(array)
        and (not write or cnp.PyArray_ISWRITEABLE(array))
    )


cdef inline int rows2(str kernel, str name, cnp.ndarray array, int kind, Py_ssize_t n, Py_ssize_t width, bint write,
               Rows* out) except -1:
    """An (n, width) array with contiguous rows."""
    cdef cnp.npy_intp* shape = cnp.PyArray_DIMS(array)
    cdef cnp.npy_intp* strides = cnp.PyArray_STRIDES(array)
    if (
        cnp.PyArray_NDIM(array) != 2 or not usable(array, kind, write) or shape[0] != n or shape[1] != width
        or (width > 1 and n > 0 and strides[1] != cnp.PyArray_ITEMSIZE(array))
    ):
        refuse(kernel, name, (n, width), kind, array)
    out.data = cnp.PyArray_DATA(array)
    out.stride = strides[0]
    return 0


cdef inline int rows3(str kernel, str name, cnp.ndarray array, int kind, Py_ssize_t n, Py_ssize_t width, bint write,
               Rows* out) except -1:
    """An (n, 4, width) array whose (4, width) blocks are contiguous."""
    cdef cnp.npy_intp* shape = cnp.PyArray_DIMS(array)
    cdef cnp.npy_intp* strides = cnp.PyArray_STRIDES(array)
    if (
        cnp.PyArray_NDIM(array) != 3 or not usable(array, kind, write)
        or shape[0] != n or shape[1] != 4 or shape[2] != width
        or (n > 0 and width > 1 and strides[2] != cnp.PyArray_ITEMSIZE(array))
        or (n > 0 and width > 0 and strides[1] != width * cnp.PyArray_ITEMSIZE(array))
    ):
        refuse(kernel, name, (n, 4, width), kind, array)
    out.data = cnp.PyArray_DATA(array)
    out.stride = strides[0]
    return 0


cdef inline void* flat(str kernel, str name, cnp.ndarray array, int kind, Py_ssize_t size, bint write) except? NULL:
    """A contiguous array of ``size`` elements, of any shape."""
    if cnp.PyArray_SIZE(array) != size or not usable(array, kind, write) or not cnp.PyArray_IS_C_CONTIGUOUS(array):
        refuse(kernel, name, (size,), kind, array)
    return cnp.PyArray_DATA(array)


cdef inline cnp.ndarray integers(str kernel, str name, object array, Py_ssize_t size):
    """A contiguous int64 array (size,), converted if it is another kind of integer."""
    cdef cnp.ndarray given = array
    if cnp.PyArray_NDIM(given) != 1 or cnp.PyArray_SIZE(given) != size or (<object>given).dtype.kind not in "iu":
        raise ValueError(f"{kernel}: {name} must be integers ({size},), got {(<object>given).dtype} {(<object>given).shape}")
    return cnp.PyArray_FROMANY(given, cnp.NPY_INT64, 1, 1, cnp.NPY_ARRAY_CARRAY_RO | cnp.NPY_ARRAY_FORCECAST)


cdef inline int two(str kernel, str name, cnp.ndarray array) except -1:
    if cnp.PyArray_NDIM(array) != 2:
        raise ValueError(f"{kernel}: {name} must have 2 dimensions, got {(<object>array).shape}")
    return 0
