/* Selective scan over the steps of a sequence. For one floating-point type (see native/loops/types.h).

   Arrays are contiguous: x, dt, y and their gradients (samples, steps, channels), a (channels, states), b and c (samples,
   steps, states). A block of channels goes through all steps, so that its states stay near: `scratch` holds arrays
   (states, SCAN_BLOCK), two of them forward, steps + 4 backward. */

#ifndef SCAN_BLOCK
#define SCAN_BLOCK 16
#endif

/* The block's rows of a, turned: (states, SCAN_BLOCK). */
INLINE void F(turned)(const T *a, Size states, Size n, T *to)
{
    for (Size s = 0; s < states; s++)
        for (Size j = 0; j < SCAN_BLOCK; j++) to[s * SCAN_BLOCK + j] = j < n ? a[j * states + s] : 0;
}

/* `after` = the states one step after `before`, which may be the same memory. */
INLINE void F(advance)(Size states, Size n, const T *x, const T *dt, const T *a, const T *b, const T *before, T *after)
{
    for (Size s = 0; s < states; s++) {
        const T *h = before + s * SCAN_BLOCK, *rate = a + s * SCAN_BLOCK;
        T *to = after + s * SCAN_BLOCK;
        const T entry = b[s];
#pragma omp simd
        for (Size j = 0; j < n; j++) to[j] = F(exp_)(dt[j] * rate[j]) * h[j] + dt[j] * x[j] * entry;
    }
}

LOOP void F(selective_scan)(Size samples, Size steps, Size channels, Size states, const T *x, const T *dt, const T *a,
                            const T *b, const T *c, T *y, T *scratch)
{
    T *h = scratch, *rates = scratch + states * SCAN_BLOCK;
    for (Size sample = 0; sample < samples; sample++)
        for (Size start = 0; start < channels; start += SCAN_BLOCK) {
            const Size n = channels - start < SCAN_BLOCK ? channels - start : SCAN_BLOCK;
            F(turned)(a + start * states, states, n, rates);
            memset(h, 0, (size_t)(states * SCAN_BLOCK) * sizeof(T));
            for (Size t = 0; t < steps; t++) {
                const Size row = sample * steps + t, at = row * channels + start;
                T sum[SCAN_BLOCK] = {0};
                F(advance)(states, n, x + at, dt + at, rates, b + row * states, h, h);
                for (Size s = 0; s < states; s++) {
                    const T out = c[row * states + s];
#pragma omp simd
                    for (Size j = 0; j < n; j++) sum[j] += out * h[s * SCAN_BLOCK + j];
                }
                memcpy(y + at, sum, (size_t)n * sizeof(T));
            }
        }
}
#define any_selective_scan(...) EITHER(selective_scan, __VA_ARGS__)

LOOP void F(selective_scan_backward)(Size samples, Size steps, Size channels, Size states, const T *x, const T *dt,
                                     const T *a, const T *b, const T *c, const T *dy, T *dx, T *ddt, T *da, T *db,
                                     T *dc, T *scratch)
{
    const Size room = states * SCAN_BLOCK;
    T *rates = scratch, *dh = scratch + room, *of_rates = scratch + 2 * room, *all = scratch + 3 * room;
    memset(da, 0, (size_t)(channels * states) * sizeof(T));
    memset(db, 0, (size_t)(samples * steps * states) * sizeof(T));
    memset(dc, 0, (size_t)(samples * steps * states) * sizeof(T));
    for (Size sample = 0; sample < samples; sample++)
        for (Size start = 0; start < channels; start += SCAN_BLOCK) {
            const Size n = channels - start < SCAN_BLOCK ? channels - start : SCAN_BLOCK;
            F(turned)(a + start * states, states, n, rates);
            memset(dh, 0, (size_t)room * sizeof(T));
            memset(of_rates, 0, (size_t)room * sizeof(T));
            memset(all, 0, (size_t)room * sizeof(T));
            for (Size t = 0; t < steps; t++) {
                const Size row = sample * steps + t, at = row * channels + start;
                F(advance)(states, n, x + at, dt + at, rates, b + row * states, all + t * room, all + (t + 1) * room);
            }
            for (Size t = steps - 1; t >= 0; t--) {
                const Size row = sample * steps + t, at = row * channels + start;
                const T *value = x + at, *step = dt + at, *came = dy + at;
                T entered[SCAN_BLOCK] = {0}, slowed[SCAN_BLOCK] = {0};
                for (Size s = 0; s < states; s++) {
                    const T entry = b[row * states + s], out = c[row * states + s];
                    const T *rate = rates + s * SCAN_BLOCK, *before = all + t * room + s * SCAN_BLOCK, *after = before + room;
                    T *back = dh + s * SCAN_BLOCK, *of_rate = of_rates + s * SCAN_BLOCK, of_entry = 0, of_out = 0;
#pragma omp simd reduction(+ : of_entry, of_out)
                    for (Size j = 0; j < n; j++) {
                        const T here = back[j] + came[j] * out;
                        of_out += came[j] * after[j];
                        of_entry += here * step[j] * value[j];
                        entered[j] += here * entry;
                        back[j] = here * F(exp_)(step[j] * rate[j]);
                        slowed[j] += back[j] * before[j] * rate[j];
                        of_rate[j] += back[j] * before[j] * step[j];
                    }
                    db[row * states + s] += of_entry;
                    dc[row * states + s] += of_out;
                }
#pragma omp simd
                for (Size j = 0; j < n; j++) {
                    dx[at + j] = entered[j] * step[j];
                    ddt[at + j] = entered[j] * value[j] + slowed[j];
                }
            }
            for (Size s = 0; s < states; s++)
                for (Size j = 0; j < n; j++) da[(start + j) * states + s] += of_rates[s * SCAN_BLOCK + j];
        }
}
#define any_selective_scan_backward(...) EITHER(selective_scan_backward, __VA_ARGS__)
