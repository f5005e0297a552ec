"""Windows over images, as the compiled kernels see them."""

ctypedef Py_ssize_t Size

cdef extern from "native/loops/windows.h" nogil:
    ctypedef struct Windows:
        Size planes
        Size size[2]
        Size out[2]
        Size kernel[2]
        Size stride[2]
        Size before[2]
        Size dilation[2]


cdef inline int windows(str kernel, Windows* w, Size planes, tuple image, tuple out, tuple element, tuple stride,
                        tuple padding, tuple dilation) except -1:
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
