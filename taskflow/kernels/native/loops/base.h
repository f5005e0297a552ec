/* What every header of loops starts from: how a loop is compiled, and names.

   Instruction sets: the default build is portable. With GCC 12 or later on x86-64 and glibc every loop is compiled
   three times (AVX-512, AVX2 + FMA, baseline) and the loader picks one by CPUID; other compilers get the baseline only.
   Sums over a row and fused multiply-adds round differently between these, so two kinds of CPU may differ in the last
   bits. The same machine always repeats its result bit for bit. */
#ifndef TASKFLOW_LOOPS_BASE_H
#define TASKFLOW_LOOPS_BASE_H

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

#define JOIN_(name, suffix) name##_##suffix
#define JOIN(name, suffix) JOIN_(name, suffix)
#define F(name) JOIN(name, SUFFIX)

/* One name for both types: the first argument says whether the arrays hold float. */
#define EITHER(kernel, single, ...) ((single) ? kernel##_f(__VA_ARGS__) : kernel##_d(__VA_ARGS__))

/* What the loops were compiled for. 3: AVX-512, 2: AVX2 and FMA, 1: baseline. */
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

#endif
