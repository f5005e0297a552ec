/* Sums of 3 x 3 windows, one apart, over small planes with a border of one zero: Inception's average pooling. Rows are so short
   there that loops over them cost more than the sums; here every loop runs over a whole plane. Windows and elements that they
   see change places in the gradient, so it is the same sum. For one floating-point type (see native/loops/types.h). */

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
