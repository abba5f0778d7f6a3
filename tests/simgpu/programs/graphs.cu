// CUDA graphs: captured from one stream and from forked ones, built node by node, launched, updated; and the captures that CUDA
// refuses. Passes on a GPU too.
#include "expect.h"

__global__ void add(int *x, int n, int summand)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += summand;
}
__global__ void scale(int *x, int n, int factor)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}
__global__ void sum(int *to, const int *a, const int *b, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = a[i] + b[i];
}

enum { N = 1000, BLOCK = 128, GRID = (N + BLOCK - 1) / BLOCK };
static cudaStream_t stream, other;
static int *x, *y, *z, *host;

static bool all(const int *device, int value)
{
    static int copy[N];
    CUDA(cudaMemcpy(copy, device, sizeof copy, cudaMemcpyDeviceToHost));
    for (int i = 0; i < N; i++)
        if (copy[i] != value) return printf("element %d is %d, expected %d\n", i, copy[i], value), false;
    return true;
}

static void zero(int *device)
{
    CUDA(cudaMemset(device, 0, N * sizeof *device));
    CUDA(cudaDeviceSynchronize());
}

static cudaGraphExec_t instantiate(cudaGraph_t graph)
{
    cudaGraphExec_t exec;
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    return exec;
}

static void launch(cudaGraphExec_t exec, int times = 1)
{
    for (int i = 0; i < times; i++) CUDA(cudaGraphLaunch(exec, stream));
    CUDA(cudaStreamSynchronize(stream));
}

static void CUDART_CB count(void *counter)
{
    ++*(int *)counter;
}

static void linear(void)
{
    int calls = 0;
    cudaGraph_t graph;
    cudaStreamCaptureStatus status;
    zero(x);
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CUDA(cudaStreamIsCapturing(stream, &status));
    EXPECT(status == cudaStreamCaptureStatusActive);
    CUDA(cudaMemsetAsync(x, 0, N * sizeof *x, stream));
    add<<<GRID, BLOCK, 0, stream>>>(x, N, 3);
    scale<<<GRID, BLOCK, 0, stream>>>(x, N, 7);
    CUDA(cudaMemcpyAsync(host, x, N * sizeof *x, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaLaunchHostFunc(stream, count, &calls));
    CUDA(cudaStreamEndCapture(stream, &graph));
    EXPECT(all(x, 0) && calls == 0); // nothing has run
    size_t nodes = 0, roots = 0;
    CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
    CUDA(cudaGraphGetRootNodes(graph, nullptr, &roots));
    EXPECT(nodes == 5 && roots == 1);
    cudaGraphExec_t exec = instantiate(graph);
    launch(exec, 3);
    EXPECT(all(x, 21) && host[N - 1] == 21 && calls == 3);
    CUDA(cudaGraphExecDestroy(exec));
}

// The other stream joins by an event, and is joined by another one.
static void forked(void)
{
    cudaGraph_t graph;
    cudaEvent_t fork, join;
    CUDA(cudaEventCreate(&fork));
    CUDA(cudaEventCreate(&join));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CUDA(cudaMemsetAsync(x, 0, N * sizeof *x, stream));
    CUDA(cudaEventRecord(fork, stream));
    CUDA(cudaStreamWaitEvent(other, fork, 0));
    CUDA(cudaMemcpyAsync(y, x, N * sizeof *x, cudaMemcpyDeviceToDevice, other));
    add<<<GRID, BLOCK, 0, other>>>(y, N, 5);
    add<<<GRID, BLOCK, 0, stream>>>(z, N, 2); // beside them
    CUDA(cudaEventRecord(join, other));
    CUDA(cudaStreamWaitEvent(stream, join, 0));
    sum<<<GRID, BLOCK, 0, stream>>>(x, y, z, N);
    CUDA(cudaStreamEndCapture(stream, &graph));
    cudaStreamCaptureStatus status;
    CUDA(cudaStreamIsCapturing(other, &status));
    EXPECT(status == cudaStreamCaptureStatusNone);
    size_t nodes = 5, before = 0;
    cudaGraphNode_t node[5];
    CUDA(cudaGraphGetNodes(graph, node, &nodes));
    CUDA(cudaGraphNodeGetDependencies(node[4], nullptr, nullptr, &before));
    EXPECT(nodes == 5 && before == 2);
    cudaGraphExec_t exec = instantiate(graph);
    zero(z);
    launch(exec, 4);
    EXPECT(all(y, 5) && all(x, 13));
    EXPECT(cudaEventSynchronize(join) == cudaErrorCapturedEvent);
    cudaGetLastError();
    CUDA(cudaGraphExecDestroy(exec));
}

static cudaKernelNodeParams kernel(void *function, int **array, int *n, int *value)
{
    static void *arguments[3];
    arguments[0] = array, arguments[1] = n, arguments[2] = value;
    cudaKernelNodeParams p = {};
    p.func = function;
    p.gridDim = dim3(GRID);
    p.blockDim = dim3(BLOCK);
    p.kernelParams = arguments;
    return p;
}

static void built(void)
{
    cudaGraph_t graph, inner;
    cudaGraphNode_t fill, first, second, copy, call, child, join;
    int n = N, three = 3, ten = 10, calls = 0;
    CUDA(cudaGraphCreate(&graph, 0));
    cudaMemsetParams pattern = {};
    pattern.dst = x, pattern.elementSize = 4, pattern.value = 0x01020304, pattern.width = N,
    pattern.height = 1;
    CUDA(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &pattern));
    cudaKernelNodeParams p = kernel((void *)add, &x, &n, &three);
    CUDA(cudaGraphAddKernelNode(&second, graph, nullptr, 0, &p)); // its turn comes later, by the edge below
    CUDA(cudaGraphAddKernelNode(&first, graph, &fill, 1, &p));
    CUDA(cudaGraphAddDependencies(graph, &first, &second, nullptr, 1));
    CUDA(cudaGraphCreate(&inner, 0));
    cudaGraphNode_t inside;
    p = kernel((void *)scale, &x, &n, &ten);
    CUDA(cudaGraphAddKernelNode(&inside, inner, nullptr, 0, &p));
    CUDA(cudaGraphAddChildGraphNode(&child, graph, &second, 1, inner));
    CUDA(cudaGraphDestroy(inner));
    CUDA(cudaGraphAddMemcpyNode1D(&copy, graph, &child, 1, y, x, N * sizeof *x, cudaMemcpyDeviceToDevice));
    cudaHostNodeParams function = {count, &calls};
    CUDA(cudaGraphAddHostNode(&call, graph, nullptr, 0, &function));
    const cudaGraphNode_t both[] = {copy, call};
    CUDA(cudaGraphAddEmptyNode(&join, graph, both, 2));
    cudaGraphNodeType type;
    CUDA(cudaGraphNodeGetType(child, &type));
    EXPECT(type == cudaGraphNodeTypeGraph);
    cudaKernelNodeParams got;
    CUDA(cudaGraphKernelNodeGetParams(first, &got));
    EXPECT(got.gridDim.x == GRID && *(int *)got.kernelParams[2] == 3);

    cudaGraphExec_t exec;
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    launch(exec);
    EXPECT(all(y, (0x01020304 + 6) * 10) && calls == 1);
    p = kernel((void *)add, &x, &n, &ten); // other arguments in the executable graph only
    CUDA(cudaGraphExecKernelNodeSetParams(exec, first, &p));
    launch(exec);
    EXPECT(all(y, (0x01020304 + 13) * 10));
    cudaGraphExecUpdateResultInfo result;
    CUDA(cudaGraphExecMemcpyNodeSetParams1D(exec, copy, z, x, N * sizeof *x, cudaMemcpyDeviceToDevice));
    pattern.value = 1;
    CUDA(cudaGraphExecMemsetNodeSetParams(exec, fill, &pattern));
    int others = 0;
    function.userData = &others;
    CUDA(cudaGraphExecHostNodeSetParams(exec, call, &function));
    launch(exec);
    EXPECT(all(z, 14 * 10) && calls == 2 && others == 1);
    EXPECT(cudaGraphExecMemsetNodeSetParams(exec, copy, &pattern) == cudaErrorInvalidValue); // a copy
    cudaGetLastError();
    cudaGraph_t clone;
    cudaGraphNode_t cloned;
    cudaGraphExec_t of_clone;
    CUDA(cudaGraphClone(&clone, graph));
    CUDA(cudaGraphNodeFindInClone(&cloned, second, clone));
    CUDA(cudaGraphKernelNodeSetParams(cloned, &p)); // in the clone only
    of_clone = instantiate(clone);
    launch(of_clone);
    EXPECT(all(y, (0x01020304 + 13) * 10));
    CUDA(cudaGraphExecDestroy(of_clone));
    CUDA(cudaGraphExecUpdate(exec, graph, &result)); // as the graph says again
    launch(exec);
    EXPECT(result.result == cudaGraphExecUpdateSuccess && all(y, (0x01020304 + 6) * 10));
    CUDA(cudaGraphAddKernelNode(&join, graph, &join, 1, &p));
    EXPECT(cudaGraphExecUpdate(exec, graph, &result) == cudaErrorGraphExecUpdateFailure);
    CUDA(cudaGraphAddDependencies(graph, &second, &first, nullptr, 1));
    cudaGraphExec_t none;
    EXPECT(cudaGraphInstantiate(&none, graph, 0) == cudaErrorInvalidValue); // a cycle
    cudaGetLastError();
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaGraphExecDestroy(exec));
}

// Memory of the graph's own, in a captured stream and as nodes: fresh in each launch, at the same address.
static void allocating(void)
{
    cudaGraph_t graph;
    int *own, *left, n = N, two = 2;
    enum { LARGE = 3 << 20 };
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CUDA(cudaMallocAsync(&own, LARGE, stream));
    CUDA(cudaMallocAsync(&left, N * sizeof *left, stream));
    CUDA(cudaMemsetAsync(own, 0, N * sizeof *own, stream));
    add<<<GRID, BLOCK, 0, stream>>>(own, N, 4);
    CUDA(cudaMemcpyAsync(left, own, N * sizeof *left, cudaMemcpyDeviceToDevice, stream));
    CUDA(cudaFreeAsync(own, stream));
    add<<<GRID, BLOCK, 0, stream>>>(left, N, 1);
    CUDA(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t exec = instantiate(graph);
    for (int i = 0; i < 3; i++) {
        launch(exec);
        EXPECT(all(left, 5)); // it outlives the launch, until the program frees it
        if (i == 1) CUDA(cudaFree(left));
        if (i != 1) CUDA(cudaFreeAsync(left, stream));
    }
    CUDA(cudaGraphExecDestroy(exec));

    cudaGraphNode_t make, fill, run, copy, end;
    cudaMemAllocNodeParams memory = {}, got;
    memory.bytesize = N * sizeof *own;
    memory.poolProps.allocType = cudaMemAllocationTypePinned;
    memory.poolProps.location.type = cudaMemLocationTypeDevice;
    CUDA(cudaGraphCreate(&graph, 0));
    CUDA(cudaGraphAddMemAllocNode(&make, graph, nullptr, 0, &memory));
    CUDA(cudaGraphMemAllocNodeGetParams(make, &got));
    EXPECT(got.dptr == memory.dptr && got.bytesize == memory.bytesize);
    own = (int *)memory.dptr;
    cudaMemsetParams pattern = {};
    pattern.dst = own, pattern.elementSize = 4, pattern.value = 7, pattern.width = N, pattern.height = 1;
    CUDA(cudaGraphAddMemsetNode(&fill, graph, &make, 1, &pattern));
    cudaKernelNodeParams p = kernel((void *)scale, &own, &n, &two);
    CUDA(cudaGraphAddKernelNode(&run, graph, &fill, 1, &p));
    CUDA(cudaGraphAddMemcpyNode1D(&copy, graph, &run, 1, x, own, N * sizeof *x, cudaMemcpyDeviceToDevice));
    CUDA(cudaGraphAddMemFreeNode(&end, graph, &copy, 1, own));
    exec = instantiate(graph);
    launch(exec, 2);
    EXPECT(all(x, 14));
    CUDA(cudaGraphExecDestroy(exec));
    unsigned long long used, high;
    CUDA(cudaDeviceGraphMemTrim(0));
    CUDA(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &used));
    CUDA(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &high));
    EXPECT(used == 0 && high >= LARGE + N * sizeof *left);
}

// A kernel of the graph's that comes after the node which frees what it reads.
static void freed_too_soon(void)
{
    cudaGraph_t graph;
    int *own;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CUDA(cudaMallocAsync(&own, N * sizeof *own, stream));
    CUDA(cudaMemsetAsync(own, 0, N * sizeof *own, stream));
    CUDA(cudaFreeAsync(own, stream));
    add<<<GRID, BLOCK, 0, stream>>>(own, N, 1);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphLaunch(instantiate(graph), stream));
    EXPECT(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
}

// The capture is invalid after a call that it forbids; ending it says so, and leaves the stream as it was.
static void invalid(cudaError_t expected, cudaError_t got,
                    cudaError_t at_end = cudaErrorStreamCaptureInvalidated)
{
    cudaGraph_t graph;
    EXPECT(got == expected);
    EXPECT(cudaStreamEndCapture(stream, &graph) == at_end && !graph);
    cudaGetLastError();
    add<<<GRID, BLOCK, 0, stream>>>(x, N, 1);
    CUDA(cudaStreamSynchronize(stream));
}

static void refused(void)
{
    cudaGraph_t graph;
    cudaEvent_t event;
    void *memory;
    CUDA(cudaEventCreate(&event));
    EXPECT(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal) == cudaErrorStreamCaptureUnsupported);
    EXPECT(cudaStreamEndCapture(stream, &graph) == cudaErrorIllegalState);
    const auto begin = [] { CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal)); };
    begin();
    EXPECT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaErrorIllegalState);
    invalid(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(stream));
    begin();
    invalid(cudaErrorStreamCaptureUnsupported, cudaMalloc(&memory, 16));
    begin();
    invalid(cudaErrorStreamCaptureUnsupported, cudaDeviceSynchronize());
    begin();
    CUDA(cudaEventRecord(event, stream));
    CUDA(cudaStreamWaitEvent(other, event, 0));
    add<<<GRID, BLOCK, 0, other>>>(x, N, 1);
    invalid(cudaSuccess, cudaSuccess, cudaErrorStreamCaptureUnjoined);
    CUDA(cudaEventRecord(event, other));
    begin();
    invalid(cudaErrorStreamCaptureIsolation, cudaStreamWaitEvent(stream, event, 0));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    CUDA(cudaMalloc(&memory, 16));
    CUDA(cudaStreamEndCapture(stream, &graph));
    launch(instantiate(graph)); // of nothing
}

int main(int argc, char **)
{
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&x, N * sizeof *x));
    CUDA(cudaMalloc(&y, N * sizeof *y));
    CUDA(cudaMalloc(&z, N * sizeof *z));
    CUDA(cudaMallocHost(&host, N * sizeof *host));
    linear();
    forked();
    built();
    allocating();
    refused();
    if (argc > 1) freed_too_soon();
    return verdict();
}
