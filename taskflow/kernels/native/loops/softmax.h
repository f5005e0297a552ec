/* Softmax and cross-entropy, row by row. For one floating-point type (see native/loops/types.h). Strides as in native/loops/rows.h. */

/* out = softmax(x) for one row; returns the row's sum of exp(x - top). A NaN is no maximum, but makes the sum NaN. */
INLINE T F(softmax_row)(const T *x, T *out, Size width, T *top)
{
    T most = -INFINITY, sum = 0;
#pragma omp simd reduction(max : most)
    for (Size j = 0; j < width; j++) most = x[j] > most ? x[j] : most;
#pragma omp simd reduction(+ : sum)
    for (Size j = 0; j < width; j++) {
        const T e = F(exp_)(x[j] - most);
        out[j] = e;
        sum += e;
    }
    const T inverse = 1 / sum;
#pragma omp simd
    for (Size j = 0; j < width; j++) out[j] *= inverse;
    *top = most;
    return sum;
}

/* Of row r the first ends[r] columns of x, zeros behind them; all columns if there are no ends. */
LOOP void F(softmax)(Size rows, Size width, const char *x, Size x_stride, const int64_t *ends, char *out, Size out_stride)
{
    T top;
    for (Size row = 0; row < rows; row++) {
        const Size end = ends ? (Size)ends[row] : width;
        T *to = (T *)(out + row * out_stride);
        if (end) (void)F(softmax_row)((const T *)(x + row * x_stride), to, end, &top);
        memset(to + end, 0, (size_t)(width - end) * sizeof(T));
    }
}

LOOP void F(softmax_backward)(Size rows, Size width, const char *y, Size y_stride, const char *dy, Size dy_stride,
                              char *out, Size out_stride, int add)
{
    for (Size row = 0; row < rows; row++) {
        const T *p = (const T *)(y + row * y_stride), *g = (const T *)(dy + row * dy_stride);
        T *d = (T *)(out + row * out_stride), dot = 0;
#pragma omp simd reduction(+ : dot)
        for (Size j = 0; j < width; j++) dot += p[j] * g[j];
        if (add) {
#pragma omp simd
            for (Size j = 0; j < width; j++) d[j] += p[j] * (g[j] - dot);
        } else {
#pragma omp simd
            for (Size j = 0; j < width; j++) d[j] = p[j] * (g[j] - dot);
        }
    }
}

/* Targets lie in [0, width) or are ``ignore``: the caller has looked. ``smoothing``: the weight that the target gives to
   all classes in equal shares. */
LOOP double F(cross_entropy)(Size rows, Size width, const char *x, Size x_stride, const int64_t *target, int64_t ignore,
                             double smoothing, char *out, Size out_stride)
{
    double loss = 0;
    for (Size row = 0; row < rows; row++) {
        const T *logits = (const T *)(x + row * x_stride);
        const int counts = target[row] != ignore;
        double chosen = counts ? (double)logits[target[row]] : 0;  /* before ``out``, which may be ``x`` */
        if (counts && smoothing != 0) {
            double all = 0;
#pragma omp simd reduction(+ : all)
            for (Size j = 0; j < width; j++) all += (double)logits[j];
            chosen = (1 - smoothing) * chosen + smoothing * (all / (double)width);
        }
        T top;
        const T sum = F(softmax_row)(logits, (T *)(out + row * out_stride), width, &top);
        if (counts) loss += log((double)sum) + ((double)top - chosen);
    }
    return loss;
}

LOOP void F(cross_entropy_backward)(Size rows, Size width, const char *probabilities, Size p_stride,
                                    const int64_t *target, int64_t ignore, T smoothing, T scale, char *out,
                                    Size out_stride, int add)
{
    const T share = smoothing / (T)width * scale;
    for (Size row = 0; row < rows; row++) {
        const T *p = (const T *)(probabilities + row * p_stride);
        T *d = (T *)(out + row * out_stride);
        if (target[row] == ignore) {
            if (!add) memset(d, 0, (size_t)width * sizeof(T));
            continue;
        }
        const T hit = (p[target[row]] - (1 - smoothing)) * scale - share + (add ? d[target[row]] : 0);
        if (add) {
#pragma omp simd
            for (Size j = 0; j < width; j++) d[j] += p[j] * scale - share;
        } else {
#pragma omp simd
            for (Size j = 0; j < width; j++) d[j] = p[j] * scale - share;
        }
        d[target[row]] = hit;
    }
}
