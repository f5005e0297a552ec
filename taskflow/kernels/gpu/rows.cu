// Rows and columns: layer normalisation, embeddings, sums. One block works on one row.

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
