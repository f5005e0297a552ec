/* Layer normalisation and activations. For one floating-point type (see loops_types.h). All arrays are contiguous; where
   elements correspond, outputs may be inputs. */

/* ---- rows (R, C); statistics (R, 2): mean and 1 / sqrt(variance + eps) -------------------------------------------- */

LOOP void F(layer_norm)(Size rows, Size width, const T *x, const T *weight, const T *bias, double eps, T *out,
                        T *statistics)
{
    for (Size row = 0; row < rows; row++, x += width, out += width, statistics += 2) {
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (Size j = 0; j < width; j++) sum += (double)x[j];
        const T mean = (T)(sum / (double)width);
        T squares = 0;
#pragma omp simd reduction(+ : squares)
        for (Size j = 0; j < width; j++) squares += (x[j] - mean) * (x[j] - mean);
        const T inverse = (T)(1 / sqrt((double)squares / (double)width + eps));
        statistics[0] = mean;
        statistics[1] = inverse;
#pragma omp simd
        for (Size j = 0; j < width; j++) out[j] = (x[j] - mean) * inverse * weight[j] + bias[j];
    }
}

LOOP void F(layer_norm_backward)(Size rows, Size width, const T *x, const T *weight, const T *statistics, const T *dy,
                                 T *out, int add)
{
    for (Size row = 0; row < rows; row++, x += width, dy += width, out += width, statistics += 2) {
        const T mean = statistics[0], inverse = statistics[1];
        T sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
        for (Size j = 0; j < width; j++) {
            const T share = dy[j] * weight[j];
            sum += share;
            product += share * ((x[j] - mean) * inverse);
        }
        sum /= (T)width;
        product /= (T)width;
        if (add) {
#pragma omp simd
            for (Size j = 0; j < width; j++)
                out[j] += (dy[j] * weight[j] - sum - (x[j] - mean) * inverse * product) * inverse;
        } else {
#pragma omp simd
            for (Size j = 0; j < width; j++)
                out[j] = (dy[j] * weight[j] - sum - (x[j] - mean) * inverse * product) * inverse;
        }
    }
}

/* out (C): the sum over rows of dy times the normalised x; column blocks that stay in the first-level cache. */
LOOP void F(layer_norm_products)(Size rows, Size width, const T *x, const T *statistics, const T *dy, T *out, int add)
{
    enum { BLOCK = 512 };
    T sum[BLOCK];
    for (Size start = 0; start < width; start += BLOCK) {
        const Size n = width - start < BLOCK ? width - start : BLOCK;
        memset(sum, 0, sizeof sum);
        for (Size row = 0; row < rows; row++) {
            const T mean = statistics[2 * row], inverse = statistics[2 * row + 1];
            const T *a = x + row * width + start, *b = dy + row * width + start;
#pragma omp simd
            for (Size j = 0; j < n; j++) sum[j] += (a[j] - mean) * inverse * b[j];
        }
        for (Size j = 0; j < n; j++) out[start + j] = add ? out[start + j] + sum[j] : sum[j];
    }
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

/* A loop over n elements that puts VALUE (of element i) into out, or adds it. */
#define PUT(VALUE) \
    do { \
        if (add) { \
            _Pragma("omp simd") for (Size i = 0; i < n; i++) out[i] += (VALUE); \
        } else { \
            _Pragma("omp simd") for (Size i = 0; i < n; i++) out[i] = (VALUE); \
        } \
    } while (0)

LOOP void F(relu)(Size n, const T *x, T *out)
{
#pragma omp simd
    for (Size i = 0; i < n; i++) out[i] = x[i] < 0 ? 0 : x[i];  /* NaN stays */
}

LOOP void F(sigmoid_all)(Size n, const T *x, T *out)
{
#pragma omp simd
    for (Size i = 0; i < n; i++) out[i] = F(sigmoid)(x[i]);
}

LOOP void F(tanh_all)(Size n, const T *x, T *out)
{
#pragma omp simd
    for (Size i = 0; i < n; i++) out[i] = F(tanh_)(x[i]);
}

LOOP void F(relu_backward)(Size n, const T *y, const T *dy, T *out, int add) { PUT(y[i] > 0 ? dy[i] : 0); }

LOOP void F(sigmoid_backward)(Size n, const T *y, const T *dy, T *out, int add) { PUT(dy[i] * y[i] * (1 - y[i])); }

LOOP void F(tanh_backward)(Size n, const T *y, const T *dy, T *out, int add) { PUT(dy[i] * (1 - y[i] * y[i])); }

#define ROOT_2_PI (T)0.79788456080286535588     /* sqrt(2 / pi) */
#define ROOT_HALF_PI (T)0.39894228040143267794  /* 1 / sqrt(2 pi) */
#define CUBIC (T)0.044715

/* (1 + tanh z) / 2 = sigmoid(2 z) */
INLINE T F(gate)(T x) { return F(sigmoid)(2 * ROOT_2_PI * (x + CUBIC * x * x * x)); }

LOOP void F(gelu)(Size n, const T *x, int approximate, T *out)
{
    if (approximate) {
#pragma omp simd
        for (Size i = 0; i < n; i++) out[i] = x[i] * F(gate)(x[i]);
    } else {
#pragma omp simd
        for (Size i = 0; i < n; i++) {
            T bell;
            out[i] = x[i] * F(below)(x[i], &bell);
        }
    }
}

INLINE T F(gelu_slope)(T x, int approximate)
{
    T bell;
    if (!approximate) {
        const T gate = F(below)(x, &bell);
        return gate + x * bell * ROOT_HALF_PI;
    }
    const T gate = F(gate)(x);
    return gate + x * 2 * gate * (1 - gate) * ROOT_2_PI * (1 + 3 * CUBIC * x * x);
}

LOOP void F(gelu_backward)(Size n, const T *x, int approximate, const T *dy, T *out, int add)
{
    if (approximate) PUT(dy[i] * F(gelu_slope)(x[i], 1));
    else PUT(dy[i] * F(gelu_slope)(x[i], 0));
}

#undef PUT
#undef ROOT_2_PI
#undef ROOT_HALF_PI
#undef CUBIC
