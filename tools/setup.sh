#!/usr/bin/env bash
# Finds or installs what the cookbook needs. There are five needs, and each is asked for only by what has it:
#
#   tools/setup.sh run        what a chapter runs with: a C compiler, make, nvcc, Python with NumPy; writes build/config.mk
#   tools/setup.sh test       what its tests run with besides: Bats, pinned Python packages in .venv, OpenBLAS
#   tools/setup.sh lint       what lint runs with besides: clang-format, shellcheck, cppcheck
#   tools/setup.sh book       what the book is made with besides: pinned Python packages in .venv, KaTeX
#   tools/setup.sh browser    what opens the book in its tests, which are left out where it is missing: Chromium (about 300 MB)
#   tools/setup.sh --doctor   print what is there of each and what is missing; install nothing; 1 if no chapter can run
#
# The Makefile runs it by itself. What is there is never installed again, so a machine without a network only has to have it.
set -euo pipefail
cd "$(dirname "$0")/.."

# A need as commands or files that must be there, each with the Debian package that has it.
RUN=(gcc:gcc g++:g++ make:make python3:python3)
TEST=(bats:bats /usr/lib/bats/bats-assert/load.bash:bats-assert /usr/lib/bats/bats-support/load.bash:bats-support
    libopenblas.so.0:libopenblas0-pthread xmllint:libxml2-utils)
LINT=(clang-format:clang-format shellcheck:shellcheck cppcheck:cppcheck)
BOOK=(/usr/share/javascript/katex/katex.min.js:libjs-katex)
BROWSER=(chromium:chromium)

# nvcc as PyPI wheels (about 100 MB): the compiler, its device libraries and headers, the shared runtime.
NVCC_WHEELS=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85)
CUBLAS_WHEEL=nvidia-cublas==13.0.2.14

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Whether a command, a file or a shared library of the loader's is there.
present() {
    case "$1" in
    /*) [[ -e "$1" ]] ;;
    *.so.*) /sbin/ldconfig -p 2>/dev/null | grep -q "^[[:space:]]*$1 " ;;
    *) command -v "$1" >/dev/null ;;
    esac
}

# install_need WHAT-FOR THING:PACKAGE...: installs what is missing from apt.
install_need() {
    local purpose=$1 entry missing=()
    shift
    for entry in "$@"; do present "${entry%%:*}" || missing+=("${entry#*:}"); done
    [[ ${#missing[@]} -eq 0 ]] || install_packages "$purpose" "${missing[@]}"
}

# install_packages WHAT-FOR PACKAGE...: from apt.
install_packages() {
    local purpose=$1 sudo=()
    shift
    command -v apt-get >/dev/null || die "to $purpose, install the counterparts of Debian's packages: $*"
    if [[ $EUID -ne 0 ]]; then
        sudo -n true 2>/dev/null ||
            die "to $purpose, packages are missing; install them with: sudo apt-get install -y --no-install-recommends $*"
        sudo=(sudo -n)
    fi
    say "installing from apt: $*"
    "${sudo[@]}" apt-get update -qq || true # a package that is in the cache needs no index
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends -o Dpkg::Use-Pty=0 "$@" | sed -un 's/^Setting up /setup:   /p' ||
        die "to $purpose, apt-get could not install: $*"
}

# Makes .venv; a Debian Python without its venv module gets that from apt.
make_venv() {
    [[ ! -x .venv/bin/python3 ]] || return 0
    python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages "make .venv" python3-venv ca-certificates
    say "making .venv with $(python3 --version)"
    python3 -m venv .venv
}

# pip_install WHAT-FOR ARGUMENTS: into .venv.
pip_install() {
    local purpose=$1
    shift
    make_venv
    .venv/bin/python3 -m pip install --disable-pip-version-check "$@" | pip_progress ||
        die "to $purpose, pip could not install: $*"
}

# Sets PYTHON to a Python that has NumPy: .venv's, else the machine's own, else .venv's made now.
find_python() {
    for PYTHON in .venv/bin/python3 "$(command -v python3 || true)"; do
        [[ -n "$PYTHON" && -x "$PYTHON" ]] && "$PYTHON" -c 'import numpy' 2>/dev/null && return
    done
    say "python3 has no NumPy: installing it into .venv"
    pip_install "make golden files" "$(grep '^numpy=' requirements.txt)"
    PYTHON=.venv/bin/python3
}

# install_requirements WHAT-FOR FILE: the file's packages, into .venv.
install_requirements() {
    python_complete "$2" && return
    say "installing into .venv: $(tr '\n' ' ' <"$2")"
    pip_install "$1" -r "$2"
}

python_complete() {
    [[ -x .venv/bin/python3 ]] || return 1
    local name version
    while IFS='=' read -r name _ version; do
        [[ "$(package_version "$name")" == "$version" ]] || return 1
    done <"$1"
}

package_version() {
    .venv/bin/python3 -c 'import sys, importlib.metadata as m; print(m.version(sys.argv[1]))' "$1" 2>/dev/null
}

# One line for each download, instead of a page for each package.
pip_progress() { sed -un 's/^ *Downloading /setup:   downloading /p; s/^Successfully /setup:   /p'; }

# Sets NVCC, NVCC_VERSION, CUDA_INCLUDE and CUDA_LIB from the first nvcc 13.x that has its headers and its
# shared runtime; returns 1 when there is none. Older ones are named and passed over.
find_nvcc() {
    local candidate root version
    for candidate in "$(command -v nvcc || true)" "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" /usr/local/cuda/bin/nvcc \
        .venv/lib/python3.*/site-packages/nvidia/cu13/bin/nvcc; do
        [[ -n "$candidate" && -x "$candidate" ]] || continue
        candidate=$(readlink -f "$candidate")
        version=$("$candidate" --version | sed -n 's/.*release [0-9.]*, V\([0-9.]*\).*/\1/p')
        root=${candidate%/bin/nvcc}
        if [[ "$version" != 13.* ]]; then
            say "passing over $candidate: version ${version:-unknown}, needed 13.x"
            continue
        fi
        CUDA_INCLUDE=$(first_dir_with cuda_runtime_api.h "$root"/include "$root"/targets/*/include) || continue
        CUDA_LIB=$(first_dir_with libcudart.so.13 "$root"/lib64 "$root"/lib "$root"/targets/*/lib) || continue
        NVCC=$candidate
        NVCC_VERSION=$version
        return 0
    done
    return 1
}

first_dir_with() {
    local file=$1 dir
    shift
    for dir in "$@"; do
        [[ -e "$dir/$file" ]] && echo "$dir" && return 0
    done
    return 1
}

install_nvcc() {
    NVCC_FROM_WHEELS=''
    find_nvcc && { [[ "$NVCC" != "$PWD"/.venv/* ]] || NVCC_FROM_WHEELS=yes; return; }
    NVCC_FROM_WHEELS=yes
    say "no nvcc 13.x in PATH, CUDA_HOME or /usr/local/cuda: installing NVIDIA's wheels into .venv (about 100 MB)"
    pip_install "compile kernels" --no-deps "${NVCC_WHEELS[@]}"
    # The wheels leave out the names by which nvcc and the linker look for the libraries of a toolkit.
    local root
    for root in .venv/lib/python3.*/site-packages/nvidia/cu13; do
        ln -sfn lib "$root/lib64"
        ln -sfn libcudart.so.13 "$root/lib/libcudart.so"
    done
    find_nvcc || die "the wheels ${NVCC_WHEELS[*]} are installed, but no working nvcc was found in .venv"
}

# Sets GPU_NAME, GPU_ARCH (such as 90), GPU_DRIVER and GPU_DRIVER_CUDA (such as 13.0); empty without a GPU.
find_gpu() {
    GPU_NAME='' GPU_ARCH='' GPU_DRIVER='' GPU_DRIVER_CUDA=''
    command -v nvidia-smi >/dev/null || return 0
    local line
    line=$(nvidia-smi --query-gpu=compute_cap,driver_version,name --format=csv,noheader 2>/dev/null | head -n 1) || return 0
    [[ "$line" =~ ^([0-9]+)\.([0-9]+),\ *([^,]+),\ *(.+)$ ]] || return 0
    GPU_ARCH=${BASH_REMATCH[1]}${BASH_REMATCH[2]}
    GPU_DRIVER=${BASH_REMATCH[3]}
    GPU_NAME=${BASH_REMATCH[4]}
    GPU_DRIVER_CUDA=$(nvidia-smi | sed -n 's/.*CUDA Version: *\([0-9.]*\).*/\1/p' | head -n 1)
}

# cuBLAS is only the baseline that a real GPU is measured beside, and opened when it is called. Sets CUBLAS_LIB to where it is,
# empty if the loader finds it itself or there is none; a benchmark then says so and goes on without.
find_cublas() {
    CUBLAS_LIB=''
    if [[ -z "$GPU_NAME" ]] || present libcublas.so.13; then return; fi
    CUBLAS_LIB=$(first_dir_with libcublas.so.13 "$CUDA_LIB" "$PWD"/.venv/lib/python3.*/site-packages/nvidia/cu13/lib) && return
    [[ -n "$NVCC_FROM_WHEELS" ]] || { say "no libcublas.so.13 beside nvcc: benchmarks have no baseline"; return; }
    say "no libcublas.so.13 beside nvcc: installing NVIDIA's wheel into .venv (about 400 MB)"
    pip_install "measure beside cuBLAS" --no-deps "$CUBLAS_WHEEL"
    CUBLAS_LIB=$(first_dir_with libcublas.so.13 "$PWD"/.venv/lib/python3.*/site-packages/nvidia/cu13/lib) ||
        die "the wheel $CUBLAS_WHEEL is installed, but libcublas.so.13 was not found in .venv"
}

# The same list that the Makefile compares with, to notice a machine that gained or lost its GPU.
gpu_nodes() { find /dev -maxdepth 1 \( -name 'nvidia[0-9]*' -o -name dxg \) 2>/dev/null | sort | tr '\n' ' ' | sed 's/ $//'; }

write_config() {
    mkdir -p build
    cat >build/config.mk.tmp <<EOF
# Written by tools/setup.sh: what this machine has.
NVCC            := $NVCC
NVCC_VERSION    := $NVCC_VERSION
CUDA_INCLUDE    := $CUDA_INCLUDE
CUDA_LIB        := $CUDA_LIB
CUBLAS_LIB      := $CUBLAS_LIB
PYTHON          := $PYTHON
GPU_NAME        := $GPU_NAME
GPU_ARCH        := $GPU_ARCH
GPU_DRIVER_CUDA := $GPU_DRIVER_CUDA
GPU_NODES_SEEN  := $(gpu_nodes)
EOF
    mv build/config.mk.tmp build/config.mk
}

# One line a thing under the need that it serves: its version and where, or what is missing and how it comes.
doctor() {
    local failed=0
    row() { printf '  %-14s %s\n' "$1" "$2"; }
    lacks() { row "$1" "MISSING: $2"; failed=1; }
    things() {
        local entry thing
        for entry in "$@"; do
            thing=${entry%%:*}
            if ! present "$thing"; then
                lacks "${entry#*:}" "tools/setup.sh installs it from apt"
            elif [[ "$thing" == /* || "$thing" == *.so.* ]]; then
                row "${entry#*:}" "$thing"
            else
                row "$thing" "$("$thing" --version 2>/dev/null | grep -m 1 '[0-9]\.[0-9]')"
            fi
        done
    }
    packages() {
        local name
        while IFS='=' read -r name _; do
            if [[ -x .venv/bin/python3 ]] && package_version "$name" >/dev/null; then
                row "$name" "$(package_version "$name") in .venv"
            else
                lacks "$name" "tools/setup.sh installs it into .venv"
            fi
        done <"$1"
    }
    echo "to run chapters:"
    things "${RUN[@]}"
    local python found=''
    for python in .venv/bin/python3 python3; do
        [[ -z "$found" ]] && found=$("$python" -c 'import numpy; print(numpy.__version__)' 2>/dev/null) && row numpy "$found of $python"
    done
    [[ -n "$found" ]] || lacks numpy "tools/setup.sh installs it into .venv"
    if find_nvcc; then
        row nvcc "$NVCC_VERSION at $NVCC"
        row cudart "$(basename "$(readlink -f "$CUDA_LIB/libcudart.so.13")") in $CUDA_LIB"
        row PTX "ISA $(emitted_ptx_version) is what this nvcc emits"
    else
        lacks nvcc "no 13.x in PATH, CUDA_HOME, /usr/local/cuda or .venv; tools/setup.sh installs the wheels"
    fi
    if [[ -x build/simgpu/simgpu ]]; then
        row simgpu "build/simgpu/simgpu"
    else
        row simgpu "not built yet: make builds it when a chapter needs it"
    fi
    find_gpu
    if [[ -z "$GPU_NAME" ]]; then
        row GPU "none found (nvidia-smi lists none): chapters run on the simulated GPU"
    else
        row GPU "$GPU_NAME, sm_$GPU_ARCH, driver $GPU_DRIVER"
        if [[ "${GPU_DRIVER_CUDA%%.*}" -lt 13 ]]; then
            row driver "supports CUDA $GPU_DRIVER_CUDA, needed 13.0 or newer (driver 580): chapters run on the simulated GPU"
        elif version_at_least "$GPU_DRIVER_CUDA" "${NVCC_VERSION%.*}"; then
            row driver "supports CUDA $GPU_DRIVER_CUDA, so it compiles the PTX of this nvcc"
        else
            row driver "supports CUDA $GPU_DRIVER_CUDA, older than nvcc: PTX alone would be refused, SASS for sm_$GPU_ARCH runs"
        fi
    fi
    local status=$failed
    echo "to test them:"
    things "${TEST[@]}"
    packages requirements.txt
    echo "to lint:"
    things "${LINT[@]}"
    echo "to make the book:"
    packages tools/book/requirements.txt
    things "${BOOK[@]}" "${BROWSER[@]}"
    return "$status"
}

# Whether version $1 is $2 or newer.
version_at_least() { [[ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" == "$2" ]]; }

emitted_ptx_version() {
    local dir
    dir=$(mktemp -d)
    echo '__global__ void nothing() {}' >"$dir/nothing.cu"
    "$NVCC" -ptx -o "$dir/nothing.ptx" "$dir/nothing.cu" && sed -n 's/^\.version //p' "$dir/nothing.ptx"
    rm -rf "$dir"
}

case "${1:-}" in
--doctor) doctor ;;
run)
    install_need "run a chapter" "${RUN[@]}"
    install_nvcc
    find_python
    find_gpu
    find_cublas
    write_config
    say "nvcc $NVCC_VERSION ($NVCC), ${GPU_NAME:-no GPU: chapters run on the simulated GPU}"
    ;;
test)
    install_need "run the tests" "${TEST[@]}"
    install_requirements "run the tests" requirements.txt
    ;;
lint) install_need "lint" "${LINT[@]}" ;;
book)
    install_need "set the book's formulas" "${BOOK[@]}"
    install_requirements "make the book" tools/book/requirements.txt
    ;;
browser) install_need "open the book in its tests" "${BROWSER[@]}" ;;
*) die "unknown argument '${1:-}', expected run, test, lint, book, browser or --doctor" ;;
esac
