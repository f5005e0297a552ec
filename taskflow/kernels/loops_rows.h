/* Rows: LSTM cells, softmax and cross-entropy, embedding, sums. For one floating-point type (see loops_types.h).

   Strides are in bytes and count from one row to the next; rows are contiguous. Arguments that several loops read and
   write may be the same array, element for element, but must not overlap otherwise. */

LOOP void F(exp_all)(const T *x, T *out, Size n)
{
#pragma omp simd
    for (Size i = 0; i < n; i++) out[i] = F(exp_)(x[i]);
}

LOOP void F(sigmoid_all)(const T *x, T *out, Size n)
{
#pragma omp simd
    for (Size i = 0; i < n; i++) out[i] = F(sigmoid)(x[i]);
}

LOOP void F(tanh_all)(const T *x, T *out, Size n)
{
#pragma omp simd
    for (Size i = 0; i < n; i++) out[i] = F(tanh_)(x[i]);
}

/* ---- LSTM ------------------------------------------------------------------------------------------------------- */

LOOP void F(lstm_cell)(Size rows, Size width, char *gates, Size gates_stride, const char *c_prev, Size c_prev_stride,
                       char *c, Size c_stride, char *h, Size h_stride)
{
    for (Size row = 0; row < rows; row++) {
        T *gi = (T *)(gates + row * gates_stride), *gf = gi + width, *gg = gf + width, *go = gg + width;
        const T *before = (const T *)(c_prev + row * c_prev_stride);
        T *cell = (T *)(c + row * c_stride), *hidden = (T *)(h + row * h_stride);
#pragma omp simd
        for (Size j = 0; j < width; j++) {
            const T i = F(sigmoid)(gi[j]), f = F(sigmoid)(gf[j]), g = F(tanh_)(gg[j]), o = F(sigmoid)(go[j]);
            const T now = f * before[j] + i * g;
            gi[j] = i;
            gf[j] = f;
            gg[j] = g;
            go[j] = o;
            cell[j] = now;
            hidden[j] = o * F(tanh_)(now);
        }
    }
}

LOOP void F(lstm_cell_backward)(Size rows, Size width, const char *gates, Size gates_stride, const char *c_prev,
                                Size c_prev_stride, const char *c, Size c_stride, const char *dh, Size dh_stride,
                                char *dc, Size dc_stride, char *dgates, Size dgates_stride)
{
    for (Size row = 0; row < rows; row++) {
        const T *gi = (const T *)(gates + row * gates_stride), *gf = gi + width, *gg = gf + width, *go = gg + width;
        const T *before = (const T *)(c_prev + row * c_prev_stride), *cell = (const T *)(c + row * c_stride);
        const T *dhidden = (const T *)(dh + row * dh_stride);
        T *dcell = (T *)(dc + row * dc_stride);
        T *di = (T *)(dgates + row * dgates_stride), *df = di + width, *dg = df + width, *dout = dg + width;
#pragma omp simd
        for (Size j = 0; j < width; j++) {
            const T i = gi[j], f = gf[j], g = gg[j], o = go[j], t = F(tanh_)(cell[j]);
            const T total = dcell[j] + dhidden[j] * o * (1 - t * t);
            di[j] = total * g * i * (1 - i);
            df[j] = total * before[j] * f * (1 - f);
            dg[j] = total * i * (1 - g * g);
            dout[j] = dhidden[j] * t * o * (1 - o);
            dcell[j] = total * f;
        }
    }
}

/* ---- softmax and cross-entropy ---------------------------------------------------------------------------------- */

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

/* ---- embedding -------------------------------------------------------------------------------------------------- */

LOOP void F(embedding)(Size rows, Size width, const char *table, Size table_stride, Size size, const int64_t *index,
                       int64_t first, char *out, Size out_stride)
{
    for (Size row = 0; row < rows; row++) {
        char *to = out + row * out_stride;
        if (index[row] >= first && index[row] - first < size)
            memcpy(to, table + (index[row] - first) * table_stride, (size_t)width * sizeof(T));
        else
            memset(to, 0, (size_t)width * sizeof(T));
    }
}

LOOP void F(embedding_backward)(Size rows, Size width, const int64_t *index, int64_t first, const char *dy,
                                Size dy_stride, char *out, Size out_stride, Size size, int add)
{
    if (!add)
        for (Size row = 0; row < size; row++) memset(out + row * out_stride, 0, (size_t)width * sizeof(T));
    for (Size row = 0; row < rows; row++) {
        if (index[row] < first || index[row] - first >= size) continue;
        const T *from = (const T *)(dy + row * dy_stride);
        T *to = (T *)(out + (index[row] - first) * out_stride);
#pragma omp simd
        for (Size j = 0; j < width; j++) to[j] += from[j];
    }
}

/* ---- sums ------------------------------------------------------------------------------------------------------- */

/* Column blocks that stay in the first-level cache; four rows at a time. */
LOOP void F(sum_rows)(Size rows, Size width, const char *x, Size stride, T *out, int add)
{
    enum { BLOCK = 512 };
    T sum[BLOCK];
    for (Size start = 0; start < width; start += BLOCK) {
        const Size n = width - start < BLOCK ? width - start : BLOCK;
        const char *from = x + start * (Size)sizeof(T);
        Size row = 0;
        memset(sum, 0, sizeof sum);
        for (; row + 4 <= rows; row += 4) {
            const T *a = (const T *)(from + row * stride), *b = (const T *)(from + (row + 1) * stride);
            const T *c = (const T *)(from + (row + 2) * stride), *d = (const T *)(from + (row + 3) * stride);
#pragma omp simd
            for (Size j = 0; j < n; j++) sum[j] += (a[j] + b[j]) + (c[j] + d[j]);
        }
        for (; row < rows; row++) {
            const T *a = (const T *)(from + row * stride);
#pragma omp simd
            for (Size j = 0; j < n; j++) sum[j] += a[j];
        }
        if (add) {
#pragma omp simd
            for (Size j = 0; j < n; j++) out[start + j] += sum[j];
        } else
            memcpy(out + start, sum, (size_t)n * sizeof(T));
    }
}

LOOP double F(sum_of_squares)(Size n, const T *x)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (Size i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}
