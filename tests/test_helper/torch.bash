# A stand-in for PyTorch, the attention chapters' baseline. Load after common.

# torch_stub: makes TORCH_LIB a folder with a stand-in for PyTorch.
torch_stub() {
    local cuda_include cuda_lib
    cuda_include=$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)
    cuda_lib=$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)
    export TORCH_LIB=$BATS_TEST_TMPDIR/torch
    mkdir -p "$TORCH_LIB"
    gcc -O2 -Wall -Wextra -Werror -shared -fPIC -isystem "$cuda_include" -o "$TORCH_LIB/libtorch_cuda.so" \
        tests/test_helper/torch_stub.c -L"$cuda_lib" -l:libcudart.so.13 -lm
}
