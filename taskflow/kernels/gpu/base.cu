// What all kernels share. REAL is the type of the arrays (float or double), set when a module is compiled. Every kernel works
// with any number of blocks and any power of two of threads up to MOST_THREADS. Sums have a fixed order: a rerun gives the same
// bits.
#define MOST_THREADS 256
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
typedef long long Int;
typedef unsigned int Word;
typedef unsigned long long Long;

#define EACH(i, count) \
    for (Int i = (Int)blockIdx.x * blockDim.x + threadIdx.x; i < (count); i += (Int)gridDim.x * blockDim.x)
#define EACH_BLOCK(b, count) for (Int b = blockIdx.x; b < (count); b += gridDim.x)
#define EACH_THREAD(i, count) for (Int i = threadIdx.x; i < (count); i += blockDim.x)

__device__ inline void put(REAL *out, Int i, REAL value, int add) {
    out[i] = add ? out[i] + value : value;
}

// The sum over a block's threads, for all of them.
template <class T> __device__ T block_sum(T value) {
    __shared__ T parts[MOST_THREADS];
    __syncthreads();
    parts[threadIdx.x] = value;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
        __syncthreads();
    }
    return parts[0];
}

// The largest over a block's threads, for all of them; not a number if one is.
template <class T> __device__ T block_max(T value) {
    __shared__ T parts[MOST_THREADS];
    __syncthreads();
    parts[threadIdx.x] = value;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            T other = parts[threadIdx.x + half];
            if (other > parts[threadIdx.x] || other != other) parts[threadIdx.x] = other;
        }
        __syncthreads();
    }
    return parts[0];
}

__device__ inline REAL sigmoid(REAL x) {
    return (REAL)0.5 * tanh((REAL)0.5 * x) + (REAL)0.5;  // saturates instead of overflowing
}
