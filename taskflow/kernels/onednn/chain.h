/* Chains of oneDNN primitives: reorders of arguments into the layouts that a primitive prefers, the primitive, and a
   reorder of its result back, which may add to what is there. Everything in between lies in one block of memory that
   the caller lends to `chain_run`. Functions return 0, or oneDNN's status of what failed. */
#ifndef TASKFLOW_ONEDNN_CHAIN_H
#define TASKFLOW_ONEDNN_CHAIN_H

#include <signal.h>
#include <string.h>

#include "onednn/api.h"

enum { MOST_STAGES = 6, MOST_OUTER = 4, MOST_INNER = 10, ALIGNED = 64 };
enum { FORWARD = 0, BACKWARD_DATA = 1, BACKWARD_WEIGHT = 2 };
enum { PREFERRED = 0, PLAIN = 1, CHANNELS_LAST = 2 };   /* what oneDNN prefers; as the arrays are; (N, H, W, C) */

typedef struct {
    void *primitive;
    int count;
    OneDNNArgument arguments[5];
} Stage;

typedef struct {
    Stage stages[MOST_STAGES];
    int stage_count;
    void *outer[MOST_OUTER];        /* memory objects of the caller's arrays, in the order that `chain_run` takes */
    int outer_count;
    void *inner[MOST_INNER];        /* memory objects in the block, and where */
    size_t offsets[MOST_INNER];
    int inner_count;
    size_t nbytes;                  /* of the block */
    char *block;                    /* where the inner memory objects lie now */
    char info[48];                  /* oneDNN's name of the main primitive's implementation */
} Chain;

static void *engine, *stream;

#define CHECK(call) do { int status_ = (call); if (status_) return status_; } while (0)

static int onednn_start(void)
{
    CHECK(dnnl.engine_create(&engine, ONEDNN_CPU, 0));
    return dnnl.stream_create(&stream, engine, ONEDNN_IN_ORDER);
}

static void chain_free(Chain *chain)
{
    for (int i = 0; i < chain->stage_count; i++) dnnl.primitive_destroy(chain->stages[i].primitive);
    for (int i = 0; i < chain->outer_count; i++) if (chain->outer[i]) dnnl.memory_destroy(chain->outer[i]);
    for (int i = 0; i < chain->inner_count; i++) dnnl.memory_destroy(chain->inner[i]);
    memset(chain, 0, sizeof *chain);
}

/* ---- building --------------------------------------------------------------------------------------------------- */

static int chain_outer(Chain *chain, int number, const void *desc)
{
    if (chain->outer_count <= number) chain->outer_count = number + 1;
    return dnnl.memory_create(&chain->outer[number], desc, engine, NULL);
}

static int chain_inner(Chain *chain, const void *desc, void **memory)
{
    CHECK(dnnl.memory_create(memory, desc, engine, NULL));
    chain->inner[chain->inner_count] = *memory;
    chain->offsets[chain->inner_count++] = chain->nbytes;
    chain->nbytes += (dnnl.memory_desc_get_size(desc) + ALIGNED - 1) / ALIGNED * ALIGNED;
    return 0;
}

/* What a primitive is made with: working memory comes from us; ``add``: it adds to its result's old value. */
static int attributes(int add, void **attr)
{
    void *ops = NULL;
    int status;
    CHECK(dnnl.primitive_attr_create(attr));
    status = dnnl.primitive_attr_set_scratchpad_mode(*attr, ONEDNN_SCRATCHPAD_USER);
    if (!status && add) {
        status = dnnl.post_ops_create(&ops);
        if (!status) {
            status = dnnl.post_ops_append_sum(ops, 1.0f, 0, 0);
            if (!status) status = dnnl.primitive_attr_set_post_ops(*attr, ops);
            dnnl.post_ops_destroy(ops);
        }
    }
    if (status) dnnl.primitive_attr_destroy(*attr);
    return status;
}

/* Add the primitive of ``desc``, which stays the caller's. */
static int chain_stage(Chain *chain, const void *desc, const OneDNNArgument *arguments, int count)
{
    const void *scratch = dnnl.primitive_desc_query_md(desc, ONEDNN_QUERY_SCRATCHPAD, 0);
    Stage *stage = &chain->stages[chain->stage_count];
    CHECK(dnnl.primitive_create(&stage->primitive, desc));
    chain->stage_count++;
    memcpy(stage->arguments, arguments, (size_t)count * sizeof *arguments);
    stage->count = count;
    if (scratch && dnnl.memory_desc_get_size(scratch)) {
        stage->arguments[count].arg = ONEDNN_ARG_SCRATCHPAD;
        CHECK(chain_inner(chain, scratch, &stage->arguments[count].memory));
        stage->count++;
    }
    return 0;
}

static int chain_reorder(Chain *chain, const void *from, void *source, const void *to, void *target, int add)
{
    void *attr, *desc = NULL;
    OneDNNArgument arguments[2] = {{ONEDNN_ARG_SRC, source}, {ONEDNN_ARG_DST, target}};
    CHECK(attributes(add, &attr));
    int status = dnnl.reorder_primitive_desc_create(&desc, from, engine, to, engine, attr);
    dnnl.primitive_attr_destroy(attr);
    CHECK(status);
    status = chain_stage(chain, desc, arguments, 2);
    dnnl.primitive_desc_destroy(desc);
    return status;
}

/* The memory object from which the main primitive reads argument ``number``, whose array is laid out as ``ours``: its
   own, or one in the layout ``theirs``, after a reorder. */
static int chain_input(Chain *chain, int number, const void *ours, const void *theirs, void **memory)
{
    CHECK(chain_outer(chain, number, ours));
    *memory = chain->outer[number];
    if (dnnl.memory_desc_equal(ours, theirs)) return 0;
    CHECK(chain_inner(chain, theirs, memory));
    return chain_reorder(chain, ours, chain->outer[number], theirs, *memory, 0);
}

static void chain_name(Chain *chain, const void *desc)
{
    const char *name = NULL;
    if (!dnnl.primitive_desc_query(desc, ONEDNN_QUERY_INFO, 0, &name) && name)
        strncpy(chain->info, name, sizeof chain->info - 1);
}

/* ---- convolution ------------------------------------------------------------------------------------------------ */

typedef struct {
    int direction, bias, add;
    int layout;                     /* of x and y for the main primitive */
    int weight_dims;                /* 4, or 5 with groups first */
    int64_t x[4], weight[5], y[4];
    int64_t strides[2], dilates[2], before[2], after[2];  /* dilates: 0 for neighbours */
} Geometry;

typedef struct {
    void *x, *weight, *bias, *y;            /* memory descriptors of the arrays */
    void *any_x, *any_weight, *any_y;       /* as the main primitive is asked for */
} Layouts;

static int dense(void **desc, int ndims, const int64_t *dims)
{
    int64_t strides[5], size = 1;
    for (int i = ndims - 1; i >= 0; i--) { strides[i] = size; size *= dims[i]; }
    return dnnl.memory_desc_create_with_strides(desc, ndims, dims, ONEDNN_F32, strides);
}

static int any(void **desc, int ndims, const int64_t *dims)
{
    return dnnl.memory_desc_create_with_tag(desc, ndims, dims, ONEDNN_F32, ONEDNN_ANY);
}

static int image(void **desc, const int64_t *dims, int layout)
{
    if (layout == PREFERRED) return any(desc, 4, dims);
    if (layout == PLAIN) return dense(desc, 4, dims);
    const int64_t c = dims[1], strides[4] = {c * dims[2] * dims[3], 1, c * dims[3], c};
    return dnnl.memory_desc_create_with_strides(desc, 4, dims, ONEDNN_F32, strides);
}

static int layouts_make(Layouts *all, const Geometry *g)
{
    CHECK(dense(&all->x, 4, g->x));
    CHECK(dense(&all->weight, g->weight_dims, g->weight));
    CHECK(dense(&all->y, 4, g->y));
    if (g->bias) CHECK(dense(&all->bias, 1, g->y + 1));
    CHECK(image(&all->any_x, g->x, g->layout));
    CHECK(any(&all->any_weight, g->weight_dims, g->weight));
    return image(&all->any_y, g->y, g->layout);
}

static void layouts_free(Layouts *all)
{
    void **each = (void **)all;
    for (size_t i = 0; i < sizeof *all / sizeof *each; i++) if (each[i]) dnnl.memory_desc_destroy(each[i]);
}

static int convolution_desc(const Geometry *g, const Layouts *all, void **desc)
{
    void *attr, *forward = NULL;
    CHECK(attributes(0, &attr));
    int status = dnnl.convolution_forward_primitive_desc_create(
        &forward, engine, ONEDNN_FORWARD_TRAINING, ONEDNN_CONVOLUTION_DIRECT, all->any_x, all->any_weight, all->bias,
        all->any_y, g->strides, g->dilates, g->before, g->after, attr);
    if (!status && g->direction == FORWARD) *desc = forward;
    if (!status && g->direction != FORWARD) {
        if (g->direction == BACKWARD_DATA)
            status = dnnl.convolution_backward_data_primitive_desc_create(
                desc, engine, ONEDNN_CONVOLUTION_DIRECT, all->any_x, all->any_weight, all->any_y, g->strides,
                g->dilates, g->before, g->after, forward, attr);
        else
            status = dnnl.convolution_backward_weights_primitive_desc_create(
                desc, engine, ONEDNN_CONVOLUTION_DIRECT, all->any_x, all->any_weight, NULL, all->any_y, g->strides,
                g->dilates, g->before, g->after, forward, attr);
        dnnl.primitive_desc_destroy(forward);
    }
    dnnl.primitive_attr_destroy(attr);
    return status;
}

/* Inputs are arguments 0 and 1 of `chain_run` (x and weight, dy and weight, or x and dy), 2 the result, 3 the bias. */
static int convolution_stages(Chain *chain, const Geometry *g, const Layouts *all, const void *desc)
{
    static const int args[3][3] = {
        {ONEDNN_ARG_SRC, ONEDNN_ARG_WEIGHTS, ONEDNN_ARG_DST},
        {ONEDNN_ARG_DIFF_DST, ONEDNN_ARG_WEIGHTS, ONEDNN_ARG_DIFF_SRC},
        {ONEDNN_ARG_SRC, ONEDNN_ARG_DIFF_DST, ONEDNN_ARG_DIFF_WEIGHTS},
    };
    static const int queries[3][3] = {
        {ONEDNN_QUERY_SRC, ONEDNN_QUERY_WEIGHTS, ONEDNN_QUERY_DST},
        {ONEDNN_QUERY_DIFF_DST, ONEDNN_QUERY_WEIGHTS, ONEDNN_QUERY_DIFF_SRC},
        {ONEDNN_QUERY_SRC, ONEDNN_QUERY_DIFF_DST, ONEDNN_QUERY_DIFF_WEIGHTS},
    };
    const void *ours[3][3] = {
        {all->x, all->weight, all->y}, {all->y, all->weight, all->x}, {all->x, all->y, all->weight}
    };
    OneDNNArgument arguments[4];
    const void *theirs[3], *result = ours[g->direction][2];
    int count = 3, direct;
    for (int i = 0; i < 3; i++) {
        theirs[i] = dnnl.primitive_desc_query_md(desc, queries[g->direction][i], 0);
        arguments[i].arg = args[g->direction][i];
    }
    for (int i = 0; i < 2; i++)
        CHECK(chain_input(chain, i, ours[g->direction][i], theirs[i], &arguments[i].memory));
    CHECK(chain_outer(chain, 2, result));
    direct = !g->add && dnnl.memory_desc_equal(result, theirs[2]);
    if (direct) arguments[2].memory = chain->outer[2];
    else CHECK(chain_inner(chain, theirs[2], &arguments[2].memory));
    if (g->bias) {
        CHECK(chain_outer(chain, 3, all->bias));
        arguments[3].arg = ONEDNN_ARG_BIAS;
        arguments[3].memory = chain->outer[3];
        count = 4;
    }
    CHECK(chain_stage(chain, desc, arguments, count));
    return direct ? 0 : chain_reorder(chain, theirs[2], arguments[2].memory, result, chain->outer[2], g->add);
}

static int chain_convolution(Chain *chain, const Geometry *g)
{
    Layouts all = {0};
    void *desc = NULL;
    int status = layouts_make(&all, g);
    if (!status) status = convolution_desc(g, &all, &desc);
    if (!status) {
        chain_name(chain, desc);
        status = convolution_stages(chain, g, &all, desc);
        dnnl.primitive_desc_destroy(desc);
    }
    layouts_free(&all);
    if (status) chain_free(chain);
    return status;
}

/* ---- matrix products -------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t m, k, n;
    int64_t a_rows, b_rows, b_columns, out_rows;    /* strides in elements; a and out have contiguous rows */
    int packed, add;                                /* packed: b is laid out as oneDNN prefers */
} Shape;

static int product_stages(Chain *pack, Chain *multiply, const Shape *s, void *const *descs, const void *desc)
{
    const void *theirs = dnnl.primitive_desc_query_md(desc, ONEDNN_QUERY_WEIGHTS, 0);
    chain_name(multiply, desc);
    CHECK(chain_outer(multiply, 0, descs[0]));
    CHECK(chain_outer(multiply, 1, theirs));
    CHECK(chain_outer(multiply, 2, descs[2]));
    const OneDNNArgument arguments[3] = {
        {ONEDNN_ARG_SRC, multiply->outer[0]}, {ONEDNN_ARG_WEIGHTS, multiply->outer[1]},
        {ONEDNN_ARG_DST, multiply->outer[2]},
    };
    CHECK(chain_stage(multiply, desc, arguments, 3));
    if (!s->packed) return 0;
    CHECK(chain_outer(pack, 0, descs[1]));
    CHECK(chain_outer(pack, 1, theirs));
    return chain_reorder(pack, descs[1], pack->outer[0], theirs, pack->outer[1], 0);
}

/* ``multiply``: argument 0 is a (m, k), 1 is b (k, n) or what ``pack`` has made of it, 2 is out (m, n). ``pack``: from b,
   argument 0, into argument 1. ``b_nbytes``: of b as ``multiply`` takes it. */
static int chain_product(Chain *pack, Chain *multiply, size_t *b_nbytes, const Shape *s)
{
    const int64_t dims[3][2] = {{s->m, s->k}, {s->k, s->n}, {s->m, s->n}};
    const int64_t strides[3][2] = {{s->a_rows, 1}, {s->b_rows, s->b_columns}, {s->out_rows, 1}};
    void *descs[4] = {NULL}, *attr = NULL, *desc = NULL;
    int status = 0;
    for (int i = 0; i < 3 && !status; i++)
        status = dnnl.memory_desc_create_with_strides(&descs[i], 2, dims[i], ONEDNN_F32, strides[i]);
    if (!status) status = any(&descs[3], 2, dims[1]);
    if (!status) status = attributes(s->add, &attr);
    if (!status) {
        status = dnnl.matmul_primitive_desc_create(
            &desc, engine, descs[0], descs[s->packed ? 3 : 1], NULL, descs[2], attr);
        dnnl.primitive_attr_destroy(attr);
    }
    if (!status) {
        *b_nbytes = dnnl.memory_desc_get_size(dnnl.primitive_desc_query_md(desc, ONEDNN_QUERY_WEIGHTS, 0));
        status = product_stages(pack, multiply, s, descs, desc);
        dnnl.primitive_desc_destroy(desc);
    }
    for (int i = 0; i < 4; i++) if (descs[i]) dnnl.memory_desc_destroy(descs[i]);
    if (status) { chain_free(pack); chain_free(multiply); }
    return status;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

/* Code that oneDNN generates for products uses the stack pointer as one more register for data. A signal that comes meanwhile has its
   handler write where that points: into the heap (a Ctrl-C during training then ended in "corrupted size vs. prev_size"; an alarm
   could change numbers). So signals wait until oneDNN returns. Threads that it starts inherit this and never take any. What the
   code itself causes is not held. */
static void signals_hold(sigset_t *before)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    sigset_t others;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&others, own[i]);
    pthread_sigmask(SIG_BLOCK, &others, before);
}

static void signals_release(const sigset_t *before) { pthread_sigmask(SIG_SETMASK, before, NULL); }

static int product_run(char transa, char transb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                       const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    sigset_t before;
    signals_hold(&before);
    int status = dnnl.sgemm(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    signals_release(&before);
    return status;
}

static int chain_execute(Chain *chain, char *block, void *const *arrays)
{
    if (block != chain->block) {
        for (int i = 0; i < chain->inner_count; i++)
            CHECK(dnnl.memory_set_data_handle(chain->inner[i], block + chain->offsets[i]));
        chain->block = block;
    }
    for (int i = 0; i < chain->outer_count; i++)
        if (chain->outer[i]) CHECK(dnnl.memory_set_data_handle(chain->outer[i], arrays[i]));
    for (int i = 0; i < chain->stage_count; i++) {
        Stage *stage = &chain->stages[i];
        CHECK(dnnl.primitive_execute(stage->primitive, stream, stage->count, stage->arguments));
    }
    return dnnl.stream_wait(stream);
}

/* ``block``: chain->nbytes bytes, aligned to ALIGNED. ``arrays``: one for each outer memory object. */
static int chain_run(Chain *chain, char *block, void *const *arrays)
{
    sigset_t before;
    signals_hold(&before);
    int status = chain_execute(chain, block, arrays);
    signals_release(&before);
    return status;
}

#endif
