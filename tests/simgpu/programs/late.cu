// Forgotten synchronisations between streams, and their right twins: late NAME forgets, late NAME right does not. A GPU most
// often computes the same for both. With --seed the simulated GPU runs a stream's work as late as CUDA allows.
#include "expect.h"

__global__ void add(int *x, int n, int summand)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += summand;
}

enum { N = 5000, BLOCK = 256, GRID = (N + BLOCK - 1) / BLOCK, BYTES = N * sizeof(int) };
static cudaStream_t stream, other;
static cudaEvent_t event;
static int *x, *y, *pinned, result[N];
static bool right;

static void add_in(cudaStream_t s, int *array, int summand)
{
    add<<<GRID, BLOCK, 0, s>>>(array, N, summand);
    CUDA(cudaGetLastError());
}

static bool all(const int *array, int value)
{
    for (int i = 0; i < N; i++)
        if (array[i] != value) return printf("element %d is %d, expected %d\n", i, array[i], value), false;
    return true;
}

// The host reads what an asynchronous copy brings.
static bool copy_not_awaited(void)
{
    add_in(stream, x, 1);
    CUDA(cudaMemcpyAsync(pinned, x, BYTES, cudaMemcpyDeviceToHost, stream));
    if (right) CUDA(cudaStreamSynchronize(stream));
    return all(pinned, 1);
}

// cudaMemcpy waits for the default stream, which does not wait for a non-blocking one.
static bool stream_not_awaited(void)
{
    add_in(stream, x, 1);
    if (right) CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaMemcpy(result, x, BYTES, cudaMemcpyDeviceToHost));
    return all(result, 1);
}

// One stream reads what another one writes.
static bool event_not_awaited(void)
{
    add_in(stream, x, 1);
    CUDA(cudaEventRecord(event, stream));
    if (right) CUDA(cudaStreamWaitEvent(other, event, 0));
    CUDA(cudaMemcpyAsync(y, x, BYTES, cudaMemcpyDeviceToDevice, other));
    CUDA(cudaMemcpyAsync(result, y, BYTES, cudaMemcpyDeviceToHost, other));
    CUDA(cudaStreamSynchronize(other));
    return all(result, 1);
}

// The event is recorded before the work that it should follow.
static bool event_too_early(void)
{
    if (!right) CUDA(cudaEventRecord(event, stream));
    add_in(stream, x, 1);
    if (right) CUDA(cudaEventRecord(event, stream));
    CUDA(cudaEventSynchronize(event));
    CUDA(cudaMemcpy(result, x, BYTES, cudaMemcpyDeviceToHost));
    return all(result, 1);
}

// A page-locked buffer is written again while a copy may still read it.
static bool buffer_reused(void)
{
    for (int i = 0; i < N; i++) pinned[i] = 7;
    CUDA(cudaMemcpyAsync(x, pinned, BYTES, cudaMemcpyHostToDevice, stream));
    if (right) CUDA(cudaStreamSynchronize(stream));
    for (int i = 0; i < N; i++) pinned[i] = 8;
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaMemcpy(result, x, BYTES, cudaMemcpyDeviceToHost));
    return all(result, 7);
}

// What cudaMemset is asked to do has not been done when it returns.
static bool fill_not_awaited(void)
{
    CUDA(cudaMemset(x, 0x11, BYTES));
    if (right) CUDA(cudaDeviceSynchronize());
    add_in(stream, x, 1); // in a non-blocking stream
    CUDA(cudaMemcpyAsync(result, x, BYTES, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    return all(result, 0x11111112);
}

// No edge from the first kernel to the second: of several launches, some run them the other way round.
static bool edge_forgotten(void)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CUDA(cudaMemsetAsync(x, 0, BYTES, stream));
    if (right) add_in(stream, x, 1);
    CUDA(cudaEventRecord(event, stream));
    CUDA(cudaStreamWaitEvent(other, event, 0));
    if (!right) add_in(stream, x, 1);
    CUDA(cudaMemcpyAsync(y, x, BYTES, cudaMemcpyDeviceToDevice, other));
    CUDA(cudaEventRecord(event, other));
    CUDA(cudaStreamWaitEvent(stream, event, 0));
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int launch = 0; launch < 20; launch++) {
        CUDA(cudaGraphLaunch(exec, stream));
        CUDA(cudaStreamSynchronize(stream));
        CUDA(cudaMemcpy(result, y, BYTES, cudaMemcpyDeviceToHost));
        if (!all(result, 1)) return false;
    }
    return true;
}

// A query that says that the stream is busy.
static bool query_ignored(void)
{
    add_in(stream, x, 1);
    CUDA(cudaMemcpyAsync(pinned, x, BYTES, cudaMemcpyDeviceToHost, stream));
    if (right)
        while (cudaStreamQuery(stream) == cudaErrorNotReady) {
        }
    return all(pinned, 1);
}

// The same, where a kernel writes to the host's memory itself.
static bool query_of_mapped_ignored(void)
{
    memset(pinned, 0, BYTES);
    add_in(stream, pinned, 1);
    while (cudaStreamQuery(stream) == cudaErrorNotReady && right) {
    }
    return all(pinned, 1);
}
static bool query_of_event_ignored(void)
{
    memset(pinned, 0, BYTES);
    add_in(stream, pinned, 1);
    CUDA(cudaEventRecord(event, stream));
    while (cudaEventQuery(event) == cudaErrorNotReady && right) {
    }
    return all(pinned, 1);
}

#define CASE(NAME)  \
    {               \
#NAME, NAME \
    }
static const struct {
    const char *name;
    bool (*run)(void);
} cases[] = {CASE(copy_not_awaited),      CASE(stream_not_awaited), CASE(event_not_awaited),
             CASE(event_too_early),       CASE(buffer_reused),      CASE(fill_not_awaited),
             CASE(edge_forgotten),        CASE(query_ignored),      CASE(query_of_mapped_ignored),
             CASE(query_of_event_ignored)};

int main(int argc, char **argv)
{
    right = argc > 2;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CUDA(cudaEventCreate(&event));
    CUDA(cudaMalloc(&x, BYTES));
    CUDA(cudaMalloc(&y, BYTES));
    CUDA(cudaMallocHost(&pinned, BYTES));
    CUDA(cudaMemset(x, 0, BYTES));
    CUDA(cudaMemset(y, 0, BYTES));
    CUDA(cudaDeviceSynchronize());
    for (auto &c : cases)
        if (argc > 1 && !strcmp(argv[1], c.name)) {
            EXPECT(c.run());
            return verdict();
        }
    for (auto &c : cases) puts(c.name);
    return 2;
}
