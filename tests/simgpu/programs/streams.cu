// Streams, events and host functions: work in one stream keeps its order, and events order streams.
#include "expect.h"

__global__ void scale(float *x, int n, float factor)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}

struct Note {
    float *host;
    float seen;
};

static void CUDART_CB look(void *data)
{
    Note *note = (Note *)data;
    note->seen = note->host[0];
}

static void CUDART_CB finished(cudaStream_t, cudaError_t status, void *data)
{
    *(cudaError_t *)data = status;
}

static void CUDART_CB call(void *data)
{
    *(cudaError_t *)data = cudaDeviceSynchronize();
}

int main()
{
    const int n = 10007;
    float *host, *device[2];
    CUDA(cudaMallocHost(&host, n * sizeof *host));
    cudaStream_t stream[2];
    cudaEvent_t start, middle, end;
    int least, greatest, priority;
    CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA(cudaStreamCreateWithFlags(&stream[0], cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithPriority(&stream[1], cudaStreamNonBlocking, greatest));
    CUDA(cudaStreamGetPriority(stream[1], &priority));
    EXPECT(greatest <= least && priority == greatest);
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreateWithFlags(&middle, cudaEventDisableTiming));
    CUDA(cudaEventCreate(&end));

    for (int i = 0; i < n; i++) host[i] = (float)i;
    CUDA(cudaEventRecord(start, stream[0]));
    cudaMemPool_t pool;
    uint64_t threshold = UINT64_MAX, used = 0;
    CUDA(cudaDeviceGetDefaultMemPool(&pool, 0));
    CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    CUDA(cudaMallocAsync(&device[0], n * sizeof *host, stream[0]));
    CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
    EXPECT(used >= n * sizeof *host);
    cudaMemPool_t own;
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    CUDA(cudaMemPoolCreate(&own, &properties));
    CUDA(cudaMallocFromPoolAsync(&device[1], n * sizeof *host, own, stream[0]));
    CUDA(cudaMemPoolDestroy(own)); // what came from it stays
    EXPECT(cudaMemPoolDestroy(own) == cudaErrorInvalidValue);
    cudaGetLastError();
    CUDA(cudaMemcpyAsync(device[0], host, n * sizeof *host, cudaMemcpyHostToDevice, stream[0]));
    scale<<<(n + 255) / 256, 256, 0, stream[0]>>>(device[0], n, 2);
    CUDA(cudaEventRecord(middle, stream[0]));
    CUDA(cudaStreamWaitEvent(stream[1], middle, 0));
    CUDA(cudaMemcpyAsync(device[1], device[0], n * sizeof *host, cudaMemcpyDeviceToDevice, stream[1]));
    scale<<<(n + 255) / 256, 256, 0, stream[1]>>>(device[1], n, 5);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpyAsync(host, device[1], n * sizeof *host, cudaMemcpyDeviceToHost, stream[1]));
    Note note = {host + 1, 0};
    cudaError_t told = cudaErrorUnknown, refused = cudaSuccess;
    CUDA(cudaLaunchHostFunc(stream[1], look, &note));
    CUDA(cudaStreamAddCallback(stream[1], finished, &told, 0));
    CUDA(cudaLaunchHostFunc(stream[1], call, &refused));
    CUDA(cudaEventRecord(end, stream[1]));
    CUDA(cudaFreeAsync(device[0], stream[1])); // behind the copy that reads it
    CUDA(cudaStreamSynchronize(stream[1]));
    CUDA(cudaEventSynchronize(end));
    EXPECT(cudaStreamQuery(stream[1]) == cudaSuccess && cudaEventQuery(end) == cudaSuccess);

    for (int i = 0; i < n; i++)
        if (host[i] != 10.0f * (float)i) {
            EXPECT(host[i] == 10.0f * (float)i);
            break;
        }
    EXPECT(note.seen == 10);
    EXPECT(told == cudaSuccess);
    EXPECT(refused == cudaErrorNotPermitted);
    float milliseconds = -1;
    CUDA(cudaEventElapsedTime(&milliseconds, start, end));
    EXPECT(milliseconds > 0);
    EXPECT(cudaEventElapsedTime(&milliseconds, middle, end) == cudaErrorInvalidResourceHandle);
    cudaGetLastError();

    CUDA(cudaStreamDestroy(stream[0]));
    CUDA(cudaStreamDestroy(stream[1]));
    CUDA(cudaEventDestroy(start));
    CUDA(cudaEventDestroy(end));
    CUDA(cudaFree(device[1]));
    CUDA(cudaFreeHost(host));
    return verdict();
}
