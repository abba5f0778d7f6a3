// PTX that the program loads itself, by the runtime's own calls: its kernel and its variable. Passes on a GPU too.
#include "expect.h"

static const char ptx[] = ".version 8.0\n"
                          ".target sm_90\n"
                          ".address_size 64\n"
                          ".visible .global .align 4 .u32 summand = 40;\n"
                          ".visible .entry add(.param .u64 to, .param .u32 x)\n"
                          "{\n"
                          ".reg .b64 %p;\n"
                          ".reg .b32 %x, %y;\n"
                          "ld.param.u64 %p, [to];\n"
                          "cvta.to.global.u64 %p, %p;\n"
                          "ld.param.u32 %x, [x];\n"
                          "ld.global.u32 %y, [summand];\n"
                          "add.u32 %x, %x, %y;\n"
                          "st.global.u32 [%p], %x;\n"
                          "ret;\n"
                          "}\n";

int main()
{
    cudaLibrary_t library;
    cudaKernel_t kernel;
    int *to, *summand, two = 2, got, hundred = 100;
    size_t bytes;
    CUDA(cudaMalloc(&to, sizeof *to));
    CUDA(cudaLibraryLoadData(&library, ptx, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CUDA(cudaLibraryGetKernel(&kernel, library, "add"));
    void *arguments[] = {&to, &two};
    CUDA(cudaLaunchKernel((const void *)kernel, dim3(1), dim3(1), arguments, 0, nullptr));
    CUDA(cudaMemcpy(&got, to, sizeof got, cudaMemcpyDeviceToHost));
    EXPECT(got == 42);
    CUDA(cudaLibraryGetGlobal((void **)&summand, &bytes, library, "summand"));
    EXPECT(bytes == sizeof *summand);
    CUDA(cudaMemcpy(summand, &hundred, sizeof hundred, cudaMemcpyHostToDevice));
    CUDA(cudaLaunchKernel((const void *)kernel, dim3(1), dim3(1), arguments, 0, nullptr));
    CUDA(cudaMemcpy(&got, to, sizeof got, cudaMemcpyDeviceToHost));
    EXPECT(got == 102);
    EXPECT(cudaLibraryGetKernel(&kernel, library, "subtract") == cudaErrorSymbolNotFound);
    CUDA(cudaLibraryUnload(library));
    return verdict();
}
