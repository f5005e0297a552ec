// Rows and columns: softmax, cross-entropy, layer normalisation, embeddings, sums. One block works on one row.

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

extern "C" __global__ void layer_norm(
    Int rows, Int columns, const REAL *x, const REAL *weight, const REAL *bias, REAL eps, REAL *out, REAL *statistics
) {
    EACH_BLOCK(r, rows) {
        const REAL *from = x + r * columns;
        REAL mean = 0, square = 0;
        EACH_THREAD(c, columns) mean += from[c];
        mean = block_sum(mean) / columns;
        EACH_THREAD(c, columns) square += (from[c] - mean) * (from[c] - mean);
        REAL inverse = 1 / sqrt(block_sum(square) / columns + eps);
        EACH_THREAD(c, columns) out[r * columns + c] = (from[c] - mean) * inverse * weight[c] + bias[c];
        if (threadIdx.x == 0) {
            statistics[2 * r] = mean;
            statistics[2 * r + 1] = inverse;
        }
    }
}

extern "C" __global__ void layer_norm_backward(
    Int rows, Int columns, const REAL *x, const REAL *weight, const REAL *statistics, const REAL *dy, REAL *out, int add
) {
    EACH_BLOCK(r, rows) {
        Int at = r * columns;
        REAL mean = statistics[2 * r], inverse = statistics[2 * r + 1], plain = 0, along = 0;
        EACH_THREAD(c, columns) {
            REAL share = dy[at + c] * weight[c];
            plain += share;
            along += share * (x[at + c] - mean) * inverse;
        }
        plain = block_sum(plain) / columns;
        along = block_sum(along) / columns;
        EACH_THREAD(c, columns) {
            REAL normal = (x[at + c] - mean) * inverse;
            put(out, at + c, (dy[at + c] * weight[c] - plain - normal * along) * inverse, add);
        }
    }
}

// Sums over rows come in two stages: part number s of `parts` parts of the rows goes to out[s], then those are summed.
extern "C" __global__ void sum_rows(Int rows, Int columns, Int parts, const REAL *x, REAL *out, int add) {
    EACH(i, parts * columns) {
        Int c = i % columns, s = i / columns;
        REAL total = 0;
        for (Int r = rows * s / parts; r < rows * (s + 1) / parts; r++) total += x[r * columns + c];
        put(out, i, total, add);
    }
}

// The same of what a layer norm's weight and bias get: out (parts, 2, columns).
extern "C" __global__ void layer_norm_sums(
    Int rows, Int columns, Int parts, const REAL *x, const REAL *statistics, const REAL *dy, REAL *out
) {
    EACH(i, parts * columns) {
        Int c = i % columns, s = i / columns;
        REAL weight = 0, bias = 0;
        for (Int r = rows * s / parts; r < rows * (s + 1) / parts; r++) {
            REAL g = dy[r * columns + c];
            weight += g * (x[r * columns + c] - statistics[2 * r]) * statistics[2 * r + 1];
            bias += g;
        }
        out[2 * s * columns + c] = weight;
        out[(2 * s + 1) * columns + c] = bias;
    }
}

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

// Sums of squares in double precision: out (parts).
extern "C" __global__ void squares(Int count, Int parts, const REAL *x, double *out) {
    EACH_BLOCK(s, parts) {
        double total = 0;
        Int last = count * (s + 1) / parts;
        for (Int i = count * s / parts + threadIdx.x; i < last; i += blockDim.x) total += (double)x[i] * x[i];
        total = block_sum(total);
        if (threadIdx.x == 0) out[s] = total;
    }
}

// out[0] = (add: its value before) + scale times the sum of x (count).
extern "C" __global__ void total(Int count, const double *x, double scale, double *out, int add) {
    EACH_BLOCK(b, 1) {
        double sum = 0;
        EACH_THREAD(i, count) sum += x[i];
        sum = block_sum(sum) * scale;
        if (threadIdx.x == 0) out[0] = add ? out[0] + sum : sum;
    }
}

extern "C" __global__ void embedding(
    Int rows, Int columns, Int entries, const REAL *table, const Int *index, Int first, REAL *out
) {
    EACH(i, rows * columns) {
        Int entry = index[i / columns] - first;
        out[i] = entry >= 0 && entry < entries ? table[entry * columns + i % columns] : (REAL)0;
    }
}

// Of the rows with one index the first's block adds all, in order: atomic additions would come in any order.
extern "C" __global__ void embedding_backward(
    Int rows, Int columns, Int entries, const Int *index, Int first, const REAL *dy, REAL *out
) {
    __shared__ Int seen[MOST_THREADS];
    EACH_BLOCK(b, rows) {
        Int mine = index[b], entry = mine - first;
        int before = 0;
        EACH_THREAD(i, b) if (index[i] == mine) before = 1;
        before = block_max(before);
        if (before || entry < 0 || entry >= entries) continue;
        for (Int from = b; from < rows; from += blockDim.x) {
            Int many = rows - from < (Int)blockDim.x ? rows - from : (Int)blockDim.x;
            __syncthreads();
            if (threadIdx.x < many) seen[threadIdx.x] = index[from + threadIdx.x];
            __syncthreads();
            for (Int i = 0; i < many; i++)
                if (seen[i] == mine) EACH_THREAD(c, columns) out[entry * columns + c] += dy[(from + i) * columns + c];
        }
    }
}

// The same for many rows, of which it compares neighbours only. keys (rows), rising: index times rows plus the row.
extern "C" __global__ void embedding_backward_sorted(
    Int rows, Int columns, Int entries, const Int *keys, Int first, const REAL *dy, REAL *out
) {
    EACH_BLOCK(b, rows) {
        Int index = keys[b] / rows, entry = index - first;
        if (entry >= 0 && entry < entries && (b == 0 || keys[b - 1] / rows != index)) {
            EACH_THREAD(c, columns) {
                REAL sum = out[entry * columns + c];
                for (Int i = b; i < rows && keys[i] / rows == index; i++) sum += dy[keys[i] % rows * columns + c];
                out[entry * columns + c] = sum;
            }
        }
    }
}
