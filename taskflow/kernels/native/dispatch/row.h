/* The compiled loops of _native.pyx: rows, update rules and random numbers for float and for double,
   the Philox generator, the busy kernel. */
#ifndef TASKFLOW_NATIVE_LOOPS_H
#define TASKFLOW_NATIVE_LOOPS_H

#include "native/loops/base.h"
#include "native/loops/parts.h"

/* ---- Philox 4x32-10 --------------------------------------------------------------------------------------------- */

enum { PHILOX_BLOCKS = 64 };

/* words[4 b + j]: word j of the counter (first + b, stream, 0). */
LOOP void philox_words(uint32_t key0, uint32_t key1, uint32_t stream, uint64_t first, uint32_t *words)
{
#pragma omp simd
    for (int b = 0; b < PHILOX_BLOCKS; b++) {
        uint64_t block = first + (uint64_t)b;
        uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = stream, c3 = 0, k0 = key0, k1 = key1;
#pragma GCC unroll 10
        for (int round = 0; round < 10; round++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
            c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
            c1 = (uint32_t)p1;
            c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
            c3 = (uint32_t)p0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        words[4 * b] = c0;
        words[4 * b + 1] = c1;
        words[4 * b + 2] = c2;
        words[4 * b + 3] = c3;
    }
}

#define LOOPS "native/loops/native.h"
#include "native/loops/types.h"

#define any_exp(...) EITHER(exp_all, __VA_ARGS__)
#define any_sigmoid(...) EITHER(sigmoid_all, __VA_ARGS__)
#define any_tanh(...) EITHER(tanh_all, __VA_ARGS__)
#define any_lstm_cell(...) EITHER(lstm_cell, __VA_ARGS__)
#define any_lstm_cell_backward(...) EITHER(lstm_cell_backward, __VA_ARGS__)
#define any_embedding(...) EITHER(embedding, __VA_ARGS__)
#define any_embedding_backward(...) EITHER(embedding_backward, __VA_ARGS__)
#define any_sum_rows(...) EITHER(sum_rows, __VA_ARGS__)
#define any_sum_of_squares(...) EITHER(sum_of_squares, __VA_ARGS__)
#define any_sgd(...) EITHER(sgd, __VA_ARGS__)
#define any_adam(...) EITHER(adam, __VA_ARGS__)
#define any_random_row(...) EITHER(random_row, __VA_ARGS__)
#define any_dropout_row(...) EITHER(dropout_row, __VA_ARGS__)
#define any_dropout_backward(...) EITHER(dropout_backward, __VA_ARGS__)

/* Task Bench's compute-bound kernel: 64 multiply-adds (128 flops) an iteration. The start values keep every number in
   (-1, 0) for ever, so there is neither overflow nor a denormal. */
LOOP double busy_loop(Size iterations)
{
    double a[64], sum = 0;
    for (int j = 0; j < 64; j++) a[j] = -0.5 - j / 256.0;
    for (Size i = 0; i < iterations; i++)
#pragma omp simd
        for (int j = 0; j < 64; j++) a[j] = a[j] * a[j] + a[j];
    for (int j = 0; j < 64; j++) sum += a[j];
    return sum;
}

#endif
