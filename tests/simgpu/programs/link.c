/* A program of the driver's API that links PTX when it runs: which definition of a name counts (PTX ISA, "Linking Directives"), and
 * what cannot be linked. */
#include <cuda.h>
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

#define HEAD ".version 8.0\n.target sm_90\n.address_size 64\n"
#define FUNCTION(linking, name, value)                                                      \
    linking " .func (.param .b32 r) " name "()\n{\n.reg .b32 %x;\nmov.b32 %x, " value ";\n" \
            "st.param.b32 [r], %x;\nret;\n}\n"
#define CALL(name, at) \
    "{\n.param .b32 r;\ncall (r), " name ";\nld.param.b32 %x, [r];\nst.global.b32 [%to+" at "], %x;\n}\n"
#define READ(name, at) "ld.global.b32 %x, [" name "];\nst.global.b32 [%to+" at "], %x;\n"
#define KERNEL(body)                                                                                               \
    ".visible .entry kernel(.param .b64 out)\n{\n.reg .b32 %x;\n.reg .b64 %to, %from;\nld.param.b64 %to, [out];\n" \
    "cvta.to.global.u64 %to, %to;\n" body "ret;\n}\n"

/* A visible definition counts for more than a weak one, and that for more than a common one; of weak ones the first counts, of
 * common ones the largest; what is none of these is the text's own. */
static const char *const right[] = {
    HEAD FUNCTION(".weak", "chosen", "1") FUNCTION("", "own", "2") FUNCTION(
        ".weak", "first",
        "3") ".extern .func (.param .b32 r) elsewhere();\n.extern .global .b64 pointer;\n"
             ".common .global .b32 room;\n.common .global .b32 value;\n.weak .global .b32 start = 5;\n" KERNEL(
                 CALL("chosen", "0") CALL("own", "4") CALL("first", "8") CALL("elsewhere", "12")
                     READ("start", "16") READ(
                         "value",
                         "20") "ld.global.b64 %from, [pointer];\nld.global.b32 %x, [%from];\nst.global.b32 [%to+24], %x;\n"),
    HEAD FUNCTION(".visible", "chosen", "10") FUNCTION("", "own", "20") FUNCTION(".weak", "first", "30") FUNCTION(
        ".visible",
        "elsewhere",
        "40") ".extern .global .b32 pointed_to[2];\n"
              ".visible .global .b64 pointer = pointed_to+4;\n.common .global .b8 room[100];\n.visible .global .b32 start = 50;\n",
    HEAD ".visible .global .b32 pointed_to[2] = {6, 60};\n.weak .global .b32 value = 70;\n", NULL};
static const int want[] = {10, 2, 3, 40, 50, 70, 60};
enum { COUNT = sizeof want / sizeof *want };

static const char *const twice[] = {HEAD FUNCTION(".visible", "f", "1"), HEAD FUNCTION(".visible", "f", "2"),
                                    NULL};
static const char *const kinds[] = {HEAD ".visible .global .b32 f;\n", HEAD FUNCTION(".visible", "f", "2"),
                                    NULL};
static const char *const missing[] = {HEAD ".extern .global .b32 x;\n.visible .global .b64 p = x;\n", HEAD,
                                      NULL};

static CUresult link_texts(const char *const *texts, CUmodule *module)
{
    CUlinkState state;
    void *image;
    size_t bytes;
    CU(cuLinkCreate(0, NULL, NULL, &state));
    for (int i = 0; texts[i]; i++)
        CU(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)texts[i], strlen(texts[i]) + 1, "text", 0, NULL,
                         NULL));
    CU(cuLinkComplete(state, &image, &bytes));
    CUresult error = cuModuleLoadData(module, image);
    CU(cuLinkDestroy(state));
    return error;
}

int main(void)
{
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    CUdeviceptr out, room;
    CUlinkState state;
    size_t bytes;
    int got[COUNT], failures = 0;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuCtxCreate(&context, NULL, 0, device));
    CU(link_texts(right, &module));
    CU(cuModuleGetGlobal(&room, &bytes, module, "room"));
    failures += bytes != 100;
    CU(cuModuleGetFunction(&kernel, module, "kernel"));
    CU(cuMemAlloc(&out, sizeof got));
    void *arguments[] = {&out};
    CU(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
    CU(cuMemcpyDtoH(got, out, sizeof got));
    for (int i = 0; i < COUNT; i++) {
        if (got[i] != want[i]) printf("value %d is %d, expected %d\n", i, got[i], want[i]);
        failures += got[i] != want[i];
    }
    failures += link_texts(twice, &module) != CUDA_ERROR_INVALID_PTX;
    failures += link_texts(kinds, &module) != CUDA_ERROR_INVALID_PTX;
    failures += link_texts(missing, &module) != CUDA_ERROR_INVALID_PTX;
    CU(cuLinkCreate(0, NULL, NULL, &state));
    failures += cuLinkAddData(state, CU_JIT_INPUT_CUBIN, got, sizeof got, "a.cubin", 0, NULL, NULL) !=
                CUDA_ERROR_NOT_SUPPORTED;
    puts(failures ? "wrong" : "right");
    return failures != 0;
}
