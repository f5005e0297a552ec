"""What native/dispatch/loss.h offers. ``single``: the arrays hold float32, else float64. Strides: bytes from row to row."""

from libc.stdint cimport int64_t

ctypedef Py_ssize_t Size

cdef extern from "native/dispatch/loss.h" nogil:
    void any_softmax(
        bint single, Size rows, Size width, void* x, Size x_stride, int64_t* ends, void* out, Size out_stride)
    void any_softmax_backward(
        bint single, Size rows, Size width, void* y, Size y_stride, void* dy, Size dy_stride,
        void* out, Size out_stride, bint add)
    double any_cross_entropy(
        bint single, Size rows, Size width, void* logits, Size logits_stride, int64_t* target, int64_t ignore,
        double smoothing, void* probabilities, Size probabilities_stride)
    void any_cross_entropy_backward(
        bint single, Size rows, Size width, void* probabilities, Size probabilities_stride, int64_t* target,
        int64_t ignore, double smoothing, double scale, void* out, Size out_stride, bint add)
    # classes, blocks, first: how all classes are divided, and the first block that is here. Pairs: of double.
    void any_class_blocks(
        bint single, Size rows, Size here, Size classes, Size blocks, Size first, void* logits, Size logits_stride,
        int64_t* target, int64_t ignore, double smoothing, void* probabilities, Size probabilities_stride,
        void* pairs, Size pairs_stride)
    void any_class_blocks_backward(
        bint single, Size rows, Size here, Size classes, Size blocks, Size first, void* probabilities,
        Size probabilities_stride, int64_t* target, int64_t ignore, double smoothing, void* pairs, Size pairs_stride,
        void* out, Size out_stride, bint add)
    double any_cross_entropy_of_blocks(
        bint single, Size rows, Size blocks, void* pairs, Size pairs_stride, int64_t* target, int64_t ignore,
        void* shares, Size shares_stride)
    void any_cross_entropy_of_blocks_backward(
        bint single, Size rows, Size blocks, void* shares, Size shares_stride, int64_t* target, int64_t ignore,
        double scale, void* out, Size out_stride, bint add)
