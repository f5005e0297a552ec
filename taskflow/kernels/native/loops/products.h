/* Matrix products with few rows, and the call of a BLAS. For one floating-point type (see native/loops/types.h).

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
#define any_skinny_nt(...) EITHER(skinny_nt, __VA_ARGS__)

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
#define any_skinny_nn(...) EITHER(skinny_nn, __VA_ARGS__)

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
#define any_gemm(...) EITHER(gemm, __VA_ARGS__)
