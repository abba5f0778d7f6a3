#!/usr/bin/env bats
# The CUDA runtime's manners: which error comes when, what is refused and how that is said; and the simgpu command.
load ../test_helper/common

PROGRAMS=$ROOT/build/tests/simgpu/programs

setup_file() {
    NVCC=$(sed -n 's/^NVCC *:= *//p' "$BATS_TEST_DIRNAME/../../build/config.mk")
    export NVCC
}

# compile NAME [NVCC OPTIONS] < SOURCE: a program of one test's own; sets PROGRAM.
compile() {
    PROGRAM=$BATS_TEST_TMPDIR/$1
    cat >"$PROGRAM.cu"
    "$NVCC" -std=c++17 "${@:2}" -o "$PROGRAM" "$PROGRAM.cu"
}

PTX_ONLY=(-cudart shared -gencode "arch=compute_90a,code=compute_90a")
ONE_KERNEL='
#include <cstdio>
__global__ void hello() { printf("hello\n"); }
int main()
{
    hello<<<1, 1>>>();
    cudaError_t launched = cudaGetLastError(), waited = cudaDeviceSynchronize();
    printf("%s, %s\n", cudaGetErrorName(launched), cudaGetErrorName(waited));
    return launched != cudaSuccess;
}'

# ---- Faults are sticky ---------------------------------------------------------------------------------------------

# fault WHAT ERROR MESSAGE: the program's kernel goes wrong; the program checks that CUDA's rules hold from then on.
fault() {
    run -0 --separate-stderr "$SIMGPU" --max-instructions 2000000 --max-idle 0 "$PROGRAMS/errors" "$1"
    assert_equal "${lines[-1]}" right
    assert_output --partial "$2"
    # shellcheck disable=SC2154 # Bats sets stderr
    assert_regex "$stderr" "$3"
}

@test "simgpu: an access out of bounds reaches the next call that waits, and every call after it" {
    fault out_of_bounds cudaErrorIllegalAddress 'errors\.cu:[0-9]+: st\.global'
}

@test "simgpu: a host pointer in a kernel is an illegal address, and called a host pointer" {
    fault host_pointer cudaErrorIllegalAddress 'host pointer'
}

@test "simgpu: use after free is an illegal address, and called use after free" {
    fault freed cudaErrorIllegalAddress 'use after free'
}

@test "simgpu: a misaligned access" { fault misaligned cudaErrorMisalignedAddress 'must be a multiple of 4'; }

@test "simgpu: trap" { fault trapped cudaErrorLaunchFailure 'trap'; }

@test "simgpu: a failed assert names its expression" { fault asserted cudaErrorAssert 'zero == 1'; }

@test "simgpu: --max-instructions stops a kernel that never ends" { fault endless cudaErrorLaunchTimeout 'stopped after'; }

@test "simgpu: a kernel that polls for what never comes ends by itself, with the line where it is" {
    run -0 --separate-stderr "$SIMGPU" --max-idle 8M "$PROGRAMS/errors" endless
    assert_output --partial cudaErrorLaunchTimeout
    assert_regex "$stderr" 'livelock.*changed no memory.*kernel endless'
    assert_regex "$stderr" 'block \(0,0,0\), warp 0 is +at .*errors\.cu:[0-9]+'
}

# ---- Refused without harm ------------------------------------------------------------------------------------------

@test "simgpu: wrong launches, copies and handles are refused, and the next launch runs" {
    run -0 --separate-stderr "$SIMGPU" "$PROGRAMS/limits"
    assert_equal "${lines[-1]}" right
    assert_regex "$stderr" 'kernel plain\(int\*\): block \(1025, 1, 1\); each size .* at most \(1024, 1024, 64\)'
    assert_regex "$stderr" 'kernel bounded\(int\*\): block of 129 threads, but its launch bounds allow 128'
    assert_regex "$stderr" '49153 bytes of dynamic shared memory.*cudaFuncSetAttribute'
    assert_regex "$stderr" 'cudaMemcpy: writes 1028 bytes at 0x[0-9a-f]+, but only 1024 are left there in allocation 1'
    assert_regex "$stderr" 'cudaMemcpy: with cudaMemcpyHostToDevice the source must be a host pointer, but 0x[0-9a-f]+ is a device pointer'
    assert_regex "$stderr" 'cudaMemcpy: reads 64 bytes at 0x[0-9a-f]+, which was freed'
    assert_regex "$stderr" 'cudaMemcpyToSymbol: 16 bytes at offset 4 of variable, which has 16'
    assert_regex "$stderr" 'cudaFree: 0x[0-9a-f]+ was freed before'
    assert_regex "$stderr" 'cudaMalloc: 1125899906842624 bytes wanted'
    assert_regex "$stderr" 'cudaStreamSynchronize: 0x[0-9a-f]+ is no stream, or was destroyed'
    assert_regex "$stderr" 'cudaMallocArray is not supported by the simulated GPU'
    assert_regex "$stderr" 'clusters of \(3, 1, 1\) blocks do not divide the grid \(2, 1, 1\)'
    assert_regex "$stderr" 'cuNoSuchFunction is not supported'
}

@test "simgpu: --memory is the size of the device: the allocation that does not fit fails" {
    compile memory "${PTX_ONLY[@]}" <<<'
#include <cstdio>
int main()
{
    void *p;
    size_t free_bytes, total;
    cudaMemGetInfo(&free_bytes, &total);
    printf("%zu %s", total, cudaGetErrorName(cudaMalloc(&p, 60 << 20)));
    printf(" %s\n", cudaGetErrorName(cudaMalloc(&p, 60 << 20)));
}'
    run -0 --separate-stderr "$SIMGPU" --memory 100M "$PROGRAM"
    assert_output "104857600 cudaSuccess cudaErrorMemoryAllocation"
    assert_regex "$stderr" '62914560 bytes wanted, 41943040 of the device.s 104857600 are free'
}

@test "simgpu: --sms is the number of multiprocessors" {
    run -0 --separate-stderr "$SIMGPU" --sms 7 "$PROGRAMS/device"
    assert_line "Simulated GPU (SM90), 7 multiprocessors, 16384 MiB"
}

@test "simgpu: a kernel with an unsupported instruction is refused by line, the others run" {
    compile texture "${PTX_ONLY[@]}" -lineinfo <<<'
#include <cstdio>
__global__ void sample(cudaTextureObject_t t, float *x) { x[0] = tex2D<float>(t, 1, 2); }
__global__ void fine() { printf("fine\n"); }
int main()
{
    sample<<<1, 1>>>(0, nullptr);
    printf("%s\n", cudaGetErrorName(cudaGetLastError()));
    fine<<<1, 1>>>();
    return cudaDeviceSynchronize();
}'
    run -0 --separate-stderr "$SIMGPU" "$PROGRAM"
    assert_output "cudaErrorNotSupported
fine"
    assert_regex "$stderr" 'kernel sample\(.*tex\.2d'
}

@test "simgpu: a kernel with PTX that cannot be read is told by line when it is launched, the others run" {
    compile unreadable "${PTX_ONLY[@]}" -no-compress <<<'
#include <cstdio>
__global__ void wrong(int *x) { asm volatile("add.s32 %0, 1, 1234567;" : "=r"(x[0])); }
__global__ void fine() { printf("fine {\n"); }
int main()
{
    for (int i = 0; i < 2; i++) wrong<<<1, 1>>>(nullptr);
    printf("%s\n", cudaGetErrorName(cudaGetLastError()));
    fine<<<1, 1>>>();
    return cudaDeviceSynchronize();
}'
    sed -i 's/1234567;/1234 67;/' "$PROGRAM"
    run -0 --separate-stderr "$SIMGPU" "$PROGRAM"
    assert_output "cudaErrorInvalidPtx
fine {"
    assert_regex "$stderr" "^simgpu: PTX line [0-9]+: expected ';', found '67'\$"
}

# ---- Programs that cannot be run: one line that says how to build them ---------------------------------------------

# cannot_run MESSAGE [OPTIONS] PROGRAM
cannot_run() {
    run -2 "$SIMGPU" "${@:2}"
    assert_output --partial "$1"
    assert_one_line
}

@test "simgpu: PTX is found compressed and plain, generic and sm_90a, beside machine code" {
    local options
    for options in "-arch=sm_90a" "-arch=sm_90" "-gencode arch=compute_80,code=compute_80" \
        "-gencode arch=compute_90a,code=compute_90a -no-compress" \
        "-arch=sm_90a -compress-mode=size" "-arch=sm_90a -compress-mode=speed" \
        "-gencode arch=compute_75,code=compute_75 -gencode arch=compute_100,code=sm_100 -gencode arch=compute_90,code=sm_90"; do
        # shellcheck disable=SC2086 # several options
        compile hello -cudart shared $options <<<"$ONE_KERNEL"
        run -0 "$SIMGPU" "$PROGRAM"
        assert_output "hello
cudaSuccess, cudaSuccess"
    done
}

@test "simgpu: LZ4-compressed PTX of any size is unpacked as zstd is, and damage to it is named" {
    local source mode
    # thousands of lines that repeat, and constants that do not
    source=$("$PYTHON" -c '
print("#include <cstdio>\n__global__ void f(unsigned *x) {")
for i in range(1000): print(f"    x[{i}] = x[{i}] * {i * 2654435761 % 4294967291}u + {i};")
print("""}
int main() {
    unsigned *x, h[1000], sum = 0;
    cudaMalloc(&x, sizeof h);
    cudaMemset(x, 1, sizeof h);
    f<<<1, 1>>>(x);
    cudaMemcpy(h, x, sizeof h, cudaMemcpyDeviceToHost);
    for (unsigned v : h) sum = sum * 31 + v;
    printf("%u %s\\n", sum, cudaGetErrorName(cudaGetLastError()));
}""")')
    for mode in none speed; do
        compile "large_$mode" -O0 "${PTX_ONLY[@]}" -compress-mode="$mode" <<<"$source"
        run -0 "$SIMGPU" "$PROGRAM"
        assert_output --regexp '^[0-9]+ cudaSuccess$'
        echo "$output" >"$BATS_TEST_TMPDIR/$mode"
    done
    cmp "$BATS_TEST_TMPDIR/none" "$BATS_TEST_TMPDIR/speed"
    # a match that reaches back beyond the beginning
    "$PYTHON" -c '
import sys
program = bytearray(open(sys.argv[1], "rb").read())
entry = program.index(b"\x01\x00\x01\x01\x50\x00\x00\x00")
program[entry + 0x50 + 40:entry + 0x50 + 400] = b"\x04\xff\xff" * 120
open(sys.argv[1], "wb").write(program)' "$PROGRAM"
    run "$SIMGPU" "$PROGRAM"
    assert_output --partial "its compressed PTX is damaged (it is no LZ4 block)"
}

@test "simgpu: of several PTX versions the best for sm_90a is run" {
    compile which -cudart shared -gencode arch=compute_80,code=compute_80 -gencode arch=compute_90a,code=compute_90a \
        -gencode arch=compute_90,code=compute_90 -gencode arch=compute_100,code=compute_100 <<<'
#include <cstdio>
__global__ void which()
{
#if defined __CUDA_ARCH_FEAT_SM90_ALL
    printf("90a\n");
#elif defined __CUDA_ARCH__
    printf("%d\n", __CUDA_ARCH__);
#endif
}
int main() { which<<<1, 1>>>(); return cudaDeviceSynchronize(); }'
    run -0 "$SIMGPU" "$PROGRAM"
    assert_output 90a
}

@test "simgpu: machine code without PTX is refused with what it is and how to compile" {
    compile sass -cudart shared -gencode arch=compute_90a,code=sm_90a <<<"$ONE_KERNEL"
    run -1 "$SIMGPU" "$PROGRAM"
    assert_output --partial "machine code (SASS) for sm_90"
    assert_output --partial "compile with"
    assert_output --partial "cudaErrorNoKernelImageForDevice"
}

@test "simgpu: PTX for a newer architecture only is refused by its name" {
    compile newer -cudart shared -gencode arch=compute_100,code=compute_100 <<<"$ONE_KERNEL"
    run -1 "$SIMGPU" "$PROGRAM"
    assert_output --partial "PTX for sm_100"
    assert_output --partial "cudaErrorNoKernelImageForDevice"
}

@test "simgpu: a kernel that needs what no linked file defines is refused by name and line, the others run" {
    compile missing "${PTX_ONLY[@]}" -lineinfo -rdc=true <<<'
#include <cstdio>
extern __device__ float absent(float x);
extern __device__ int nowhere;
__device__ __noinline__ float through(float x) { return absent(x) + 1; }
__global__ void calls(float *x) { *x = through(*x); }
__global__ void reads(int *x) { *x = nowhere; }
__global__ void fine() { printf("fine\n"); }
int main()
{
    calls<<<1, 1>>>(nullptr);
    printf("%s\n", cudaGetErrorName(cudaGetLastError()));
    reads<<<1, 1>>>(nullptr);
    printf("%s\n", cudaGetErrorName(cudaGetLastError()));
    fine<<<1, 1>>>();
    return cudaDeviceSynchronize();
}'
    run -0 --separate-stderr "$SIMGPU" "$PROGRAM"
    assert_output $'cudaErrorNotSupported\ncudaErrorNotSupported\nfine'
    assert_regex "$stderr" 'missing\.cu:5: kernel code uses .*: absent\(float\) is declared, but not defined in missing\.cu'
    assert_regex "$stderr" 'missing\.cu:7: kernel code uses .*: nowhere is declared, but not defined in missing\.cu'
}

@test "simgpu: code that is compiled when it is linked (-dlto) is refused by name" {
    local cuda_include
    cuda_include=$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)
    compile lto -dc -fatbin -gencode arch=compute_90a,code=lto_90a <<<"$ONE_KERNEL"
    gcc -isystem "$cuda_include" -o "$BATS_TEST_TMPDIR/load" -x c - -x none build/simgpu/lib/libcuda.so.1 \
        -Wl,--allow-shlib-undefined <<<'
#include <cuda.h>
int main(int argc, char **argv)
{
    CUmodule module;
    return argc < 2 || cuInit(0) || cuModuleLoad(&module, argv[1]) != CUDA_ERROR_NO_BINARY_FOR_GPU;
}'
    run -0 --separate-stderr "$SIMGPU" "$BATS_TEST_TMPDIR/load" "$PROGRAM"
    # shellcheck disable=SC2154 # Bats sets stderr
    assert_regex "$stderr" 'it holds no PTX that an sm_90a device runs, but code for the linker to compile \(LTO\) for sm_90; .*, without .-dlto'
}

@test "simgpu: a program with the CUDA runtime linked into it is told to use -cudart shared" {
    compile static -arch=sm_90a <<<"$ONE_KERNEL"
    cannot_run "link it with \`nvcc -cudart shared\`" "$PROGRAM"
}

@test "simgpu: what is no CUDA program is refused by what it is" {
    cannot_run "is not a CUDA program" /bin/true
    gcc -static -x c -o "$BATS_TEST_TMPDIR/static" - <<<'int main(void) { return 0; }'
    cannot_run "is not a CUDA program" "$BATS_TEST_TMPDIR/static"
    cannot_run "No such file" ./no/such/program
    cannot_run "no such program in PATH" no-such-program
    cannot_run "is a folder" /
    cannot_run "is not executable" "$ROOT/README.md"
    cannot_run "is a script" "$ROOT/tests/run.sh"
    printf 'x' >"$BATS_TEST_TMPDIR/short"
    chmod +x "$BATS_TEST_TMPDIR/short"
    cannot_run "is not a 64-bit ELF program" "$BATS_TEST_TMPDIR/short"
    head -c 4000 "$PROGRAMS/device" >"$BATS_TEST_TMPDIR/truncated"
    chmod +x "$BATS_TEST_TMPDIR/truncated"
    cannot_run "truncated" "$BATS_TEST_TMPDIR/truncated"
}

@test "simgpu: its own options are checked by name" {
    cannot_run "no program given"
    cannot_run "unknown option --fast" --fast "$PROGRAMS/device"
    cannot_run "--threads needs a value" --threads
    cannot_run "--threads: '0'" --threads 0 "$PROGRAMS/device"
    cannot_run "--threads: '-1'" --threads -1 "$PROGRAMS/device"
    cannot_run "--sms: 'many'" --sms many "$PROGRAMS/device"
    cannot_run "--seed: ''" --seed "" "$PROGRAMS/device"
    cannot_run "--memory: '1X'" --memory 1X "$PROGRAMS/device"
    cannot_run "--memory: '99999999T'" --memory 99999999T "$PROGRAMS/device"
    cannot_run "--profile: '0'" --profile=0 "$PROGRAMS/device"
    cannot_run "--json: cannot write /no/such/folder/file" --json /no/such/folder/file "$PROGRAMS/device"
}

@test "simgpu: --races runs a program under many seeds until one finds a fault" {
    local bugs=$ROOT/build/tests/simgpu/bugs/global
    run -1 --separate-stderr "$SIMGPU" --races 4 "$bugs" lock_unfenced
    assert_output cudaErrorLaunchFailure
    # shellcheck disable=SC2154 # Bats sets stderr
    assert_regex "$stderr" "race on global memory.*--races: that was seed 1, run 1 of 4"
    run -0 --separate-stderr "$SIMGPU" --races=4 --seed 7 "$bugs" lock_unfenced right
    assert_equal "$stderr" "simgpu: --races: no fault in 4 runs, seeds 7 to 10"
    run -1 --separate-stderr "$SIMGPU" --races 2 "$PROGRAMS/errors" trapped # which expects it, and exits with 0
    assert_regex "$output" right
    assert_regex "$stderr" "that was seed 1, run 1 of 2"
    run -2 "$SIMGPU" --races 3 "$PROGRAMS/errors" # a failure without a fault
    assert_output --partial "that was seed 1, run 1 of 3"
    cannot_run "--races: '0', expected a whole number" --races 0 "$PROGRAMS/device"
}

@test "simgpu: --dump prints the PTX of the kernels asked for, with places and where lanes meet" {
    run -0 "$SIMGPU" --dump count_blocks "$PROGRAMS/last_block"
    assert_line --regexp "^simgpu: count_blocks\\(.*\\): [0-9]+ bytes of registers a warp$"
    assert_line --regexp "programs/last_block.cu:10$"
    assert_line --regexp "^ +[0-9]+  setp\\.[a-z0-9.]+ %p[0-9]+, .* p[0-9]+ <- r[0-9]+ [r#]"
    assert_line --regexp "^ +[0-9]+  @%p[0-9]+ bra .* <- p[0-9]+  to [0-9]+"
    run -0 "$SIMGPU" --dump no_such_kernel "$PROGRAMS/last_block"
    refute_line --partial "bytes of registers"
    assert_line "simgpu: --dump no_such_kernel: no kernel that ran has a name that holds it; --verbose names them"
}

@test "simgpu: --help and --version" {
    run -0 "$SIMGPU" --help
    assert_line --partial "usage: simgpu [options] PROGRAM"
    run -0 "$SIMGPU" --version
    assert_output --partial "sm_90a"
}

@test "simgpu: the program's arguments, exit status and PATH are as without it" {
    compile arguments "${PTX_ONLY[@]}" <<<'
#include <cstdio>
int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) printf("[%s]", argv[i]);
    int devices;
    cudaGetDeviceCount(&devices);
    return 40 + devices;
}'
    PATH=$BATS_TEST_TMPDIR:$PATH run -41 "$SIMGPU" --threads 2 arguments --help "a b" -- --seed 1
    assert_output "[--help][a b][--][--seed][1]"
}

@test "simgpu: its runtime wins over one that the program finds by RPATH" {
    local cuda_lib
    cuda_lib=$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)
    compile rpath "${PTX_ONLY[@]}" -Xlinker "-rpath,$cuda_lib" -Xlinker --disable-new-dtags <<<"$ONE_KERNEL"
    run -0 "$SIMGPU" "$PROGRAM"
    assert_output "hello
cudaSuccess, cudaSuccess"
}

@test "simgpu: a program whose kernels are all in a library of its own runs" {
    local cuda_lib
    cuda_lib=$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)
    compile libkernels.so "${PTX_ONLY[@]}" -Xcompiler -fPIC -shared <<<"${ONE_KERNEL/main/run}"
    echo 'int _Z3runv(void); int main(void) { return _Z3runv(); }' >"$BATS_TEST_TMPDIR/caller.c"
    gcc -o "$BATS_TEST_TMPDIR/caller" "$BATS_TEST_TMPDIR/caller.c" "$PROGRAM" -Wl,--as-needed \
        -Wl,-rpath-link,"$cuda_lib" -Wl,-rpath,"$BATS_TEST_TMPDIR"
    run -0 "$SIMGPU" "$BATS_TEST_TMPDIR/caller"
    assert_output "hello
cudaSuccess, cudaSuccess"
}

@test "simgpu: a program that links the driver for its tensor maps finds one" {
    compile driver "${PTX_ONLY[@]}" -Xlinker build/simgpu/lib/libcuda.so.1 <<<'
#include <cuda.h>
#include <cstdio>
__global__ void nothing() {}
int main()
{
    CUtensorMap map;
    void *a;
    const char *text;
    cuuint64_t dims[] = {64, 64}, stride[] = {128};
    cuuint32_t box[] = {64, 8}, every[] = {1, 1};
    cudaMalloc(&a, 64 * 64 * 2);
    for (cuuint32_t rank = 2; rank < 4; rank++) {
        CUresult error = cuTensorMapEncodeTiled(
            &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, rank == 2 ? rank : 6, a, dims, stride, box, every,
            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
        cuGetErrorString(error, &text);
        printf("%d: %s\n", (int)error, text);
    }
    nothing<<<1, 1>>>();
    return cudaDeviceSynchronize();
}'
    run -0 --separate-stderr "$SIMGPU" "$PROGRAM"
    assert_line --index 0 "0: no error"
    assert_line --index 1 "1: invalid argument"
    assert_regex "$stderr" "cuTensorMapEncodeTiled: .*rank"
}

@test "simgpu: a program that uses only the driver loads PTX that NVRTC made at run time, and launches its kernels" {
    local cuda_lib cuda_include
    cuda_lib=$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)
    cuda_include=$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)
    [[ -e $cuda_lib/libnvrtc.so.13 ]] || skip "this toolkit has no NVRTC"
    gcc -std=gnu11 -Wall -Wextra -Werror -isystem "$cuda_include" -o "$BATS_TEST_TMPDIR/jit" tests/simgpu/programs/jit.c \
        "$cuda_lib/libnvrtc.so.13" build/simgpu/lib/libcuda.so.1 -Wl,--allow-shlib-undefined -Wl,--as-needed
    run -0 --separate-stderr "$SIMGPU" "$BATS_TEST_TMPDIR/jit"
    assert_output right
    assert_regex "$stderr" "cuModuleGetFunction: the module has no kernel 'no_such_kernel'"
    assert_regex "$stderr" "cuModuleLoadData: .*it holds no PTX that an sm_90a device runs, but PTX for sm_100"
}

@test "simgpu: PTX that a program links when it runs: the definition that counts is chosen, a second or a missing one refused" {
    local cuda_include
    cuda_include=$(sed -n 's/^CUDA_INCLUDE *:= *//p' build/config.mk)
    gcc -std=gnu11 -Wall -Wextra -Werror -isystem "$cuda_include" -o "$BATS_TEST_TMPDIR/link" tests/simgpu/programs/link.c \
        build/simgpu/lib/libcuda.so.1 -Wl,--allow-shlib-undefined -Wl,--as-needed
    run -0 --separate-stderr "$SIMGPU" "$BATS_TEST_TMPDIR/link"
    assert_output right
    assert_regex "$stderr" "PTX of file 2 line 5: expected no second definition of f, which file 1 has before"
    assert_regex "$stderr" "PTX of file 2 line 5: expected f to be what it is in file 1"
    assert_regex "$stderr" "PTX of file 1 line 5: expected a definition of x in file 1, file 2 before"
    assert_regex "$stderr" "cuLinkAddData: a.cubin: the simulated GPU links PTX and fatbins"
}

@test "simgpu: its runtime exports every function of NVIDIA's, under the same version" {
    local cuda_lib
    cuda_lib=$(sed -n 's/^CUDA_LIB *:= *//p' build/config.mk)
    exported() { nm -D --defined-only --with-symbol-versions "$1" | awk '{ print $3 }' | sort -u; }
    run -0 comm -13 <(exported build/simgpu/lib/libcudart.so.13) <(exported "$cuda_lib/libcudart.so.13")
    refute_output --partial "cuda"
}
