/* Random numbers from Philox's words, and dropout. For one floating-point type (see native/loops/types.h). */
#include "native/loops/philox.h"

LOOP void F(uniform_from)(const uint32_t *words, Size n, T *out)
{
#pragma omp simd
    for (Size i = 0; i < n; i++) out[i] = UNIFORM(words[i]);
}

/* Box-Muller, in double: the words start at an even position. */
static void F(normal_from)(const uint32_t *words, Size pairs, T *out)
{
    for (Size i = 0; i < pairs; i++) {
        const double radius = sqrt(-2.0 * log1p(-(double)words[2 * i] * 0x1p-32));
        const double angle = 6.283185307179586477 * ((double)words[2 * i + 1] * 0x1p-32);
        out[2 * i] = (T)(radius * cos(angle));
        out[2 * i + 1] = (T)(radius * sin(angle));
    }
}

/* n numbers at consecutive positions of a stream; uniform or normal. */
static void F(random_row)(uint32_t key0, uint32_t key1, uint32_t stream, uint64_t position, Size n, int normal, T *out)
{
    enum { CHUNK = 4 * PHILOX_BLOCKS };
    uint32_t words[CHUNK];
    T numbers[CHUNK];
    while (n > 0) {
        const Size skip = (Size)(position & 3), count = n < CHUNK - skip ? n : CHUNK - skip;
        philox_words(key0, key1, stream, position >> 2, words);
        if (normal) {
            F(normal_from)(words, (skip + count + 1) / 2, numbers);
            memcpy(out, numbers + skip, (size_t)count * sizeof(T));
        } else
            F(uniform_from)(words + skip, count, out);
        position += (uint64_t)count;
        out += count;
        n -= count;
    }
}
#define any_random_row(...) EITHER(random_row, __VA_ARGS__)

/* Where the number of an element is at least p, out = x scale and mask = 1, else both are 0. */
LOOP void F(drop)(const uint32_t *words, Size n, T p, T scale, const T *x, T *out, uint8_t *mask)
{
#pragma omp simd
    for (Size i = 0; i < n; i++) {
        const int stays = UNIFORM(words[i]) >= p;
        mask[i] = (uint8_t)stays;
        out[i] = stays ? x[i] * scale : 0;
    }
}

/* n elements at consecutive positions of a stream. */
static void F(dropout_row)(uint32_t key0, uint32_t key1, uint32_t stream, uint64_t position, Size n, T p, T scale,
                           const T *x, T *out, uint8_t *mask)
{
    uint32_t words[4 * PHILOX_BLOCKS];
    while (n > 0) {
        const Size skip = (Size)(position & 3), room = 4 * PHILOX_BLOCKS - skip, count = n < room ? n : room;
        philox_words(key0, key1, stream, position >> 2, words);
        F(drop)(words + skip, count, p, scale, x, out, mask);
        position += (uint64_t)count;
        x += count;
        out += count;
        mask += count;
        n -= count;
    }
}
#define any_dropout_row(...) EITHER(dropout_row, __VA_ARGS__)

LOOP void F(dropout_backward)(Size n, T scale, const uint8_t *mask, const T *dy, T *out, int add)
{
    if (add) {
#pragma omp simd
        for (Size i = 0; i < n; i++) out[i] += mask[i] ? dy[i] * scale : 0;
    } else {
#pragma omp simd
        for (Size i = 0; i < n; i++) out[i] = mask[i] ? dy[i] * scale : 0;
    }
}
#define any_dropout_backward(...) EITHER(dropout_backward, __VA_ARGS__)
