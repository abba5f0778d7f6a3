// Chapter 11, step 3: the whole step as one CUDA graph.
//
// Question: step 2 launches some hundred kernels, and each costs the host microseconds. A small model's kernels take no longer
// than that themselves. What must the host say anew in every step?
//
// Grows from: step 2 (fused).
// Nothing. Tokens, learning rate, the count of steps and the gradient's norm are in device memory at fixed places, and what the
// norm decides is decided there (chapter 10). So one step is recorded, and replayed for as long as training lasts. The first
// step is launched as it is: cuBLAS and some launchers allocate memory of their own then, which a recording must not.
//
//      step 1: fused         step 2: fused, recorded -> graph; graph         step 3: graph         …
//
// Run: make chapter-11 STEP=recorded
#include "launchers.h"

#include <cuda_runtime.h>

static cudaError_t record(struct model *m, cudaStream_t stream)
{
    cudaGraph_t graph;
    cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess) return error;
    const cudaError_t launched = fused(m, stream);
    error = cudaStreamEndCapture(stream, &graph);
    if (launched != cudaSuccess) error = launched;
    if (error == cudaSuccess) error = cudaGraphInstantiate(&m->recorded, graph, 0);
    if (error == cudaSuccess) error = cudaGraphDestroy(graph);
    return error;
}

extern "C" cudaError_t recorded(struct model *m, cudaStream_t stream)
{
    cudaError_t error = cudaSuccess;
    if (!m->launched) {
        m->launched = true;
        return fused(m, stream);
    }
    if (!m->recorded) error = record(m, stream);
    return error == cudaSuccess ? cudaGraphLaunch(m->recorded, stream) : error;
}
