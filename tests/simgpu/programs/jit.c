/* A program of the driver's API alone: it compiles a kernel when it runs, with NVRTC, loads the PTX and launches it. Passes on a
 * GPU too. */
#include <cuda.h>
#include <nvrtc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CU(call)                                                               \
    do {                                                                       \
        CUresult error_ = (call);                                              \
        if (error_) {                                                          \
            printf("%s:%d: %s: %d\n", __FILE__, __LINE__, #call, (int)error_); \
            exit(3);                                                           \
        }                                                                      \
    } while (0)
#define NVRTC(call)                                                                            \
    do {                                                                                       \
        nvrtcResult error_ = (call);                                                           \
        if (error_) {                                                                          \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, nvrtcGetErrorString(error_)); \
            exit(3);                                                                           \
        }                                                                                      \
    } while (0)

static const char source[] =
    "__constant__ int offset = 3;\n"
    "extern \"C\" __global__ void scale(int *x, int n, char unaligned, long long factor)\n"
    "{\n"
    "    extern __shared__ int tile[];\n"
    "    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    tile[threadIdx.x] = i < n ? x[i] : 0;\n"
    "    __syncthreads();\n"
    "    if (i < n) x[i] = (int)(tile[threadIdx.x] * factor) + offset + unaligned;\n"
    "}\n";

enum { N = 1000, BLOCK = 128, GRID = (N + BLOCK - 1) / BLOCK };

static char *compile(const char *architecture)
{
    nvrtcProgram program;
    size_t bytes;
    NVRTC(nvrtcCreateProgram(&program, source, "scale.cu", 0, NULL, NULL));
    NVRTC(nvrtcCompileProgram(program, 1, &architecture));
    NVRTC(nvrtcGetPTXSize(program, &bytes));
    char *ptx = malloc(bytes);
    NVRTC(nvrtcGetPTX(program, ptx));
    NVRTC(nvrtcDestroyProgram(&program));
    return ptx;
}

static int wrong(CUdeviceptr x, int factor, int summand)
{
    int host[N], count = 0;
    CU(cuMemcpyDtoH(host, x, sizeof host));
    for (int i = 0; i < N; i++) count += host[i] != i * factor + summand;
    return count;
}

int main(void)
{
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction scale, missing;
    CUdeviceptr x, offset;
    CUstream stream;
    int host[N], n = N, major, failures = 0;
    char one = 1;
    long long ten = 10;
    size_t bytes;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
    failures += major < 9;
    CU(cuCtxCreate(&context, NULL, 0, device));
    char *ptx = compile("--gpu-architecture=compute_90");
    CU(cuModuleLoadData(&module, ptx));
    memset(ptx, 'x', strlen(ptx)); /* the module has its own copy */
    free(ptx);
    CU(cuModuleGetFunction(&scale, module, "scale"));
    failures += cuModuleGetFunction(&missing, module, "no_such_kernel") != CUDA_ERROR_NOT_FOUND;
    CU(cuModuleGetGlobal(&offset, &bytes, module, "offset"));
    failures += bytes != sizeof(int);

    for (int i = 0; i < N; i++) host[i] = i;
    CU(cuMemAlloc(&x, sizeof host));
    CU(cuMemcpyHtoD(x, host, sizeof host));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    void *arguments[] = {&x, &n, &one, &ten};
    CU(cuLaunchKernel(scale, GRID, 1, 1, BLOCK, 1, 1, BLOCK * sizeof(int), stream, arguments, NULL));
    CU(cuStreamSynchronize(stream));
    failures += wrong(x, 10, 4) != 0;

    /* The arguments in one buffer, as the kernel has them. */
    const int seven = 7;
    CU(cuMemcpyHtoD(offset, &seven, sizeof seven));
    CU(cuMemcpyHtoD(x, host, sizeof host));
    struct {
        CUdeviceptr x;
        int n;
        char unaligned;
        long long factor;
    } packed = {x, N, 1, 2};
    bytes = sizeof packed;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    CU(cuLaunchKernel(scale, GRID, 1, 1, BLOCK, 1, 1, BLOCK * sizeof(int), NULL, NULL, extra));
    CU(cuCtxSynchronize());
    failures += wrong(x, 2, 8) != 0;

    ptx = compile("--gpu-architecture=compute_100");
    failures += major == 9 && cuModuleLoadData(&module, ptx) == CUDA_SUCCESS;
    free(ptx);
    CU(cuModuleUnload(module));
    CU(cuMemFree(x));
    CU(cuCtxDestroy(context));
    puts(failures ? "wrong" : "right");
    return failures != 0;
}
