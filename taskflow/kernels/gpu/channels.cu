// Channels of (N, C, P): what batch normalisation does with whole images, and between that with a channel's few numbers.

// Over channels of (N, C, P), in double precision: out (parts, 2, C). what 0: sums of x and its square; 1: of dy and dy x.
extern "C" __global__ void channel_totals(
    int what, Int samples, Int channels, Int positions, Int parts, const REAL *x, const REAL *dy, double *out
) {
    EACH_BLOCK(b, parts * channels) {
        Int c = b % channels, s = b / channels, each = samples * positions;
        Int last = each * (s + 1) / parts;
        double first = 0, second = 0;
        for (Int i = each * s / parts + threadIdx.x; i < last; i += blockDim.x) {
            Int at = (i / positions * channels + c) * positions + i % positions;
            double value = (double)x[at], other = what == 1 ? (double)dy[at] : value;
            first += other;
            second += other * value;
        }
        first = block_sum(first);
        second = block_sum(second);
        if (threadIdx.x == 0) {
            out[2 * s * channels + c] = first;
            out[(2 * s + 1) * channels + c] = second;
        }
    }
}

extern "C" __global__ void channel_affine(
    Int count, Int channels, Int positions, const REAL *x, const REAL *scale, const REAL *offset, REAL *out, int add
) {
    EACH(i, count) {
        Int c = i / positions % channels;
        put(out, i, x[i] * scale[c] + offset[c], add);
    }
}

// Few numbers: one thread a channel, in double precision.
struct Channel {
    double mean, inverse, scale;  // mean, 1 / standard deviation, weight / standard deviation
    int varies;
};

// sums (2, C): of x and its square over count elements.
__device__ inline Channel channel_of(Int c, Int channels, const double *sums, double count, double eps, const REAL *weight) {
    Channel found;
    found.mean = sums[c] / count;
    double variance = sums[channels + c] / count - found.mean * found.mean;
    found.varies = variance > 0;
    found.inverse = 1 / sqrt((variance < 0 ? 0 : variance) + eps);
    found.scale = weight[c] * found.inverse;
    return found;
}

// out (2, C): what x is multiplied with, and what is added to that.
extern "C" __global__ void channel_scales(
    Int channels, const double *sums, double count, double eps, const REAL *weight, const REAL *bias, REAL *out
) {
    EACH(c, channels) {
        Channel of = channel_of(c, channels, sums, count, eps, weight);
        out[c] = (REAL)of.scale;
        out[channels + c] = (REAL)(bias[c] - of.mean * of.scale);
    }
}

// products (2, C): sums of dy and dy x. out (5, C): scale, and the gradients of bias, weight and both sums.
extern "C" __global__ void channel_changes(
    Int channels, const double *sums, double count, double eps, const REAL *weight, const double *products, double *out
) {
    EACH(c, channels) {
        Channel of = channel_of(c, channels, sums, count, eps, weight);
        double total = products[c], product = products[channels + c] - of.mean * total;
        double dvariance = of.varies ? -0.5 * of.scale * of.inverse * of.inverse * product : 0;
        out[c] = of.scale;
        out[channels + c] = total;
        out[2 * channels + c] = product * of.inverse;
        out[3 * channels + c] = (-of.scale * total - 2 * of.mean * dvariance) / count;
        out[4 * channels + c] = dvariance / count;
    }
}

// moments (G, 2, C): the sums of every group of samples.
extern "C" __global__ void channel_running(
    Int groups, Int channels, const double *moments, double count, double momentum, double correction, const REAL *mean,
    const REAL *variance, REAL *new_mean, REAL *new_variance
) {
    EACH(c, channels) {
        double middle = 0, unbiased = 0;
        for (Int g = 0; g < groups; g++) {
            double first = moments[2 * g * channels + c] / count;
            middle += first;
            unbiased += moments[(2 * g + 1) * channels + c] / count - first * first;
        }
        new_mean[c] = (REAL)(mean[c] + momentum * (middle / groups - mean[c]));
        new_variance[c] = (REAL)(variance[c] + momentum * (unbiased / groups * correction - variance[c]));
    }
}
