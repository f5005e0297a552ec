/* Layer normalisation and activations. For one floating-point type (see native/loops/types.h). All arrays are contiguous; where
   elements correspond, outputs may be inputs. */

/* ---- rows (R, C); statistics (R, 2): mean and 1 / sqrt(variance + eps) -------------------------------------------- */

LOOP void F(layer_norm)(Size rows, Size width, const T *x, const T *weight, const T *bias, double eps, T *out,
                        T *statistics)
{
    for (Size row = 0; row < rows; row++, x += width, out += width, statistics += 2) {
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (Size j = 0; j < width; j++) sum += (double)x[j];
        const T about = (T)(sum / (double)width);
        T rest = 0, squares = 0;  /* the rounding of the first sum is found again in the second */
#pragma omp simd reduction(+ : rest, squares)
        for (Size j = 0; j < width; j++) {
            const T away = x[j] - about;
            rest += away;
            squares += away * away;
        }
        const double more = (double)rest / (double)width, variance = (double)squares / (double)width - more * more;
        const T mean = (T)((double)about + more), inverse = (T)(1 / sqrt((variance < 0 ? 0 : variance) + eps));
        statistics[0] = mean;
        statistics[1] = inverse;
#pragma omp simd
        for (Size j = 0; j < width; j++) out[j] = (x[j] - mean) * inverse * weight[j] + bias[j];
    }
}
#define any_layer_norm(...) EITHER(layer_norm, __VA_ARGS__)

/* The gradient of x, if ``out`` is given, and added to ``sums`` (2, C), if given, those of the weight and the bias. Called
   with constants: no test stays inside. */
INLINE void F(layer_norm_row)(Size width, const T *x, const T *weight, T mean, T inverse, const T *dy, T *out, int add,
                              T *sums, int puts, int sums_up)
{
    T sum = 0, product = 0;
    if (puts) {
#pragma omp simd reduction(+ : sum, product)
        for (Size j = 0; j < width; j++) {
            const T share = dy[j] * weight[j];
            sum += share;
            product += share * ((x[j] - mean) * inverse);
        }
        sum /= (T)width;
        product /= (T)width;
    }
#pragma omp simd
    for (Size j = 0; j < width; j++) {
        const T normal = (x[j] - mean) * inverse;
        if (puts) {
            const T value = (dy[j] * weight[j] - sum - normal * product) * inverse;
            out[j] = add ? out[j] + value : value;
        }
        if (sums_up) {
            sums[j] += dy[j] * normal;
            sums[width + j] += dy[j];
        }
    }
}

#define ROWS(add, puts, sums_up) \
    for (Size row = 0; row < rows; row++) \
        F(layer_norm_row)(width, x + row * width, weight, statistics[2 * row], statistics[2 * row + 1], \
                          dy + row * width, puts ? out + row * width : 0, add, sums, puts, sums_up)
LOOP void F(layer_norm_backward)(Size rows, Size width, const T *x, const T *weight, const T *statistics, const T *dy,
                                 T *out, T *sums, int add)
{
    if (sums) memset(sums, 0, 2 * (size_t)width * sizeof(T));
    if (out && sums && add) ROWS(1, 1, 1);
    else if (out && sums) ROWS(0, 1, 1);
    else if (out && add) ROWS(1, 1, 0);
    else if (out) ROWS(0, 1, 0);
    else if (sums) ROWS(0, 0, 1);
}
#define any_layer_norm_backward(...) EITHER(layer_norm_backward, __VA_ARGS__)
#undef ROWS

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

LOOP void F(exp_all)(Size n, const T *x, T *out)
{
#pragma omp simd
    for (Size i = 0; i < n; i++) out[i] = F(exp_)(x[i]);
}
#define any_exp(...) EITHER(exp_all, __VA_ARGS__)

LOOP void F(relu)(Size n, const T *x, T *out)
{
#pragma omp simd
    for (Size i = 0; i < n; i++) out[i] = x[i] < 0 ? 0 : x[i];  /* NaN stays */
}
#define any_relu(...) EITHER(relu, __VA_ARGS__)

LOOP void F(sigmoid_all)(Size n, const T *x, T *out)
{
#pragma omp simd
    for (Size i = 0; i < n; i++) out[i] = F(sigmoid)(x[i]);
}
#define any_sigmoid(...) EITHER(sigmoid_all, __VA_ARGS__)

LOOP void F(tanh_all)(Size n, const T *x, T *out)
{
#pragma omp simd
    for (Size i = 0; i < n; i++) out[i] = F(tanh_)(x[i]);
}
#define any_tanh(...) EITHER(tanh_all, __VA_ARGS__)

LOOP void F(relu_backward)(Size n, const T *y, const T *dy, T *out, int add) { PUT(y[i] <= 0 ? 0 : dy[i]); }
#define any_relu_backward(...) EITHER(relu_backward, __VA_ARGS__)

LOOP void F(sigmoid_backward)(Size n, const T *y, const T *dy, T *out, int add) { PUT(dy[i] * y[i] * (1 - y[i])); }
#define any_sigmoid_backward(...) EITHER(sigmoid_backward, __VA_ARGS__)

LOOP void F(tanh_backward)(Size n, const T *y, const T *dy, T *out, int add) { PUT(dy[i] * (1 - y[i] * y[i])); }
#define any_tanh_backward(...) EITHER(tanh_backward, __VA_ARGS__)

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
#define any_gelu(...) EITHER(gelu, __VA_ARGS__)

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
#define any_gelu_backward(...) EITHER(gelu_backward, __VA_ARGS__)

#undef PUT
#undef ROOT_2_PI
#undef ROOT_HALF_PI
#undef CUBIC
