// Chapter 18, step 6: the activation function and the cast in one kernel.
//
// Question: between the two products of a feed-forward layer is an activation function, whose output nobody needs but the
// cast. In bf16 it would be written and read again: 2 + 2 of 9 bytes an element. Can it stay in registers?
//
// Grows from: step 3 (groups_of_128).
// 16 lanes compute 128 neighbours of a row, in fp32, and cast what they have: 5 bytes an element for SwiGLU, 3 for GELU, and
// one rounding less on the way. What was a maximum of bf16 is one of floats, and the rows' scales are shared out among lanes as in
// step 5.
//
//      SwiGLU: x[i, 0 .. k) the gate, x[i, k .. 2k) what it lets through      h = g s(g) u,  s(g) = 1 / (1 + exp(-g))
//      GELU:   h = g s(g (2 sqrt(2 / pi) (1 + 0.044715 g^2))), chapter 6's
//
// GELU has nearly as many instructions for 3 bytes as SwiGLU for 5, so that reading and computing take about as long: they must overlap. A
// thread takes four turns, and asks for the next turn's packs before it computes with this one's.
//
// Registers: at most 48. Shared memory: none. Launched early (chapter 6, step 3).
// Run: make chapter-18 OP=swiglu STEP=fused
#include "../../common/device/fp8.cuh"
#include "../../common/device/launch.cuh"
#include "../../common/device/ptx.cuh"
#include "launchers.h"

constexpr int NUM_THREADS = 128;
template <bool GATED>
constexpr int BLOCKS_PER_SM = GATED ? 8 : 10;   // GELU has half as many numbers in registers
constexpr int ROWS = NUM_THREADS / GROUP_LANES; // at a time
constexpr int PACKS = 2;                        // of each matrix, a thread takes in a turn: of as many rows
constexpr int TURN_M = ROWS * PACKS;
template <bool GATED>
constexpr int TURNS = GATED ? 1 : 4;
constexpr float LOG2_E = 1.44269504f;
constexpr float A = -2.30220819f; // -2 log2(e) sqrt(2 / pi): exp(-2u) = 2^(x (A + B x^2))
constexpr float B = A * 0.044715f;

// What the numbers of a layer become: silu(gate) * up, and GELU of the gate, where there is no up.
template <bool GATED>
static __device__ float activation(float gate, float up)
{
    const float e = ex2_approx_ftz(GATED ? -LOG2_E * gate : gate * (A + B * (gate * gate)));
    return gate * rcp_approx_ftz(1.0f + e) * (GATED ? up : 1.0f);
}

// The largest magnitude of 8 floats.
static __device__ float amax_of(const float (&values)[8])
{
    float amax = fabsf(values[0]);
#pragma unroll
    for (int i = 1; i < 8; i++) amax = larger(amax, fabsf(values[i]));
    return amax;
}

template <typename FORMAT, bool GATED>
__global__ void __launch_bounds__(NUM_THREADS, BLOCKS_PER_SM<GATED>)
    fused_kernel(const __nv_bfloat16 *x, // (m, k) or (m, 2 k)
                 uint8_t *out,           // (m, k)
                 float *scale,           // (groups, scale_rows)
                 int m, int k, int groups, int scale_rows, bool pow2)
{
    wait_for_kernels_before();
    const int group = blockIdx.x % groups;
    const int row0 = blockIdx.x / groups * (TURNS<GATED> * TURN_M) + threadIdx.x / GROUP_LANES;
    const int col = group * GROUP + threadIdx.x % GROUP_LANES * PACK<__nv_bfloat16>;
    uint4 gate_next[PACKS], up_next[PACKS];
    const auto load_turn = [&](int turn) {
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            const int row = row0 + turn * TURN_M + i * ROWS;
            const bool inside = row < m && col < k;
            const uint4 *src = (const uint4 *)(x + (size_t)row * (GATED ? 2 : 1) * k + col);
            gate_next[i] = inside ? *src : make_uint4(0, 0, 0, 0);
            up_next[i] = GATED && inside ? src[k / PACK<__nv_bfloat16>] : make_uint4(0, 0, 0, 0);
        }
    };
    load_turn(0);
#pragma unroll 1
    for (int turn = 0; turn < TURNS<GATED>; turn++) {
        const int turn_row0 = row0 + turn * TURN_M;
        uint4 gate_frag[PACKS], up_frag[PACKS];
#pragma unroll
        for (int i = 0; i < PACKS; i++) gate_frag[i] = gate_next[i], up_frag[i] = up_next[i];
        if (turn + 1 < TURNS<GATED>) load_turn(turn + 1);
        float values[PACKS][8], amax[PACKS];
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            float up[8];
            unpack(values[i], gate_frag[i], __nv_bfloat16());
            unpack(up, up_frag[i], __nv_bfloat16());
#pragma unroll
            for (int j = 0; j < 8; j++) values[i][j] = activation<GATED>(values[i][j], up[j]);
            amax[i] = amax_of(values[i]);
        }
        // Lane i of a group's 16 makes the scale of row i % PACKS, for all.
        const float s = scale_of<FORMAT>(rows_amax(amax), pow2), inverse = __frcp_rn(s);
        const int lane = threadIdx.x % GROUP_LANES, scale_row = turn_row0 + lane * ROWS;
        if (lane < PACKS && scale_row < scale_rows)
            scale[(size_t)group * scale_rows + scale_row] = scale_row < m ? s : 0.0f;
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            const int row = turn_row0 + i * ROWS;
            const uint2 bytes = quantise<FORMAT>(values[i], __shfl_sync(0xffffffff, inverse, i, GROUP_LANES));
            if (row < m && col < k) *(uint2 *)(out + (size_t)row * k + col) = bytes;
        }
    }
}

template <typename FORMAT>
static cudaError_t launch(FORMAT, const void *x, void *out, float *scale, int m, int k, bool gated, bool pow2,
                          cudaStream_t stream)
{
    if (!x || !out || !scale || m <= 0 || k <= 0 || k % 16 != 0) return cudaErrorInvalidValue;
    if (((uintptr_t)x | (uintptr_t)out) % PACK_BYTES != 0) return cudaErrorInvalidValue;
    const int groups = (k - 1) / GROUP + 1, scale_rows = (m + 3) / 4 * 4;
    const int turns = gated ? TURNS<true> : TURNS<false>;
    const long long grid = (long long)groups * ((scale_rows - 1) / (turns * TURN_M) + 1);
    if (grid > INT32_MAX) return cudaErrorInvalidConfiguration;
    const auto kernel = gated ? fused_kernel<FORMAT, true> : fused_kernel<FORMAT, false>;
    return launch_early(kernel, (int)grid, NUM_THREADS, 0, stream, (const __nv_bfloat16 *)x, (uint8_t *)out,
                        scale, m, k, groups, scale_rows, pow2);
}

extern "C" cudaError_t fused(enum dtype format, const void *x, void *out, float *scale, int m, int k,
                             bool gated, bool pow2, cudaStream_t stream)
{
    return with_format(format, [&](auto f) { return launch(f, x, out, scale, m, k, gated, pow2, stream); });
}
