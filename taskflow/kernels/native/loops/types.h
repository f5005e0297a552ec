/* Includes the header that the macro LOOPS names twice: T is float and names end in _f, then T is double and they end
   in _d. A file of compiled code includes this once. */
#include "native/loops/base.h"

#define T float
#define UNIFORM(word) ((float)(int32_t)((word) >> 8) * 0x1p-24f)
#define BITS uint32_t
#define SUFFIX f
#define MANTISSA 23
#define BIAS 127
#define ROUNDER 12582912.0f          /* 1.5 2^23: adding it rounds to an integer */
#define LOG2E 1.44269504088896341f
#define LN2_HIGH 0.693359375f        /* few bits: n LN2_HIGH is exact */
#define LN2_LOW -2.12194440e-4f
#define EXP_MOST 89.0f
#define EXP_LEAST -105.0f
#define TANH_MOST 10.0f
#define TERMS 7
#define TAIL_CENTER 4
#define TAIL_SERIES \
    0.1888212846f, -0.1519741546f, 0.09678417102f, -0.04663067123f, 0.01510167218f, -0.001882312676f, \
    -0.0008815459251f, 0.0003930794699f, 5.031543257e-5f, -3.004610028e-5f
#define FABS fabsf
#define COPYSIGN copysignf
#define SQRT sqrtf
#include "native/loops/math.h"
#include LOOPS
#undef T
#undef UNIFORM
#undef BITS
#undef SUFFIX
#undef MANTISSA
#undef BIAS
#undef ROUNDER
#undef LOG2E
#undef LN2_HIGH
#undef LN2_LOW
#undef EXP_MOST
#undef EXP_LEAST
#undef TANH_MOST
#undef TERMS
#undef TAIL_CENTER
#undef TAIL_SERIES
#undef FABS
#undef COPYSIGN
#undef SQRT

#define T double
#define UNIFORM(word) ((double)(word) * 0x1p-32)
#define BITS uint64_t
#define SUFFIX d
#define MANTISSA 52
#define BIAS 1023
#define ROUNDER 6755399441055744.0   /* 1.5 2^52 */
#define LOG2E 1.44269504088896340736
#define LN2_HIGH 6.93147180369123816490e-01
#define LN2_LOW 1.90821492927058770002e-10
#define EXP_MOST 711.0
#define EXP_LEAST -747.0
#define TANH_MOST 20.0
#define TERMS 13
#define TAIL_CENTER 6
#define TAIL_SERIES \
    0.129558628648893699, -0.116834838265144254, 0.0948281486357971508, -0.0689839309625988117, \
    0.0446623743069495156, -0.0254467053440683802, 0.0125286526113542456, -0.00516421925150279864, \
    0.00167163677472532264, -0.000355267532620549689, 5.47833010374041574e-6, 3.02267208137527813e-5, \
    -1.07919857155374758e-5, 1.79329542371990979e-7, 1.13273490282640588e-6, -3.00114345654898664e-7, \
    -7.17176682876707584e-8, 5.19787416521594588e-8, 1.57595448389519509e-9, -7.39092161797595836e-9, \
    -2.24093621520388342e-11, 8.72939434335038966e-10, 1.47947346700397163e-10
#define FABS fabs
#define COPYSIGN copysign
#define SQRT sqrt
#include "native/loops/math.h"
#include LOOPS
#undef T
#undef UNIFORM
#undef BITS
#undef SUFFIX
