"""Task Bench's kernel that computes, compiled: the loop of native/loops/busy.h without the GIL.

The definition is kernels/definitions/busy.py; tests/kernels/test_kernels_build.py holds them equal.
"""

cdef extern from "native/loops/busy.h" nogil:
    int instruction_level()
    double busy_loop(Py_ssize_t iterations)


def busy(Py_ssize_t iterations):
    """64 multiply-adds (128 flops) an iteration."""
    cdef double total
    with nogil:
        total = busy_loop(iterations)
    return total


def level():
    """3: AVX-512, 2: AVX2 and FMA, 1: the compiler's baseline."""
    return instruction_level()
