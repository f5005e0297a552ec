/* Parts of arrays, with any strides: copied, or added to. Parts of a cut array often have rows of a few numbers, at which
   general iterators spend several times what the numbers take. */
#ifndef TASKFLOW_LOOPS_PARTS_H
#define TASKFLOW_LOOPS_PARTS_H

#include "native/loops/base.h"

enum { PART_DIMS = 32 };

/* Two arrays of one shape: dimensions whose elements follow each other in both are one. At least one dimension; strides in
   elements, the last dimension's first in memory. */
typedef struct {
    int dims;
    Size size[PART_DIMS], from[PART_DIMS], to[PART_DIMS];
} Parts;

/* Of arrays of ``dims`` dimensions, with strides in bytes; 0 if it is empty. */
static int join_parts(Parts *p, int dims, const Size *size, const Size *from, const Size *to, Size item)
{
    p->dims = 0;
    for (int i = 0; i < dims; i++) {
        const Size a = from[i] / item, b = to[i] / item;
        const int last = p->dims - 1;
        if (size[i] == 0) return 0;
        if (size[i] == 1) continue;
        if (last >= 0 && p->from[last] == size[i] * a && p->to[last] == size[i] * b) {
            p->size[last] *= size[i], p->from[last] = a, p->to[last] = b;
            continue;
        }
        p->size[last + 1] = size[i], p->from[last + 1] = a, p->to[last + 1] = b;
        p->dims++;
    }
    if (p->dims == 0) p->dims = 1, p->size[0] = p->from[0] = p->to[0] = 1;
    return 1;
}

/* out = x, or out += x: the two inner dimensions in loops, the others counted. */
#define PARTS_LOOP(NAME, T, PUT)                                                                                   \
    LOOP void NAME(const Parts *p, const T *x, T *out)                                                             \
    {                                                                                                              \
        const int inner = p->dims - 1, second = p->dims - 2;                                                       \
        const Size n = p->size[inner], a = p->from[inner], b = p->to[inner];                                       \
        const Size rows = second >= 0 ? p->size[second] : 1;                                                       \
        const Size down = second >= 0 ? p->from[second] : 0, along = second >= 0 ? p->to[second] : 0;              \
        Size at[PART_DIMS] = {0};                                                                                  \
        for (;;) {                                                                                                 \
            const T *y = x;                                                                                        \
            T *z = out;                                                                                            \
            if (a == 1 && b == 1)                                                                                  \
                for (Size r = 0; r < rows; r++, y += down, z += along) {                                           \
                    _Pragma("omp simd") for (Size k = 0; k < n; k++) z[k] PUT y[k];                                \
                }                                                                                                  \
            else                                                                                                   \
                for (Size r = 0; r < rows; r++, y += down, z += along)                                             \
                    for (Size k = 0; k < n; k++) z[k * b] PUT y[k * a];                                            \
            int i = p->dims - 3;                                                                                   \
            for (; i >= 0; i--) {                                                                                  \
                x += p->from[i], out += p->to[i];                                                                  \
                if (++at[i] < p->size[i]) break;                                                                   \
                x -= at[i] * p->from[i], out -= at[i] * p->to[i], at[i] = 0;                                       \
            }                                                                                                      \
            if (i < 0) return;                                                                                     \
        }                                                                                                          \
    }

PARTS_LOOP(add_part_f, float, +=)
PARTS_LOOP(add_part_d, double, +=)
PARTS_LOOP(copy_part_4, uint32_t, =)
PARTS_LOOP(copy_part_8, uint64_t, =)

/* Elements of 4 or 8 bytes, whatever they mean. */
static void copy_part(const Parts *p, Size item, const void *x, void *out)
{
    if (p->dims == 1 && p->from[0] == 1 && p->to[0] == 1) memcpy(out, x, (size_t)(p->size[0] * item));
    else if (item == 4) copy_part_4(p, (const uint32_t *)x, (uint32_t *)out);
    else copy_part_8(p, (const uint64_t *)x, (uint64_t *)out);
}

static void add_part(const Parts *p, int single, const void *x, void *out)
{
    if (single) add_part_f(p, (const float *)x, (float *)out);
    else add_part_d(p, (const double *)x, (double *)out);
}

#endif
