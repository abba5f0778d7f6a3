// Chapter 22, step 4: the whole step as one CUDA graph, collectives in it.
//
// Question: chapter 11's last step records what it launches, and replays it. Step 3 launches in two streams, and calls a library
// that talks to other machines. Can that be recorded?
//
// Grows from: step 3 (sharded).
// Yes: NCCL's collectives are kernels, at work on buffers whose addresses stay. The recording follows the events from one stream to
// the other and back: fork and join become the graph's edges, and what has no edge between it may run side by side. All ranks must
// record the same collectives in the same order. The first step is launched as it is, for the memory that libraries allocate then.
//
//      step 1: sharded       step 2: sharded, recorded -> graph; graph       step 3: graph         …
//
// Run: make chapter-22 STEP=one_graph
#include "launchers.h"

#include <cuda_runtime.h>

static cudaError_t record(struct model *m, cudaStream_t stream)
{
    cudaGraph_t graph;
    cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess) return error;
    const cudaError_t launched = sharded(m, stream);
    error = cudaStreamEndCapture(stream, &graph);
    if (launched != cudaSuccess) error = launched;
    if (error == cudaSuccess) error = cudaGraphInstantiate(&m->recorded, graph, 0);
    if (error == cudaSuccess) error = cudaGraphDestroy(graph);
    return error;
}

extern "C" cudaError_t one_graph(struct model *m, cudaStream_t stream)
{
    cudaError_t error = cudaSuccess;
    if (!m->launched) {
        m->launched = true;
        return sharded(m, stream);
    }
    if (!m->recorded) error = record(m, stream);
    return error == cudaSuccess ? cudaGraphLaunch(m->recorded, stream) : error;
}
