#!/usr/bin/env bash
# Finds or installs what the cookbook needs and writes what it found as make variables.
#
#   tools/setup.sh            install what is missing, then write build/config.mk
#   tools/setup.sh --doctor   print what is there and what is missing; install nothing
#
# The Makefile runs it by itself; build/config.mk is the stamp that makes it free afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."

APT_PACKAGES=(gcc g++ make bats bats-assert bats-support shellcheck clang-format cppcheck
    libzstd-dev libopenblas-dev python3 python3-venv ca-certificates)

# nvcc as PyPI wheels (about 100 MB): the compiler, its device libraries and headers, the shared runtime.
NVCC_WHEELS=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85)
CUBLAS_WHEEL=nvidia-cublas==13.0.2.14

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Prints the packages of APT_PACKAGES that dpkg does not have.
missing_packages() {
    local package
    for package in "${APT_PACKAGES[@]}"; do
        [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || echo "$package"
    done
}

install_packages() {
    local missing sudo=()
    if ! command -v dpkg-query >/dev/null; then
        local tool
        for tool in gcc g++ make bats python3; do
            command -v "$tool" >/dev/null ||
                die "$tool is missing and this is no Debian; install the counterparts of: ${APT_PACKAGES[*]}"
        done
        return
    fi
    mapfile -t missing < <(missing_packages)
    [[ ${#missing[@]} -gt 0 ]] || return 0
    if [[ $EUID -ne 0 ]]; then
        sudo -n true 2>/dev/null ||
            die "packages are missing; install them with: sudo apt-get install -y --no-install-recommends ${missing[*]}"
        sudo=(sudo -n)
    fi
    say "installing from apt: ${missing[*]}"
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends -o Dpkg::Use-Pty=0 "${missing[@]}" | sed -un 's/^Setting up /setup:   /p'
}

install_python() {
    if [[ ! -x .venv/bin/python3 ]]; then
        say "making .venv with $(python3 --version)"
        python3 -m venv .venv
    fi
    if ! python_complete; then
        say "installing into .venv: $(tr '\n' ' ' <requirements.txt)"
        .venv/bin/python3 -m pip install --disable-pip-version-check -r requirements.txt | pip_progress
    fi
}

python_complete() {
    [[ -x .venv/bin/python3 ]] || return 1
    local name version
    while IFS='=' read -r name _ version; do
        [[ "$(package_version "$name")" == "$version" ]] || return 1
    done <requirements.txt
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
    find_nvcc && return
    say "no nvcc 13.x in PATH, CUDA_HOME or /usr/local/cuda: installing NVIDIA's wheels into .venv (about 100 MB)"
    .venv/bin/python3 -m pip install --disable-pip-version-check --no-deps "${NVCC_WHEELS[@]}" | pip_progress
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

# cuBLAS is only the baseline that a real GPU is measured beside, and opened when it is called: without a GPU it is not
# needed, since the simulated GPU has its own. Sets CUBLAS_LIB to where it is, empty if the loader finds it itself.
install_cublas() {
    CUBLAS_LIB=''
    if [[ -z "$GPU_NAME" ]] || /sbin/ldconfig -p 2>/dev/null | grep -q 'libcublas\.so\.13'; then return; fi
    CUBLAS_LIB=$(first_dir_with libcublas.so.13 "$CUDA_LIB" "$PWD"/.venv/lib/python3.*/site-packages/nvidia/cu13/lib) && return
    say "no libcublas.so.13 beside nvcc: installing NVIDIA's wheel into .venv (about 400 MB)"
    .venv/bin/python3 -m pip install --disable-pip-version-check --no-deps "$CUBLAS_WHEEL" | pip_progress
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
PYTHON          := .venv/bin/python3
GPU_NAME        := $GPU_NAME
GPU_ARCH        := $GPU_ARCH
GPU_DRIVER_CUDA := $GPU_DRIVER_CUDA
GPU_NODES_SEEN  := $(gpu_nodes)
EOF
    mv build/config.mk.tmp build/config.mk
}

# One line a thing: what it is, its version and where, or what is missing and how it comes.
doctor() {
    local item item_version failed=0
    row() { printf '%-14s %s\n' "$1" "$2"; }
    lacks() { row "$1" "MISSING: $2"; failed=1; }
    for item in gcc g++ make bats shellcheck clang-format cppcheck python3; do
        if command -v "$item" >/dev/null; then
            row "$item" "$("$item" --version 2>/dev/null | grep -m 1 '[0-9]\.[0-9]')"
        else
            lacks "$item" "tools/setup.sh installs it from apt"
        fi
    done
    if command -v dpkg-query >/dev/null; then
        for item in bats-assert bats-support libzstd-dev libopenblas-dev; do
            if item_version=$(dpkg-query -W -f='${Version}' "$item" 2>/dev/null) && [[ -n "$item_version" ]]; then
                row "$item" "$item_version"
            else
                lacks "$item" "tools/setup.sh installs it from apt"
            fi
        done
    fi
    for item in numpy ml_dtypes matplotlib; do
        if [[ -x .venv/bin/python3 ]] && package_version "$item" >/dev/null; then
            row "$item" "$(package_version "$item") in .venv"
        else
            lacks "$item" "tools/setup.sh installs it into .venv"
        fi
    done
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
    return "$failed"
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
'')
    install_packages
    install_python
    install_nvcc
    find_gpu
    install_cublas
    write_config
    say "nvcc $NVCC_VERSION ($NVCC), ${GPU_NAME:-no GPU: chapters run on the simulated GPU}"
    ;;
*) die "unknown argument '$1', expected nothing or --doctor" ;;
esac
