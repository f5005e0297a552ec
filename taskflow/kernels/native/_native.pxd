"""What native/dispatch/row.h offers. ``single``: the arrays hold float32, else float64. Strides: bytes from row to row."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

ctypedef Py_ssize_t Size

cdef extern from "native/loops/parts.h" nogil:
    enum: PART_DIMS
    ctypedef struct Parts:
        pass
    int join_parts(Parts* parts, int dims, Size* size, Size* x, Size* out, Size item)
    void copy_elements "copy_part"(Parts* parts, Size item, void* x, void* out)
    void add_elements "add_part"(Parts* parts, bint single, void* x, void* out)

cdef extern from "native/dispatch/row.h" nogil:
    int instruction_level()
    double busy_loop(Size iterations)
    void any_exp(bint single, void* x, void* out, Size n)
    void any_sigmoid(bint single, void* x, void* out, Size n)
    void any_tanh(bint single, void* x, void* out, Size n)
    void any_lstm_cell(
        bint single, Size rows, Size width, void* gates, Size gates_stride, void* c_prev, Size c_prev_stride,
        void* c, Size c_stride, void* h, Size h_stride)
    void any_lstm_cell_backward(
        bint single, Size rows, Size width, void* gates, Size gates_stride, void* c_prev, Size c_prev_stride,
        void* c, Size c_stride, void* dh, Size dh_stride, void* dc, Size dc_stride, void* dgates, Size dgates_stride)
    void any_embedding(
        bint single, Size rows, Size width, void* table, Size table_stride, Size size, int64_t* index, int64_t first,
        void* out, Size out_stride)
    void any_embedding_backward(
        bint single, Size rows, Size width, int64_t* index, int64_t first, void* dy, Size dy_stride,
        void* out, Size out_stride, Size size, bint add)
    void any_sum_rows(bint single, Size rows, Size width, void* x, Size x_stride, void* out, bint add)
    double any_sum_of_squares(bint single, Size n, void* x)
    void any_sgd(
        bint single, Size n, void* w, void* g, void* velocity, double lr, double momentum, double kept, double decay,
        double scale, int mode, bint nesterov)
    void any_adam(
        bint single, Size n, void* w, void* g, void* m, void* v, double size, double rest1, double beta2, double rest2,
        double root, double eps, double decay, double scale, int mode)
    void any_random_row(
        bint single, uint32_t key0, uint32_t key1, uint32_t stream, uint64_t position, Size n, bint normal, void* out)
    void any_dropout_row(
        bint single, uint32_t key0, uint32_t key1, uint32_t stream, uint64_t position, Size n, double p, double scale,
        void* x, void* out, uint8_t* mask)
    void any_dropout_backward(bint single, Size n, double scale, uint8_t* mask, void* dy, void* out, bint add)
