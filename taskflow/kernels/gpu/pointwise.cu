// Element by element: activations, the LSTM cell, channels, dropout, update rules.

extern "C" __global__ void activate(int function, Int count, const REAL *x, REAL *out) {
    EACH(i, count) {
        REAL v = x[i];
        out[i] = function == 0 ? (v < 0 ? (REAL)0 : v) : function == 1 ? sigmoid(v) : (REAL)tanh(v);
    }
}

extern "C" __global__ void activate_backward(
    int function, Int count, const REAL *y, const REAL *dy, REAL *out, int add
) {
    EACH(i, count) {
        REAL v = y[i], g = dy[i];
        put(out, i, function == 0 ? (v <= 0 ? (REAL)0 : g) : function == 1 ? g * v * (1 - v) : g * (1 - v * v), add);
    }
}

// The probability that a standard normal number is below x, or its approximation by a tanh.
__device__ inline REAL gelu_gate(REAL x, int approximate) {
    if (approximate)
        return (REAL)0.5 + (REAL)0.5 * tanh((REAL)0.79788456080286535588 * (x + (REAL)0.044715 * x * x * x));
    return (REAL)0.5 + (REAL)0.5 * erf(x * (REAL)0.70710678118654752440);
}

extern "C" __global__ void gelu(Int count, const REAL *x, int approximate, REAL *out) {
    EACH(i, count) out[i] = x[i] * gelu_gate(x[i], approximate);
}

extern "C" __global__ void gelu_backward(
    Int count, const REAL *x, int approximate, const REAL *dy, REAL *out, int add
) {
    EACH(i, count) {
        REAL v = x[i], gate = gelu_gate(v, approximate), slope;
        if (approximate)
            slope = 2 * gate * (1 - gate) * (REAL)0.79788456080286535588 * (1 + 3 * (REAL)0.044715 * v * v);
        else
            slope = exp((REAL)-0.5 * v * v) * (REAL)0.39894228040143267794;
        put(out, i, dy[i] * (gate + v * slope), add);
    }
}

// gates (N, 4, H) and the others (N, H), rows as far apart as the strides say.
extern "C" __global__ void lstm_cell(
    Int rows, Int width, REAL *gates, Int gate_stride, const REAL *c_prev, Int c_prev_stride, REAL *c, Int c_stride,
    REAL *h, Int h_stride
) {
    EACH(at, rows * width) {
        Int n = at / width, j = at % width;
        REAL *gate = gates + n * gate_stride + j;
        REAL i = sigmoid(gate[0]), f = sigmoid(gate[width]), g = tanh(gate[2 * width]), o = sigmoid(gate[3 * width]);
        REAL cell = f * c_prev[n * c_prev_stride + j] + i * g;
        gate[0] = i;
        gate[width] = f;
        gate[2 * width] = g;
        gate[3 * width] = o;
        c[n * c_stride + j] = cell;
        h[n * h_stride + j] = o * tanh(cell);
    }
}

extern "C" __global__ void lstm_cell_backward(
    Int rows, Int width, const REAL *gates, Int gate_stride, const REAL *c_prev, Int c_prev_stride, const REAL *c,
    Int c_stride, const REAL *dh, Int dh_stride, REAL *dc, Int dc_stride, REAL *dgates, Int dgate_stride
) {
    EACH(at, rows * width) {
        Int n = at / width, j = at % width;
        const REAL *gate = gates + n * gate_stride + j;
        REAL i = gate[0], f = gate[width], g = gate[2 * width], o = gate[3 * width];
        REAL t = tanh(c[n * c_stride + j]), up = dh[n * dh_stride + j];
        REAL total = dc[n * dc_stride + j] + up * o * (1 - t * t);
        REAL *into = dgates + n * dgate_stride + j;
        into[0] = total * g * i * (1 - i);
        into[width] = total * c_prev[n * c_prev_stride + j] * f * (1 - f);
        into[2 * width] = total * i * (1 - g * g);
        into[3 * width] = up * t * o * (1 - o);
        dc[n * dc_stride + j] = total * f;
    }
}

extern "C" __global__ void add_bias(Int count, Int channels, Int positions, const REAL *bias, REAL *out) {
    EACH(i, count) out[i] += bias[i / positions % channels];
}

extern "C" __global__ void dropout_backward(
    Int count, const unsigned char *mask, REAL factor, const REAL *dy, REAL *out, int add
) {
    EACH(i, count) put(out, i, mask[i] ? dy[i] * factor : (REAL)0, add);
}

// scale_at: where the gradients' factor lies, or null. dial: where numbers of this step lie that replace arguments (here lr and
// first), or null: a recorded step is replayed with the arguments that it was recorded with. A factor that is not a number: gradients
// have overflowed, and nothing is updated.
extern "C" __global__ void sgd(
    Int count, REAL *w, const REAL *g, REAL *velocity, REAL lr, REAL momentum, REAL fresh, REAL weight_decay, int nesterov,
    double scale, const double *scale_at, int first, const double *dial
) {
    REAL factor = (REAL)(scale_at ? scale * scale_at[0] : scale);
    if (dial) {
        lr = (REAL)dial[0];
        first = dial[1] != 0;
    }
    if (factor != factor) return;
    EACH(i, count) {
        REAL step = g[i] * factor + w[i] * weight_decay;
        if (velocity) {
            REAL moved = first ? step : velocity[i] * momentum + step * fresh;
            velocity[i] = moved;
            step = nesterov ? step + moved * momentum : moved;
        }
        w[i] -= step * lr;
    }
}

// kept: 1 - lr weight_decay if the weights themselves decay. size: lr over the first moment's correction; root: of the second's.
// dial: these three, or null.
extern "C" __global__ void adam(
    Int count, REAL *w, const REAL *g, REAL *m, REAL *v, REAL kept, REAL weight_decay, REAL fresh1, REAL beta2, REAL fresh2,
    REAL size, REAL root, REAL eps, double scale, const double *scale_at, const double *dial
) {
    REAL factor = (REAL)(scale_at ? scale * scale_at[0] : scale);
    if (dial) {
        kept = (REAL)dial[0];
        size = (REAL)dial[1];
        root = (REAL)dial[2];
    }
    if (factor != factor) return;
    EACH(i, count) {
        REAL weight = w[i] * kept, gradient = g[i] * factor + weight * weight_decay;
        REAL first = m[i] + (gradient - m[i]) * fresh1, second = v[i] * beta2 + gradient * gradient * fresh2;
        m[i] = first;
        v[i] = second;
        w[i] = weight - size * first / (sqrt(second) / root + eps);
    }
}

// 16-bit floats. half: float16, else bfloat16. Rounded to the nearest, ties to even; too large is infinite.
union Bits {
    float number;
    Word bits;
};

__device__ inline unsigned short rounded(float x, int half) {
    Bits value;
    value.number = x;
    Word bits = value.bits, sign = bits >> 16 & 0x8000u, size = bits & 0x7FFFFFFFu;
    if (size > 0x7F800000u) return (unsigned short)(half ? sign | 0x7E00u : bits >> 16 | 0x40u);  // not a number
    if (!half) return (unsigned short)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
    if (size >= 0x47800000u) return (unsigned short)(sign | 0x7C00u);  // 65536 or more; from 65520 on the next line carries
    if (size >= 0x38800000u) return (unsigned short)(sign | (size - 0x38000000u + 0xFFFu + (size >> 13 & 1)) >> 13);
    value.bits = size;
    value.number = value.number + 0.5f;  // below 2^-14, where 2^-24 is one step: the sum is rounded to steps of 2^-24
    return (unsigned short)(sign | (value.bits - 0x3F000000u));
}

__device__ inline float widened(unsigned short x, int half) {
    Bits value;
    value.bits = (Word)x << 16;
    if (!half) return value.number;
    Word sign = value.bits & 0x80000000u, size = x & 0x7FFFu;
    if (size >= 0x7C00u) {
        value.bits = size << 13 | 0x7F800000u;
    } else if (size >= 0x400u) {
        value.bits = (size << 13) + 0x38000000u;
    } else {
        value.number = (float)size * 5.9604644775390625e-8f;  // 2^-24
    }
    value.bits |= sign;
    return value.number;
}

extern "C" __global__ void round_to_16(Int count, int half, const REAL *x, unsigned short *out) {
    EACH(i, count) out[i] = rounded((float)x[i], half);
}

extern "C" __global__ void widen(Int count, int half, const unsigned short *x, REAL *out, int add) {
    EACH(i, count) put(out, i, (REAL)widened(x[i], half), add);
}
