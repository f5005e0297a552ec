/* Channels of (N, C, P), for batch normalisation. Sums in double precision. For one floating-point type (see
   native/loops/types.h). */

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
#define any_channel_sums(...) EITHER(channel_sums, __VA_ARGS__)

/* out (2, C): sums of x and of its square. */
LOOP void F(channel_moments)(Size samples, Size channels, Size positions, const T *x, double *out)
{
    double *first = out, *second = out + channels;
    for (Size c = 0; c < 2 * channels; c++) out[c] = 0;
    for (Size n = 0; n < samples; n++) {
        if (positions < F(FEW_POSITIONS)) {
#pragma omp simd
            for (Size c = 0; c < channels * positions; c++) {
                first[c] += (double)x[c];
                second[c] += (double)x[c] * (double)x[c];
            }
            x += channels * positions;
            continue;
        }
        for (Size c = 0; c < channels; c++, x += positions) {
            double sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum, squares)
            for (Size p = 0; p < positions; p++) {
                sum += (double)x[p];
                squares += (double)x[p] * (double)x[p];
            }
            first[c] += sum;
            second[c] += squares;
        }
    }
}
#define any_channel_moments(...) EITHER(channel_moments, __VA_ARGS__)

/* out (2, C): sums of dy and of dy x. */
LOOP void F(channel_products)(Size samples, Size channels, Size positions, const T *x, const T *dy, double *out)
{
    double *first = out, *second = out + channels;
    for (Size c = 0; c < 2 * channels; c++) out[c] = 0;
    for (Size n = 0; n < samples; n++) {
        if (positions < F(FEW_POSITIONS)) {
#pragma omp simd
            for (Size c = 0; c < channels * positions; c++) {
                first[c] += (double)dy[c];
                second[c] += (double)dy[c] * (double)x[c];
            }
            x += channels * positions;
            dy += channels * positions;
            continue;
        }
        for (Size c = 0; c < channels; c++, x += positions, dy += positions) {
            double sum = 0, products = 0;
#pragma omp simd reduction(+ : sum, products)
            for (Size p = 0; p < positions; p++) {
                sum += (double)dy[p];
                products += (double)dy[p] * (double)x[p];
            }
            first[c] += sum;
            second[c] += products;
        }
    }
}
#define any_channel_products(...) EITHER(channel_products, __VA_ARGS__)

/* out = or += x scale + offset */
INLINE void F(affine)(Size n, const T *x, T scale, T offset, T *out, int add)
{
    if (add) {
#pragma omp simd
        for (Size p = 0; p < n; p++) out[p] += x[p] * scale + offset;
    } else {
#pragma omp simd
        for (Size p = 0; p < n; p++) out[p] = x[p] * scale + offset;
    }
}

LOOP void F(channel_affine)(Size samples, Size channels, Size positions, const T *x, const T *scale, const T *offset,
                            T *out, int add)
{
    for (Size n = 0; n < samples; n++) {
        if (positions < F(FEW_POSITIONS)) {
#pragma omp simd
            for (Size c = 0; c < channels * positions; c++)
                out[c] = x[c] * scale[c] + offset[c] + (add ? out[c] : 0);
            x += channels * positions;
            out += channels * positions;
            continue;
        }
        for (Size c = 0; c < channels; c++, x += positions, out += positions)
            F(affine)(positions, x, scale[c], offset[c], out, add);
    }
}
#define any_channel_affine(...) EITHER(channel_affine, __VA_ARGS__)

/* What a channel's sums (2, C) of x and its square over ``count`` elements tell: the mean, and 1 / standard deviation;
   returns whether the channel varies. What is not a number stays so. */
INLINE int F(of_sums)(const double *sums, Size channels, Size c, double count, double eps, double *mean, double *inverse)
{
    *mean = sums[c] / count;
    const double variance = sums[channels + c] / count - *mean * *mean;
    *inverse = 1 / sqrt((variance < 0 ? 0 : variance) + eps);
    return variance > 0;
}

/* out (2, C): scale and offset that normalise. */
LOOP void F(channel_scales)(Size channels, const double *sums, double count, double eps, const T *weight, const T *bias,
                            T *out)
{
    for (Size c = 0; c < channels; c++) {
        double mean, inverse;
        F(of_sums)(sums, channels, c, count, eps, &mean, &inverse);
        const double scale = (double)weight[c] * inverse;
        out[c] = (T)scale;
        out[channels + c] = (T)((double)bias[c] - mean * scale);
    }
}
#define any_channel_scales(...) EITHER(channel_scales, __VA_ARGS__)

/* out (5, C): the scale, and the gradients of bias, of weight and of both sums. */
LOOP void F(channel_changes)(Size channels, const double *sums, double count, double eps, const T *weight,
                             const double *products, double *out)
{
    for (Size c = 0; c < channels; c++) {
        double mean, inverse;
        const int varies = F(of_sums)(sums, channels, c, count, eps, &mean, &inverse);
        const double scale = (double)weight[c] * inverse, total = products[c];
        const double product = products[channels + c] - mean * total;
        const double dvariance = -0.5 * scale * inverse * inverse * product * (double)varies;  /* keeps what is not a number */
        out[c] = scale;
        out[channels + c] = total;
        out[2 * channels + c] = product * inverse;
        out[3 * channels + c] = (-scale * total - 2 * mean * dvariance) / count;
        out[4 * channels + c] = dvariance / count;
    }
}
#define any_channel_changes(...) EITHER(channel_changes, __VA_ARGS__)

/* Running mean and variance, moved by ``momentum`` to the average of the groups of ``moments`` (G, 2, C). */
LOOP void F(channel_running)(Size groups, Size channels, const double *moments, double count, double momentum,
                             double correction, const T *mean, const T *variance, T *new_mean, T *new_variance)
{
    for (Size c = 0; c < channels; c++) {
        double first = 0, spread = 0;
        for (Size g = 0; g < groups; g++) {
            const double middle = moments[2 * g * channels + c] / count;
            first += middle;
            spread += moments[(2 * g + 1) * channels + c] / count - middle * middle;
        }
        first /= (double)groups;
        spread *= correction / (double)groups;
        new_mean[c] = (T)((double)mean[c] + momentum * (first - (double)mean[c]));
        new_variance[c] = (T)((double)variance[c] + momentum * (spread - (double)variance[c]));
    }
}
#define any_channel_running(...) EITHER(channel_running, __VA_ARGS__)
