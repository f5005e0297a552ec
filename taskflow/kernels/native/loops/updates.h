/* Update rules on flat arrays. For one floating-point type (see native/loops/types.h). */

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
#define any_sgd(...) EITHER(sgd, __VA_ARGS__)
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
#define any_adam(...) EITHER(adam, __VA_ARGS__)

LOOP double F(sum_of_squares)(Size n, const T *x)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (Size i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}
#define any_sum_of_squares(...) EITHER(sum_of_squares, __VA_ARGS__)
