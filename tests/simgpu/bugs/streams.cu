// What streams and graphs are asked for and nothing orders, and right programs that do much the same. As bugs.cuh has it for kernels:
// `streams` lists the bugs, `streams NAME` runs the broken one, which a call then tells, `streams NAME right` its twin; beyond those
// `streams patterns` lists what is right and has no broken twin. The bugs need a seed: without one, streams do what they are asked for at once.
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include <atomic>

#include "../hopper/hopper.cuh"

#define CUDA(CALL)                                                     \
    do {                                                               \
        const cudaError_t error_ = (CALL);                             \
        if (error_) printf("%s\n", cudaGetErrorName(error_)), exit(1); \
    } while (0)

enum { N = 5000, BLOCK = 256, BYTES = N * sizeof(u32) };
#define GRID(COUNT) ((COUNT) + BLOCK - 1) / BLOCK, BLOCK

static cudaStream_t a, b; // which do not wait for the default stream
static cudaEvent_t event, joined;
static u32 *x, *y, *pinned; // zeros
static u32 result[N];

__constant__ u32 summands[4];

__global__ void add(u32 *array, int n, u32 summand)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) array[i] += summand;
}
__global__ void copy_words(u32 *to, const u32 *from, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = from[i];
}
__global__ void set_bytes(u8 *array, int n, u8 value)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) array[i] = value;
}
__global__ void add_constant(u32 *array, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) array[i] += summands[i % 4];
}
__global__ void set_column(u32 *array, int rows, int pitch, u32 value)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows) array[i * pitch] = value;
}
__global__ void count_threads(int n, u32 *count)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(count, 1);
}
// 512 bytes through shared memory, by a bulk copy each way.
__global__ void copy_bulk(u32 *to, const u32 *from)
{
    __shared__ __align__(128) u32 tile[128];
    __shared__ __align__(8) u64 full;
    if (threadIdx.x) return;
    bar_init(smem_addr(&full), 1);
    INIT_FENCE;
    bar_expect(smem_addr(&full), sizeof tile);
    copy_in(tile, from, sizeof tile, smem_addr(&full));
    bar_wait(smem_addr(&full), 0);
    copy_out(to, tile, sizeof tile);
    WAIT_ALL;
}
// Two rows of 32 words, by a box of four.
__global__ void copy_rows(u32 *to, const __grid_constant__ CUtensorMap map, int row)
{
    __shared__ __align__(128) u32 box[4 * 32];
    __shared__ __align__(8) u64 full;
    if (threadIdx.x == 0) {
        bar_init(smem_addr(&full), 1);
        INIT_FENCE;
        bar_expect(smem_addr(&full), sizeof box);
        tensor_in(box, &map, 0, row, smem_addr(&full));
    }
    __syncthreads();
    bar_wait(smem_addr(&full), 0);
    to[32 * row + threadIdx.x] = box[threadIdx.x];
}
// Begins before the kernel ahead of it has ended.
__global__ void add_late(u32 *array, int n, u32 summand)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    cudaGridDependencySynchronize();
    if (i < n) array[i] += summand;
}

static void add_in(cudaStream_t stream, u32 *array, u32 summand, int n = N)
{
    add<<<GRID(n), 0, stream>>>(array, n, summand);
    CUDA(cudaGetLastError());
}
static void order(cudaStream_t first, cudaStream_t then)
{
    CUDA(cudaEventRecord(event, first));
    CUDA(cudaStreamWaitEvent(then, event, 0));
}
static void expect(const u32 *array, u32 value, int n = N)
{
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(result, array, n * sizeof *array, cudaMemcpyDefault));
    for (int i = 0; i < n; i++)
        if (result[i] != value) printf("element %d is %u, expected %u\n", i, result[i], value), exit(2);
}

// ---- Streams -------------------------------------------------------------------------------------------------------

// bug copy_after_kernel: cudaMemcpyAsync in stream 2 reads what kernel add(unsigned int*, int, unsigned int) in stream 1 writes, and nothing orders these two | kernel add(unsigned int*, int, unsigned int) in stream 1 writes what cudaMemcpyAsync in stream 2 reads, and nothing orders these two
static void copy_after_kernel(bool broken)
{
    add_in(a, x, 1);
    if (!broken) order(a, b);
    CUDA(cudaMemcpyAsync(y, x, BYTES, cudaMemcpyDeviceToDevice, b));
    expect(y, 1);
}

// bug kernel_after_copy: and nothing orders these two; the one in stream 1 was asked for first
static void kernel_after_copy(bool broken)
{
    for (int i = 0; i < N; i++) pinned[i] = 3;
    CUDA(cudaMemcpyAsync(x, pinned, BYTES, cudaMemcpyHostToDevice, a));
    if (!broken) order(a, b);
    copy_words<<<GRID(N), 0, b>>>(y, x, N);
    expect(y, 3);
}

// bug both_write: and nothing orders these two
static void both_write(bool broken)
{
    add_in(a, x, 1);
    if (!broken) order(a, b);
    add_in(b, x, 2);
    expect(x, 3);
}

// bug next_buffer_too_soon: race between streams on memory at
static void next_buffer_too_soon(bool broken) // the reader has not let go of it
{
    for (u32 k = 1; k <= 3; k++) {
        if (k > 1 && !broken) CUDA(cudaStreamWaitEvent(a, joined, 0));
        CUDA(cudaMemsetAsync(x, k, BYTES, a));
        order(a, b);
        copy_words<<<GRID(N), 0, b>>>(y, x, N);
        CUDA(cudaEventRecord(joined, b));
    }
    expect(y, 0x03030303);
}

// bug event_too_early: and nothing orders these two
static void event_too_early(bool broken)
{
    if (broken) order(a, b);
    add_in(a, x, 1);
    if (!broken) order(a, b);
    add_in(b, x, 1);
    expect(x, 2);
}

static void CUDART_CB fill_pinned(void *)
{
    for (int i = 0; i < N; i++) pinned[i] = 6;
}
// bug function_not_awaited: and nothing orders these two
static void function_not_awaited(bool broken)
{
    CUDA(cudaLaunchHostFunc(a, fill_pinned, NULL));
    CUDA(cudaMemcpyAsync(x, pinned, BYTES, cudaMemcpyHostToDevice, a));
    if (!broken) order(a, b);
    CUDA(cudaMemcpyAsync(y, x, BYTES, cudaMemcpyDeviceToDevice, b));
    expect(y, 6);
}

// bug default_not_awaited: one that is cudaStreamNonBlocking does not wait for the default stream
static void default_not_awaited(bool broken)
{
    CUDA(cudaMemset(x, 1, BYTES));
    if (!broken) CUDA(cudaDeviceSynchronize());
    add_in(a, x, 1);
    expect(x, 0x01010102);
}

// bug sum_read_early: changes by atomic operations
static void sum_read_early(bool broken)
{
    count_threads<<<GRID(N), 0, a>>>(N, y);
    if (!broken) order(a, b);
    CUDA(cudaMemcpyAsync(pinned, y, sizeof *y, cudaMemcpyDeviceToHost, b));
    expect(pinned, N, 1);
}

// bug halo: and nothing orders these two
static void halo(bool broken) // of one byte
{
    u8 *bytes = (u8 *)x;
    set_bytes<<<GRID(1001), 0, a>>>(bytes, 1001, 1);
    set_bytes<<<GRID(1000), 0, b>>>(bytes + 1001 - broken, 1000, 2);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(result, x, BYTES, cudaMemcpyDeviceToHost));
    if (((u8 *)result)[1000] != 1 || ((u8 *)result)[1001] != 2) exit(2);
}

// bug constant_too_soon: (summands + 0): cudaMemcpyToSymbolAsync in stream 2 writes | (summands + 0): kernel add_constant
static void constant_too_soon(bool broken)
{
    for (int i = 0; i < 4; i++) pinned[i] = 5;
    add_constant<<<GRID(N), 0, a>>>(x, N);
    if (!broken) order(a, b);
    CUDA(cudaMemcpyToSymbolAsync(summands, pinned, sizeof summands, 0, cudaMemcpyHostToDevice, b));
    CUDA(cudaStreamSynchronize(b));
    expect(x, 0);
}

// bug bulk_source: kernel copy_bulk(unsigned int*, unsigned int const*) in stream 1 reads
static void bulk_source(bool broken)
{
    CUDA(cudaMemsetAsync(x, 1, 512, b));
    if (!broken) order(b, a);
    copy_bulk<<<1, 32, 0, a>>>(y, x);
    CUDA(cudaStreamSynchronize(b));
    expect(y, 0x01010101, 128);
}

// bug bulk_destination: kernel copy_bulk(unsigned int*, unsigned int const*) in stream 1 writes
static void bulk_destination(bool broken)
{
    copy_bulk<<<1, 32, 0, a>>>(y + 128, x);
    if (!broken) order(a, b);
    CUDA(cudaMemsetAsync(y + 255, 1, 4, b));
    expect(y + 255, 0x01010101, 1);
}

// The second part's box reaches beyond the first's two rows, whose kernel does not use what it finds there.
// bug box_read_early: kernel copy_rows
static void box_read_early(bool broken)
{
    CUtensorMap map;
    const u64 dims[] = {32, 8}, strides[] = {128};
    const u32 box[] = {32, 4}, steps[] = {1, 1};
    if (encode_map(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, x, dims, strides, box, steps, 0)) exit(2);
    for (int part = 0; part < 4; part++) {
        CUDA(cudaMemsetAsync(x + 64 * part, 1, 256, broken ? a : part % 2 ? a : b));
        copy_rows<<<1, 64, 0, part % 2 ? a : b>>>(y, map, 2 * part);
    }
    expect(y, 0x01010101, 256);
}

// bug rows_too_wide: race between streams on memory at
static void rows_too_wide(bool broken)
{
    CUDA(cudaMemset2DAsync(x, 40, 1, 20 + broken, 30, a));
    CUDA(cudaMemset2DAsync((u8 *)x + 20, 40, 2, 20, 30, b));
    expect(x, 0x01010101, 5);
}

// bug freed_too_soon: cudaFreeAsync in stream 2 frees | which was freed: it was in
static void freed_too_soon(bool broken)
{
    u32 *own;
    CUDA(cudaMallocAsync(&own, BYTES, a));
    CUDA(cudaMemsetAsync(own, 0, BYTES, a));
    add_in(a, own, 1);
    if (!broken) order(a, b);
    CUDA(cudaFreeAsync(own, b));
    CUDA(cudaDeviceSynchronize());
}

// bug product_read_early: what cublasSgemm in stream 1 | cublasSgemm in stream 1 writes
static void product_read_early(bool broken)
{
    void *library = dlopen("libcublas.so.13", RTLD_NOW), *handle;
    const auto create = (int (*)(void **))dlsym(library, "cublasCreate_v2");
    const auto use = (int (*)(void *, cudaStream_t))dlsym(library, "cublasSetStream_v2");
    const auto multiply =
        (int (*)(void *, int, int, int, int, int, const float *, const float *, int, const float *, int,
                 const float *, float *, int))dlsym(library, "cublasSgemm_v2");
    const float one = 1, zero = 0;
    if (create(&handle) || use(handle, a)) exit(2);
    float *c = (float *)y; // columns of 8 among 16 rows: what lies between them is not the product's
    if (multiply(handle, 0, 0, 8, 8, 8, &one, (float *)x, 8, (float *)x, 8, &zero, c, 16)) exit(2);
    if (!broken) CUDA(cudaMemsetAsync(y + 8, 1, 32, b));
    if (broken) CUDA(cudaMemsetAsync(y + 16, 1, 32, b));
    expect(y, 0, 8);
}

// ---- The host's memory ---------------------------------------------------------------------------------------------

// bug buffer_refilled: the host has written at
static void buffer_refilled(bool broken)
{
    for (u32 k = 1; k <= 3; k++) {
        if (k > 1 && !broken) CUDA(cudaEventSynchronize(event));
        for (int i = 0; i < N; i++) pinned[i] = k;
        CUDA(cudaMemcpyAsync(x, pinned, BYTES, cudaMemcpyHostToDevice, a));
        CUDA(cudaEventRecord(event, a));
        add_in(a, x, 1);
    }
    expect(x, 4);
}

// bug graph_refilled: the host has written at
static void graph_refilled(bool broken)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    CUDA(cudaMemcpyAsync(x, pinned, BYTES, cudaMemcpyHostToDevice, a));
    add_in(a, x, 1);
    CUDA(cudaStreamEndCapture(a, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (u32 k = 1; k <= 3; k++) {
        if (!broken) CUDA(cudaStreamSynchronize(a));
        for (int i = 0; i < N; i++) pinned[i] = k;
        CUDA(cudaGraphLaunch(exec, a));
    }
    expect(x, 4);
}

// bug result_overwritten: cudaMemcpyAsync in stream
static void result_overwritten(bool broken) // two streams bring theirs to one buffer
{
    CUDA(cudaMemcpyAsync(pinned, x, BYTES, cudaMemcpyDeviceToHost, a));
    CUDA(cudaMemsetAsync(y, 1, BYTES, b));
    CUDA(cudaMemcpyAsync(pinned + (broken ? N - 1 : N), y, BYTES, cudaMemcpyDeviceToHost, b));
    expect(pinned, 0, N - 1);
}

// ---- Graphs --------------------------------------------------------------------------------------------------------

static void launch(cudaGraph_t graph, int times = 1)
{
    cudaGraphExec_t exec;
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < times; i++) CUDA(cudaGraphLaunch(exec, a));
    CUDA(cudaStreamSynchronize(a));
}

// bug edge_forgotten: race in a graph on memory at
static void edge_forgotten(bool broken)
{
    cudaGraph_t graph;
    CUDA(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    CUDA(cudaMemsetAsync(x, 0, BYTES, a));
    if (!broken) add_in(a, x, 1);
    order(a, b);
    if (broken) add_in(a, x, 1);
    CUDA(cudaMemcpyAsync(y, x, BYTES, cudaMemcpyDeviceToDevice, b));
    order(b, a);
    CUDA(cudaStreamEndCapture(a, &graph));
    launch(graph);
    expect(y, 1);
}

// bug path_forgotten: (node 2 of a graph in stream 1)
static void path_forgotten(bool broken) // from node to node, and in a graph within
{
    cudaGraph_t graph, inner;
    cudaGraphNode_t copy, fill, child, next;
    CUDA(cudaGraphCreate(&inner, 0));
    CUDA(cudaGraphAddMemcpyNode1D(&copy, inner, NULL, 0, y, x, BYTES, cudaMemcpyDeviceToDevice));
    cudaMemsetParams ones = {};
    ones.dst = x, ones.elementSize = 4, ones.value = 1, ones.width = N, ones.height = 1;
    CUDA(cudaGraphCreate(&graph, 0));
    CUDA(cudaGraphAddMemsetNode(&fill, graph, NULL, 0, &ones));
    CUDA(cudaGraphAddChildGraphNode(&child, graph, &fill, 1, inner));
    ones.value = 2;
    CUDA(cudaGraphAddMemsetNode(&next, graph, broken ? &fill : &child, 1, &ones));
    launch(graph);
    expect(y, 1);
}

// bug beside_a_graph: in stream 2
static void beside_a_graph(bool broken)
{
    cudaGraph_t graph;
    CUDA(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    add_in(a, x, 1);
    add_in(a, x, 1);
    CUDA(cudaStreamEndCapture(a, &graph));
    cudaGraphExec_t exec;
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphLaunch(exec, a));
    if (!broken) order(a, b);
    add_in(b, x, 1);
    expect(x, 3);
}

// ---- Right ---------------------------------------------------------------------------------------------------------

// Chunks of bytes, no multiples of a word, through two streams: each brings, computes and takes away its own.
static void chunks(bool)
{
    enum { CHUNK = 1001 };
    u8 *host = (u8 *)pinned, *device = (u8 *)x;
    for (int k = 0; k < 8; k++) {
        cudaStream_t s = k % 2 ? a : b;
        CUDA(cudaMemcpyAsync(device + k * CHUNK, host + k * CHUNK, CHUNK, cudaMemcpyHostToDevice, s));
        set_bytes<<<GRID(CHUNK), 0, s>>>(device + k * CHUNK, CHUNK, (u8)(k + 1));
        CUDA(cudaMemcpyAsync(host + k * CHUNK, device + k * CHUNK, CHUNK, cudaMemcpyDeviceToHost, s));
    }
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < 8 * CHUNK; i++)
        if (host[i] != i / CHUNK + 1) exit(2);
}

// A copying and a computing stream, two buffers, an event for each that is full and each that is free again.
static void ping_pong(bool)
{
    cudaEvent_t full[2], free_[2];
    for (int i = 0; i < 2; i++) CUDA(cudaEventCreate(&full[i]));
    for (int i = 0; i < 2; i++) CUDA(cudaEventCreate(&free_[i]));
    for (u32 k = 0; k < 6; k++) {
        u32 *stage = x + k % 2 * (N / 2), *source = pinned + k % 2 * N;
        if (k > 1) CUDA(cudaEventSynchronize(full[k % 2])); // the host's buffer has been read
        for (int i = 0; i < N / 2; i++) source[i] = k;
        CUDA(cudaStreamWaitEvent(a, free_[k % 2], 0));
        CUDA(cudaMemcpyAsync(stage, source, BYTES / 2, cudaMemcpyHostToDevice, a));
        CUDA(cudaEventRecord(full[k % 2], a));
        CUDA(cudaStreamWaitEvent(b, full[k % 2], 0));
        add_in(b, stage, 10, N / 2);
        CUDA(cudaEventRecord(free_[k % 2], b));
    }
    expect(x, 14, N / 2);
    expect(x + N / 2, 15, N / 2);
}

// Streams that the default stream waits for, and that wait for it.
static void default_stream(bool)
{
    cudaStream_t s[3];
    for (auto &stream : s) CUDA(cudaStreamCreate(&stream));
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 3; i++) add_in(s[i], x + i * 1000, 1, 1000);
        add_in(0, x, 1, 3000);
    }
    expect(x, 6, 3000);
}

static void pool(bool)
{
    for (u32 k = 0; k < 4; k++) {
        u32 *own;
        CUDA(cudaMallocAsync(&own, BYTES, a));
        CUDA(cudaMemsetAsync(own, 0, BYTES, a));
        order(a, b);
        add_in(b, own, k);
        CUDA(cudaMemcpyAsync(y, own, BYTES, cudaMemcpyDeviceToDevice, b));
        order(b, a);
        CUDA(cudaFreeAsync(own, a));
    }
    expect(y, 3);
}

// Atomics of two kernels; columns of one matrix, word by word and as copies.
static void shares(bool)
{
    count_threads<<<GRID(N), 0, a>>>(N, y);
    count_threads<<<GRID(N), 0, b>>>(N, y);
    u32 *table = y + 4;
    for (int i = 0; i < 4; i++) set_column<<<GRID(100), 0, i % 2 ? a : b>>>(table + i, 100, 8, 7);
    CUDA(cudaMemcpy2DAsync(table + 4, 32, x, 16, 8, 100, cudaMemcpyDeviceToDevice, a));
    CUDA(cudaMemcpy2DAsync(table + 6, 32, x, 16, 8, 100, cudaMemcpyDeviceToDevice, b));
    expect(y, 2 * N, 1);
    expect(table + 8 * 99, 7, 4);
}

static void fork_and_join(bool)
{
    cudaGraph_t graph;
    CUDA(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    CUDA(cudaMemsetAsync(x, 0, BYTES, a));
    order(a, b);
    add_in(a, x, 1, 1000);
    add_in(b, x + 1000, 1, 1000);
    CUDA(cudaEventRecord(joined, b));
    CUDA(cudaStreamWaitEvent(a, joined, 0));
    add_in(a, x, 1, 2000);
    CUDA(cudaMemcpyAsync(pinned, x, BYTES, cudaMemcpyDeviceToHost, a));
    CUDA(cudaStreamEndCapture(a, &graph));
    launch(graph, 3);
    expect(pinned, 2, 2000);
}

// An event that a graph records, waited for by a stream and by the host.
static void event_of_a_graph(bool)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    add_in(a, x, 1);
    CUDA(cudaEventRecordWithFlags(event, a, cudaEventRecordExternal));
    add_in(a, y, 1);
    CUDA(cudaStreamEndCapture(a, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphLaunch(exec, a));
    CUDA(cudaStreamWaitEvent(b, event, 0));
    add_in(b, x, 1);
    CUDA(cudaStreamSynchronize(b));
    CUDA(cudaGraphLaunch(exec, a));
    CUDA(cudaEventSynchronize(event));
    add_in(b, x, 1);
    expect(x, 4);
}

// One executable graph in two streams: it does not run beside itself.
static void graph_in_two_streams(bool)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    add_in(a, x, 1);
    CUDA(cudaStreamEndCapture(a, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int k = 0; k < 6; k++) CUDA(cudaGraphLaunch(exec, k % 2 ? a : b));
    expect(x, 6);
}

static void add_late_in(cudaStream_t stream, u32 *array)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t how = {};
    how.gridDim = (N + BLOCK - 1) / BLOCK, how.blockDim = BLOCK, how.stream = stream;
    how.attrs = &early, how.numAttrs = 1;
    CUDA(cudaLaunchKernelEx(&how, add_late, array, (int)N, 1u));
}
static void dependent_launches(bool)
{
    for (int k = 0; k < 3; k++) {
        add_late_in(a, x);
        add_late_in(b, y);
    }
    expect(x, 3);
    expect(y, 3);
}

// The host gives the buffer away before it is full, to work that waits for it.
static pthread_mutex_t filling = PTHREAD_MUTEX_INITIALIZER;
static void CUDART_CB until_filled(void *)
{
    pthread_mutex_lock(&filling);
    pthread_mutex_unlock(&filling);
}
static void gate(bool)
{
    pthread_mutex_lock(&filling);
    CUDA(cudaLaunchHostFunc(a, until_filled, NULL));
    CUDA(cudaMemcpyAsync(x, pinned, BYTES, cudaMemcpyHostToDevice, a));
    for (int i = 0; i < N; i++) pinned[i] = 9;
    pthread_mutex_unlock(&filling);
    expect(x, 9);
}
// The same with two threads that wait for the stream. One of them is at the host function when this one, which has the mutex, asks
// for work in another stream, waits for that, and asks how far the first one has come.
static sem_t begun;
static void CUDART_CB begin_and_wait(void *)
{
    sem_post(&begun);
    until_filled(NULL);
}
static void *wait_for(void *stream)
{
    CUDA(cudaStreamSynchronize((cudaStream_t)stream));
    if (pinned[N] != 9) exit(2);
    return NULL;
}
static void asked_while_held(bool)
{
    pthread_t threads[2];
    sem_init(&begun, 0, 0);
    pthread_mutex_lock(&filling);
    CUDA(cudaLaunchHostFunc(a, begin_and_wait, NULL));
    CUDA(cudaMemcpyAsync(x, pinned, BYTES, cudaMemcpyHostToDevice, a));
    CUDA(cudaMemcpyAsync(pinned + N, x, BYTES, cudaMemcpyDeviceToHost, a));
    CUDA(cudaEventRecord(event, a));
    for (pthread_t &thread : threads) pthread_create(&thread, NULL, wait_for, a);
    sem_wait(&begun);
    add_in(b, y, 1);
    CUDA(cudaStreamSynchronize(b));
    for (int k = 0; k < 3; k++)
        if (cudaStreamQuery(a) != cudaErrorNotReady || cudaEventQuery(event) != cudaErrorNotReady) exit(2);
    cudaGetLastError();
    CUDA(cudaMemcpyAsync(x + N / 2, pinned + N / 2, BYTES / 2, cudaMemcpyHostToDevice, a));
    for (int i = 0; i < N; i++) pinned[i] = 9;
    pthread_mutex_unlock(&filling);
    for (pthread_t thread : threads) pthread_join(thread, NULL);
    expect(x, 9);
    expect(y, 1);
}
// What the host still has to do goes on when it has asked for the function, and for what is behind that: in the stream, in one
// that waits for it by an event or as the default stream does, in a graph.
static void CUDART_CB fill_when_filled(void *data)
{
    until_filled(NULL);
    fill_pinned(data);
}
static void CUDART_CB fill_too(cudaStream_t, cudaError_t, void *data)
{
    fill_when_filled(data);
}
static void held_while_asked(bool)
{
    pthread_mutex_lock(&filling);
    CUDA(cudaLaunchHostFunc(a, fill_when_filled, NULL));
    if (cudaStreamQuery(a) != cudaErrorNotReady) exit(2);
    cudaGetLastError();
    pthread_mutex_unlock(&filling);
    CUDA(cudaStreamSynchronize(a));
    if (pinned[N - 1] != 6) exit(2);
}
static void asked_behind_while_held(bool)
{
    cudaStream_t blocking;
    CUDA(cudaStreamCreate(&blocking));
    pthread_mutex_lock(&filling);
    CUDA(cudaStreamAddCallback(blocking, fill_too, NULL, 0));
    CUDA(cudaMemcpyAsync(x, pinned, BYTES, cudaMemcpyHostToDevice, blocking));
    add_in(blocking, x, 1);
    order(blocking, b);
    copy_words<<<GRID(N), 0, b>>>(y, x, N);
    CUDA(cudaStreamSynchronize(a)); // which waits for none of these
    order(b, blocking);
    add_in(0, x, 1);
    pthread_mutex_unlock(&filling);
    expect(x, 8);
    expect(y, 7);
}
static void graph_while_held(bool)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    add_in(a, y, 1);
    CUDA(cudaLaunchHostFunc(a, fill_when_filled, NULL));
    CUDA(cudaMemcpyAsync(x, pinned, BYTES, cudaMemcpyHostToDevice, a));
    CUDA(cudaStreamEndCapture(a, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    pthread_mutex_lock(&filling);
    for (int k = 0; k < 3; k++) CUDA(cudaGraphLaunch(exec, a));
    add_in(a, x, 1);
    CUDA(cudaEventRecord(event, a));
    pthread_mutex_unlock(&filling);
    CUDA(cudaEventSynchronize(event));
    expect(x, 7);
    expect(y, 3);
}
// The host learns of it without CUDA.
static std::atomic<bool> is_set;
static void CUDART_CB set(void *)
{
    is_set = true;
}
static void spun_on(bool)
{
    add_in(a, x, 5);
    CUDA(cudaMemcpyAsync(pinned, x, BYTES, cudaMemcpyDeviceToHost, a));
    CUDA(cudaLaunchHostFunc(a, set, NULL));
    while (!is_set) {
    }
    for (int i = 0; i < N; i++)
        if (pinned[i] != 5) exit(2);
}
// The program may end while a function runs.
static void exit_meanwhile(bool)
{
    sem_init(&begun, 0, 0);
    pthread_mutex_lock(&filling);
    CUDA(cudaLaunchHostFunc(a, begin_and_wait, NULL));
    add_in(a, x, 1);
    sem_wait(&begun);
    exit(0);
}
// A host function may end the program.
static void CUDART_CB leave(void *)
{
    exit(0);
}
static void exit_within(bool)
{
    add_in(a, x, 1);
    CUDA(cudaLaunchHostFunc(a, leave, NULL));
    add_in(a, x, 1);
    add_in(b, y, 1);
    expect(x, 3);
}
// What streams write to the host's memory themselves is none of the host's doing.
static void filled_by_streams(bool)
{
    CUDA(cudaMemsetAsync(y, 5, BYTES, a));
    CUDA(cudaMemcpyAsync(pinned + N, y, BYTES, cudaMemcpyDeviceToHost, a));
    CUDA(cudaEventRecord(event, a));
    CUDA(cudaMemcpyAsync(x, pinned + N, BYTES, cudaMemcpyHostToDevice, a));
    CUDA(cudaEventSynchronize(event)); // the second copy is still to come
    CUDA(cudaLaunchHostFunc(b, fill_pinned, NULL));
    CUDA(cudaMemcpyAsync(y, pinned, BYTES, cudaMemcpyHostToDevice, b));
    expect(x, 0x05050505);
    expect(y, 6);
}

// More streams than are told apart, whose work one of them collects.
static void many_streams(bool)
{
    enum { MANY = 80 };
    static cudaStream_t streams[MANY];
    for (int i = 0; i < MANY; i++) {
        CUDA(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        add_in(streams[i], x + i * 50, 1, 50);
        order(streams[i], b);
    }
    add_in(b, x, 1, MANY * 50);
    for (int i = 0; i < MANY; i++) {
        order(b, streams[i]);
        add_in(streams[i], x + i * 50, 1, 50);
    }
    expect(x, 3, MANY * 50);
}

// Memory of a graph's, of which two nodes have a half each; and graphs in graphs, deeper than is looked at.
static void graph_memory(bool)
{
    u32 *own;
    cudaGraph_t graph, outer;
    CUDA(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    CUDA(cudaMallocAsync(&own, BYTES, a));
    CUDA(cudaMemsetAsync(own, 0, BYTES, a));
    order(a, b);
    add_in(a, own, 4, N / 2);
    add_in(b, own + N / 2, 4, N / 2);
    order(b, a);
    CUDA(cudaMemcpyAsync(x, own, BYTES, cudaMemcpyDeviceToDevice, a));
    CUDA(cudaFreeAsync(own, a));
    CUDA(cudaStreamEndCapture(a, &graph));
    for (int depth = 0; depth < 6; depth++, graph = outer) {
        cudaGraphNode_t child, next;
        cudaMemsetParams ones = {};
        ones.dst = y, ones.elementSize = 4, ones.value = 1, ones.width = N, ones.height = 1;
        CUDA(cudaGraphCreate(&outer, 0));
        CUDA(cudaGraphAddChildGraphNode(&child, outer, NULL, 0, graph));
        CUDA(cudaGraphAddMemsetNode(&next, outer, &child, 1, &ones));
    }
    launch(graph, 2);
    expect(x, 4);
}

// A graph that allocates `own`, of fours, and leaves it to the program to free it.
static cudaGraphExec_t allocates(u32 **own)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
    CUDA(cudaMallocAsync(own, BYTES, a));
    CUDA(cudaMemsetAsync(*own, 0, BYTES, a));
    add_in(a, *own, 4, N);
    CUDA(cudaStreamEndCapture(a, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    return exec;
}

// Such memory when the stream has freed it, and, if `again`, another launch has made it fresh.
static u32 *freed(bool again)
{
    u32 *own;
    cudaGraphExec_t exec = allocates(&own);
    CUDA(cudaGraphLaunch(exec, a));
    CUDA(cudaFreeAsync(own, a));
    if (again) CUDA(cudaGraphLaunch(exec, a));
    return own;
}

// bug graph_memory_gone: which was freed
static void graph_memory_gone(bool broken)
{
    CUDA(cudaMemcpyAsync(x, freed(!broken), BYTES, cudaMemcpyDeviceToDevice, a));
    expect(x, 4);
}

// bug graph_freed_twice: freed before
static void graph_freed_twice(bool broken)
{
    CUDA(cudaFreeAsync(freed(!broken), a));
    CUDA(cudaStreamSynchronize(a));
}

static void rest(void *)
{
    usleep(20000);
}

// Memory of a graph's that each launch, behind a host function, makes fresh and the stream frees.
static void graph_memory_freed(bool)
{
    u32 *own;
    cudaGraphExec_t exec = allocates(&own);
    for (u32 k = 0; k < 3; k++) {
        CUDA(cudaLaunchHostFunc(a, rest, NULL));
        CUDA(cudaGraphLaunch(exec, a));
        add_in(a, own, 1, N);
        CUDA(cudaMemcpyAsync(x, own, BYTES, cudaMemcpyDeviceToDevice, a));
        CUDA(cudaMemsetAsync(own, 0, BYTES, a));
        CUDA(cudaFreeAsync(own, a));
        if (k == 1) CUDA(cudaStreamSynchronize(a));
    }
    expect(x, 5);
}

// Memory that the host and two streams share, in turns.
static void managed(bool)
{
    u32 *shared;
    CUDA(cudaMallocManaged(&shared, BYTES));
    for (u32 k = 1; k <= 3; k++) {
        for (int i = 0; i < N; i++) shared[i] = k;
        add_in(a, shared, 10, N / 2);
        add_in(b, shared + N / 2, 10, N / 2);
        order(a, b);
        CUDA(cudaMemcpyAsync(x, shared, BYTES, cudaMemcpyDefault, b));
        CUDA(cudaStreamSynchronize(b));
        if (shared[0] != k + 10) exit(2);
    }
    expect(x, 13);
}

// Threads of the host, each with streams of its own; who has waited may tell others.
static void *work(void *stream)
{
    add_in((cudaStream_t)stream, x, 1);
    CUDA(cudaStreamSynchronize((cudaStream_t)stream));
    return NULL;
}
static void threads(bool)
{
    for (int k = 0; k < 4; k++) {
        pthread_t thread;
        pthread_create(&thread, NULL, work, k % 2 ? a : b);
        pthread_join(thread, NULL);
    }
    expect(x, 4);
}

// A query that succeeds is a wait.
static void query(bool)
{
    add_in(a, x, 1);
    while (cudaStreamQuery(a) == cudaErrorNotReady) {
    }
    cudaGetLastError();
    add_in(b, x, 1);
    CUDA(cudaEventRecord(event, b));
    while (cudaEventQuery(event) == cudaErrorNotReady) {
    }
    cudaGetLastError();
    add_in(a, x, 1);
    expect(x, 3);
}

// A remark, and no more.
static void same_value(bool)
{
    CUDA(cudaMemsetAsync(x, 1, BYTES, a));
    CUDA(cudaMemsetAsync(x + 1000, 1, 4000, b));
    expect(x, 0x01010101);
}

#define CASE(NAME)  \
    {               \
#NAME, NAME \
    }
struct test {
    const char *name;
    void (*run)(bool broken);
};
static const test bugs[] = {
    CASE(copy_after_kernel), CASE(kernel_after_copy),    CASE(both_write),         CASE(next_buffer_too_soon),
    CASE(event_too_early),   CASE(default_not_awaited),  CASE(sum_read_early),     CASE(halo),
    CASE(constant_too_soon), CASE(bulk_source),          CASE(bulk_destination),   CASE(box_read_early),
    CASE(rows_too_wide),     CASE(freed_too_soon),       CASE(product_read_early), CASE(buffer_refilled),
    CASE(graph_refilled),    CASE(result_overwritten),   CASE(edge_forgotten),     CASE(path_forgotten),
    CASE(beside_a_graph),    CASE(function_not_awaited), CASE(graph_memory_gone),  CASE(graph_freed_twice),
};
static const test patterns[] = {
    CASE(chunks),
    CASE(ping_pong),
    CASE(default_stream),
    CASE(pool),
    CASE(shares),
    CASE(fork_and_join),
    CASE(graph_in_two_streams),
    CASE(dependent_launches),
    CASE(gate),
    CASE(asked_while_held),
    CASE(held_while_asked),
    CASE(asked_behind_while_held),
    CASE(graph_while_held),
    CASE(spun_on),
    CASE(exit_meanwhile),
    CASE(exit_within),
    CASE(filled_by_streams),
    CASE(threads),
    CASE(query),
    CASE(many_streams),
    CASE(graph_memory),
    CASE(graph_memory_freed),
    CASE(managed),
    CASE(event_of_a_graph),
};
static const test remarked[] = {CASE(same_value)};

template <int COUNT>
static void list(const test (&tests)[COUNT])
{
    for (const test &t : tests) puts(t.name);
    exit(0);
}
template <int COUNT>
static void run(const test (&tests)[COUNT], const char *name, bool broken)
{
    for (const test &t : tests) {
        if (strcmp(t.name, name)) continue;
        t.run(broken);
        CUDA(cudaDeviceSynchronize());
        exit(0);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) list(bugs);
    if (!strcmp(argv[1], "patterns")) list(patterns);
    CUDA(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    CUDA(cudaEventCreate(&event));
    CUDA(cudaEventCreate(&joined));
    CUDA(cudaMalloc(&x, BYTES));
    CUDA(cudaMalloc(&y, BYTES));
    CUDA(cudaMallocHost(&pinned, 2 * BYTES));
    CUDA(cudaMemset(x, 0, BYTES));
    CUDA(cudaMemset(y, 0, BYTES));
    memset(pinned, 0, 2 * BYTES);
    CUDA(cudaDeviceSynchronize());
    run(bugs, argv[1], argc < 3);
    run(patterns, argv[1], false);
    run(remarked, argv[1], false);
    return 2;
}
