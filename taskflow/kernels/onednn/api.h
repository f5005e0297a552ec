/* What _onednn.pyx calls of oneDNN's C API (version 3; https://uxlfoundation.github.io/oneDNN), as pointers to functions
   that are looked up in the library when it is loaded: building needs neither the library nor its headers. Handles of
   opaque types are void pointers. tests/kernels/test_onednn_library.py compares this file with the headers. */
#ifndef TASKFLOW_ONEDNN_API_H
#define TASKFLOW_ONEDNN_API_H

#include <stddef.h>
#include <stdint.h>

enum {
    ONEDNN_CPU = 1,
    ONEDNN_F32 = 3,
    ONEDNN_ANY = 1,                 /* format tag */
    ONEDNN_FORWARD_TRAINING = 64,
    ONEDNN_CONVOLUTION_DIRECT = 1,
    ONEDNN_SCRATCHPAD_USER = 1,
    ONEDNN_IN_ORDER = 1,            /* stream flag */
    ONEDNN_QUERY_INFO = 8,
    ONEDNN_QUERY_SRC = 129,
    ONEDNN_QUERY_DIFF_SRC = 130,
    ONEDNN_QUERY_WEIGHTS = 131,
    ONEDNN_QUERY_DIFF_WEIGHTS = 132,
    ONEDNN_QUERY_DST = 133,
    ONEDNN_QUERY_DIFF_DST = 134,
    ONEDNN_QUERY_SCRATCHPAD = 136,
    ONEDNN_ARG_SRC = 1,
    ONEDNN_ARG_DST = 17,
    ONEDNN_ARG_WEIGHTS = 33,
    ONEDNN_ARG_BIAS = 41,
    ONEDNN_ARG_SCRATCHPAD = 80,
    ONEDNN_ARG_DIFF_SRC = 129,
    ONEDNN_ARG_DIFF_DST = 145,
    ONEDNN_ARG_DIFF_WEIGHTS = 161
};

typedef struct {
    int arg;
    void *memory;
} OneDNNArgument;

typedef struct {
    int major, minor, patch;
    const char *hash;
    unsigned cpu_runtime, gpu_runtime;
} OneDNNVersion;

/* name, result, arguments; a result of int is a status, 0 for success, unless said otherwise */
#define ONEDNN_FUNCTIONS(F) \
    F(version, const OneDNNVersion *, (void)) \
    F(engine_create, int, (void **engine, int kind, size_t index)) \
    F(stream_create, int, (void **stream, void *engine, unsigned flags)) \
    F(stream_wait, int, (void *stream)) \
    F(memory_desc_create_with_strides, int, \
      (void **desc, int ndims, const int64_t *dims, int type, const int64_t *strides)) \
    F(memory_desc_create_with_tag, int, (void **desc, int ndims, const int64_t *dims, int type, int tag)) \
    F(memory_desc_destroy, int, (void *desc)) \
    F(memory_desc_equal, int, (const void *a, const void *b)) /* 1: equal */ \
    F(memory_desc_get_size, size_t, (const void *desc)) /* bytes */ \
    F(memory_create, int, (void **memory, const void *desc, void *engine, void *handle)) \
    F(memory_set_data_handle, int, (void *memory, void *handle)) \
    F(memory_destroy, int, (void *memory)) \
    F(primitive_attr_create, int, (void **attr)) \
    F(primitive_attr_destroy, int, (void *attr)) \
    F(primitive_attr_set_scratchpad_mode, int, (void *attr, int mode)) \
    F(primitive_attr_set_post_ops, int, (void *attr, const void *ops)) \
    F(post_ops_create, int, (void **ops)) \
    F(post_ops_append_sum, int, (void *ops, float scale, int32_t zero_point, int type)) \
    F(post_ops_destroy, int, (void *ops)) \
    F(primitive_desc_destroy, int, (void *desc)) \
    F(primitive_desc_query, int, (const void *desc, int what, int index, void *result)) \
    F(primitive_desc_query_md, const void *, (const void *desc, int what, int index)) \
    F(primitive_create, int, (void **primitive, const void *desc)) \
    F(primitive_execute, int, (const void *primitive, void *stream, int count, const OneDNNArgument *arguments)) \
    F(primitive_destroy, int, (void *primitive)) \
    F(reorder_primitive_desc_create, int, \
      (void **desc, const void *src, void *src_engine, const void *dst, void *dst_engine, const void *attr)) \
    F(convolution_forward_primitive_desc_create, int, \
      (void **desc, void *engine, int prop, int algorithm, const void *src, const void *weights, const void *bias, \
       const void *dst, const int64_t *strides, const int64_t *dilates, const int64_t *padding_l, \
       const int64_t *padding_r, const void *attr)) \
    F(convolution_backward_data_primitive_desc_create, int, \
      (void **desc, void *engine, int algorithm, const void *diff_src, const void *weights, const void *diff_dst, \
       const int64_t *strides, const int64_t *dilates, const int64_t *padding_l, const int64_t *padding_r, \
       const void *forward, const void *attr)) \
    F(convolution_backward_weights_primitive_desc_create, int, \
      (void **desc, void *engine, int algorithm, const void *src, const void *diff_weights, const void *diff_bias, \
       const void *diff_dst, const int64_t *strides, const int64_t *dilates, const int64_t *padding_l, \
       const int64_t *padding_r, const void *forward, const void *attr)) \
    F(matmul_primitive_desc_create, int, \
      (void **desc, void *engine, const void *src, const void *weights, const void *bias, const void *dst, \
       const void *attr)) \
    F(sgemm, int, \
      (char transa, char transb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda, \
       const float *b, int64_t ldb, float beta, float *c, int64_t ldc))

#define ONEDNN_MEMBER(name, result, arguments) result(*name) arguments;
static struct {
    ONEDNN_FUNCTIONS(ONEDNN_MEMBER)
} dnnl;

/* OpenMP's omp_set_num_threads, of the very runtime that the library uses. */
static void (*set_threads)(int);

#define ONEDNN_NAME(name, result, arguments) "dnnl_" #name,
static const char *const onednn_names[] = {ONEDNN_FUNCTIONS(ONEDNN_NAME)};
enum { ONEDNN_COUNT = sizeof onednn_names / sizeof *onednn_names };

/* Take the address of function number ``index`` of onednn_names. */
static inline void onednn_take(int index, uintptr_t address)
{
    ((uintptr_t *)(void *)&dnnl)[index] = address;
}

static inline void onednn_take_threads(uintptr_t address)
{
    set_threads = (void (*)(int))address;
}

#endif
