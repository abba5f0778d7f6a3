// A matmul as Hopper wants it: a producer warp with TMA multicast into a ring of stages, full and empty mbarriers across the
// cluster, a consumer warpgroup with chained wgmma and one group in flight, setmaxnreg, a TMA store as epilogue. Nothing here
// breaks a rule, and nothing may be reported. Passes on a GPU too; `matmul M N K` runs another size.
#include "hopper.cuh"

enum { BLOCK_M = 64, BLOCK_N = 128, BLOCK_K = 64, STAGES = 3, CLUSTER = 2 };

struct shared_memory {
    u16 A[STAGES][BLOCK_M * BLOCK_K]; // 128-byte rows, swizzled
    u16 B[STAGES][BLOCK_N * BLOCK_K];
    float C[BLOCK_M * 32]; // 32 columns at a time
    u64 full[STAGES], empty[STAGES];
};

__device__ static void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
__device__ static u64 descriptor(const void *p)
{
    return (u64)(smem_addr(p) & 0x3ffff) >> 4 | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62;
}
__device__ static void wgmma(float d[64], u64 a, u64 b)
{
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, 0, 0; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),
          "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),
          "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),
          "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),
          "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),
          "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b));
}

__device__ static void produce(shared_memory &s, const CUtensorMap &A, const CUtensorMap &B, int k_tiles,
                               u32 rank)
{
    for (int k = 0; k < k_tiles; k++) {
        const int stage = k % STAGES, round = k / STAGES;
        const u32 full = smem_addr(&s.full[stage]);
        bar_wait(smem_addr(&s.empty[stage]),
                 (round & 1) ^ 1); // both blocks of the cluster have read the stage
        bar_expect(full, sizeof s.A[0] + sizeof s.B[0]);
        tensor_in(s.A[stage], &A, k * BLOCK_K, blockIdx.y * BLOCK_M, full);
        // Each block loads half of B's tile, for both.
        tensor_in_multicast(s.B[stage] + rank * BLOCK_N / 2 * BLOCK_K, &B, k * BLOCK_K,
                            blockIdx.x * BLOCK_N + rank * BLOCK_N / 2, full, 3);
    }
}

__device__ static void release(shared_memory &s, int stage)
{
    if (threadIdx.x % 128 < CLUSTER) bar_arrive(mapa(&s.empty[stage], threadIdx.x % 128));
}

__device__ static void consume(shared_memory &s, const CUtensorMap &C, int k_tiles)
{
    float d[64];
    const u32 t = threadIdx.x % 128;
    for (int i = 0; i < 64; i++) d[i] = 0;
    for (int k = 0; k < k_tiles; k++) {
        const int stage = k % STAGES;
        bar_wait(smem_addr(&s.full[stage]), k / STAGES & 1);
        for (int i = 0; i < 64; i++) asm volatile("" : "+f"(d[i])::"memory");
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int i = 0; i < BLOCK_K / 16; i++)
            wgmma(d, descriptor(s.A[stage]) + 2 * i, descriptor(s.B[stage]) + 2 * i);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        for (int i = 0; i < 64; i++) asm volatile("" : "+f"(d[i])::"memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (k) release(s, (k - 1) % STAGES);
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < 64; i++) asm volatile("" : "+f"(d[i])::"memory");
    release(s, (k_tiles - 1) % STAGES);
    for (int part = 0; part < BLOCK_N / 32; part++) {
        if (part) {
            if (t == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
            asm volatile("bar.sync 1, 128;" ::: "memory");
        }
        for (int i = 0; i < 16; i++) {
            const u32 row = 16 * (t / 32) + t % 32 / 4 + 8 * (i >> 1 & 1),
                      col = 2 * (t % 4) + (i & 1) + 8 * (i >> 2);
            s.C[row * 32 + col] = d[16 * part + i];
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync 1, 128;" ::: "memory");
        if (t == 0) {
            asm volatile(
                "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&C),
                "r"((int)blockIdx.x * BLOCK_N + 32 * part), "r"((int)blockIdx.y * BLOCK_M),
                "r"(smem_addr(s.C))
                : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        }
    }
    if (t == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

__global__ void __cluster_dims__(1, CLUSTER, 1) __launch_bounds__(256)
    matmul(const __grid_constant__ CUtensorMap A, const __grid_constant__ CUtensorMap B,
           const __grid_constant__ CUtensorMap C, int k_tiles)
{
    extern __shared__ __align__(1024) u8 raw[];
    shared_memory &s = *(shared_memory *)raw;
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(smem_addr(&s.full[i])) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_addr(&s.empty[i])),
                         "r"((u32)CLUSTER)
                         : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) produce(s, A, B, k_tiles, rank);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 256;");
        consume(s, C, k_tiles);
    }
    cluster_sync();
}

static CUtensorMap map_of(void *p, bool is_float, u64 rows, u64 cols, u32 box_rows, u32 box_cols)
{
    CUtensorMap map;
    const u64 dims[2] = {cols, rows}, strides[1] = {cols * (is_float ? 4 : 2)};
    const u32 box[2] = {box_cols, box_rows}, step[2] = {1, 1};
    if (encode_map(&map, is_float ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, p,
                   dims, strides, box, step,
                   is_float ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B))
        exit(3);
    return map;
}

int main(int argc, char **argv)
{
    const int m = argc > 3 ? atoi(argv[1]) : 200, n = argc > 3 ? atoi(argv[2]) : 264,
              k = argc > 3 ? atoi(argv[3]) : 328;
    u16 *a = (u16 *)malloc(m * k * 2), *b = (u16 *)malloc(n * k * 2), *device_a, *device_b;
    float *c = (float *)malloc(m * n * 4), *device_c;
    // Small integers: exact in bf16, and so are the sums in f32.
    const u16 values[] = {0, 0x3f80, 0x4000, 0x4040, 0xbf80, 0xc000, 0xc040, 0x4080};
    const float numbers[] = {0, 1, 2, 3, -1, -2, -3, 4};
    u8 *ia = (u8 *)malloc(m * k), *ib = (u8 *)malloc(n * k);
    for (int i = 0; i < m * k; i++) a[i] = values[ia[i] = random_u64() % 8];
    for (int i = 0; i < n * k; i++) b[i] = values[ib[i] = random_u64() % 8];
    CUDA_CHECK(cudaMalloc((void **)&device_a, m * k * 2));
    CUDA_CHECK(cudaMalloc((void **)&device_b, n * k * 2));
    CUDA_CHECK(cudaMalloc((void **)&device_c, m * n * 4));
    CUDA_CHECK(cudaMemcpy(device_a, a, m * k * 2, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(device_b, b, n * k * 2, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemset(device_c, 0xff, m * n * 4));
    CUDA_CHECK(
        cudaFuncSetAttribute(matmul, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(shared_memory)));
    const int rows = (m + BLOCK_M - 1) / BLOCK_M;
    matmul<<<dim3((n + BLOCK_N - 1) / BLOCK_N, (rows + CLUSTER - 1) / CLUSTER * CLUSTER), 256,
             sizeof(shared_memory)>>>(map_of(device_a, false, m, k, BLOCK_M, BLOCK_K),
                                      map_of(device_b, false, n, k, BLOCK_N / 2, BLOCK_K),
                                      map_of(device_c, true, m, n, BLOCK_M, 32), (k + BLOCK_K - 1) / BLOCK_K);
    check_begin("matmul");
    if (!launched("matmul")) return 1;
    CUDA_CHECK(cudaMemcpy(c, device_c, m * n * 4, cudaMemcpyDeviceToHost));
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int q = 0; q < k; q++) sum += numbers[ia[i * k + q]] * numbers[ib[j * k + q]];
            check(i * n + j, c[i * n + j] == sum, 1);
        }
    return check_end("matmul");
}
