/* Philox 4x32-10, the counter-based generator of Salmon et al., SC 2011. */
#ifndef TASKFLOW_LOOPS_PHILOX_H
#define TASKFLOW_LOOPS_PHILOX_H

#include "native/loops/base.h"

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

#endif
