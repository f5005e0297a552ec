/* Channels of (N, C, P), for batch normalisation. Sums in double precision. For one floating-point type (see
   loops_types.h). */

/* Fewer positions than this are summed channel beside channel. */
enum { F(FEW_POSITIONS) = 2 };

LOOP void F(channel_sums)(Size samples, Size channels, Size positions, const T *x, double *out)
{
    for (Size n = 0; n < samples; n++)
        for (Size c = 0; c < channels; c++, x += positions) {
            double sum = 0;
#pragma omp simd reduction(+ : sum)
            for (Size p = 0; p < positions; p++) sum += (double)x[p];
            out[c] += sum;
        }
}

/* out (2, C): sums of x - center and of its square. */
LOOP void F(channel_moments)(Size samples, Size channels, Size positions, const T *x, const T *center, double *out)
{
    double *first = out, *second = out + channels;
    for (Size c = 0; c < 2 * channels; c++) out[c] = 0;
    for (Size n = 0; n < samples; n++) {
        if (positions < F(FEW_POSITIONS)) {
#pragma omp simd
            for (Size c = 0; c < channels * positions; c++) {
                const double away = (double)x[c] - (double)center[c];
                first[c] += away;
                second[c] += away * away;
            }
            x += channels * positions;
            continue;
        }
        for (Size c = 0; c < channels; c++, x += positions) {
            const double middle = (double)center[c];
            double sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum, squares)
            for (Size p = 0; p < positions; p++) {
                const double away = (double)x[p] - middle;
                sum += away;
                squares += away * away;
            }
            first[c] += sum;
            second[c] += squares;
        }
    }
}

/* out (2, C): sums of dy and of dy (x - center). */
LOOP void F(channel_products)(Size samples, Size channels, Size positions, const T *x, const T *center, const T *dy,
                              double *out)
{
    double *first = out, *second = out + channels;
    for (Size c = 0; c < 2 * channels; c++) out[c] = 0;
    for (Size n = 0; n < samples; n++) {
        if (positions < F(FEW_POSITIONS)) {
#pragma omp simd
            for (Size c = 0; c < channels * positions; c++) {
                first[c] += (double)dy[c];
                second[c] += (double)dy[c] * ((double)x[c] - (double)center[c]);
            }
            x += channels * positions;
            dy += channels * positions;
            continue;
        }
        for (Size c = 0; c < channels; c++, x += positions, dy += positions) {
            const double middle = (double)center[c];
            double sum = 0, products = 0;
#pragma omp simd reduction(+ : sum, products)
            for (Size p = 0; p < positions; p++) {
                sum += (double)dy[p];
                products += (double)dy[p] * ((double)x[p] - middle);
            }
            first[c] += sum;
            second[c] += products;
        }
    }
}

/* out = or += (x - center) scale + offset */
INLINE void F(affine)(Size n, const T *x, T center, T scale, T offset, T *out, int add)
{
    if (add) {
#pragma omp simd
        for (Size p = 0; p < n; p++) out[p] += (x[p] - center) * scale + offset;
    } else {
#pragma omp simd
        for (Size p = 0; p < n; p++) out[p] = (x[p] - center) * scale + offset;
    }
}

LOOP void F(channel_affine)(Size samples, Size channels, Size positions, const T *x, const T *center, const T *scale,
                            const T *offset, T *out, int add)
{
    for (Size n = 0; n < samples; n++) {
        if (positions < F(FEW_POSITIONS)) {
#pragma omp simd
            for (Size c = 0; c < channels * positions; c++)
                out[c] = (x[c] - center[c]) * scale[c] + offset[c] + (add ? out[c] : 0);
            x += channels * positions;
            out += channels * positions;
            continue;
        }
        for (Size c = 0; c < channels; c++, x += positions, out += positions)
            F(affine)(positions, x, center[c], scale[c], offset[c], out, add);
    }
}
