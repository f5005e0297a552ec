/* Patches of an image as the columns of a matrix, and back, for convolution as a matrix product. For one floating-point
   type (see native/loops/types.h).

   Columns are (channels, kernel height, kernel width, rows, Wo): the windows of the output rows from ``first_row`` on. */

#include "native/loops/windows.h"

INLINE void F(copy_row)(const T *from, Size stride, Size n, T *to)
{
    if (stride == 1) {
        memcpy(to, from, (size_t)n * sizeof(T));
    } else if (stride == 2) {
#pragma omp simd
        for (Size o = 0; o < n; o++) to[o] = from[2 * o];
    } else {
        for (Size o = 0; o < n; o++) to[o] = from[o * stride];
    }
}

INLINE void F(add_row)(const T *from, Size n, T *to, Size stride)
{
    if (stride == 1) {
#pragma omp simd
        for (Size o = 0; o < n; o++) to[o] += from[o];
    } else if (stride == 2) {
#pragma omp simd
        for (Size o = 0; o < n; o++) to[2 * o] += from[o];
    } else {
        for (Size o = 0; o < n; o++) to[o * stride] += from[o];
    }
}

LOOP void F(columns)(const Windows *w, Size first_row, Size rows, const T *x, T *out)
{
    const Size width = w->out[1];
    for (Size c = 0; c < w->planes; c++, x += w->size[0] * w->size[1])
        for (Size i = 0; i < w->kernel[0]; i++)
            for (Size j = 0; j < w->kernel[1]; j++) {
                const Size shift = j * w->dilation[1] - w->before[1];
                Size a, b;
                inside(shift, w->size[1], w->stride[1], width, &a, &b);
                for (Size row = 0; row < rows; row++, out += width) {
                    const Size y = (first_row + row) * w->stride[0] - w->before[0] + i * w->dilation[0];
                    if (y < 0 || y >= w->size[0] || a == b) {
                        memset(out, 0, (size_t)width * sizeof(T));
                        continue;
                    }
                    for (Size o = 0; o < a; o++) out[o] = 0;
                    F(copy_row)(x + y * w->size[1] + a * w->stride[1] + shift, w->stride[1], b - a, out + a);
                    for (Size o = b; o < width; o++) out[o] = 0;
                }
            }
}
#define any_columns(...) EITHER(columns, __VA_ARGS__)

/* out += what the columns saw of it. */
LOOP void F(add_columns)(const Windows *w, Size first_row, Size rows, const T *columns, T *out)
{
    const Size width = w->out[1];
    for (Size c = 0; c < w->planes; c++, out += w->size[0] * w->size[1])
        for (Size i = 0; i < w->kernel[0]; i++)
            for (Size j = 0; j < w->kernel[1]; j++) {
                const Size shift = j * w->dilation[1] - w->before[1];
                Size a, b;
                inside(shift, w->size[1], w->stride[1], width, &a, &b);
                for (Size row = 0; row < rows; row++, columns += width) {
                    const Size y = (first_row + row) * w->stride[0] - w->before[0] + i * w->dilation[0];
                    if (y >= 0 && y < w->size[0] && a < b)
                        F(add_row)(columns + a, b - a, out + y * w->size[1] + a * w->stride[1] + shift, w->stride[1]);
                }
            }
}
#define any_add_columns(...) EITHER(add_columns, __VA_ARGS__)
