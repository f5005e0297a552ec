/* Rows: LSTM cells, embedding, sums. For one floating-point type (see native/loops/types.h).

   Strides are in bytes and count from one row to the next; rows are contiguous. Arguments that several loops read and
   write may be the same array, element for element, but must not overlap otherwise. */

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
#define any_lstm_cell(...) EITHER(lstm_cell, __VA_ARGS__)

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
#define any_lstm_cell_backward(...) EITHER(lstm_cell_backward, __VA_ARGS__)

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
#define any_embedding(...) EITHER(embedding, __VA_ARGS__)

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
#define any_embedding_backward(...) EITHER(embedding_backward, __VA_ARGS__)

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
#define any_sum_rows(...) EITHER(sum_rows, __VA_ARGS__)
