/* Windows that slide over images. */
#ifndef TASKFLOW_LOOPS_WINDOWS_H
#define TASKFLOW_LOOPS_WINDOWS_H

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

#endif
