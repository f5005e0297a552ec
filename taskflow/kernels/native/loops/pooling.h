/* Pooling of planes. For one floating-point type (see native/loops/types.h). Windows of a row are taken in chunks: first all that
   their columns hold is combined over the rows of the kernel, into a buffer that stays in the first-level cache, then
   the buffer over the columns of the kernel. Outside of the image the buffer holds what has no influence, so borders are
   no special case. */

#include "native/loops/windows.h"

enum { F(CHUNK) = 256, F(SPAN) = 2048 };

/* A chunk of windows of one row, and where its columns lie in the image. */
typedef struct {
    Size from, count, span;  /* first window, windows, columns that they reach over */
    Size low;                /* the first of these columns, maybe before the image */
    Size first, stop;        /* of the columns, those inside of the image */
} F(Chunk);

INLINE F(Chunk) F(chunk)(const Windows *w, Size from)
{
    const Size reach = (w->kernel[1] - 1) * w->dilation[1] + 1, fits = (F(SPAN) - reach) / w->stride[1] + 1;
    const Size most = fits < F(CHUNK) ? fits : F(CHUNK);
    F(Chunk) c;
    c.from = from;
    c.count = w->out[1] - from < most ? w->out[1] - from : most;
    c.span = (c.count - 1) * w->stride[1] + reach;
    c.low = from * w->stride[1] - w->before[1];
    c.first = c.low < 0 ? -c.low : 0;
    c.stop = c.low + c.span > w->size[1] ? w->size[1] - c.low : c.span;
    if (c.first > c.span) c.first = c.span;
    if (c.stop < c.first) c.stop = c.first;
    return c;
}

/* ---- the largest element ---------------------------------------------------------------------------------------- */

/* `max_rows` of three. */
INLINE void F(max_three_rows)(const T *x, Size pitch, Size n, BITS start, T *most, BITS *row)
{
#pragma omp simd
    for (Size p = 0; p < n; p++) {
        const T a = x[p], b = x[pitch + p], c = x[2 * pitch + p];
        const int second = (b > a) | (b != b);
        const T two = second ? b : a;
        const BITS at = second ? start + 1 : a == -INFINITY ? 0 : start;
        const int third = (c > two) | (c != c);
        most[p] = third ? c : two;
        row[p] = third ? start + 2 : at;
    }
}

/* The largest of each column, and in which row of the kernel it was; minus infinity in row 0 where there is none. The
   first of equals wins, and any NaN. */
INLINE void F(max_rows)(const T *x, Size pitch, Size first, Size stop, Size n, T *most, BITS *row)
{
    const BITS start = (BITS)first;
    if (first >= stop) {
        for (Size p = 0; p < n; p++) most[p] = -INFINITY, row[p] = 0;
        return;
    }
    if (stop == first + 3) {
        /* Whole vectors; the last may overlap the one before, since single steps would guess branches wrong. */
        const Size whole = n / 16 * 16, last = n - 16;
        F(max_three_rows)(x, pitch, whole ? whole : n, start, most, row);
        if (whole && whole < n) F(max_three_rows)(x + last, pitch, 16, start, most + last, row + last);
        return;
    }
#pragma omp simd
    for (Size p = 0; p < n; p++) {
        const T v = x[p];
        most[p] = v;
        row[p] = v == -INFINITY ? 0 : start;
    }
    for (Size i = first + 1; i < stop; i++) {
        const T *from = x + (i - first) * pitch;
        const BITS number = (BITS)i;
#pragma omp simd
        for (Size p = 0; p < n; p++) {
            const T v = from[p];
            const int better = (v > most[p]) | (v != v);
            most[p] = better ? v : most[p];
            row[p] = better ? number : row[p];
        }
    }
}

/* v, of column j of the kernel and row r, against the best until now: of equals the one with the lower number wins, and any
   NaN (asking which of several would need masks that GCC 12 does not select from, and leave the loops scalar). */
#define TAKE(value, in_row, j) \
    do { \
        const T v = (value); \
        const BITS number = (in_row) * width + (j); \
        const int better = (v > most) | ((v == most) & (number < which)) | (v != v); \
        most = better ? v : most; \
        which = better ? number : which; \
    } while (0)

/* The largest of three columns (of two, if the third is the second again). */
INLINE void F(max_three)(const T *a, const T *b, const T *c, const BITS *ra, const BITS *rb, const BITS *rc, Size n,
                         BITS width, T *best, BITS *where)
{
#pragma omp simd
    for (Size o = 0; o < n; o++) {
        T most = a[o];
        BITS which = ra[o] * width;
        TAKE(b[o], rb[o], 1);
        if (width == 3) TAKE(c[o], rc[o], 2);
        best[o] = most;
        where[o] = which;
    }
}

/* One more column, ``stride`` apart from window to window. */
INLINE void F(max_column)(const T *column, const BITS *row, Size stride, Size n, BITS width, BITS j, T *best, BITS *where)
{
#pragma omp simd
    for (Size o = 0; o < n; o++) {
        T most = best[o];
        BITS which = where[o];
        TAKE(column[o * stride], row[o * stride], j);
        best[o] = most;
        where[o] = which;
    }
}
#undef TAKE

/* The largest of each window over its columns. ``even`` and ``odd`` have room for the halves of most and row. */
INLINE void F(max_columns)(const Windows *w, Size n, const T *most, const BITS *row, T *even, T *odd, BITS *even_row,
                           BITS *odd_row, T *best, BITS *where)
{
    const Size stride = w->stride[1], step = w->dilation[1], width = w->kernel[1];
    if (step == 1 && stride == 1 && width == 3) {
        F(max_three)(most, most + 1, most + 2, row, row + 1, row + 2, n, 3, best, where);
    } else if (step == 1 && stride == 1 && width == 2) {
        F(max_three)(most, most + 1, most + 1, row, row + 1, row + 1, n, 2, best, where);
    } else if (step == 1 && stride == 2 && (width == 2 || width == 3)) {
#pragma omp simd
        for (Size o = 0; o <= n; o++) even[o] = most[2 * o], odd[o] = most[2 * o + 1];
#pragma omp simd
        for (Size o = 0; o <= n; o++) even_row[o] = row[2 * o], odd_row[o] = row[2 * o + 1];
        if (width == 3) F(max_three)(even, odd, even + 1, even_row, odd_row, even_row + 1, n, 3, best, where);
        else F(max_three)(even, odd, odd, even_row, odd_row, odd_row, n, 2, best, where);
    } else {
        for (Size o = 0; o < n; o++) best[o] = most[o * stride], where[o] = row[o * stride] * (BITS)width;
        for (Size j = 1; j < width; j++)
            F(max_column)(most + j * step, row + j * step, stride, n, (BITS)width, (BITS)j, best, where);
    }
}

/* Windows too wide for the buffer, one by one. */
INLINE void F(max_wide)(const Windows *w, const T *x, Size row, Size column, T *best, BITS *where)
{
    Size first, stop, a, b;
    seen(w, 0, row, &first, &stop);
    seen(w, 1, column, &a, &b);
    *best = -INFINITY;
    *where = 0;
    for (Size i = first; i < stop; i++)
        for (Size j = a; j < b; j++) {
            const T v = x[(row * w->stride[0] - w->before[0] + i * w->dilation[0]) * w->size[1]
                          + column * w->stride[1] - w->before[1] + j * w->dilation[1]];
            if (v > *best || v != v) *best = v, *where = (BITS)(i * w->kernel[1] + j);
        }
}

INLINE void F(put_index)(const BITS *where, Size n, int bytes, char *index)
{
    if (bytes == 1) {
#pragma omp simd
        for (Size o = 0; o < n; o++) ((uint8_t *)index)[o] = (uint8_t)where[o];
    } else if (bytes == 2) {
#pragma omp simd
        for (Size o = 0; o < n; o++) ((uint16_t *)index)[o] = (uint16_t)where[o];
    } else
        for (Size o = 0; o < n; o++) ((uint32_t *)index)[o] = (uint32_t)where[o];
}

LOOP void F(max_pool)(const Windows *w, const T *x, T *out, char *index, int bytes)
{
    enum { SLACK = 64 };  /* whole vectors of windows are computed, so that no loop ends in single steps */
    T most[F(SPAN) + SLACK], even[F(CHUNK) + SLACK], odd[F(CHUNK) + SLACK], best[F(CHUNK) + SLACK];
    BITS rows[F(SPAN) + SLACK], even_row[F(CHUNK) + SLACK], odd_row[F(CHUNK) + SLACK], where[F(CHUNK) + SLACK];
    const Size pitch = w->size[1], width = w->out[1];
    const int wide = (w->kernel[1] - 1) * w->dilation[1] >= F(SPAN) / 2;
    memset(most, 0, sizeof most);
    memset(rows, 0, sizeof rows);
    for (Size plane = 0; plane < w->planes; plane++, x += w->size[0] * pitch)
        for (Size row = 0; row < w->out[0]; row++) {
            Size first, stop;
            seen(w, 0, row, &first, &stop);
            const T *start = x + (row * w->stride[0] - w->before[0] + first * w->dilation[0]) * pitch;
            for (Size from = 0; from < width;) {
                Size n = 1;
                if (wide) {
                    F(max_wide)(w, x, row, from, best, where);
                } else {
                    const F(Chunk) c = F(chunk)(w, from);
                    n = c.count;
                    for (Size p = 0; p < c.first; p++) most[p] = -INFINITY, rows[p] = 0;
                    F(max_rows)(start + c.low + c.first, pitch * w->dilation[0], first, stop, c.stop - c.first,
                                most + c.first, rows + c.first);
                    for (Size p = c.stop; p < c.span; p++) most[p] = -INFINITY, rows[p] = 0;
                    F(max_columns)(w, w->stride[1] <= 2 ? (n + 15) / 16 * 16 : n, most, rows, even, odd, even_row,
                                   odd_row, best, where);
                }
                memcpy(out, best, (size_t)n * sizeof(T));
                F(put_index)(where, n, bytes, index);
                from += n;
                out += n;
                index += n * bytes;
            }
        }
}
#define any_max_pool(...) EITHER(max_pool, __VA_ARGS__)

/* The gradient of window (row, column), if the element lies inside of the image. */
INLINE void F(pass_back)(const Windows *w, Size row, Size column, Size number, T dy, T *out)
{
    const Size y = row * w->stride[0] - w->before[0] + number / w->kernel[1] * w->dilation[0];
    const Size x = column * w->stride[1] - w->before[1] + number % w->kernel[1] * w->dilation[1];
    if (y >= 0 && y < w->size[0] && x >= 0 && x < w->size[1]) out[y * w->size[1] + x] += dy;
}

LOOP void F(max_pool_backward)(const Windows *w, const T *dy, const void *index, int bytes, T *out, int add)
{
    const Size pitch = w->size[1], area = w->size[0] * pitch, width = w->out[1], step = w->stride[1];
    Size shift[256], top, bottom, left, right;
    for (Size k = 0; k < 256; k++)  /* indices beyond the kernel, which nobody writes, go to its first element */
        shift[k] = k < w->kernel[0] * w->kernel[1]
                       ? k / w->kernel[1] * w->dilation[0] * pitch + k % w->kernel[1] * w->dilation[1] : 0;
    interior(w, 0, &top, &bottom);
    interior(w, 1, &left, &right);
    Size at = 0;
    for (Size plane = 0; plane < w->planes; plane++, out += area) {
        if (!add) memset(out, 0, (size_t)area * sizeof(T));
        for (Size row = 0; row < w->out[0]; row++, at += width, dy += width) {
            const int quick = bytes == 1 && row >= top && row < bottom;
            const Size a = quick ? left : 0, b = quick ? right : 0;
            const uint8_t *which = (const uint8_t *)index + at;
            T *to = out + (row * w->stride[0] - w->before[0]) * pitch - w->before[1];
            for (Size o = 0; o < a; o++) F(pass_back)(w, row, o, index_at(index, bytes, at + o), dy[o], out);
            for (Size o = a; o < b; o++) to[o * step + shift[which[o]]] += dy[o];
            for (Size o = b; o < width; o++) F(pass_back)(w, row, o, index_at(index, bytes, at + o), dy[o], out);
        }
    }
}
#define any_max_pool_backward(...) EITHER(max_pool_backward, __VA_ARGS__)

#include "native/loops/sum_pooling.h"
