/* CUDA's runtime for eight H100 that are not there, loaded before NVIDIA's own. Memory is the host's, copies are made at once, and a
   kernel is taken and not run: tensors without numbers need none. PyTorch's own code for devices, streams and events works on it. */

#define __host__ /* marks of NVIDIA's compiler, whose definitions are in a package that may be missing */
#define __device__
#define __cudart_builtin__
#define __forceinline__
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define GPUS 8
#define VERSION 13000
#define TOTAL 85031714816ull
#define FREE 84000000000ull
#define SHARED 232448 /* bytes of a multiprocessor */
#define DONE return cudaSuccess

static __thread int device = 0;
static uintptr_t numbers = 16; /* streams and events are known by numbers, which nothing reads */

static uintptr_t number(void) { return __sync_add_and_fetch(&numbers, 16); }

/* ---- the driver, as far as PyTorch asks it ---- */
int cuDevicePrimaryCtxGetState(int of, unsigned *flags, int *active) {
    *flags = 0;
    *active = 1;
    DONE;
}

static int refused(void) { return 1; }

cudaError_t cudaGetDriverEntryPointByVersion(
    const char *symbol, void **function, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *found
) {
    *function = strcmp(symbol, "cuDevicePrimaryCtxGetState") == 0 ? (void *)cuDevicePrimaryCtxGetState : (void *)refused;
    if (found) *found = cudaDriverEntryPointSuccess;
    DONE;
}

/* ---- devices ---- */
cudaError_t cudaGetDeviceCount(int *count) { *count = GPUS; DONE; }
cudaError_t cudaGetDevice(int *which) { *which = device; DONE; }
cudaError_t cudaSetDevice(int which) {
    if (which < 0 || which >= GPUS) return cudaErrorInvalidDevice;
    device = which;
    DONE;
}
cudaError_t cudaDriverGetVersion(int *version) { *version = VERSION; DONE; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = VERSION; DONE; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *of, int which) {
    memset(of, 0, sizeof *of);
    strcpy(of->name, "NVIDIA H100 80GB HBM3");
    of->totalGlobalMem = TOTAL;
    of->major = 9;
    of->multiProcessorCount = 132;
    of->l2CacheSize = 50 << 20;
    of->warpSize = 32;
    of->maxThreadsPerBlock = of->maxThreadsDim[0] = of->maxThreadsDim[1] = 1024;
    of->maxThreadsDim[2] = 64;
    of->maxGridSize[0] = INT32_MAX;
    of->maxGridSize[1] = of->maxGridSize[2] = 65535;
    of->maxThreadsPerMultiProcessor = 2048;
    of->sharedMemPerBlock = 48 << 10;
    of->sharedMemPerMultiprocessor = of->sharedMemPerBlockOptin = SHARED;
    of->regsPerBlock = of->regsPerMultiprocessor = 65536;
    DONE;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int of) { *value = 1; DONE; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int from, int to) { *can = 1; DONE; }
cudaError_t cudaDeviceEnablePeerAccess(int to, unsigned flags) { DONE; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; DONE; }
cudaError_t cudaDeviceSynchronize(void) { DONE; }
cudaError_t cudaMemGetInfo(size_t *left, size_t *total) { *left = FREE; *total = TOTAL; DONE; }
cudaError_t cudaGetLastError(void) { DONE; }
cudaError_t cudaPeekAtLastError(void) { DONE; }

/* ---- streams and events ---- */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *made, unsigned flags, int priority) { *made = (cudaStream_t)number(); DONE; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *made, unsigned flags) { return cudaStreamCreateWithPriority(made, flags, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { DONE; }
cudaError_t cudaStreamQuery(cudaStream_t stream) { DONE; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { DONE; }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) { DONE; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *is) { *is = cudaStreamCaptureStatusNone; DONE; }
cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t stream, enum cudaStreamCaptureStatus *is, unsigned long long *id, cudaGraph_t *graph,
    const cudaGraphNode_t **before, const cudaGraphEdgeData **edges, size_t *count
) {
    *is = cudaStreamCaptureStatusNone;
    DONE;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { DONE; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *made, unsigned flags) { *made = (cudaEvent_t)number(); DONE; }
cudaError_t cudaEventCreate(cudaEvent_t *made) { return cudaEventCreateWithFlags(made, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { DONE; }
cudaError_t cudaEventQuery(cudaEvent_t event) { DONE; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { DONE; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) { DONE; }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { DONE; }
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) { *milliseconds = 0.01f; DONE; }

/* ---- memory ---- */
cudaError_t cudaMalloc(void **made, size_t size) { return posix_memalign(made, 512, size) ? cudaErrorMemoryAllocation : cudaSuccess; }
cudaError_t cudaFree(void *memory) { free(memory); DONE; }
cudaError_t cudaHostAlloc(void **made, size_t size, unsigned flags) { return cudaMalloc(made, size); }
cudaError_t cudaFreeHost(void *memory) { return cudaFree(memory); }
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) { memcpy(to, from, size); DONE; }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    memcpy(to, from, size);
    DONE;
}
cudaError_t cudaMemset(void *to, int value, size_t size) { memset(to, value, size); DONE; }
cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream) { memset(to, value, size); DONE; }
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *of, const void *memory) { memset(of, 0, sizeof *of); DONE; }

/* ---- kernels ---- */
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **given, size_t shared, cudaStream_t stream) { DONE; }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *how, const void *kernel, void **given) { DONE; }
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute which, int value) { DONE; }
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *of, const void *kernel) {
    memset(of, 0, sizeof *of);
    of->maxThreadsPerBlock = 1024;
    DONE;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *blocks, const void *kernel, int threads, size_t shared, unsigned flags
) {
    *blocks = 2;
    DONE;
}
