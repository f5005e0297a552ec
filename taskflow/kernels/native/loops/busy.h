/* The loop of _busy.pyx. */
#ifndef TASKFLOW_LOOPS_BUSY_H
#define TASKFLOW_LOOPS_BUSY_H

#include "native/loops/base.h"

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
