"""DeepGEMM's kernels for Hopper without its Python package: which configuration it takes for a shape, and a shared library of them.

Source: DeepGEMM 54e2261, csrc/jit_kernels/heuristics/sm90.hpp and common.hpp (the choice: same candidates, same order, same cost),
csrc/jit_kernels/impls/sm90_fp8_gemm_1d2d.hpp and sm90_fp8_gemm_1d1d.hpp (tensor maps and arguments), csrc/apis/gemm.hpp (which dimensions are
compiled in: n and k, of k_groups m and n), csrc/jit/compiler.hpp (nvcc's options).
"""

import concurrent.futures
import ctypes
import dataclasses
import functools
import os
import subprocess

NUM_SMS = 132  # compiled in: H100 and H200 as modules
SMEM_BYTES, MAX_STAGES, BLOCK_K = 232448, 16, 128
GEMM_TYPES = {"gemm": "Normal", "aligned": "MGroupedContiguous", "masked": "MGroupedMasked", "k_groups": "KGroupedContiguous"}
OPTIONS = (
    "-std=c++20 --diag-suppress=39,161,174,177,186,940 --ptxas-options=--register-usage-level=10 -gencode arch=compute_90a,code=sm_90a "
    "--compiler-options=-fPIC,-O3,-fconcepts,-Wno-deprecated-declarations,-Wno-abi -O3 --expt-relaxed-constexpr --expt-extended-lambda"
).split()


def ceil_div(a, b):
    return -(-a // b)


def align(a, b):
    return ceil_div(a, b) * b


def float32(x):
    return ctypes.c_float(x).value


@dataclasses.dataclass(frozen=True)
class Product:
    """What DeepGEMM is asked for: m rows in all, of masked in each group; expected_m as the caller of masked says it; k of one group."""

    op: str
    groups: int
    m: int
    expected_m: int
    n: int
    k: int

    @property
    def fp32(self):  # D, and added to
        return self.op == "k_groups"


@dataclasses.dataclass(frozen=True)
class Tiling:
    block_m: int
    block_n: int
    cluster_m: int
    cluster_n: int

    @property
    def cluster(self):
        return self.cluster_m * self.cluster_n

    @property
    def math_threads(self):
        return 128 if self.block_m <= 64 else 256

    def pipeline(self, product):
        """Stages, and bytes of shared memory."""
        fixed = align(self.block_m * self.block_n * (4 if product.fp32 else 2), 1024) + MAX_STAGES * 8 * 2
        stage = (self.block_m + self.block_n) * BLOCK_K + align(self.block_m * 4, 128)
        if product.fp32:
            fixed += 4 * 128  # tensor maps
            stage += align(self.block_n * 4, 128)
        else:
            fixed += align(ceil_div(product.k, BLOCK_K) * 4 * (1 if BLOCK_K % self.block_n == 0 else 2), 8)
        stages = min((SMEM_BYTES - fixed) // stage, MAX_STAGES)
        return stages, fixed + stages * stage

    def swizzle_D(self, product):
        return 0 if product.fp32 else next(mode for mode in (128, 64, 32) if self.block_n * 2 % mode == 0)

    def cycles(self, product):
        """The cost that DeepGEMM compares: cycles of L1 or L2, whichever are more, by how full the rounds of blocks are. In C++'s types."""
        groups = product.groups if product.op in ("masked", "k_groups") else 1
        blocks = ceil_div(product.expected_m, self.block_m) * ceil_div(product.n, self.block_n) * groups
        waves = ceil_div(blocks, NUM_SMS)
        if self.cluster > 1 and waves <= 1:
            return 2**63 - 1
        l2_per_cycle, l1_per_cycle = int(min(64.0 * NUM_SMS, 8e6 / 1.3e3)), 128 * NUM_SMS
        tile_D = self.block_m * self.block_n * (4 if product.fp32 else 2)
        l2_AB = product.k * (self.block_m // self.cluster_n + self.block_n // self.cluster_m)
        l1_AB = product.k * (self.block_m + self.block_n)
        l1_tensor = product.k * (max(64, self.block_m) + self.block_n) + tile_D
        moved_D = tile_D * (2 if product.fp32 else 1)
        l2 = (l2_AB + moved_D) * blocks // l2_per_cycle
        l1 = (l1_AB + l1_tensor + moved_D) * blocks // l1_per_cycle
        efficiency = float32(float32(blocks) / float32(waves * NUM_SMS))
        return int(float32(float32(max(l1, l2)) / efficiency))


def candidates(product):
    if product.op == "aligned":
        blocks_m = [128]
    else:
        blocks_m = [64, 128]
        if product.op != "masked":
            blocks_m += [16] * (product.m <= 16) + [32] * (product.m <= 32)
        if product.op == "gemm":
            blocks_m += [256]
    blocks_n = [16, *range(24, 161, 16)] if product.fp32 else [*range(16, 193, 16)]
    clusters = [(1, 1), (1, 2), (2, 1)]
    if product.op == "k_groups" and product.groups > 4:
        clusters = [(1, 1)]
    for cluster in clusters:
        for block_m in blocks_m:
            for block_n in blocks_n:
                tiling = Tiling(block_m, block_n, *cluster)
                beyond = block_n - BLOCK_K
                if not product.fp32 and beyond > 0 and block_n % beyond and BLOCK_K % beyond:
                    continue
                if product.op == "masked" and ceil_div(product.n, block_n) % tiling.cluster:
                    continue
                if block_m > 128 and block_n > 128:
                    continue
                stages = tiling.pipeline(product)[0]
                if stages < 3 or (block_m * block_n < 128 * 192 and stages < 4):
                    continue
                yield tiling


@functools.cache
def best_tiling(product):
    return min(candidates(product), key=lambda tiling: tiling.cycles(product))  # the first of equals


def symbol(product, tiling):
    """A launcher's name: all that is compiled into it."""
    shape = (product.groups, *((product.m,) if product.fp32 else ()), product.n, product.k)
    return "_".join([product.op, *map(str, shape), "tile", *map(str, dataclasses.astuple(tiling))])


LAUNCHER = """\
// Written by tools/deep_gemm_kernels.py.
#include <deep_gemm/impls/sm90_fp8_gemm_{kind}.cuh>

#include "deep_gemm_launch.cuh"

using namespace deep_gemm;

extern "C" cudaError_t {symbol}(void *A, void *B, float *scale_A, float *scale_B, int *layout, void *D, CUtensorMap *maps, int m, cudaStream_t stream)
{{
    const int n = {n}, k = {k};
    CUtensorMap A_map, B_map, scale_A_map, scale_B_map, D_map;
    const CUtensorMapDataType e4m3 = CU_TENSOR_MAP_DATA_TYPE_UINT8, f32 = CU_TENSOR_MAP_DATA_TYPE_FLOAT32, bf16 = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    cudaError_t error;
    if ((error = describe(&A_map, e4m3, A, {groups_A} * m, k, {block_m}, 0, 128)) != cudaSuccess) return error;
    if ((error = describe(&B_map, e4m3, B, {groups_B} * n, k, {block_n}, 0, 128)) != cudaSuccess) return error;
    if ((error = describe(&scale_A_map, f32, scale_A, {groups_scale} * ((k + 127) / 128), (m + 3) / 4 * 4, 1, {block_m}, 0)) != cudaSuccess) return error;
{rest}
}}
"""
REST_1D2D = """\
    if ((error = describe(&D_map, bf16, D, {groups_A} * m, n, {block_m}, 0, {swizzle_D})) != cudaSuccess) return error;
    auto *kernel = &sm90_fp8_gemm_1d2d_impl<cute::UMMA::Major::K, 0, {n}, {k}, {groups}, {block_m}, {block_n}, 128, 128, 128, {swizzle_D}, {stages},
                                            128, {math_threads}, {cluster}, {on_A}, {sms}, GemmType::{gemm_type},
                                            cutlass::bfloat16_t, epilogue::transform::EpilogueIdentity>;
    return launch(kernel, {sms}, {cluster}, {threads}, {smem_bytes}, stream, scale_B, layout, m, n, k, A_map, B_map, D_map, scale_A_map);"""
REST_1D1D = """\
    if ((error = describe(&scale_B_map, f32, scale_B, {groups_scale} * ((k + 127) / 128), (n + 3) / 4 * 4, 1, {block_n}, 0)) != cudaSuccess) return error;
    if ((error = describe(&D_map, f32, D, {groups} * m, n, 64, {block_n}, 0)) != cudaSuccess) return error;
    auto *kernel = &sm90_fp8_gemm_1d1d_impl<{m}, {n}, 0, {groups}, {block_m}, {block_n}, 128, 128, 128, {stages},
                                            128, {math_threads}, {cluster}, {on_A}, {sms}, GemmType::{gemm_type}, float>;
    return launch(kernel, {sms}, {cluster}, {threads}, {smem_bytes}, stream, (__nv_fp8_e4m3 *)A, (__nv_fp8_e4m3 *)B, layout, maps,
                  m, n, {groups} * k, A_map, B_map, scale_A_map, scale_B_map, D_map);"""


def unit(product, tiling):
    """The source that launches this configuration. The groups of k_groups stand behind each other; its maps of A and B are of the first."""
    stages, smem_bytes = tiling.pipeline(product)
    values = {
        **dataclasses.asdict(product),
        **dataclasses.asdict(tiling),
        "symbol": symbol(product, tiling),
        "kind": "1d1d" if product.fp32 else "1d2d",
        "gemm_type": GEMM_TYPES[product.op],
        "groups_A": product.groups if product.op == "masked" else 1,
        "groups_B": product.groups if product.op in ("aligned", "masked") else 1,
        "groups_scale": product.groups if product.op in ("masked", "k_groups") else 1,
        "swizzle_D": tiling.swizzle_D(product),
        "stages": stages,
        "smem_bytes": smem_bytes,
        "cluster": tiling.cluster,
        "on_A": "true" if tiling.cluster_n > 1 else "false",
        "math_threads": tiling.math_threads,
        "threads": 128 + tiling.math_threads,
        "sms": NUM_SMS,
    }
    return LAUNCHER.format(rest=(REST_1D1D if product.fp32 else REST_1D2D).format(**values), **values)


def units(products):
    """Sources by their launchers' names."""
    return {symbol(product, tiling): unit(product, tiling) for product in products for tiling in [best_tiling(product)]}


def compile_units(sources, command, includes, folder):
    """Compiles every source, a text by its name, as many at once as there are processors; the objects."""
    os.makedirs(folder, exist_ok=True)

    def compile_unit(name):
        path = os.path.join(folder, name)
        with open(f"{path}.cu", "w", encoding="utf-8") as file:
            file.write(sources[name])
        subprocess.run([*command, *(f"-I{include}" for include in includes), "-c", "-o", f"{path}.o", f"{path}.cu"], check=True)
        return f"{path}.o"

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_unit, sorted(sources)))
