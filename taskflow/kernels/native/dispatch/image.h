/* The compiled loops of _images.pyx: pooling, patches as columns, normalisation of channels; for float and for double. */
#ifndef TASKFLOW_IMAGE_LOOPS_H
#define TASKFLOW_IMAGE_LOOPS_H

#include "native/loops/base.h"

/* How windows slide over images: everything first of the height, then of the width. Window (y, x) sees the positions
   y stride - before + dilation i, x stride - before + dilation j. */
typedef struct {
    Size planes;          /* images times channels */
    Size size[2];         /* of an image */
    Size out[2];          /* windows */
    Size kernel[2], stride[2], before[2], dilation[2];
} Windows;

/* Outputs first:stop see positions inside of 0:size at ``offset`` from o stride. */
INLINE void inside(Size offset, Size size, Size stride, Size outputs, Size *first, Size *stop)
{
    const Size a = offset < 0 ? (stride - 1 - offset) / stride : 0;
    const Size b = size > offset ? (size - 1 - offset) / stride + 1 : 0;
    *stop = b < outputs ? b : outputs;
    *first = a < *stop ? a : *stop;
}

/* Elements first:stop of the kernel that window o has inside of the image, along dimension d. */
INLINE void seen(const Windows *w, int d, Size o, Size *first, Size *stop)
{
    inside(o * w->stride[d] - w->before[d], w->size[d], w->dilation[d], w->kernel[d], first, stop);
}

/* Windows first:stop lie inside of the image with all their elements, along dimension d. */
INLINE void interior(const Windows *w, int d, Size *first, Size *stop)
{
    Size low, high, other;
    inside(-w->before[d], w->size[d], w->stride[d], w->out[d], &low, &other);
    inside((w->kernel[d] - 1) * w->dilation[d] - w->before[d], w->size[d], w->stride[d], w->out[d], &other, &high);
    *stop = high;
    *first = low < high ? low : high;
}

/* Which element of its window was largest: 1, 2 or 4 bytes. */
INLINE Size index_at(const void *index, int bytes, Size at)
{
    return bytes == 1 ? ((const uint8_t *)index)[at] : bytes == 2 ? ((const uint16_t *)index)[at]
                                                                  : (Size)((const uint32_t *)index)[at];
}

#define LOOPS "native/loops/images.h"
#include "native/loops/types.h"

#define any_max_pool(...) EITHER(max_pool, __VA_ARGS__)
#define any_max_pool_backward(...) EITHER(max_pool_backward, __VA_ARGS__)
#define any_sum_pool(...) EITHER(sum_pool, __VA_ARGS__)
#define any_sum_pool_backward(...) EITHER(sum_pool_backward, __VA_ARGS__)
#define any_columns(...) EITHER(columns, __VA_ARGS__)
#define any_add_columns(...) EITHER(add_columns, __VA_ARGS__)
#define any_channel_sums(...) EITHER(channel_sums, __VA_ARGS__)
#define any_channel_moments(...) EITHER(channel_moments, __VA_ARGS__)
#define any_channel_products(...) EITHER(channel_products, __VA_ARGS__)
#define any_channel_affine(...) EITHER(channel_affine, __VA_ARGS__)
#define any_channel_scales(...) EITHER(channel_scales, __VA_ARGS__)
#define any_channel_changes(...) EITHER(channel_changes, __VA_ARGS__)
#define any_channel_running(...) EITHER(channel_running, __VA_ARGS__)

#endif
