/* Softmax and cross-entropy, row by row, over all classes and over blocks of them. For one floating-point type (see
   native/loops/types.h). Strides as in native/loops/rows.h. */

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
#define any_softmax(...) EITHER(softmax, __VA_ARGS__)

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
#define any_softmax_backward(...) EITHER(softmax_backward, __VA_ARGS__)

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
#define any_cross_entropy(...) EITHER(cross_entropy, __VA_ARGS__)

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
#define any_cross_entropy_backward(...) EITHER(cross_entropy_backward, __VA_ARGS__)

/* ---- blocks of classes: what each block says of itself, and the loss from what all say ------------------------------

   All ``classes`` are divided into ``blocks``: number b is [b classes / blocks, (b + 1) classes / blocks). Arrays hold ``here``
   of them, from number ``first`` on. Targets lie among the classes or are ``ignore``: the caller has looked. Pairs are in
   double precision, so that the total over blocks is as exact as over single classes. */

/* out = softmax(x) for one block of one row; returns log(sum of exp(x)). Of minus infinities alone: zeros, and -inf. What does
   not fill a vector goes through an array that does: one by one, a few exponentials would take as long as all others. */
INLINE double F(softmax_block)(const T *x, T *out, Size width)
{
    enum { LANES = 16 };
    const Size whole = width - width % LANES, rest = width - whole;
    T most = -INFINITY, sum = 0, tail[LANES];
    for (int j = 0; j < LANES; j++) tail[j] = -INFINITY;
    for (Size j = 0; j < rest; j++) tail[j] = x[whole + j];
#pragma omp simd reduction(max : most)
    for (Size j = 0; j < whole; j++) most = x[j] > most ? x[j] : most;
#pragma omp simd reduction(max : most)
    for (int j = 0; j < LANES; j++) most = tail[j] > most ? tail[j] : most;
    const T base = most == -INFINITY ? 0 : most;
#pragma omp simd reduction(+ : sum)
    for (Size j = 0; j < whole; j++) {
        const T e = F(exp_)(x[j] - base);
        out[j] = e;
        sum += e;
    }
    if (rest) {
#pragma omp simd reduction(+ : sum)
        for (int j = 0; j < LANES; j++) {
            tail[j] = F(exp_)(tail[j] - base);
            sum += tail[j];
        }
    }
    const T inverse = sum == 0 ? 0 : 1 / sum;
#pragma omp simd
    for (Size j = 0; j < whole; j++) out[j] *= inverse;
    for (Size j = 0; j < rest; j++) out[whole + j] = tail[j] * inverse;
    return (double)base + log((double)sum);
}

LOOP void F(class_blocks)(Size rows, Size here, Size classes, Size blocks, Size first, const char *x, Size x_stride,
                          const int64_t *target, int64_t ignore, double smoothing, char *out, Size out_stride,
                          char *pairs, Size pairs_stride)
{
    const Size start = first * classes / blocks, width = (first + here) * classes / blocks - start;
    for (Size row = 0; row < rows; row++) {
        const T *scores = (const T *)(x + row * x_stride);
        T *to = (T *)(out + row * out_stride);
        double *pair = (double *)(pairs + row * pairs_stride);
        if (target[row] == ignore) {
            memset(to, 0, (size_t)width * sizeof(T));
            memset(pair, 0, (size_t)(2 * here) * sizeof(double));
            continue;
        }
        const Size right = (Size)target[row] - start;
        for (Size b = 0; b < here; b++) {
            const Size from = (first + b) * classes / blocks - start, end = (first + b + 1) * classes / blocks - start;
            /* before ``out``, which may be ``x`` */
            double chosen = right >= from && right < end ? (1 - smoothing) * (double)scores[right] : 0, all = 0;
            if (smoothing != 0) {
#pragma omp simd reduction(+ : all)
                for (Size j = from; j < end; j++) all += (double)scores[j];
                chosen += smoothing * (all / (double)classes);
            }
            pair[2 * b] = F(softmax_block)(scores + from, to + from, end - from);
            pair[2 * b + 1] = chosen;
        }
    }
}
#define any_class_blocks(...) EITHER(class_blocks, __VA_ARGS__)

LOOP void F(class_blocks_backward)(Size rows, Size here, Size classes, Size blocks, Size first, const char *probabilities,
                                   Size p_stride, const int64_t *target, int64_t ignore, double smoothing,
                                   const char *pairs, Size pairs_stride, char *out, Size out_stride, int add)
{
    const Size start = first * classes / blocks, width = (first + here) * classes / blocks - start;
    for (Size row = 0; row < rows; row++) {
        const T *p = (const T *)(probabilities + row * p_stride);
        const double *pair = (const double *)(pairs + row * pairs_stride);
        T *d = (T *)(out + row * out_stride);
        if (target[row] == ignore) {
            if (!add) memset(d, 0, (size_t)width * sizeof(T));
            continue;
        }
        const Size right = (Size)target[row] - start;
        for (Size b = 0; b < here; b++) {
            const Size from = (first + b) * classes / blocks - start, end = (first + b + 1) * classes / blocks - start;
            const T scale = (T)pair[2 * b], share = (T)(pair[2 * b + 1] * (smoothing / (double)classes));
            if (add) {
#pragma omp simd
                for (Size j = from; j < end; j++) d[j] += p[j] * scale + share;
            } else {
#pragma omp simd
                for (Size j = from; j < end; j++) d[j] = p[j] * scale + share;
            }
            if (right >= from && right < end) d[right] += (T)(pair[2 * b + 1] * (1 - smoothing));
        }
    }
}
#define any_class_blocks_backward(...) EITHER(class_blocks_backward, __VA_ARGS__)

LOOP double F(cross_entropy_of_blocks)(Size rows, Size blocks, const char *pairs, Size pairs_stride, const int64_t *target,
                                       int64_t ignore, char *shares, Size shares_stride)
{
    double loss = 0;
    for (Size row = 0; row < rows; row++) {
        const T *pair = (const T *)(pairs + row * pairs_stride);
        T *share = (T *)(shares + row * shares_stride), most = -INFINITY, sum = 0, chosen = 0;
        if (target[row] == ignore) {
            memset(share, 0, (size_t)blocks * sizeof(T));
            continue;
        }
#pragma omp simd reduction(max : most) reduction(+ : chosen)
        for (Size b = 0; b < blocks; b++) {
            most = pair[2 * b] > most ? pair[2 * b] : most;
            chosen += pair[2 * b + 1];
        }
#pragma omp simd reduction(+ : sum)
        for (Size b = 0; b < blocks; b++) {
            const T e = F(exp_)(pair[2 * b] - most);
            share[b] = e;
            sum += e;
        }
        const T inverse = 1 / sum;
#pragma omp simd
        for (Size b = 0; b < blocks; b++) share[b] *= inverse;
        loss += log((double)sum) + ((double)most - (double)chosen);
    }
    return loss;
}
#define any_cross_entropy_of_blocks(...) EITHER(cross_entropy_of_blocks, __VA_ARGS__)

LOOP void F(cross_entropy_of_blocks_backward)(Size rows, Size blocks, const char *shares, Size shares_stride,
                                              const int64_t *target, int64_t ignore, double scale, char *out,
                                              Size out_stride, int add)
{
    for (Size row = 0; row < rows; row++) {
        const T *share = (const T *)(shares + row * shares_stride), factor = target[row] == ignore ? 0 : (T)scale;
        T *pair = (T *)(out + row * out_stride);
        for (Size b = 0; b < blocks; b++) {
            pair[2 * b] = factor * share[b] + (add ? pair[2 * b] : 0);
            pair[2 * b + 1] = -factor + (add ? pair[2 * b + 1] : 0);
        }
    }
}
#define any_cross_entropy_of_blocks_backward(...) EITHER(cross_entropy_of_blocks_backward, __VA_ARGS__)
