/* The loops for one floating-point type: T, its bits BITS, names end in SUFFIX. Included by native_loops.h once a type.

   Strides are in bytes and count from one row to the next; rows are contiguous. Arguments that several loops read and
   write may be the same array, element for element, but must not overlap otherwise. */

/* ---- exp, sigmoid, tanh: branch-free, so that they vectorise; about 2 units in the last place; NaN stays NaN ---- */

INLINE T F(from_bits)(BITS bits)
{
    T value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* x = n ln 2 + r with |r| <= ln 2 / 2; returns exp(r) - 1 (its Taylor series) and n. */
INLINE T F(reduce)(T x, BITS *n)
{
    const T shifted = x * LOG2E + ROUNDER, rounder = ROUNDER;
    const T whole = shifted - ROUNDER;
    BITS bits, zero;
    memcpy(&bits, &shifted, sizeof bits);
    memcpy(&zero, &rounder, sizeof zero);
    *n = bits - zero;
    const T r = (x - whole * LN2_HIGH) - whole * LN2_LOW;
    T sum = 1;
#pragma GCC unroll 16
    for (int k = TERMS; k > 2; k--) sum = sum * (r * ((T)1 / k)) + 1;
    return r + r * r * ((T)0.5 * sum);
}

INLINE T F(exp_)(T x)
{
    BITS n;
    x = x > EXP_MOST ? EXP_MOST : x;
    x = x < EXP_LEAST ? EXP_LEAST : x;
    const T part = F(reduce)(x, &n);
    /* 2^n in two factors: the result may be infinite or denormal where 2^n alone is not a normal number. */
    const BITS low = (n + 2 * BIAS) >> 1, high = n + 2 * BIAS - low;
    return (1 + part) * F(from_bits)(low << MANTISSA) * F(from_bits)(high << MANTISSA);
}

INLINE T F(sigmoid)(T x) { return 1 / (1 + F(exp_)(-x)); }

/* (e^2x - 1) / (e^2x + 1) with e^2x - 1 kept exact for small x. */
INLINE T F(tanh_)(T x)
{
    BITS n;
    T size = FABS(x);
    size = size > TANH_MOST ? TANH_MOST : size;
    const T part = F(reduce)(2 * size, &n), power = F(from_bits)((n + BIAS) << MANTISSA);
    const T less = power * part + (power - 1);
    return COPYSIGN(less / (less + 2), x);
}

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

LOOP void F(softmax)(Size rows, Size width, const char *x, Size x_stride, char *out, Size out_stride)
{
    T top;
    for (Size row = 0; row < rows; row++)
        (void)F(softmax_row)((const T *)(x + row * x_stride), (T *)(out + row * out_stride), width, &top);
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

/* Targets lie in [0, width) or are ``ignore``: the caller has looked. */
LOOP double F(cross_entropy)(Size rows, Size width, const char *x, Size x_stride, const int64_t *target, int64_t ignore,
                             char *out, Size out_stride)
{
    double loss = 0;
    for (Size row = 0; row < rows; row++) {
        const T *logits = (const T *)(x + row * x_stride);
        const T chosen = target[row] == ignore ? 0 : logits[target[row]];  /* before ``out``, which may be ``x`` */
        T top;
        const T sum = F(softmax_row)(logits, (T *)(out + row * out_stride), width, &top);
        if (target[row] != ignore) loss += log((double)sum) + ((double)top - (double)chosen);
    }
    return loss;
}

LOOP void F(cross_entropy_backward)(Size rows, Size width, const char *probabilities, Size p_stride,
                                    const int64_t *target, int64_t ignore, T scale, char *out, Size out_stride, int add)
{
    for (Size row = 0; row < rows; row++) {
        const T *p = (const T *)(probabilities + row * p_stride);
        T *d = (T *)(out + row * out_stride);
        if (target[row] == ignore) {
            if (!add) memset(d, 0, (size_t)width * sizeof(T));
            continue;
        }
        const T hit = (p[target[row]] - 1) * scale + (add ? d[target[row]] : 0);
        if (add) {
#pragma omp simd
            for (Size j = 0; j < width; j++) d[j] += p[j] * scale;
        } else {
#pragma omp simd
            for (Size j = 0; j < width; j++) d[j] = p[j] * scale;
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

/* ---- update rules ----------------------------------------------------------------------------------------------- */

/* mode 0: no velocity, 1: velocity starts here, 2: velocity goes on. Called with constants: no test stays inside. */
INLINE void F(sgd_body)(Size n, T *w, const T *g, T *v, T lr, T momentum, T kept, T decay, T scale, int mode,
                        int nesterov, int decays)
{
#pragma omp simd
    for (Size i = 0; i < n; i++) {
        T step = g[i] * scale;
        if (decays) step += w[i] * decay;
        if (mode) {
            const T velocity = mode == 1 ? step : v[i] * momentum + step * kept;
            v[i] = velocity;
            step = nesterov ? step + velocity * momentum : velocity;
        }
        w[i] -= step * lr;
    }
}

#define SGD(mode, nesterov, decays) F(sgd_body)(n, w, g, v, lr, momentum, kept, decay, scale, mode, nesterov, decays)
#define SGD_DECAY(mode, nesterov) (decay != 0 ? SGD(mode, nesterov, 1) : SGD(mode, nesterov, 0))
LOOP void F(sgd)(Size n, T *w, const T *g, T *v, T lr, T momentum, T kept, T decay, T scale, int mode, int nesterov)
{
    if (mode == 0) SGD_DECAY(0, 0);
    else if (mode == 1 && nesterov) SGD_DECAY(1, 1);
    else if (mode == 1) SGD_DECAY(1, 0);
    else if (nesterov) SGD_DECAY(2, 1);
    else SGD_DECAY(2, 0);
}
#undef SGD
#undef SGD_DECAY

/* size = lr / (1 - beta1^step), root = sqrt(1 - beta2^step); mode 0: no decay, 1: added to g, 2: decoupled (``decay``
   is then the factor of w). */
INLINE void F(adam_body)(Size n, T *w, const T *g, T *m, T *v, T size, T rest1, T beta2, T rest2, T root, T eps,
                         T decay, T scale, int mode)
{
#pragma omp simd
    for (Size i = 0; i < n; i++) {
        T weight = w[i], gradient = g[i] * scale;
        if (mode == 2) weight *= decay;
        if (mode == 1) gradient += weight * decay;
        const T mean = m[i] + (gradient - m[i]) * rest1, square = v[i] * beta2 + gradient * gradient * rest2;
        m[i] = mean;
        v[i] = square;
        w[i] = weight - size * mean / (SQRT(square) / root + eps);
    }
}

LOOP void F(adam)(Size n, T *w, const T *g, T *m, T *v, T size, T rest1, T beta2, T rest2, T root, T eps, T decay,
                  T scale, int mode)
{
    if (mode == 0) F(adam_body)(n, w, g, m, v, size, rest1, beta2, rest2, root, eps, decay, scale, 0);
    else if (mode == 1) F(adam_body)(n, w, g, m, v, size, rest1, beta2, rest2, root, eps, decay, scale, 1);
    else F(adam_body)(n, w, g, m, v, size, rest1, beta2, rest2, root, eps, decay, scale, 2);
}

/* ---- matrix products with few rows ---------------------------------------------------------------------------------
   A BLAS copies b into packed panels first, which costs more than the product when a has few rows (a step of an LSTM).
   These read b once, where it lies. Leading dimensions in elements. */

#define DOT4(r) s##r##0 += a##r * w0, s##r##1 += a##r * w1, s##r##2 += a##r * w2, s##r##3 += a##r * w3

/* out (rows, cols) of 4 x 4: every sum is over k. */
INLINE void F(dots4x4)(Size k, const T *a, Size lda, const T *w, Size ldw, T *out, Size ldo, int add)
{
    T s00 = 0, s01 = 0, s02 = 0, s03 = 0, s10 = 0, s11 = 0, s12 = 0, s13 = 0;
    T s20 = 0, s21 = 0, s22 = 0, s23 = 0, s30 = 0, s31 = 0, s32 = 0, s33 = 0;
#pragma omp simd reduction(+ : s00, s01, s02, s03, s10, s11, s12, s13, s20, s21, s22, s23, s30, s31, s32, s33)
    for (Size i = 0; i < k; i++) {
        const T a0 = a[i], a1 = a[lda + i], a2 = a[2 * lda + i], a3 = a[3 * lda + i];
        const T w0 = w[i], w1 = w[ldw + i], w2 = w[2 * ldw + i], w3 = w[3 * ldw + i];
        DOT4(0), DOT4(1), DOT4(2), DOT4(3);
    }
    const T s[16] = {s00, s01, s02, s03, s10, s11, s12, s13, s20, s21, s22, s23, s30, s31, s32, s33};
    for (int r = 0; r < 4; r++)
        for (int c = 0; c < 4; c++) out[r * ldo + c] = add ? out[r * ldo + c] + s[4 * r + c] : s[4 * r + c];
}

INLINE void F(dots1x4)(Size k, const T *a, const T *w, Size ldw, T *out, int add)
{
    T s00 = 0, s01 = 0, s02 = 0, s03 = 0;
#pragma omp simd reduction(+ : s00, s01, s02, s03)
    for (Size i = 0; i < k; i++) {
        const T a0 = a[i], w0 = w[i], w1 = w[ldw + i], w2 = w[2 * ldw + i], w3 = w[3 * ldw + i];
        DOT4(0);
    }
    const T s[4] = {s00, s01, s02, s03};
    for (int c = 0; c < 4; c++) out[c] = add ? out[c] + s[c] : s[c];
}
#undef DOT4

INLINE T F(dot)(Size k, const T *a, const T *w)
{
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (Size i = 0; i < k; i++) sum += a[i] * w[i];
    return sum;
}

/* a (m, k), w (n, k) -> out (m, n) = a w^T */
LOOP void F(skinny_nt)(Size m, Size n, Size k, const T *a, Size lda, const T *w, Size ldw, T *out, Size ldo, int add)
{
    Size c = 0;
    for (; c + 4 <= n; c += 4) {
        Size r = 0;
        for (; r + 4 <= m; r += 4) F(dots4x4)(k, a + r * lda, lda, w + c * ldw, ldw, out + r * ldo + c, ldo, add);
        for (; r < m; r++) F(dots1x4)(k, a + r * lda, w + c * ldw, ldw, out + r * ldo + c, add);
    }
    for (; c < n; c++)
        for (Size r = 0; r < m; r++) {
            const T sum = F(dot)(k, a + r * lda, w + c * ldw);
            out[r * ldo + c] = add ? out[r * ldo + c] + sum : sum;
        }
}

/* out (1, n) += a (1, 4) b (4, n) */
INLINE void F(row4)(Size n, const T *a, const T *b, Size ldb, T *out)
{
    const T a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3];
    const T *b0 = b, *b1 = b + ldb, *b2 = b1 + ldb, *b3 = b2 + ldb;
#pragma omp simd
    for (Size j = 0; j < n; j++) out[j] += a0 * b0[j] + a1 * b1[j] + a2 * b2[j] + a3 * b3[j];
}

/* out (4, n) += a (4, 4) b (4, n) */
INLINE void F(rows4)(Size n, const T *a, Size lda, const T *b, Size ldb, T *out, Size ldo)
{
    const T *b0 = b, *b1 = b + ldb, *b2 = b1 + ldb, *b3 = b2 + ldb;
    T *o0 = out, *o1 = out + ldo, *o2 = o1 + ldo, *o3 = o2 + ldo;
    const T a00 = a[0], a01 = a[1], a02 = a[2], a03 = a[3];
    a += lda;
    const T a10 = a[0], a11 = a[1], a12 = a[2], a13 = a[3];
    a += lda;
    const T a20 = a[0], a21 = a[1], a22 = a[2], a23 = a[3];
    a += lda;
    const T a30 = a[0], a31 = a[1], a32 = a[2], a33 = a[3];
#pragma omp simd
    for (Size j = 0; j < n; j++) {
        const T x0 = b0[j], x1 = b1[j], x2 = b2[j], x3 = b3[j];
        o0[j] += a00 * x0 + a01 * x1 + a02 * x2 + a03 * x3;
        o1[j] += a10 * x0 + a11 * x1 + a12 * x2 + a13 * x3;
        o2[j] += a20 * x0 + a21 * x1 + a22 * x2 + a23 * x3;
        o3[j] += a30 * x0 + a31 * x1 + a32 * x2 + a33 * x3;
    }
}

/* a (m, k), b (k, n) -> out (m, n) = a b */
LOOP void F(skinny_nn)(Size m, Size n, Size k, const T *a, Size lda, const T *b, Size ldb, T *out, Size ldo, int add)
{
    Size i = 0;
    if (!add)
        for (Size r = 0; r < m; r++) memset(out + r * ldo, 0, (size_t)n * sizeof(T));
    for (; i + 4 <= k; i += 4) {
        Size r = 0;
        for (; r + 4 <= m; r += 4) F(rows4)(n, a + r * lda + i, lda, b + i * ldb, ldb, out + r * ldo, ldo);
        for (; r < m; r++) F(row4)(n, a + r * lda + i, b + i * ldb, ldb, out + r * ldo);
    }
    for (; i < k; i++)
        for (Size r = 0; r < m; r++) {
            const T factor = a[r * lda + i], *from = b + i * ldb;
            T *to = out + r * ldo;
#pragma omp simd
            for (Size j = 0; j < n; j++) to[j] += factor * from[j];
        }
}

/* a, b or both transposed; through the address of a cblas_?gemm with 64-bit (wide) or 32-bit integers. */
static void F(gemm)(void *address, int wide, int ta, int tb, Size m, Size n, Size k, const T *a, Size lda, const T *b,
                    Size ldb, T *out, Size ldo, int add)
{
    typedef void (*Wide)(int, int, int, int64_t, int64_t, int64_t, T, const T *, int64_t, const T *, int64_t, T, T *,
                         int64_t);
    typedef void (*Narrow)(int, int, int, int, int, int, T, const T *, int, const T *, int, T, T *, int);
    enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
    const int ca = ta ? TRANSPOSED : PLAIN, cb = tb ? TRANSPOSED : PLAIN;
    const T beta = add ? 1 : 0;
    if (wide)
        ((Wide)address)(ROW_MAJOR, ca, cb, m, n, k, 1, a, lda, b, ldb, beta, out, ldo);
    else
        ((Narrow)address)(ROW_MAJOR, ca, cb, (int)m, (int)n, (int)k, 1, a, (int)lda, b, (int)ldb, beta, out, (int)ldo);
}

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

LOOP void F(uniform_from)(const uint32_t *words, Size n, T *out)
{
#pragma omp simd
    for (Size i = 0; i < n; i++) out[i] = UNIFORM(words[i]);
}

/* Box-Muller, in double: the words start at an even position. */
static void F(normal_from)(const uint32_t *words, Size pairs, T *out)
{
    for (Size i = 0; i < pairs; i++) {
        const double radius = sqrt(-2.0 * log1p(-(double)words[2 * i] * 0x1p-32));
        const double angle = 6.283185307179586477 * ((double)words[2 * i + 1] * 0x1p-32);
        out[2 * i] = (T)(radius * cos(angle));
        out[2 * i + 1] = (T)(radius * sin(angle));
    }
}

/* n numbers at consecutive positions of a stream; uniform or normal. */
static void F(random_row)(uint32_t key0, uint32_t key1, uint32_t stream, uint64_t position, Size n, int normal, T *out)
{
    enum { CHUNK = 4 * PHILOX_BLOCKS };
    uint32_t words[CHUNK];
    T numbers[CHUNK];
    while (n > 0) {
        const Size skip = (Size)(position & 3), count = n < CHUNK - skip ? n : CHUNK - skip;
        philox_words(key0, key1, stream, position >> 2, words);
        if (normal) {
            F(normal_from)(words, (skip + count + 1) / 2, numbers);
            memcpy(out, numbers + skip, (size_t)count * sizeof(T));
        } else
            F(uniform_from)(words + skip, count, out);
        position += (uint64_t)count;
        out += count;
        n -= count;
    }
}
