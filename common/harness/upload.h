// Brings a case's inputs to the device by a kernel, as a layer's come there by the kernel before: a step that is launched early, and does
// not wait, reads what may not be there yet. On a GPU that is luck; the simulated GPU says so.
#pragma once

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "chapter.h"

struct upload {
    int count;
    struct input {
        void *to;         // device memory
        const void *from; // page-locked memory of the host
        size_t bytes;     // of both, which begin at multiples of 16
    } inputs[CHAPTER_MAX_TENSORS];
};

// Launches the kernel that copies all of them. Returns the launch's error.
cudaError_t upload_inputs(const struct upload *upload, cudaStream_t stream);
