/* driver.c: libcuda.so.1, the driver's API as far as programs use it that load or link PTX themselves (made by NVRTC at run time, say),
 * or link to the driver to encode tensor maps. Every call passes on to the simulated runtime, whose errors have the same numbers.
 * There is one context, which is always current. What else of the driver a program needs is missing when it is loaded, or called. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fatbinary_section.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

/* Weak, so that a program may be linked with this library beside the toolkit's libcudart.so.13. */
#pragma weak simgpu_load_module
#pragma weak simgpu_module_kernel
#pragma weak simgpu_module_variable
#pragma weak simgpu_launch_packed

#define EXPORT __attribute__((visibility("default")))

static char the_context;

/* ---- Errors, devices, contexts ------------------------------------------------------------------------------------ */

EXPORT CUresult cuInit(unsigned flags)
{
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    return (CUresult)cudaDriverGetVersion(version);
}

/* Private tables of functions. NVRTC asks for one, and does without. */
EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    (void)id;
    *table = NULL;
    return CUDA_ERROR_NOT_SUPPORTED;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = cudaGetErrorString((cudaError_t)error);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **name)
{
    *name = cudaGetErrorName((cudaError_t)error);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    return (CUresult)cudaGetDeviceCount(count);
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int number)
{
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = number;
    return number ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int room, CUdevice device)
{
    struct cudaDeviceProp properties;
    CUresult error = (CUresult)cudaGetDeviceProperties(&properties, device);
    if (!error) snprintf(name, (size_t)room, "%s", properties.name);
    return error;
}

/* The numbers of attributes are the same, too. */
EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    return (CUresult)cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)attribute, device);
}

EXPORT CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    struct cudaDeviceProp properties;
    CUresult error = (CUresult)cudaGetDeviceProperties(&properties, device);
    if (!error) *bytes = properties.totalGlobalMem;
    return error;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = (CUcontext)&the_context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate(CUcontext *context, CUctxCreateParams *parameters, unsigned flags,
                            CUdevice device)
{
    (void)parameters, (void)flags;
    return device ? CUDA_ERROR_INVALID_DEVICE : cuCtxGetCurrent(context);
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    return device ? CUDA_ERROR_INVALID_DEVICE : cuCtxGetCurrent(context);
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    return context && context != (CUcontext)&the_context ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent(CUcontext context)
{
    return cuCtxSetCurrent(context);
}

EXPORT CUresult cuCtxPopCurrent(CUcontext *context)
{
    return context ? cuCtxGetCurrent(context) : CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDestroy(CUcontext context)
{
    CUresult error = cuCtxSetCurrent(context);
    return error ? error : (CUresult)cudaDeviceSynchronize();
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    return (CUresult)cudaGetDevice(device);
}

EXPORT CUresult cuCtxSynchronize(void)
{
    return (CUresult)cudaDeviceSynchronize();
}

/* ---- Modules and kernels ------------------------------------------------------------------------------------------ */

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    return (CUresult)simgpu_load_module((struct binary **)module, image, "cuModuleLoadData");
}

/* Options are for the compiler to machine code. */
EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options,
                                   void **values)
{
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(module, image);
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatbin)
{
    return cuModuleLoadData(module, fatbin);
}

/* A file's bytes, malloc'ed, with a NUL after the end, as text needs; *data is NULL on failure. */
static CUresult read_file(const char *path, char **data, size_t *bytes)
{
    FILE *file = path ? fopen(path, "rb") : NULL;
    size_t room = 0;
    *data = NULL;
    *bytes = 0;
    if (!file) return path ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
    do {
        if (*bytes + 1 >= room) {
            char *more = realloc(*data, room = room ? 2 * room : 1 << 16);
            if (!more) {
                free(*data);
                *data = NULL;
                fclose(file);
                return CUDA_ERROR_OUT_OF_MEMORY;
            }
            *data = more;
        }
        *bytes += fread(*data + *bytes, 1, room - 1 - *bytes, file);
        (*data)[*bytes] = 0;
    } while (!feof(file) && !ferror(file));
    fclose(file);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    char *data;
    size_t bytes;
    CUresult error = read_file(path, &data, &bytes);
    if (!error) error = bytes > 4 ? cuModuleLoadData(module, data) : CUDA_ERROR_INVALID_IMAGE;
    free(data);
    return error;
}

/* Memory of its variables stays: pointers to them may be held. */
EXPORT CUresult cuModuleUnload(CUmodule module)
{
    return module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    return (CUresult)simgpu_module_kernel((struct binary *)module, name, (cudaKernel_t *)function,
                                          "cuModuleGetFunction");
}

EXPORT CUresult cuModuleGetGlobal(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name)
{
    return (CUresult)simgpu_module_variable((struct binary *)module, name, (void **)address, bytes,
                                            "cuModuleGetGlobal");
}

/* ---- Linking ------------------------------------------------------------------------------------------------------- */

/* What is linked is what a program compiled with -rdc=true holds: a wrapper around a list of fatbins or PTX texts, which are read and
 * linked when the module is loaded. It stays, for the program may have copied it. */
struct CUlinkState_st {
    void **parts; /* then NULL */
    size_t count;
    __fatBinC_Wrapper_t *linked;
};

EXPORT CUresult cuLinkCreate(unsigned count, CUjit_option *options, void **values, CUlinkState *state)
{
    (void)count, (void)options, (void)values;
    if (!state) return CUDA_ERROR_INVALID_VALUE;
    *state = calloc(1, sizeof **state);
    return *state ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t bytes,
                              const char *name, unsigned count, CUjit_option *options, void **values)
{
    (void)count, (void)options, (void)values;
    if (!state || !data || !bytes) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_JIT_INPUT_PTX && type != CU_JIT_INPUT_FATBINARY) {
        fprintf(stderr, "simgpu: cuLinkAddData: %s: the simulated GPU links PTX and fatbins that hold it\n",
                name ? name : "an input without a name");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    char *copy = malloc(bytes + 1);
    void **parts = realloc(state->parts, (state->count + 2) * sizeof *parts);
    if (parts) state->parts = parts;
    if (!parts || !copy) {
        free(copy);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(copy, data, bytes);
    copy[bytes] = 0;
    parts[state->count++] = copy;
    parts[state->count] = NULL;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char *path, unsigned count,
                              CUjit_option *options, void **values)
{
    char *data;
    size_t bytes;
    CUresult error = read_file(path, &data, &bytes);
    if (!error) error = cuLinkAddData(state, type, data, bytes, path, count, options, values);
    free(data);
    return error;
}

EXPORT CUresult cuLinkComplete(CUlinkState state, void **image, size_t *bytes)
{
    if (!state || !image || !state->count) return CUDA_ERROR_INVALID_VALUE;
    if (!state->linked && !(state->linked = malloc(sizeof *state->linked))) return CUDA_ERROR_OUT_OF_MEMORY;
    *state->linked = (__fatBinC_Wrapper_t){(int)FATBINC_MAGIC, FATBINC_LINK_VERSION, NULL, state->parts};
    *image = state->linked;
    if (bytes) *bytes = sizeof *state->linked;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLinkDestroy(CUlinkState state)
{
    return state ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- Libraries ------------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options, void **values,
                                  unsigned count, CUlibraryOption *library_options, void **library_values,
                                  unsigned library_count)
{
    (void)options, (void)values, (void)count, (void)library_options, (void)library_values,
        (void)library_count;
    return (CUresult)simgpu_load_module((struct binary **)library, code, "cuLibraryLoadData");
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    return library ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    return (CUresult)simgpu_module_kernel((struct binary *)library, name, (cudaKernel_t *)kernel,
                                          "cuLibraryGetKernel");
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    return (CUresult)cudaFuncSetAttribute(function, (enum cudaFuncAttribute)attribute, value);
}

EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    struct cudaFuncAttributes a;
    CUresult error = (CUresult)cudaFuncGetAttributes(&a, function);
    if (error || !value) return error ? error : CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = a.maxThreadsPerBlock; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = (int)a.sharedSizeBytes; break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = (int)a.constSizeBytes; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = (int)a.localSizeBytes; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = a.numRegs; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: *value = a.ptxVersion; break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = a.binaryVersion; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = a.maxDynamicSharedSizeBytes; break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                            size_t dynamic_bytes)
{
    return (CUresult)cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, dynamic_bytes);
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                               unsigned block_x, unsigned block_y, unsigned block_z, unsigned dynamic_bytes,
                               CUstream stream, void **arguments, void **extra)
{
    struct dim3 grid = {grid_x, grid_y, grid_z}, block = {block_x, block_y, block_z};
    if (!extra) return (CUresult)cudaLaunchKernel(function, grid, block, arguments, dynamic_bytes, stream);
    void *buffer = NULL;
    const size_t *bytes = NULL;
    for (; extra[0] != CU_LAUNCH_PARAM_END; extra += 2) {
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[1];
        else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE)
            bytes = extra[1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (!buffer || !bytes || arguments) return CUDA_ERROR_INVALID_VALUE;
    return (CUresult)simgpu_launch_packed((cudaKernel_t)function, grid, block, buffer, *bytes, dynamic_bytes,
                                          stream);
}

/* ---- Memory -------------------------------------------------------------------------------------------------------- */

EXPORT CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes)
{
    return bytes ? (CUresult)cudaMalloc((void **)address, bytes) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemFree(CUdeviceptr address)
{
    return (CUresult)cudaFree((void *)address);
}

EXPORT CUresult cuMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    return (CUresult)cudaMemGetInfo(free_bytes, total_bytes);
}

EXPORT CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes)
{
    return (CUresult)cudaMemcpy((void *)to, from, bytes, cudaMemcpyHostToDevice);
}

EXPORT CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes)
{
    return (CUresult)cudaMemcpy(to, (const void *)from, bytes, cudaMemcpyDeviceToHost);
}

EXPORT CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return (CUresult)cudaMemcpy((void *)to, (const void *)from, bytes, cudaMemcpyDeviceToDevice);
}

EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    return (CUresult)cudaMemcpyAsync((void *)to, from, bytes, cudaMemcpyHostToDevice, stream);
}

EXPORT CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return (CUresult)cudaMemcpyAsync(to, (const void *)from, bytes, cudaMemcpyDeviceToHost, stream);
}

EXPORT CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t bytes)
{
    return (CUresult)cudaMemset((void *)to, value, bytes);
}

/* ---- Streams and events ---------------------------------------------------------------------------------------------- */

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    return (CUresult)cudaStreamCreateWithFlags(stream, flags);
}

EXPORT CUresult cuStreamDestroy(CUstream stream)
{
    return (CUresult)cudaStreamDestroy(stream);
}

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    return (CUresult)cudaStreamSynchronize(stream);
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    return (CUresult)cudaStreamWaitEvent(stream, event, flags);
}

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    return (CUresult)cudaEventCreateWithFlags(event, flags);
}

EXPORT CUresult cuEventDestroy(CUevent event)
{
    return (CUresult)cudaEventDestroy(event);
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
    return (CUresult)cudaEventRecord(event, stream);
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
    return (CUresult)cudaEventSynchronize(event);
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    return (CUresult)cudaEventElapsedTime(milliseconds, start, end);
}

/* ---- Tensor maps ------------------------------------------------------------------------------------------------------ */

EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                       void *address, const cuuint64_t *dims, const cuuint64_t *strides,
                                       const cuuint32_t *box, const cuuint32_t *element_strides,
                                       CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                       CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    static __typeof__(&cuTensorMapEncodeTiled) encode;
    enum cudaDriverEntryPointQueryResult found;
    if (!encode)
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode, 12000, cudaEnableDefault,
                                         &found);
    return encode(map, type, rank, address, dims, strides, box, element_strides, interleave, swizzle,
                  promotion, fill);
}
