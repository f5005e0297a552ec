/* Pooling of planes by sums; native/loops/pooling.h includes this. For one floating-point type (see native/loops/types.h). */

/* ---- 3 x 3 windows, one apart, over small planes with a border of one zero: Inception's average pooling -------------

   Rows are so short there that loops over them cost more than the sums; here every loop runs over a whole plane. Windows and elements that they
   see change places in the gradient, so it is the same sum. */

enum { F(BOX) = 4096 };  /* elements of a plane with its border, which stays in the first-level cache */

/* Whether these windows are such. */
INLINE int F(boxed)(const Windows *w)
{
    for (int d = 0; d < 2; d++)
        if (w->kernel[d] != 3 || w->stride[d] != 1 || w->before[d] != 1 || w->out[d] != w->size[d]) return 0;
    return w->size[1] > 1 && (w->size[0] + 2) * w->size[1] + 2 <= F(BOX);
}

/* sums (H, W) of the 3 x 3 neighbours of ``rows`` (H + 2, W), whose first and last row are zeros; rows is used up. */
INLINE void F(box)(T *rows, Size height, Size width, T *sums)
{
    const Size area = height * width;
    T *column = rows;  /* column[p + 1]: the sum of three rows at p */
#pragma omp simd
    for (Size p = 0; p < area; p++) sums[p] = (rows[p] + rows[width + p]) + rows[2 * width + p];
    column[0] = column[area + 1] = 0;
    memcpy(column + 1, sums, (size_t)area * sizeof(T));
#pragma omp simd
    for (Size p = 0; p < area; p++) sums[p] = (column[p] + column[p + 1]) + column[p + 2];
    for (Size p = 0; p < area; p += width) {  /* what a row's ends took from its neighbours */
        sums[p] = column[p + 1] + column[p + 2];
        sums[p + width - 1] = column[p + width - 1] + column[p + width];
    }
}

/* out (+)= after times the sums of x times before; scales (H, W), NULL for ones. */
LOOP void F(box_pool)(const Windows *w, const T *x, const T *before, const T *after, T *out, int add)
{
    T rows[F(BOX)], sums[F(BOX)];
    const Size height = w->size[0], width = w->size[1], area = height * width;
    for (Size plane = 0; plane < w->planes; plane++, x += area, out += area) {
        memset(rows, 0, (size_t)width * sizeof(T));
        memset(rows + width + area, 0, (size_t)width * sizeof(T));
        if (before) {
#pragma omp simd
            for (Size p = 0; p < area; p++) rows[width + p] = x[p] * before[p];
        } else
            memcpy(rows + width, x, (size_t)area * sizeof(T));
        F(box)(rows, height, width, sums);
        if (after) {
#pragma omp simd
            for (Size p = 0; p < area; p++) sums[p] *= after[p];
        }
        if (add) {
#pragma omp simd
            for (Size p = 0; p < area; p++) out[p] += sums[p];
        } else
            memcpy(out, sums, (size_t)area * sizeof(T));
    }
}

/* ---- sums: columns first, then rows; kernels are not dilated ------------------------------------------------------ */

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
    if (F(boxed)(w)) {
        F(box_pool)(w, x, NULL, scale, out, 0);
        return;
    }
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
#define any_sum_pool(...) EITHER(sum_pool, __VA_ARGS__)

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
    if (F(boxed)(w)) {
        F(box_pool)(w, dy, scale, NULL, out, add);
        return;
    }
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
#define any_sum_pool_backward(...) EITHER(sum_pool_backward, __VA_ARGS__)
