/* Pooling of planes. For one floating-point type (see loops_types.h). Rows of windows are taken in chunks whose state
   stays in the first-level cache. */

enum { F(CHUNK) = 256, F(SPAN) = 2048 };

/* ---- the largest element ---------------------------------------------------------------------------------------- */

/* A NaN always wins, as in the reference. */
#define TAKE(value, number) \
    do { \
        const T v = (value); \
        const int better = (v > most) | (v != v); \
        most = better ? v : most; \
        which = better ? (BITS)(number) : which; \
    } while (0)

/* Windows of size x size, stride step, all inside, their rows ``pitch`` apart. Called with constants. */
INLINE void F(max_square)(const T *x, Size pitch, Size n, int size, int step, T *best, BITS *where)
{
    const T *x1 = x + pitch, *x2 = size > 2 ? x1 + pitch : x1;
#pragma omp simd
    for (Size o = 0; o < n; o++) {
        const Size at = o * step;
        T most = x[at];
        BITS which = 0;
        TAKE(x[at + 1], 1);
        if (size == 3) TAKE(x[at + 2], 2);
        TAKE(x1[at], size);
        TAKE(x1[at + 1], size + 1);
        if (size == 3) {
            TAKE(x1[at + 2], 5);
            TAKE(x2[at], 6);
            TAKE(x2[at + 1], 7);
            TAKE(x2[at + 2], 8);
        }
        best[o] = most;
        where[o] = which;
    }
}

/* One element of every window's kernel. Called with constant strides where they are usual. */
INLINE void F(max_element)(const T *x, Size stride, Size n, BITS number, T *best, BITS *where)
{
#pragma omp simd
    for (Size o = 0; o < n; o++) {
        T most = best[o];
        BITS which = where[o];
        TAKE(x[o * stride], number);
        best[o] = most;
        where[o] = which;
    }
}
#undef TAKE

/* Windows from:to of row ``row``, wherever they lie. */
INLINE void F(max_any)(const Windows *w, const T *x, Size row, Size from, Size to, T *best, BITS *where)
{
    Size first, stop;
    for (Size o = 0; o < to - from; o++) best[o] = -INFINITY, where[o] = 0;
    seen(w, 0, row, &first, &stop);
    for (Size i = first; i < stop; i++)
        for (Size j = 0; j < w->kernel[1]; j++) {
            const Size shift = j * w->dilation[1] - w->before[1];
            Size a, b;
            inside(shift, w->size[1], w->stride[1], w->out[1], &a, &b);
            a = a > from ? a : from;
            b = b < to ? b : to;
            if (a >= b) continue;
            const T *start = x + (row * w->stride[0] - w->before[0] + i * w->dilation[0]) * w->size[1]
                             + a * w->stride[1] + shift;
            const BITS number = (BITS)(i * w->kernel[1] + j);
            if (w->stride[1] == 1) F(max_element)(start, 1, b - a, number, best + a - from, where + a - from);
            else if (w->stride[1] == 2) F(max_element)(start, 2, b - a, number, best + a - from, where + a - from);
            else F(max_element)(start, w->stride[1], b - a, number, best + a - from, where + a - from);
        }
}

/* One window of an undilated kernel, by itself. */
INLINE T F(max_one)(const Windows *w, const T *x, Size row, Size column, BITS *where)
{
    const Size y = row * w->stride[0] - w->before[0], z = column * w->stride[1] - w->before[1];
    T most = -INFINITY;
    *where = 0;
    for (Size i = y < 0 ? -y : 0; i < w->kernel[0] && y + i < w->size[0]; i++)
        for (Size j = z < 0 ? -z : 0; j < w->kernel[1] && z + j < w->size[1]; j++) {
            const T v = x[(y + i) * w->size[1] + z + j];
            if (v > most || v != v) most = v, *where = (BITS)(i * w->kernel[1] + j);
        }
    return most;
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
    BITS where[F(CHUNK)];
    const Size pitch = w->size[1], step = w->stride[1], width = w->out[1], size = w->kernel[0];
    const int quick = size == w->kernel[1] && (size == 2 || size == 3) && (step == 1 || step == 2) && w->dilation[0] == 1
                      && w->dilation[1] == 1;
    Size top, bottom, left, right;
    interior(w, 0, &top, &bottom);
    interior(w, 1, &left, &right);
    for (Size plane = 0; plane < w->planes; plane++, x += w->size[0] * pitch)
        for (Size row = 0; row < w->out[0]; row++)
            for (Size from = 0; from < width; from += F(CHUNK)) {
                const Size to = width - from < F(CHUNK) ? width : from + F(CHUNK), n = to - from;
                if (quick && row >= top && row < bottom) {
                    const Size a = left < from ? from : left < to ? left : to, b = right < a ? a : right < to ? right : to;
                    const T *start = x + (row * w->stride[0] - w->before[0]) * pitch + a * step - w->before[1];
                    for (Size o = from; o < a; o++) out[o - from] = F(max_one)(w, x, row, o, where + o - from);
                    T *best = out + (a - from);
                    BITS *which = where + (a - from);
                    if (size == 2 && step == 2) F(max_square)(start, pitch, b - a, 2, 2, best, which);
                    else if (size == 2) F(max_square)(start, pitch, b - a, 2, 1, best, which);
                    else if (step == 2) F(max_square)(start, pitch, b - a, 3, 2, best, which);
                    else F(max_square)(start, pitch, b - a, 3, 1, best, which);
                    for (Size o = b; o < to; o++) out[o - from] = F(max_one)(w, x, row, o, where + o - from);
                } else
                    F(max_any)(w, x, row, from, to, out, where);
                F(put_index)(where, n, bytes, index);
                out += n;
                index += n * bytes;
            }
}

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

/* ---- sums: columns first, then rows; kernels are not dilated ------------------------------------------------------ */

/* A chunk of windows of one row, and where its columns lie in the image. */
typedef struct {
    Size from, count, span;  /* first window, windows, columns that they see */
    Size low;                /* the first of these columns, maybe before the image */
    Size first, stop;        /* of the columns, those inside of the image */
} F(Chunk);

INLINE F(Chunk) F(chunk)(const Windows *w, Size from)
{
    const Size fits = (F(SPAN) - w->kernel[1]) / w->stride[1] + 1, most = fits < F(CHUNK) ? fits : F(CHUNK);
    F(Chunk) c;
    c.from = from;
    c.count = w->out[1] - from < most ? w->out[1] - from : most;
    c.span = (c.count - 1) * w->stride[1] + w->kernel[1];
    c.low = from * w->stride[1] - w->before[1];
    c.first = c.low < 0 ? -c.low : 0;
    c.stop = c.low + c.span > w->size[1] ? w->size[1] - c.low : c.span;
    if (c.first > c.span) c.first = c.span;
    if (c.stop < c.first) c.stop = c.first;
    return c;
}

/* sums[p] = the sum of n rows, ``pitch`` apart. */
INLINE void F(add_rows)(const T *x, Size pitch, Size n, Size width, T *sums)
{
    Size i = 0;
    if (n >= 3) {
#pragma omp simd
        for (Size p = 0; p < width; p++) sums[p] = (x[p] + x[pitch + p]) + x[2 * pitch + p];
        i = 3;
    } else
        memset(sums, 0, (size_t)width * sizeof(T));
    for (; i < n; i++) {
        const T *from = x + i * pitch;
#pragma omp simd
        for (Size p = 0; p < width; p++) sums[p] += from[p];
    }
}

/* out[o] = scale[o] times the sum of ``kernel`` columns. Called with constant strides where they are usual. */
INLINE void F(add_windows)(const T *sums, Size kernel, Size stride, Size n, const T *scale, T *out)
{
    if (kernel == 3) {
#pragma omp simd
        for (Size o = 0; o < n; o++)
            out[o] = ((sums[o * stride] + sums[o * stride + 1]) + sums[o * stride + 2]) * scale[o];
        return;
    }
    for (Size o = 0; o < n; o++) out[o] = sums[o * stride];
    for (Size j = 1; j < kernel; j++) {
#pragma omp simd
        for (Size o = 0; o < n; o++) out[o] += sums[o * stride + j];
    }
#pragma omp simd
    for (Size o = 0; o < n; o++) out[o] *= scale[o];
}

/* One sum over whole rows. */
INLINE T F(add_up)(const T *x, Size n)
{
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (Size p = 0; p < n; p++) sum += x[p];
    return sum;
}

/* Windows of whole rows (global pooling) or too wide for the buffer, one by one. */
INLINE void F(sum_wide)(const Windows *w, const T *x, Size row, const T *scale, T *out)
{
    Size first, stop, a, b;
    seen(w, 0, row, &first, &stop);
    const T *start = x + (row * w->stride[0] - w->before[0] + first) * w->size[1];
    for (Size o = 0; o < w->out[1]; o++) {
        seen(w, 1, o, &a, &b);
        const T *from = start + o * w->stride[1] - w->before[1] + a;
        T sum = 0;
        if (b - a == w->size[1]) sum = F(add_up)(from, (stop - first) * w->size[1]);
        else for (Size i = first; i < stop; i++, from += w->size[1]) sum += F(add_up)(from, b - a);
        out[o] = sum * scale[o];
    }
}

LOOP void F(sum_pool)(const Windows *w, const T *x, const T *scale, T *out)
{
    T sums[F(SPAN)];
    const int wide = w->kernel[1] > F(SPAN) / 2 || w->out[1] == 1;
    for (Size plane = 0; plane < w->planes; plane++, x += w->size[0] * w->size[1])
        for (Size row = 0; row < w->out[0]; row++, out += w->out[1]) {
            const T *factor = scale + row * w->out[1];
            if (wide) {
                F(sum_wide)(w, x, row, factor, out);
                continue;
            }
            Size first, stop;
            seen(w, 0, row, &first, &stop);
            const T *start = x + (row * w->stride[0] - w->before[0] + first) * w->size[1];
            for (Size from = 0; from < w->out[1];) {
                const F(Chunk) c = F(chunk)(w, from);
                for (Size p = 0; p < c.first; p++) sums[p] = 0;
                F(add_rows)(start + c.low + c.first, w->size[1], stop - first, c.stop - c.first, sums + c.first);
                for (Size p = c.stop; p < c.span; p++) sums[p] = 0;
                if (w->stride[1] == 1) F(add_windows)(sums, w->kernel[1], 1, c.count, factor + from, out + from);
                else if (w->stride[1] == 2) F(add_windows)(sums, w->kernel[1], 2, c.count, factor + from, out + from);
                else F(add_windows)(sums, w->kernel[1], w->stride[1], c.count, factor + from, out + from);
                from += c.count;
            }
        }
}

/* sums[o stride + j] += share[o] for each element j of the kernel. */
INLINE void F(spread)(const T *share, Size kernel, Size stride, Size n, T *sums)
{
    for (Size j = 0; j < kernel; j++) {
#pragma omp simd
        for (Size o = 0; o < n; o++) sums[o * stride + j] += share[o];
    }
}

INLINE void F(sum_wide_backward)(const Windows *w, const T *dy, Size row, const T *scale, T *out)
{
    Size first, stop, a, b;
    seen(w, 0, row, &first, &stop);
    T *start = out + (row * w->stride[0] - w->before[0] + first) * w->size[1];
    for (Size o = 0; o < w->out[1]; o++) {
        seen(w, 1, o, &a, &b);
        const T share = dy[o] * scale[o];
        T *to = start + o * w->stride[1] - w->before[1] + a;
        const Size whole = b - a == w->size[1], runs = whole ? 1 : stop - first;
        const Size length = whole ? (stop - first) * w->size[1] : b - a;
        for (Size i = 0; i < runs; i++, to += w->size[1]) {
#pragma omp simd
            for (Size p = 0; p < length; p++) to[p] += share;
        }
    }
}

LOOP void F(sum_pool_backward)(const Windows *w, const T *dy, const T *scale, T *out, int add)
{
    T sums[F(SPAN)], share[F(CHUNK)];
    const Size area = w->size[0] * w->size[1];
    const int wide = w->kernel[1] > F(SPAN) / 2 || w->out[1] == 1;
    for (Size plane = 0; plane < w->planes; plane++, out += area) {
        if (!add) memset(out, 0, (size_t)area * sizeof(T));
        for (Size row = 0; row < w->out[0]; row++, dy += w->out[1]) {
            const T *factor = scale + row * w->out[1];
            if (wide) {
                F(sum_wide_backward)(w, dy, row, factor, out);
                continue;
            }
            Size first, stop;
            seen(w, 0, row, &first, &stop);
            T *start = out + (row * w->stride[0] - w->before[0] + first) * w->size[1];
            for (Size from = 0; from < w->out[1];) {
                const F(Chunk) c = F(chunk)(w, from);
                memset(sums, 0, (size_t)c.span * sizeof(T));
#pragma omp simd
                for (Size o = 0; o < c.count; o++) share[o] = dy[from + o] * factor[from + o];
                if (w->stride[1] == 1) F(spread)(share, w->kernel[1], 1, c.count, sums);
                else F(spread)(share, w->kernel[1], w->stride[1], c.count, sums);
                for (Size i = 0; i < stop - first; i++) {
                    T *to = start + i * w->size[1] + c.low;
#pragma omp simd
                    for (Size p = c.first; p < c.stop; p++) to[p] += sums[p];
                }
                from += c.count;
            }
        }
    }
}
