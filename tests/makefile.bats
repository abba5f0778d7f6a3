#!/usr/bin/env bats
# Runs alone: it touches files of the tree, and whoever runs make meanwhile would compile.
#
# What is rebuilt when something changes, which device a chapter runs on, and what setup says.

# Bats sets stderr.
# shellcheck disable=SC2154
load test_helper/common

# rebuilt [FILE]: what make would compile, link or generate if that file changed now. The file's time is put back.
rebuilt() {
    local stamp=$BATS_TEST_TMPDIR/stamp
    [[ $# -eq 0 ]] || { touch -r "$1" "$stamp" && touch "$1"; }
    make -n all 2>&1 | grep -oE 'echo "(gcc |nvcc|link|golden files of) .*"' | tr -d '"' | sed 's/^echo //; s/  */ /' | sort
    [[ $# -eq 0 ]] || touch -r "$stamp" "$1"
}

# compiled FILE: the same without what is linked.
compiled() { rebuilt "$1" | grep -v '^link'; }

@test "makefile: after a build nothing is built again" {
    run rebuilt
    assert_output ""
}

@test "makefile: a touched host header rebuilds exactly what includes it" {
    run rebuilt common/harness/npy.h
    assert_line "gcc common/harness/npy.c"
    assert_line "gcc common/harness/case.c"
    assert_line "gcc chapters/01_naive_matmul/main.c"
    refute_line "gcc common/harness/shape.c"
    refute_line "gcc common/harness/results.c"
    assert_line "nvcc common/harness/compare.cu"
    refute_line --regexp '^(nvcc chapters|golden)'
}

@test "makefile: a header that few include rebuilds only those" {
    run compiled common/harness/cublas_baseline.h
    assert_equal "$output" "$(grep -l cublas_baseline.h common/*/*.c chapters/*/*.c | sed 's/^/gcc /' | sort)"
}

# The kernels that include a header, by themselves or through another one.
includers() {
    local file folder=${1%/*} name=${1##*/}
    while read -r file; do
        if [[ $file == *.cu ]]; then echo "$file"; else includers "$file"; fi
    done < <(grep -lF "#include \"$name\"" "$folder"/*.cu* || true
             grep -lE "#include \"(.*/)?${folder##*/}/$name\"" chapters/*/*.cu chapters/*/*.cuh common/*/*.cu common/*/*.cuh)
}

@test "makefile: a touched device header rebuilds exactly the kernels that include it" {
    local header
    for header in common/*/*.cuh; do
        run compiled "$header"
        assert_equal "$output" "$(includers "$header" | sort -u | sed 's/^/nvcc /')"
    done
}

@test "makefile: a touched header of kernels with marks rebuilds those, too" {
    local program=build/trace/17_sm90_attention_backward/step6_tiles header=chapters/17_sm90_attention_backward/kernel.cuh
    local stamp=$BATS_TEST_TMPDIR/stamp type
    make -s "$program"
    touch -r "$header" "$stamp"
    touch "$header"
    run -0 make -n "$program"
    touch -r "$stamp" "$header"
    for type in bf16 f16; do assert_line "echo \"nvcc -DTRACE chapters/17_sm90_attention_backward/kernel_$type.cu\""; done
}

@test "makefile: a touched kernel rebuilds only itself" {
    run rebuilt chapters/02_tiled_matmul/step1_smem_tile.cu
    assert_output "$(printf '%s\n' "link build/chapters/02_tiled_matmul" "nvcc chapters/02_tiled_matmul/step1_smem_tile.cu")"
}

@test "makefile: a touched reference file regenerates its golden files and compiles nothing" {
    run rebuilt reference/matmul.py
    assert_line "golden files of chapter 1"
    refute_line --regexp '^(gcc|nvcc)'
}

@test "makefile: a touched chapter.mk generates and links again, and compiles nothing" {
    run rebuilt chapters/01_naive_matmul/chapter.mk
    assert_output "$(printf '%s\n' "golden files of chapter 1" "link build/chapters/01_naive_matmul")"
}

@test "makefile: other compiler flags than last time compile that chapter's kernels again" {
    run rebuilt build/obj/chapters/01_naive_matmul/flags
    assert_output "$(printf '%s\n' "link build/chapters/01_naive_matmul" "nvcc chapters/01_naive_matmul/step1_uncoalesced.cu" "nvcc chapters/01_naive_matmul/step2_coalesced.cu")"
}

@test "makefile: a touched file of the simulated GPU rebuilds none of the chapters" {
    run compiled tools/simgpu/main.c
    assert_output "gcc tools/simgpu/main.c"
}

@test "makefile: kernels keep their source lines and never get fast-math" {
    run make -n V=1 -W chapters/01_naive_matmul/step1_uncoalesced.cu build/obj/chapters/01_naive_matmul/step1_uncoalesced.o
    assert_output --partial " -lineinfo "
    refute_output --partial "fast"
}

@test "makefile: without a GPU only PTX is compiled" {
    run make -n V=1 GPU_ARCH= -W chapters/01_naive_matmul/step1_uncoalesced.cu build/obj/chapters/01_naive_matmul/step1_uncoalesced.o
    assert_output --partial "-gencode arch=compute_75,code=compute_75 "
    refute_output --partial "code=sm_"
}

@test "makefile: with a GPU its machine code is compiled beside the PTX" {
    run make -n V=1 GPU_ARCH=90 -W chapters/01_naive_matmul/step1_uncoalesced.cu build/obj/chapters/01_naive_matmul/step1_uncoalesced.o
    assert_output --partial "-gencode arch=compute_75,code=compute_75 -gencode arch=compute_90,code=sm_90 "
}

# where ARCH: what run.sh says of the device for a chapter of this architecture, with programs that do nothing.
where() {
    local dir=$BATS_TEST_TMPDIR/where
    mkdir -p "$dir/tools" "$dir/build/chapters" "$dir/build/simgpu"
    cp tools/run.sh "$dir/tools"
    printf '#!/bin/sh\necho "gpu: $*"\n' >"$dir/build/chapters/x"
    cat >"$dir/build/simgpu/simgpu" <<'END'
#!/bin/sh
echo "sim: $*"
case "$*" in *--sms*) exit ${FEW_STATUS:-0} ;; esac
END
    chmod +x "$dir/build/chapters/x" "$dir/build/simgpu/simgpu"
    (cd "$dir" && tools/run.sh x "$1" matmul --types f32)
}

@test "makefile: DEVICE=auto takes the GPU when it can run the chapter, and times it" {
    GPU_NAME="Some GPU" GPU_ARCH=90 GPU_DRIVER_CUDA=13.0 run -0 where 75
    assert_line --index 0 "on Some GPU (sm_90)"
    assert_line --index 1 "gpu: --golden build/golden/x --bench"
    GPU_NAME="Some GPU" GPU_ARCH=90 GPU_DRIVER_CUDA=13.1 run -0 where 90a
    assert_line --index 0 "on Some GPU (sm_90)"
}

@test "makefile: DEVICE=auto takes the simulated GPU and says why" {
    GPU_NAME='' run -0 where 75
    assert_line --index 0 "on the simulated GPU: this machine has no GPU"
    assert_line --index 1 "sim: --explain --profile build/chapters/x --golden build/golden/x"
    GPU_NAME="Tesla T4" GPU_ARCH=75 GPU_DRIVER_CUDA=13.0 run -0 where 80
    assert_line --index 0 "on the simulated GPU: Tesla T4 is sm_75, and the chapter needs sm_80"
    GPU_NAME="Some GPU" GPU_ARCH=120 GPU_DRIVER_CUDA=13.0 run -0 where 90a
    assert_line --index 0 "on the simulated GPU: Some GPU is sm_120, and the chapter needs sm_90a"
    GPU_NAME="Some GPU" GPU_ARCH=90 GPU_DRIVER_CUDA=12.4 run -0 where 75
    assert_line --index 0 "on the simulated GPU: the driver of Some GPU supports CUDA 12.4, and 13.0 is needed"
}

@test "makefile: a chapter whose blocks stay runs once more on few multiprocessors, and what is wrong only there fails" {
    local few="with 4 multiprocessors, where blocks that stay take tile after tile:" again="sim: --explain --sms 4 build/chapters/x --golden build/golden/x"
    export GPU_NAME='' FEW_SMS=4
    run -0 where 90a
    assert_line --index 2 "$few $again"
    FEW_STATUS=3 run -3 where 90a
    assert_line --index 2 "$few"
    assert_line --index 3 "$again"
    SIMGPU_SMS=2 run -0 where 90a
    refute_output --partial "with 4"
    run -0 make --no-print-directory chapter-14 DEVICE=sim OP=matmul STEP=persistent CASE=tile PROFILE=0
    assert_line "$few 14_warp_specialized_matmul: all 1 runs right"
}

@test "makefile: DEVICE=sim takes the simulated GPU, DEVICE=gpu without one is refused" {
    GPU_NAME="Some GPU" GPU_ARCH=90 GPU_DRIVER_CUDA=13.0 DEVICE=sim run -0 where 75
    assert_line --index 0 "on the simulated GPU: DEVICE=sim"
    DEVICE=gpu run -2 where 75
    assert_output "DEVICE=gpu: this machine has no GPU"
    DEVICE=cpu run -2 where 75
    assert_output "DEVICE=cpu: expected auto, gpu or sim"
}

@test "makefile: STEP and CASE reach the program as they are" {
    STEP=2 CASE="a b" PROFILE=0 run -0 where 75
    assert_line --index 1 "sim: --explain build/chapters/x --golden build/golden/x --step 2 --case a b"
}

@test "makefile: a chapter that is not there is named beside those that are" {
    run -2 make chapter-99
    assert_line "make chapter-99: no such chapter; there are $(printf '%s\n' chapters/*/ | sed 's/[^0-9]*0*\([0-9]*\).*/\1/' | paste -sd" ")"
}

@test "makefile: SEED without SHAPE is refused" {
    SEED=3 run -2 where 75
    assert_output "SEED=3: only with SHAPE; the chapter's own cases have a fixed seed"
}

@test "makefile: make bench without a GPU is refused" {
    [[ -z "$(compgen -G '/dev/nvidia[0-9]*')" ]] || skip "this machine has a GPU"
    run -2 make bench-1
    assert_line "make bench: this machine has no GPU, and the simulated GPU has no speed to measure"
}

@test "makefile: make sass fails on a spill that the step does not declare, and takes one that it does" {
    local source=$BATS_TEST_TMPDIR/spill.cu nvcc
    nvcc=$(sed -n 's/^NVCC *:= *//p' build/config.mk)
    cat >"$source" <<'EOF'
extern "C" __global__ void __launch_bounds__(1024, 2) spill(float *data)
{
    float sum[64];
    for (int i = 0; i < 64; i++) sum[i] = data[i * 1024 + threadIdx.x];
    __syncthreads();
    for (int i = 0; i < 64; i++) data[i * 1024 + threadIdx.x] = sum[i] * sum[63 - i];
}
EOF
    run -1 tools/sass.sh "$nvcc" "$source" 80 "$BATS_TEST_TMPDIR/spill.cubin"
    assert_line --regexp "spill.cu: spill spills [1-9][0-9]* bytes of registers on sm_80"
    echo "// spills: allowed (64 values in 32 registers)" >>"$source"
    run -0 tools/sass.sh "$nvcc" "$source" 80 "$BATS_TEST_TMPDIR/spill.cubin"
}

@test "makefile: make sass fails on a ptxas advisory such as serialised wgmma" {
    local fake=$BATS_TEST_TMPDIR/nvcc
    # shellcheck disable=SC2016 # the fake is a script of its own
    printf '#!/bin/sh\necho "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized" >&2\n' >"$fake"
    chmod +x "$fake"
    run -1 tools/sass.sh "$fake" common/harness/error.h 90a "$BATS_TEST_TMPDIR/x.cubin"
    assert_line --partial "C7510"
}

# machine COMMAND...: a folder of links to these commands, all that a bare machine has beside a shell's usual ones; prints it.
machine() {
    local bin=$BATS_TEST_TMPDIR/bin name
    mkdir -p "$bin"
    for name in bash sh env ls cp mv rm ln mkdir mktemp touch cat tr sed grep awk sort head tail find cut basename dirname readlink uname \
        nproc date expr chmod tee git diff sleep wc xargs realpath "$@"; do
        ln -sf "$(command -v "$name")" "$bin/$name"
    done
    echo "$bin"
}

@test "setup: what is missing for a need is named with the exact command, in one line, and only that" {
    local bin
    bin=$(machine python3 gcc make apt-get)
    printf '#!/bin/sh\nexit 1\n' >"$bin/sudo"
    chmod +x "$bin/sudo"
    # As a user without sudo.
    # shellcheck disable=SC2016 # the $EUID is the script's
    sed 's/\$EUID -ne 0/1 -ne 0/' tools/setup.sh >"$BATS_TEST_TMPDIR/setup.sh"
    mkdir "$BATS_TEST_TMPDIR/tools"
    mv "$BATS_TEST_TMPDIR/setup.sh" "$BATS_TEST_TMPDIR/tools"
    PATH=$bin run -1 bash "$BATS_TEST_TMPDIR/tools/setup.sh" run
    assert_output "setup: to run a chapter, packages are missing; install them with: sudo apt-get install -y --no-install-recommends g++"
    PATH=$bin run -1 bash "$BATS_TEST_TMPDIR/tools/setup.sh" lint
    assert_output "setup: to lint, packages are missing; install them with: sudo apt-get install -y --no-install-recommends clang-format shellcheck cppcheck"
    sed -i 's|/usr/share/javascript|/nowhere|' "$BATS_TEST_TMPDIR/tools/setup.sh"
    PATH=$bin run -1 bash "$BATS_TEST_TMPDIR/tools/setup.sh" book
    assert_output "setup: to set the book's formulas, packages are missing; install them with: sudo apt-get install -y --no-install-recommends libjs-katex"
    rm "$bin/apt-get"
    PATH=$bin run -1 bash "$BATS_TEST_TMPDIR/tools/setup.sh" lint
    assert_output "setup: to lint, install the counterparts of Debian's packages: clang-format shellcheck cppcheck"
}

@test "setup: with nvcc, gcc, make and a Python that has NumPy, and no network, apt, pip or Bats, a chapter runs" {
    local bin tree=$BATS_TEST_TMPDIR/tree alone
    alone=("$(command -v unshare)" -n)
    [[ $EUID -eq 0 ]] || alone+=(-r)
    "${alone[@]}" true 2>/dev/null || skip "this machine lets nobody leave the network"
    bin=$(machine gcc g++ make cc as ld ar)
    # NumPy without ml_dtypes and matplotlib, as Debian's python3-numpy has it.
    mkdir "$BATS_TEST_TMPDIR/site"
    ln -s "$("$PYTHON" -c 'import numpy; print(numpy.__path__[0])')" "$("$PYTHON" -c 'import numpy; print(numpy.__path__[0] + ".libs")')" \
        "$BATS_TEST_TMPDIR/site"
    printf '#!/bin/sh\nPYTHONPATH=%s exec %s -S "$@"\n' "$BATS_TEST_TMPDIR/site" "$(readlink -f "$PYTHON")" >"$bin/python3"
    chmod +x "$bin/python3"
    mkdir "$tree"
    git ls-files -z | xargs -0 cp --parents -t "$tree"
    PATH=$bin CUDA_HOME=$(sed -n 's#^NVCC *:= *\(.*\)/bin/nvcc#\1#p' build/config.mk) run -0 "${alone[@]}" make -C "$tree" chapter-3 CASE=ragged SIMGPU_OPTIMISE=-O0
    assert_line "chapter 3 on the simulated GPU: this machine has no GPU"
    assert_line --regexp '^03_tensor_core_matmul: all [0-9]+ runs right$'
    run -0 diff -r build/golden/03_tensor_core_matmul "$tree/build/golden/03_tensor_core_matmul"
    [[ ! -e "$tree/.venv" ]]
}

@test "setup: an nvcc that is not 13.x is passed over by name" {
    mkdir "$BATS_TEST_TMPDIR/bin"
    printf '#!/bin/sh\necho "Cuda compilation tools, release 12.4, V12.4.131"\n' >"$BATS_TEST_TMPDIR/bin/nvcc"
    chmod +x "$BATS_TEST_TMPDIR/bin/nvcc"
    PATH=$BATS_TEST_TMPDIR/bin:$PATH run tools/setup.sh --doctor
    assert_line "setup: passing over $BATS_TEST_TMPDIR/bin/nvcc: version 12.4.131, needed 13.x"
    assert_line --regexp '^  nvcc +13\.'
}

@test "setup: an unknown argument is refused" {
    run -1 tools/setup.sh --help
    assert_output "setup: unknown argument '--help', expected run, test, lint, book, browser or --doctor"
}

@test "test runner: a run without tests, or one that stops early, fails" {
    local file=$BATS_TEST_TMPDIR/none.bats
    : >"$file"
    run -1 tests/run.sh "$file"
    assert_line "0 passed, 1 failed"
    # shellcheck disable=SC2016 # $PPID is the test's
    printf '@test "a" { true; }\n@test "b" { skip "why"; }\n@test "c" { false; }\n' >"$file"
    run -1 tests/run.sh "$file"
    assert_line "1 passed, 1 failed, 1 skipped"
    assert_equal "$(grep -c '^none: not ok 3 c' <<<"$output")" 2 # as it ended, and once more at the end
}
