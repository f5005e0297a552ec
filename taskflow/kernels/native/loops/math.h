/* Functions of one number that the loops share: branch-free, so that they vectorise; about 2 units in the last place; NaN
   stays NaN. For one floating-point type: T, its bits BITS, names end in SUFFIX (see native/loops/types.h). */

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

/* The probability that a standard normal number is below x. With t = |x|, P(below -t) = exp(-t^2 / 2) w s(u), where
   w = c / (t + c), u = (t - c) / (t + c), and s is a polynomial that interpolates at Chebyshev points to below one unit in
   the last place (the substitution of Shepherd and Laframboise, Mathematics of Computation 36, 1981; the coefficients
   were computed with 50 digits). *bell: exp(-x^2 / 2). */
INLINE T F(below)(T x, T *bell)
{
    static const T series[] = {TAIL_SERIES};
    const T t = FABS(x), w = TAIL_CENTER / (t + TAIL_CENTER), u = 1 - 2 * w;
    T sum = series[sizeof series / sizeof *series - 1];
#pragma GCC unroll 32
    for (int k = (int)(sizeof series / sizeof *series) - 2; k >= 0; k--) sum = sum * u + series[k];
    *bell = F(exp_)((T)-0.5 * t * t);
    const T tail = *bell * w * sum;
    return x < 0 ? tail : 1 - tail;
}
