/* The compiled loops: loops_template.h for float and for double, the Philox generator, the busy kernel.

   Instruction sets: the default build is portable. With GCC 12 or later on x86-64 and glibc every loop is compiled
   three times (AVX-512, AVX2 + FMA, baseline) and the loader picks one by CPUID; other compilers get the baseline only.
   Sums over a row and fused multiply-adds round differently between these, so two kinds of CPU may differ in the last
   bits. The same machine always repeats its result bit for bit. */
#ifndef TASKFLOW_NATIVE_LOOPS_H
#define TASKFLOW_NATIVE_LOOPS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(TASKFLOW_NO_CLONES) && defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) \
    && !defined(__clang__) && !defined(__INTEL_COMPILER) && __GNUC__ >= 12
#define TASKFLOW_CLONED 1
#define LOOP __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"))) static
#else
#define TASKFLOW_CLONED 0
#define LOOP static
#endif

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

typedef ptrdiff_t Size;

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

#define JOIN_(name, suffix) name##_##suffix
#define JOIN(name, suffix) JOIN_(name, suffix)
#define F(name) JOIN(name, SUFFIX)

#define T float
#define UNIFORM(word) ((float)(int32_t)((word) >> 8) * 0x1p-24f)
#define BITS uint32_t
#define SUFFIX f
#define MANTISSA 23
#define BIAS 127
#define ROUNDER 12582912.0f          /* 1.5 2^23: adding it rounds to an integer */
#define LOG2E 1.44269504088896341f
#define LN2_HIGH 0.693359375f        /* few bits: n LN2_HIGH is exact */
#define LN2_LOW -2.12194440e-4f
#define EXP_MOST 89.0f
#define EXP_LEAST -105.0f
#define TANH_MOST 10.0f
#define TERMS 7
#define FABS fabsf
#define COPYSIGN copysignf
#define SQRT sqrtf
#include "loops_template.h"
#undef T
#undef UNIFORM
#undef BITS
#undef SUFFIX
#undef MANTISSA
#undef BIAS
#undef ROUNDER
#undef LOG2E
#undef LN2_HIGH
#undef LN2_LOW
#undef EXP_MOST
#undef EXP_LEAST
#undef TANH_MOST
#undef TERMS
#undef FABS
#undef COPYSIGN
#undef SQRT

#define T double
#define UNIFORM(word) ((double)(word) * 0x1p-32)
#define BITS uint64_t
#define SUFFIX d
#define MANTISSA 52
#define BIAS 1023
#define ROUNDER 6755399441055744.0   /* 1.5 2^52 */
#define LOG2E 1.44269504088896340736
#define LN2_HIGH 6.93147180369123816490e-01
#define LN2_LOW 1.90821492927058770002e-10
#define EXP_MOST 711.0
#define EXP_LEAST -747.0
#define TANH_MOST 20.0
#define TERMS 13
#define FABS fabs
#define COPYSIGN copysign
#define SQRT sqrt
#include "loops_template.h"
#undef T
#undef UNIFORM
#undef BITS
#undef SUFFIX

/* ---- one name for both types: the first argument says whether the arrays hold float ----------------------------- */

#define EITHER(kernel, single, ...) ((single) ? kernel##_f(__VA_ARGS__) : kernel##_d(__VA_ARGS__))
#define any_exp(...) EITHER(exp_all, __VA_ARGS__)
#define any_sigmoid(...) EITHER(sigmoid_all, __VA_ARGS__)
#define any_tanh(...) EITHER(tanh_all, __VA_ARGS__)
#define any_lstm_cell(...) EITHER(lstm_cell, __VA_ARGS__)
#define any_lstm_cell_backward(...) EITHER(lstm_cell_backward, __VA_ARGS__)
#define any_softmax(...) EITHER(softmax, __VA_ARGS__)
#define any_softmax_backward(...) EITHER(softmax_backward, __VA_ARGS__)
#define any_cross_entropy(...) EITHER(cross_entropy, __VA_ARGS__)
#define any_cross_entropy_backward(...) EITHER(cross_entropy_backward, __VA_ARGS__)
#define any_embedding(...) EITHER(embedding, __VA_ARGS__)
#define any_embedding_backward(...) EITHER(embedding_backward, __VA_ARGS__)
#define any_sum_rows(...) EITHER(sum_rows, __VA_ARGS__)
#define any_sum_of_squares(...) EITHER(sum_of_squares, __VA_ARGS__)
#define any_sgd(...) EITHER(sgd, __VA_ARGS__)
#define any_adam(...) EITHER(adam, __VA_ARGS__)
#define any_random_row(...) EITHER(random_row, __VA_ARGS__)
#define any_skinny_nt(...) EITHER(skinny_nt, __VA_ARGS__)
#define any_skinny_nn(...) EITHER(skinny_nn, __VA_ARGS__)
#define any_gemm(...) EITHER(gemm, __VA_ARGS__)

/* ---- what the loops were compiled for --------------------------------------------------------------------------- */

/* 3: AVX-512, 2: AVX2 and FMA, 1: baseline. */
static int instruction_level(void)
{
#if TASKFLOW_CLONED
    __builtin_cpu_init();
    return __builtin_cpu_supports("x86-64-v4") ? 3 : __builtin_cpu_supports("x86-64-v3") ? 2 : 1;
#elif defined(__AVX512F__)
    return 3;
#elif defined(__AVX2__) && defined(__FMA__)
    return 2;
#else
    return 1;
#endif
}

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
