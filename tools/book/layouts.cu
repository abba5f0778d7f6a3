// Writes as JSON what the book's figures show of layouts and of order. It is asked of the kernels: their own files are included
// here, run, and what they left where is printed, so that no figure can show another layout than the one in use.
//
//      build/simgpu/simgpu build/book_layouts          (tools/book/build.mk makes it; tools/book/figures.py draws it)
//
// A kernel is listened to without a change of its text: each step's file is included in a namespace of its own, which has functions
// of the names of ptx.cuh's. A name is looked up there first, so the kernel calls these; they call ptx.cuh's, and note.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../chapters/03_tensor_core_matmul/launchers.h"
#include "../../chapters/04_swizzled_smem/launchers.h"
#include "../../chapters/05_cp_async_pipeline/launchers.h"
#include "../../common/device/ptx.cuh"
#include "../../common/device/swizzle.cuh"
#include "../../common/device/wgmma.cuh"

enum { LANES = 32, ROWS = 8, CHUNKS = 8, SLOT_BYTES = 16, MAX_SLOTS = 2048, MAX_NOTES = 8192, K_TILES = 7 };
enum note_kind { NOTE_COPY, NOTE_COMMIT, NOTE_WAIT, NOTE_READ, NOTE_MULTIPLY };

// What thread 0 of block 0 did, in the order of its code: a kind, and its operand.
static __managed__ struct {
    volatile int count; // the compiler reads it for thread 0 alone
    uint32_t kind[MAX_NOTES], value[MAX_NOTES];
} notes;
// What the first ldmatrix of A and of B and the first mma left in the registers of warp 0.
static __managed__ struct {
    bool has_A[LANES], has_B[LANES], has_C[LANES];
    uint32_t A[LANES][4], B[LANES][2];
    float C[LANES][4];
} first;
static __managed__ uint16_t slots[MAX_SLOTS]; // a tile in shared memory, the first element of each 16 bytes
static __managed__ float wgmma_acc[128][128 / 2]; // (thread, register)

#define CHECK(call)                                                                                     \
    do {                                                                                                \
        const cudaError_t status_ = (call);                                                             \
        if (status_ != cudaSuccess) {                                                                   \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status_)); \
            exit(1);                                                                                    \
        }                                                                                               \
    } while (0)

// --- Kernels that are listened to ---------------------------------------------------------------------------------------

static __device__ void note(enum note_kind kind, uint32_t value)
{
    if (blockIdx.x + blockIdx.y + threadIdx.x != 0) return;
    const int at = notes.count;
    if (at == MAX_NOTES) return;
    notes.kind[at] = kind;
    notes.value[at] = value;
    notes.count = at + 1;
}

namespace fragments
{
__device__ inline void ldmatrix_x4(uint32_t (&frag)[4], uint32_t addr)
{
    ::ldmatrix_x4(frag, addr);
    const int lane = threadIdx.x;
    if (lane >= LANES || first.has_A[lane]) return;
    for (int r = 0; r < 4; r++) first.A[lane][r] = frag[r];
    first.has_A[lane] = true;
}

__device__ inline void ldmatrix_x2(uint32_t (&frag)[2], uint32_t addr)
{
    ::ldmatrix_x2(frag, addr);
    const int lane = threadIdx.x;
    if (lane >= LANES || first.has_B[lane]) return;
    for (int r = 0; r < 2; r++) first.B[lane][r] = frag[r];
    first.has_B[lane] = true;
}

__device__ inline void mma_m16n8k16_bf16(float (&acc)[4], const uint32_t (&A_frag)[4],
                                         const uint32_t (&B_frag)[2])
{
    ::mma_m16n8k16_bf16(acc, A_frag, B_frag);
    const int lane = threadIdx.x;
    if (lane >= LANES || first.has_C[lane]) return;
    for (int r = 0; r < 4; r++) first.C[lane][r] = acc[r];
    first.has_C[lane] = true;
}

#include "../../chapters/03_tensor_core_matmul/step1_mma.cu"
} // namespace fragments

namespace padded_tile
{
#include "../../chapters/04_swizzled_smem/step1_padded.cu"
}

namespace swizzled_tile
{
#include "../../chapters/04_swizzled_smem/step2_swizzled.cu"
}

// The functions that note, for a pipeline's kernel.
#define LISTEN                                                                                   \
    __device__ inline void cp_async_cg_16(uint32_t dst_addr, const __nv_bfloat16 *src, int size) \
    {                                                                                            \
        note(NOTE_COPY, dst_addr);                                                               \
        ::cp_async_cg_16(dst_addr, src, size);                                                   \
    }                                                                                            \
    __device__ inline void cp_async_commit_group()                                               \
    {                                                                                            \
        note(NOTE_COMMIT, 0);                                                                    \
        ::cp_async_commit_group();                                                               \
    }                                                                                            \
    template <int PENDING>                                                                       \
    __device__ inline void cp_async_wait_group()                                                 \
    {                                                                                            \
        ::cp_async_wait_group<PENDING>();                                                        \
        note(NOTE_WAIT, PENDING);                                                                \
    }                                                                                            \
    __device__ inline void ldmatrix_x4(uint32_t(&frag)[4], uint32_t addr)                        \
    {                                                                                            \
        note(NOTE_READ, addr);                                                                   \
        ::ldmatrix_x4(frag, addr);                                                               \
    }                                                                                            \
    __device__ inline void mma_m16n8k16_bf16(float(&acc)[4], const uint32_t(&A_frag)[4],         \
                                             const uint32_t(&B_frag)[2])                         \
    {                                                                                            \
        note(NOTE_MULTIPLY, 0);                                                                  \
        ::mma_m16n8k16_bf16(acc, A_frag, B_frag);                                                \
    }

namespace ring_1
{
LISTEN
#include "../../chapters/05_cp_async_pipeline/step1_two_stage.cu"
} // namespace ring_1

namespace ring_2
{
LISTEN
#include "../../chapters/05_cp_async_pipeline/step2_multi_stage.cu"
} // namespace ring_2

namespace ring_3
{
LISTEN
#include "../../chapters/05_cp_async_pipeline/step3_fragments_ahead.cu"
} // namespace ring_3

// --- Bank maps ----------------------------------------------------------------------------------------------------------

// A block copies a tile with a step's own load_tile; then the tile is looked through as it lies.
template <typename Storage, void (*LOAD)(Storage &, const __nv_bfloat16 *, int)>
__global__ void dump_tile(const __nv_bfloat16 *matrix)
{
    __shared__ __align__(1024) Storage smem;
    LOAD(smem, matrix, threadIdx.x);
    __syncthreads();
    const uint16_t *tile = (const uint16_t *)&smem.A_smem;
    const int count = sizeof smem.A_smem / SLOT_BYTES;
    static_assert(count <= MAX_SLOTS, "slots has room for the tile");
    for (int slot = threadIdx.x; slot < count; slot += blockDim.x)
        slots[slot] = tile[slot * SLOT_BYTES / sizeof *tile];
}

// load_tile of the step in this namespace, of 8 rows; what is past them becomes zeros.
#define LOADER(space)                                                                                \
    static __device__ void load_##space(space::SharedStorage &smem, const __nv_bfloat16 *m, int tid) \
    {                                                                                                \
        space::load_tile(smem.A_smem, m, 0, ROWS, 0, space::BLOCK_K, tid);                           \
    }
LOADER(fragments)
LOADER(padded_tile)
LOADER(swizzled_tile)

// Prints for every row of 8 and every chunk of the row the offset at which the kernel put it.
template <typename Storage, void (*LOAD)(Storage &, const __nv_bfloat16 *, int)>
static void print_bank_map(const char *name, int threads, __nv_bfloat16 *matrix, const char *behind)
{
    for (int i = 0; i < ROWS * CHUNKS * 8; i++) matrix[i] = __float2bfloat16((float)(i / 8 + 1));
    dump_tile<Storage, LOAD><<<1, threads>>>(matrix);
    CHECK(cudaDeviceSynchronize());
    printf("\"%s\": [", name);
    for (int chunk = 0; chunk < ROWS * CHUNKS; chunk++) {
        int found = -1, count = 0;
        for (int slot = 0; slot < (int)sizeof(Storage::A_smem) / SLOT_BYTES; slot++) {
            __nv_bfloat16_raw bits;
            bits.x = slots[slot];
            if (__bfloat162float(__nv_bfloat16(bits)) == (float)(chunk + 1)) found = slot, count++;
        }
        if (count != 1) {
            fprintf(stderr, "layouts: %s: chunk %d was found %d times\n", name, chunk, count);
            exit(1);
        }
        printf("%s%d", chunk ? "," : "", found * SLOT_BYTES);
    }
    printf("]%s\n", behind);
}

// --- Fragments ----------------------------------------------------------------------------------------------------------

static float bits_to_float(uint32_t bits)
{
    __nv_bfloat16_raw raw;
    raw.x = (uint16_t)bits;
    return __bfloat162float(__nv_bfloat16(raw));
}

// Runs chapter 3's kernel on one tile, 128 x 128 x 64; `first` has the fragments then.
static void run_mma(__nv_bfloat16 *A, __nv_bfloat16 *B, __nv_bfloat16 *C)
{
    memset(&first, 0, sizeof first);
    CHECK(fragments::mma(A, B, NULL, C, fragments::BLOCK_M, fragments::BLOCK_N, fragments::BLOCK_K, 0));
    CHECK(cudaDeviceSynchronize());
}

static void clear(__nv_bfloat16 *matrix, int count)
{
    for (int i = 0; i < count; i++) matrix[i] = __float2bfloat16(0.0f);
}

// Prints for every lane and register the elements that it holds, as row * columns + column: of A and B the two in a register.
static void print_fragments(__nv_bfloat16 *A, __nv_bfloat16 *B, __nv_bfloat16 *C)
{
    const int K = fragments::BLOCK_K;
    clear(A, fragments::BLOCK_M * K);
    clear(B, fragments::BLOCK_N * K);
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++) A[row * K + k] = __float2bfloat16((float)(row * 16 + k));
    for (int n = 0; n < 8; n++)
        for (int k = 0; k < 16; k++) B[n * K + k] = __float2bfloat16((float)(n * 16 + k));
    run_mma(A, B, C);
    for (int matrix = 0; matrix < 2; matrix++) {
        printf("\"mma_%c\": [", "AB"[matrix]);
        for (int lane = 0; lane < LANES; lane++) {
            printf(lane ? ",[" : "[");
            for (int r = 0; r < 4 - 2 * matrix; r++) {
                const uint32_t both = matrix ? first.B[lane][r] : first.A[lane][r];
                printf("%s[%d,%d]", r ? "," : "", (int)bits_to_float(both), (int)bits_to_float(both >> 16));
            }
            printf("]");
        }
        printf("],\n");
    }

    // C[row][n] = 8 row * 1 + 1 * n, which says where it came from.
    clear(A, fragments::BLOCK_M * K);
    clear(B, fragments::BLOCK_N * K);
    for (int row = 0; row < 16; row++) {
        A[row * K] = __float2bfloat16((float)(8 * row));
        A[row * K + 1] = __float2bfloat16(1.0f);
    }
    for (int n = 0; n < 8; n++) {
        B[n * K] = __float2bfloat16(1.0f);
        B[n * K + 1] = __float2bfloat16((float)n);
    }
    run_mma(A, B, C);
    printf("\"mma_C\": [");
    for (int lane = 0; lane < LANES; lane++)
        printf("%s[%d,%d,%d,%d]", lane ? "," : "", (int)first.C[lane][0], (int)first.C[lane][1],
               (int)first.C[lane][2], (int)first.C[lane][3]);
    printf("],\n");
}

// One wgmma, 64 x 128 x 16: element (row, col) of the product is 128 row + col.
__global__ void fill_accumulators()
{
    constexpr int N = 128, K = 64;
    __shared__ __align__(1024) char A_smem[64 * 128], B_smem[N * 128];
    const int tid = threadIdx.x;
    for (int i = tid; i < N * K; i += blockDim.x) {
        const int row = i / K, k = i % K;
        const uint32_t at = swizzle(row * 128 + k * 2, 3);
        const float a = k == 0 ? 128.0f * row : k == 1 ? 1.0f : 0.0f;
        const float b = k == 0 ? 1.0f : k == 1 ? (float)row : 0.0f;
        if (row < 64) *(__nv_bfloat16 *)(A_smem + at) = __float2bfloat16(a);
        *(__nv_bfloat16 *)(B_smem + at) = __float2bfloat16(b);
    }
    asm volatile("fence.proxy.async;" ::: "memory"); // wgmma reads what ordinary stores wrote
    __syncthreads();
    float acc[N / 2];
    wgmma_touch(acc);
    wgmma_fence();
    wgmma<N, __nv_bfloat16>(acc, wgmma_descriptor(A_smem), wgmma_descriptor(B_smem), false);
    wgmma_commit_group();
    wgmma_wait_group<0>();
    wgmma_touch(acc);
    for (int r = 0; r < N / 2; r++) wgmma_acc[tid][r] = acc[r];
}

static void print_accumulators()
{
    fill_accumulators<<<1, 128>>>();
    CHECK(cudaDeviceSynchronize());
    printf("\"wgmma\": [");
    for (int thread = 0; thread < 128; thread++) {
        printf(thread ? ",[" : "[");
        for (int r = 0; r < 64; r++) printf("%s%d", r ? "," : "", (int)wgmma_acc[thread][r]);
        printf("]");
    }
    printf("],\n");
}

// --- Pipelines ----------------------------------------------------------------------------------------------------------

// Runs a step of chapter 5 on one tile of C and K_TILES of k, and prints what it did.
static void print_order(const char *name, matmul_bf16 *step, int stages, size_t A_stage_bytes,
                        __nv_bfloat16 *A, __nv_bfloat16 *B, __nv_bfloat16 *C, const char *behind)
{
    notes.count = 0;
    CHECK(step(A, B, NULL, C, 128, 128, K_TILES * 64, 0));
    CHECK(cudaDeviceSynchronize());
    if (notes.count == MAX_NOTES) {
        fprintf(stderr, "layouts: %s does more than can be noted\n", name);
        exit(1);
    }
    printf("\"%s\": {\"stages\": %d, \"stage_bytes\": %zu, \"k_tiles\": %d, \"notes\": [", name, stages,
           A_stage_bytes, K_TILES);
    static const char *const NAMES[] = {"copy", "commit", "wait", "read", "multiply"};
    for (int i = 0; i < notes.count; i++)
        printf("%s[\"%s\",%u]", i ? "," : "", NAMES[notes.kind[i]], notes.value[i]);
    printf("]}%s\n", behind);
}

int main()
{
    __nv_bfloat16 *A, *B, *C;
    CHECK(cudaMallocManaged((void **)&A, 128 * K_TILES * 64 * sizeof *A));
    CHECK(cudaMallocManaged((void **)&B, 128 * K_TILES * 64 * sizeof *B));
    CHECK(cudaMallocManaged((void **)&C, 128 * 128 * sizeof *C));
    printf("{\"banks\": {\n");
    print_bank_map<fragments::SharedStorage, load_fragments>("plain", fragments::NUM_THREADS, A, ",");
    print_bank_map<padded_tile::SharedStorage, load_padded_tile>("padded", padded_tile::NUM_THREADS, A, ",");
    print_bank_map<swizzled_tile::SharedStorage, load_swizzled_tile>("swizzled", swizzled_tile::NUM_THREADS,
                                                                     A, "},");
    print_fragments(A, B, C);
    print_accumulators();
    clear(A, 128 * K_TILES * 64);
    clear(B, 128 * K_TILES * 64);
    printf("\"orders\": {\n");
    print_order("two_stage", ring_1::two_stage, ring_1::NUM_STAGES, sizeof ring_1::SharedStorage::A_smem[0],
                A, B, C, ",");
    print_order("multi_stage", ring_2::multi_stage, ring_2::NUM_STAGES,
                sizeof ring_2::SharedStorage::A_smem[0], A, B, C, ",");
    print_order("fragments_ahead", ring_3::fragments_ahead, ring_3::NUM_STAGES,
                sizeof ring_3::SharedStorage::A_smem[0], A, B, C, "},");
    const uint32_t tile = 0x4400;
    const uint64_t desc = wgmma_descriptor_bits(tile);
    printf("\"descriptor\": {\"tile\": %u, \"bits\": \"", tile);
    for (int bit = 63; bit >= 0; bit--) putchar('0' + (char)(desc >> bit & 1));
    printf("\"}}\n");
    return 0;
}
