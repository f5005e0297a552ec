// Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, SC 2011) by position: the same numbers as the CPU's.

__device__ inline void philox(Word c[4], Word k0, Word k1) {
    for (int round = 0; round < 10; round++) {
        Long p0 = (Long)0xD2511F53u * c[0], p1 = (Long)0xCD9E8D57u * c[2];
        Word next0 = (Word)(p1 >> 32) ^ c[1] ^ k0, next2 = (Word)(p0 >> 32) ^ c[3] ^ k1;
        c[1] = (Word)p1;
        c[3] = (Word)p0;
        c[0] = next0;
        c[2] = next2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

__device__ inline void words_of(Long position, Word k0, Word k1, Word stream, Word c[4]) {
    Long block = position >> 2;
    c[0] = (Word)block;
    c[1] = (Word)(block >> 32);
    c[2] = stream;
    c[3] = 0;
    philox(c, k0, k1);
}

// The position in the whole array of element i of the box: box holds extents, then what each dimension's step is worth.
__device__ inline Long position_of(Int i, int dims, const Int *box, Long base) {
    Long position = base;
    for (int d = dims - 1; d >= 0; d--) {
        position += (Long)(i % box[d]) * (Long)box[dims + d];
        i /= box[d];
    }
    return position;
}

__device__ inline REAL uniform_of(Word word) {
    return sizeof(REAL) == 4 ? (REAL)(word >> 8) * (REAL)5.9604644775390625e-8 : (REAL)(word * 2.3283064365386962890625e-10);
}

// dial: where the stream's number lies, or null.
extern "C" __global__ void uniform(
    Int count, Word k0, Word k1, Word stream, int dims, const Int *box, Long base, REAL *out, const double *dial
) {
    if (dial) stream = (Word)dial[0];
    EACH(i, count) {
        Word words[4];
        Long position = position_of(i, dims, box, base);
        words_of(position, k0, k1, stream, words);
        out[i] = uniform_of(words[position & 3]);
    }
}

// Box and Muller: positions 2 k and 2 k + 1 share two words.
extern "C" __global__ void normal(
    Int count, Word k0, Word k1, Word stream, int dims, const Int *box, Long base, REAL *out
) {
    EACH(i, count) {
        Word words[4];
        Long position = position_of(i, dims, box, base);
        words_of(position, k0, k1, stream, words);
        Int pair = position & 2;
        double radius = sqrt(-2 * log1p(-(words[pair] * 2.3283064365386962890625e-10)));
        double angle = 6.283185307179586477 * (words[pair + 1] * 2.3283064365386962890625e-10);
        out[i] = (REAL)(radius * (position & 1 ? sin(angle) : cos(angle)));
    }
}

// dial: where the stream's number lies, or null.
extern "C" __global__ void dropout(
    Int count, Word k0, Word k1, Word stream, int dims, const Int *box, Long base, REAL p, REAL factor, const REAL *x,
    REAL *out, unsigned char *mask, const double *dial
) {
    if (dial) stream = (Word)dial[0];
    EACH(i, count) {
        Word words[4];
        Long position = position_of(i, dims, box, base);
        words_of(position, k0, k1, stream, words);
        int kept = uniform_of(words[position & 3]) >= p;
        mask[i] = (unsigned char)kept;
        out[i] = kept ? x[i] * factor : (REAL)0;
    }
}
