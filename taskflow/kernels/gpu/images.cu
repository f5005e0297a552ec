// Images (N, C, H, W): patches for convolutions as matrix products, and pooling. Gradients are gathered, each element by the
// thread that owns it, so that sums have a fixed order.

struct Sliding {
    Int height, width, out_height, out_width, kernel_h, kernel_w, stride_h, stride_w, top, left, dilation_h, dilation_w;
};
#define SLIDING \
    Int height, Int width, Int out_height, Int out_width, Int kernel_h, Int kernel_w, Int stride_h, Int stride_w, Int top, \
        Int left, Int dilation_h, Int dilation_w
#define SLIDES \
    Sliding{ height, width, out_height, out_width, kernel_h, kernel_w, stride_h, stride_w, top, left, dilation_h, dilation_w }

// Which output row (or column) sees input `at` through tap `tap`, or -1.
__device__ inline Int seen_from(Int at, Int tap, Int before, Int stride, Int dilation, Int outputs) {
    Int start = at + before - tap * dilation;
    return start < 0 || start % stride || start / stride >= outputs ? -1 : start / stride;
}

// x (planes, H, W) -> columns (planes, kh, kw, Ho, Wo): what each tap of each window sees, 0 in the padding.
extern "C" __global__ void patches(Int planes, SLIDING, const REAL *x, REAL *columns) {
    const Sliding s = SLIDES;
    Int out = s.out_height * s.out_width, taps = s.kernel_h * s.kernel_w;
    EACH(i, planes * taps * out) {
        Int column = i % s.out_width, row = i / s.out_width % s.out_height, tap = i / out % taps, plane = i / out / taps;
        Int y = row * s.stride_h - s.top + tap / s.kernel_w * s.dilation_h;
        Int z = column * s.stride_w - s.left + tap % s.kernel_w * s.dilation_w;
        int inside = y >= 0 && y < s.height && z >= 0 && z < s.width;
        columns[i] = inside ? x[(plane * s.height + y) * s.width + z] : (REAL)0;
    }
}

// The other way: every element of out (planes, H, W) is the sum of what the windows that see it have in columns.
extern "C" __global__ void unpatch(Int planes, SLIDING, const REAL *columns, REAL *out, int add) {
    const Sliding s = SLIDES;
    Int each = s.out_height * s.out_width, taps = s.kernel_h * s.kernel_w;
    EACH(i, planes * s.height * s.width) {
        Int z = i % s.width, y = i / s.width % s.height, plane = i / s.width / s.height;
        REAL sum = 0;
        for (Int a = 0; a < s.kernel_h; a++) {
            Int row = seen_from(y, a, s.top, s.stride_h, s.dilation_h, s.out_height);
            for (Int b = 0; row >= 0 && b < s.kernel_w; b++) {
                Int column = seen_from(z, b, s.left, s.stride_w, s.dilation_w, s.out_width);
                if (column >= 0) sum += columns[(plane * taps + a * s.kernel_w + b) * each + row * s.out_width + column];
            }
        }
        put(out, i, sum, add);
    }
}

// index: which tap won, the first of equals, or the last that is not a number.
template <class INDEX> __device__ void max_pool(Int planes, const Sliding &s, const REAL *x, REAL *out, INDEX *index) {
    EACH(i, planes * s.out_height * s.out_width) {
        Int column = i % s.out_width, row = i / s.out_width % s.out_height, plane = i / s.out_width / s.out_height;
        REAL best = -INFINITY;
        Int won = 0;
        for (Int tap = 0; tap < s.kernel_h * s.kernel_w; tap++) {
            Int y = row * s.stride_h - s.top + tap / s.kernel_w * s.dilation_h;
            Int z = column * s.stride_w - s.left + tap % s.kernel_w * s.dilation_w;
            if (y < 0 || y >= s.height || z < 0 || z >= s.width) continue;
            REAL value = x[(plane * s.height + y) * s.width + z];
            if (value > best || value != value) {
                best = value;
                won = tap;
            }
        }
        out[i] = best;
        index[i] = (INDEX)won;
    }
}

template <class INDEX> __device__ void max_pool_backward(
    Int planes, const Sliding &s, const REAL *dy, const INDEX *index, REAL *out, int add
) {
    EACH(i, planes * s.height * s.width) {
        Int z = i % s.width, y = i / s.width % s.height, plane = i / s.width / s.height;
        REAL sum = 0;
        for (Int a = 0; a < s.kernel_h; a++) {
            Int row = seen_from(y, a, s.top, s.stride_h, s.dilation_h, s.out_height);
            for (Int b = 0; row >= 0 && b < s.kernel_w; b++) {
                Int column = seen_from(z, b, s.left, s.stride_w, s.dilation_w, s.out_width);
                Int at = (plane * s.out_height + row) * s.out_width + column;
                if (column >= 0 && index[at] == a * s.kernel_w + b) sum += dy[at];
            }
        }
        put(out, i, sum, add);
    }
}

extern "C" __global__ void max_pool_1(Int planes, SLIDING, const REAL *x, REAL *out, unsigned char *index) {
    max_pool(planes, SLIDES, x, out, index);
}

extern "C" __global__ void max_pool_backward_1(
    Int planes, SLIDING, const REAL *dy, const unsigned char *index, REAL *out, int add
) {
    max_pool_backward(planes, SLIDES, dy, index, out, add);
}

extern "C" __global__ void max_pool_2(Int planes, SLIDING, const REAL *x, REAL *out, unsigned short *index) {
    max_pool(planes, SLIDES, x, out, index);
}

extern "C" __global__ void max_pool_backward_2(
    Int planes, SLIDING, const REAL *dy, const unsigned short *index, REAL *out, int add
) {
    max_pool_backward(planes, SLIDES, dy, index, out, add);
}

extern "C" __global__ void max_pool_4(Int planes, SLIDING, const REAL *x, REAL *out, unsigned int *index) {
    max_pool(planes, SLIDES, x, out, index);
}

extern "C" __global__ void max_pool_backward_4(
    Int planes, SLIDING, const REAL *dy, const unsigned int *index, REAL *out, int add
) {
    max_pool_backward(planes, SLIDES, dy, index, out, add);
}

extern "C" __global__ void sum_pool(Int planes, SLIDING, const REAL *x, const REAL *scale, REAL *out) {
    const Sliding s = SLIDES;
    Int each = s.out_height * s.out_width;
    EACH(i, planes * each) {
        Int column = i % s.out_width, row = i / s.out_width % s.out_height, plane = i / each;
        REAL sum = 0;
        for (Int a = 0; a < s.kernel_h; a++) {
            Int y = row * s.stride_h - s.top + a;
            for (Int b = 0; y >= 0 && y < s.height && b < s.kernel_w; b++) {
                Int z = column * s.stride_w - s.left + b;
                if (z >= 0 && z < s.width) sum += x[(plane * s.height + y) * s.width + z];
            }
        }
        out[i] = sum * scale[i % each];
    }
}

extern "C" __global__ void sum_pool_backward(
    Int planes, SLIDING, const REAL *dy, const REAL *scale, REAL *out, int add
) {
    const Sliding s = SLIDES;
    Int each = s.out_height * s.out_width;
    EACH(i, planes * s.height * s.width) {
        Int z = i % s.width, y = i / s.width % s.height, plane = i / s.width / s.height;
        REAL sum = 0;
        for (Int a = 0; a < s.kernel_h; a++) {
            Int row = seen_from(y, a, s.top, s.stride_h, s.dilation_h, s.out_height);
            for (Int b = 0; row >= 0 && b < s.kernel_w; b++) {
                Int column = seen_from(z, b, s.left, s.stride_w, s.dilation_w, s.out_width);
                Int at = row * s.out_width + column;
                if (column >= 0) sum += dy[plane * each + at] * scale[at];
            }
        }
        put(out, i, sum, add);
    }
}
