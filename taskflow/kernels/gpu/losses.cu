// Softmax and losses. One block works on one row.

// ends: how many columns of each row are seen, or null. x has x_columns columns, out has columns.
extern "C" __global__ void softmax(
    Int rows, Int x_columns, Int columns, const REAL *x, const Int *ends, REAL *out
) {
    EACH_BLOCK(r, rows) {
        const REAL *from = x + r * x_columns;
        REAL *to = out + r * columns;
        Int end = ends ? ends[r] : columns;
        REAL top = -INFINITY, total = 0;
        EACH_THREAD(c, end) top = from[c] > top || from[c] != from[c] ? from[c] : top;
        top = block_max(top);
        if (ends && top == -INFINITY) top = 0;
        EACH_THREAD(c, end) {
            REAL e = exp(from[c] - top);
            to[c] = e;
            total += e;
        }
        total = block_sum(total);
        EACH_THREAD(c, columns) to[c] = c < end ? to[c] / total : (REAL)0;
    }
}

extern "C" __global__ void softmax_backward(
    Int rows, Int columns, const REAL *y, const REAL *dy, REAL *out, int add
) {
    EACH_BLOCK(r, rows) {
        Int at = r * columns;
        REAL total = 0;
        EACH_THREAD(c, columns) total += y[at + c] * dy[at + c];
        total = block_sum(total);
        EACH_THREAD(c, columns) put(out, at + c, y[at + c] * (dy[at + c] - total), add);
    }
}

// losses (rows): each row's; a target outside of the classes gives not a number. probabilities may be logits.
extern "C" __global__ void cross_entropy(
    Int rows, Int columns, const REAL *logits, const Int *target, Int ignore, REAL *probabilities, double *losses,
    double smoothing
) {
    EACH_BLOCK(r, rows) {
        const REAL *from = logits + r * columns;
        REAL *to = probabilities + r * columns;
        Int right = target[r];
        int inside = right >= 0 && right < columns;
        double chosen = inside ? (double)from[right] : 0, mean = 0;
        REAL top = -INFINITY, total = 0;
        EACH_THREAD(c, columns) {
            top = from[c] > top || from[c] != from[c] ? from[c] : top;
            mean += from[c];
        }
        top = block_max(top);
        mean = block_sum(mean) / columns;
        EACH_THREAD(c, columns) {
            REAL e = exp(from[c] - top);
            to[c] = e;
            total += e;
        }
        total = block_sum(total);
        EACH_THREAD(c, columns) to[c] /= total;
        if (threadIdx.x == 0) {
            double loss = log((double)total) + top - ((1 - smoothing) * chosen + smoothing * mean);
            losses[r] = right == ignore ? 0 : inside ? loss : NAN;
        }
    }
}

extern "C" __global__ void cross_entropy_backward(
    Int rows, Int columns, const REAL *probabilities, const Int *target, Int ignore, double scale, const double *scale_at,
    REAL *out, int add, double smoothing
) {
    REAL factor = (REAL)(scale_at ? scale * scale_at[0] : scale);
    REAL right = (REAL)(factor * (1 - smoothing)), all = (REAL)(factor * smoothing / columns);
    EACH(i, rows * columns) {
        Int wanted = target[i / columns];
        REAL value = probabilities[i] * factor - (i % columns == wanted ? right : (REAL)0) - all;
        put(out, i, wanted == ignore ? (REAL)0 : value, add);
    }
}

// Blocks of classes: number b of `parts` is [b classes / parts, (b + 1) classes / parts); arrays hold `here` of them, from
// number `first` on. One block of threads works on one row's block of classes. pairs: (rows, here, 2).
extern "C" __global__ void class_blocks(
    Int rows, Int columns, Int here, Int classes, Int parts, Int first, const REAL *logits, const Int *target, Int ignore,
    REAL *probabilities, double *pairs, double smoothing
) {
    Int start = first * classes / parts;
    EACH_BLOCK(i, rows * here) {
        Int r = i / here, b = first + i % here, low = b * classes / parts, width = (b + 1) * classes / parts - low;
        const REAL *from = logits + r * columns + low - start;
        REAL *to = probabilities + r * columns + low - start;
        Int right = target[r];
        int ignored = right == ignore, inside = right >= low && right < low + width;
        double chosen = inside ? (double)from[right - low] : 0, all = 0;
        REAL top = -INFINITY, total = 0;
        EACH_THREAD(c, width) {
            top = from[c] > top || from[c] != from[c] ? from[c] : top;
            all += from[c];
        }
        top = block_max(top);
        all = block_sum(all);
        if (top == -INFINITY) top = 0;  // nothing in the block has a chance: its sum is 0
        EACH_THREAD(c, width) {
            REAL e = exp(from[c] - top);
            to[c] = e;
            total += e;
        }
        total = block_sum(total);
        EACH_THREAD(c, width) to[c] = ignored || total == 0 ? (REAL)0 : to[c] / total;
        if (threadIdx.x == 0) {
            int right_is_a_class = right >= 0 && right < classes;
            double score = (1 - smoothing) * chosen + (smoothing == 0 ? 0 : smoothing * (all / classes));
            pairs[2 * i] = ignored ? 0 : log((double)total) + top;
            pairs[2 * i + 1] = ignored ? 0 : right_is_a_class ? score : NAN;
        }
    }
}

extern "C" __global__ void class_blocks_backward(
    Int rows, Int columns, Int here, Int classes, Int parts, Int first, const REAL *probabilities, const Int *target,
    Int ignore, const double *pairs, REAL *out, int add, double smoothing
) {
    Int start = first * classes / parts;
    EACH(i, rows * columns) {
        Int r = i / columns, c = start + i % columns, wanted = target[r];
        const double *pair = pairs + 2 * (r * here + ((c + 1) * parts - 1) / classes - first);
        REAL hit = c == wanted ? (REAL)(pair[1] * (1 - smoothing)) : (REAL)0;
        REAL value = probabilities[i] * (REAL)pair[0] + (REAL)(pair[1] * (smoothing / classes)) + hit;
        put(out, i, wanted == ignore ? (REAL)0 : value, add);
    }
}

// The loss from the pairs of all blocks of classes (rows, parts, 2): losses (rows), and each block's share of its row's chances.
extern "C" __global__ void cross_entropy_of_blocks(
    Int rows, Int parts, const REAL *pairs, const Int *target, Int ignore, REAL *shares, double *losses
) {
    EACH_BLOCK(r, rows) {
        const REAL *from = pairs + 2 * r * parts;
        REAL *to = shares + r * parts, top = -INFINITY, total = 0, chosen = 0;
        int ignored = target[r] == ignore;
        EACH_THREAD(b, parts) {
            top = from[2 * b] > top || from[2 * b] != from[2 * b] ? from[2 * b] : top;
            chosen += from[2 * b + 1];
        }
        top = block_max(top);
        chosen = block_sum(chosen);
        EACH_THREAD(b, parts) total += exp(from[2 * b] - top);
        total = block_sum(total);
        EACH_THREAD(b, parts) to[b] = ignored ? (REAL)0 : exp(from[2 * b] - top) / total;
        if (threadIdx.x == 0) losses[r] = ignored ? 0 : log((double)total) + ((double)top - chosen);
    }
}

extern "C" __global__ void cross_entropy_of_blocks_backward(
    Int rows, Int parts, const REAL *shares, const Int *target, Int ignore, double scale, const double *scale_at,
    REAL *out, int add
) {
    REAL factor = (REAL)(scale_at ? scale * scale_at[0] : scale);
    EACH(i, rows * parts) {
        int ignored = target[i / parts] == ignore;
        put(out, 2 * i, ignored ? (REAL)0 : shares[i] * factor, add);
        put(out, 2 * i + 1, ignored ? (REAL)0 : -factor, add);
    }
}
