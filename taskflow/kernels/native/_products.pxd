"""What native/dispatch/product.h offers. ``single``: the arrays hold float32, else float64. Leading dimensions in elements."""

ctypedef Py_ssize_t Size

cdef extern from "native/dispatch/product.h" nogil:
    int instruction_level()
    # Leading dimensions in elements. skinny: out (m, n) = a (m, k) b, b stored (n, k) for nt and (k, n) for nn.
    void any_skinny_nt(
        bint single, Size m, Size n, Size k, void* a, Size lda, void* b, Size ldb, void* out, Size ldo, bint add)
    void any_skinny_nn(
        bint single, Size m, Size n, Size k, void* a, Size lda, void* b, Size ldb, void* out, Size ldo, bint add)
    void any_gemm(
        bint single, void* address, bint wide, bint transpose_a, bint transpose_b, Size m, Size n, Size k,
        void* a, Size lda, void* b, Size ldb, void* out, Size ldo, bint add)
