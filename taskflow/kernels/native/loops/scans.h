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

/* Linear attention: q, k and their gradients (samples, steps, groups, width), v, y (samples, steps, heads, value), g (samples,
   steps, heads, rates), rates being 1 or width, beta (samples, steps, heads) or NULL. Head h uses queries and keys number (first + h)
   / each. `scratch` holds states (width, value): 1 forward; backward one before each LINEAR_BLOCK steps, LINEAR_BLOCK + 1 of a block,
   and one for gradients; then 4 rows of `value`. */

#ifndef LINEAR_BLOCK
#define LINEAR_BLOCK 16
#endif

/* to = exp(g) from, and missed = v - to^T k if there is a beta, else v. */
INLINE void F(decayed)(Size width, Size value, Size rates, const T *k, const T *v, const T *g, const T *beta, const T *from, T *to,
                       T *missed)
{
    const T all = F(exp_)(g[0]);
    memcpy(missed, v, (size_t)value * sizeof(T));
    for (Size a = 0; a < width; a++) {
        const T left = rates == 1 ? all : F(exp_)(g[a]), key = beta ? k[a] : 0;
        const T *row = from + a * value;
        T *made = to + a * value;
#pragma omp simd
        for (Size b = 0; b < value; b++) {
            made[b] = left * row[b];
            missed[b] -= key * made[b];
        }
    }
}

/* The state one step after `from`, which may be the same memory. */
INLINE void F(written)(Size width, Size value, Size rates, const T *k, const T *v, const T *g, const T *beta, const T *from, T *to,
                       T *missed)
{
    F(decayed)(width, value, rates, k, v, g, beta, from, to, missed);
    const T rate = beta ? *beta : 1;
    for (Size a = 0; a < width; a++) {
        const T key = rate * k[a];
        T *made = to + a * value;
#pragma omp simd
        for (Size b = 0; b < value; b++) made[b] += key * missed[b];
    }
}

LOOP void F(linear_attention)(Size samples, Size steps, Size heads, Size groups, Size each, Size first, Size width, Size value,
                              Size rates, const T *q, const T *k, const T *v, const T *g, const T *beta, T *y, T *scratch)
{
    T *state = scratch, *missed = scratch + width * value;
    for (Size sample = 0; sample < samples; sample++)
        for (Size head = 0; head < heads; head++) {
            memset(state, 0, (size_t)(width * value) * sizeof(T));
            for (Size t = 0; t < steps; t++) {
                const Size row = sample * steps + t, at = row * heads + head, of = (row * groups + (first + head) / each) * width;
                T *out = y + at * value;
                F(written)(width, value, rates, k + of, v + at * value, g + at * rates, beta ? beta + at : NULL, state, state, missed);
                memset(out, 0, (size_t)value * sizeof(T));
                for (Size a = 0; a < width; a++) {
                    const T asked = q[of + a];
#pragma omp simd
                    for (Size b = 0; b < value; b++) out[b] += asked * state[a * value + b];
                }
            }
        }
}
#define any_linear_attention(...) EITHER(linear_attention, __VA_ARGS__)

LOOP void F(linear_attention_backward)(Size samples, Size steps, Size heads, Size groups, Size each, Size first, Size width,
                                       Size value, Size rates, const T *q, const T *k, const T *v, const T *g, const T *beta,
                                       const T *dy, T *dq, T *dk, T *dv, T *dg, T *dbeta, T *scratch)
{
    const Size room = width * value, blocks = (steps + LINEAR_BLOCK - 1) / LINEAR_BLOCK;
    T *kept = scratch, *all = kept + blocks * room, *ds = all + (LINEAR_BLOCK + 1) * room, *missed = ds + room;
    T *du = missed + value;
    memset(dq, 0, (size_t)(samples * steps * groups * width) * sizeof(T));
    memset(dk, 0, (size_t)(samples * steps * groups * width) * sizeof(T));
    for (Size sample = 0; sample < samples; sample++)
        for (Size head = 0; head < heads; head++) {
            memset(all, 0, (size_t)room * sizeof(T));
            memset(ds, 0, (size_t)room * sizeof(T));
            for (Size t = 0; t < steps; t++) {
                const Size row = sample * steps + t, at = row * heads + head, of = (row * groups + (first + head) / each) * width;
                if (t % LINEAR_BLOCK == 0) memcpy(kept + t / LINEAR_BLOCK * room, all, (size_t)room * sizeof(T));
                F(written)(width, value, rates, k + of, v + at * value, g + at * rates, beta ? beta + at : NULL, all, all, missed);
            }
            for (Size block = blocks - 1; block >= 0; block--) {
                const Size from = block * LINEAR_BLOCK, to = from + LINEAR_BLOCK < steps ? from + LINEAR_BLOCK : steps;
                memcpy(all, kept + block * room, (size_t)room * sizeof(T));
                for (Size t = from; t < to; t++) {
                    const Size row = sample * steps + t, at = row * heads + head, of = (row * groups + (first + head) / each) * width;
                    T *before = all + (t - from) * room;
                    F(written)(width, value, rates, k + of, v + at * value, g + at * rates, beta ? beta + at : NULL, before,
                               before + room, missed);
                }
                for (Size t = to - 1; t >= from; t--) {
                    const Size row = sample * steps + t, at = row * heads + head, of = (row * groups + (first + head) / each) * width;
                    const T *came = dy + at * value, *rate = g + at * rates;
                    T *before = all + (t - from) * room, *after = before + room, *of_value = dv + at * value;
                    memset(du, 0, (size_t)value * sizeof(T));
                    for (Size a = 0; a < width; a++) {
                        const T asked = q[of + a], key = k[of + a];
                        T *back = ds + a * value, *was = after + a * value, sum = 0;
#pragma omp simd reduction(+ : sum)
                        for (Size b = 0; b < value; b++) {
                            sum += was[b] * came[b];
                            back[b] += asked * came[b];
                            du[b] += key * back[b];
                        }
                        dq[of + a] += sum;
                    }
                    /* From here on `after` is what the decay has left of `before`. */
                    F(decayed)(width, value, rates, k + of, v + at * value, rate, beta ? beta + at : NULL, before, after, missed);
                    const T step = beta ? beta[at] : 1;
                    T of_beta = 0, of_rate = 0;
#pragma omp simd reduction(+ : of_beta)
                    for (Size b = 0; b < value; b++) {
                        of_beta += du[b] * missed[b];
                        of_value[b] = step * du[b];
                        missed[b] *= step;
                    }
                    if (beta) dbeta[at] = of_beta;
                    for (Size a = 0; a < width; a++) {
                        const T key = beta ? k[of + a] : 0, corrects = beta ? 1 : 0, left = F(exp_)(rate[rates == 1 ? 0 : a]);
                        T *back = ds + a * value, *was = after + a * value, of_key = 0, sum = 0;
#pragma omp simd reduction(+ : of_key, sum)
                        for (Size b = 0; b < value; b++) {
                            of_key += back[b] * missed[b] - corrects * was[b] * of_value[b];
                            back[b] -= key * of_value[b];
                            sum += back[b] * was[b];
                            back[b] *= left;
                        }
                        dk[of + a] += of_key;
                        if (rates == 1)
                            of_rate += sum;
                        else
                            dg[at * rates + a] = sum;
                    }
                    if (rates == 1) dg[at] = of_rate;
                }
            }
        }
}
#define any_linear_attention_backward(...) EITHER(linear_attention_backward, __VA_ARGS__)
