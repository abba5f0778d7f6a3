// wgmma: every element type, both majors, all four swizzles, base offsets, A from registers or shared memory, scales, against
// plain C on the host; and the accumulation bit for bit. Passes on a GPU too.
#include "../check.h"

// ---- Kernels: one an instruction --------------------------------------------------------------------------------------

// Shared memory gets `image`; descriptors count from its start. A's registers, if it has them, come from a_registers.
__device__ static void fill(u8 *smem, const u8 *image)
{
    for (int i = threadIdx.x; i < 65536; i += blockDim.x) smem[i] = image[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
#define DONE                                                       \
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); \
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");

#define WGMMA_KERNEL(NAME, SHAPE, LIST, TYPE, COUNT, A, B, P, TAIL, ...)                                     \
    __global__ void NAME(const u8 *image, u64 a, u64 b, const u32 *a_registers, TYPE *out, int scale)        \
    {                                                                                                        \
        extern __shared__ __align__(1024) u8 smem[];                                                         \
        const u64 start = (u32)__cvta_generic_to_shared(smem) >> 4;                                          \
        TYPE d[COUNT];                                                                                       \
        for (int i = 0; i < COUNT; i++) d[i] = out[threadIdx.x * COUNT + i];                                 \
        fill(smem, image);                                                                                   \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " P ", 0; wgmma.mma_async.sync.aligned." SHAPE " " LIST \
                     ", " A ", " B ", p" TAIL "; }"                                                          \
                     : __VA_ARGS__                                                                           \
                     : "l"(a + start), "l"(b + start), "r"(scale)                                            \
                     : "memory");                                                                            \
        DONE;                                                                                                \
        for (int i = 0; i < COUNT; i++) out[threadIdx.x * COUNT + i] = d[i];                                 \
    }
#define WGMMA_KERNEL_RS(NAME, SHAPE, LIST, TYPE, COUNT, A, B, P, TAIL, ...)                                  \
    __global__ void NAME(const u8 *image, u64 a, u64 b, const u32 *a_registers, TYPE *out, int scale)        \
    {                                                                                                        \
        extern __shared__ __align__(1024) u8 smem[];                                                         \
        const u64 start = (u32)__cvta_generic_to_shared(smem) >> 4;                                          \
        TYPE d[COUNT];                                                                                       \
        u32 r[4];                                                                                            \
        for (int i = 0; i < 4; i++) r[i] = a_registers[threadIdx.x * 4 + i];                                 \
        for (int i = 0; i < COUNT; i++) d[i] = out[threadIdx.x * COUNT + i];                                 \
        fill(smem, image);                                                                                   \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " P ", 0; wgmma.mma_async.sync.aligned." SHAPE " " LIST \
                     ", " A ", " B ", p" TAIL "; }"                                                          \
                     : __VA_ARGS__                                                                           \
                     : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "l"(b + start), "r"(scale)                \
                     : "memory");                                                                            \
        DONE;                                                                                                \
        for (int i = 0; i < COUNT; i++) out[threadIdx.x * COUNT + i] = d[i];                                 \
    }

WGMMA_KERNEL(f32_bf16_bf16_n8_0, "m64n8k16.f32.bf16.bf16", "{%0, %1, %2, %3}", float, 4, "%4", "%5", "%6",
             ", 1, 1, 0, 0", "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]))
WGMMA_KERNEL(f32_bf16_bf16_n24_1, "m64n24k16.f32.bf16.bf16",
             "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}", float, 12, "%12", "%13", "%14",
             ", 1, 1, 0, 0", "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
             "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]))
WGMMA_KERNEL(
    f32_bf16_bf16_n64_2, "m64n64k16.f32.bf16.bf16",
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}",
    float, 32, "%32", "%33", "%34", ", 1, 1, 0, 0", "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
    "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
    "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
    "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
    "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]))
WGMMA_KERNEL(
    f32_bf16_bf16_n256_3, "m64n256k16.f32.bf16.bf16",
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}",
    float, 128, "%128", "%129", "%130", ", 1, 1, 0, 0", "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
    "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
    "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
    "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
    "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
    "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
    "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]),
    "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
    "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]),
    "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]),
    "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]),
    "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]),
    "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]),
    "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]),
    "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]),
    "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]),
    "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127]))
WGMMA_KERNEL(
    f32_bf16_bf16_n64_4, "m64n64k16.f32.bf16.bf16",
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}",
    float, 32, "%32", "%33", "%34", ", 1, 1, 1, 1", "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
    "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
    "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
    "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
    "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]))
WGMMA_KERNEL(
    f32_f16_f16_n64_5, "m64n64k16.f32.f16.f16",
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}",
    float, 32, "%32", "%33", "%34", ", 1, 1, 0, 1", "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
    "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
    "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
    "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
    "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]))
WGMMA_KERNEL(f32_f16_f16_n32_6, "m64n32k16.f32.f16.f16",
             "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}", float, 16, "%16",
             "%17", "%18", ", 1, 1, 1, 0", "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]),
             "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
             "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]))
WGMMA_KERNEL(f16_f16_f16_n64_7, "m64n64k16.f16.f16.f16",
             "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}", u32, 16, "%16", "%17",
             "%18", ", -1, 1, 0, 0", "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]),
             "+r"(d[6]), "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]),
             "+r"(d[13]), "+r"(d[14]), "+r"(d[15]))
WGMMA_KERNEL(
    f32_tf32_tf32_n64_8, "m64n64k8.f32.tf32.tf32",
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}",
    float, 32, "%32", "%33", "%34", ", 1, 1", "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]),
    "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),
    "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
    "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),
    "+f"(d[29]), "+f"(d[30]), "+f"(d[31]))
WGMMA_KERNEL(
    f32_e4m3_e4m3_n64_9, "m64n64k32.f32.e4m3.e4m3",
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}",
    float, 32, "%32", "%33", "%34", ", 1, 1", "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]),
    "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),
    "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
    "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),
    "+f"(d[29]), "+f"(d[30]), "+f"(d[31]))
WGMMA_KERNEL(f32_e4m3_e5m2_n32_10, "m64n32k32.f32.e4m3.e5m2",
             "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}", float, 16, "%16",
             "%17", "%18", ", 1, -1", "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
             "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),
             "+f"(d[13]), "+f"(d[14]), "+f"(d[15]))
WGMMA_KERNEL(f16_e5m2_e5m2_n16_11, "m64n16k32.f16.e5m2.e5m2", "{%0, %1, %2, %3}", u32, 4, "%4", "%5", "%6",
             ", 1, 1", "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]))
WGMMA_KERNEL(s32_s8_s8_n32_12, "m64n32k32.s32.s8.s8",
             "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}", u32, 16, "%16", "%17",
             "%18", "", "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]),
             "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]),
             "+r"(d[14]), "+r"(d[15]))
WGMMA_KERNEL(
    s32_u8_s8_n64_13, "m64n64k32.s32.u8.s8",
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}",
    u32, 32, "%32", "%33", "%34", "", "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]),
    "+r"(d[6]), "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]),
    "+r"(d[14]), "+r"(d[15]), "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]),
    "+r"(d[22]), "+r"(d[23]), "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]), "+r"(d[29]),
    "+r"(d[30]), "+r"(d[31]))
WGMMA_KERNEL_RS(
    f32_bf16_bf16_n64_rs_14, "m64n64k16.f32.bf16.bf16",
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}",
    float, 32, "{%32, %33, %34, %35}", "%36", "%37", ", 1, 1, 1", "+f"(d[0]), "+f"(d[1]), "+f"(d[2]),
    "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]),
    "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]),
    "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]),
    "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]))
WGMMA_KERNEL_RS(f32_f16_f16_n32_rs_15, "m64n32k16.f32.f16.f16",
                "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}", float, 16,
                "{%16, %17, %18, %19}", "%20", "%21", ", 1, 1, 0", "+f"(d[0]), "+f"(d[1]), "+f"(d[2]),
                "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
                "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]))
WGMMA_KERNEL_RS(f32_tf32_tf32_n32_rs_16, "m64n32k8.f32.tf32.tf32",
                "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}", float, 16,
                "{%16, %17, %18, %19}", "%20", "%21", ", 1, 1", "+f"(d[0]), "+f"(d[1]), "+f"(d[2]),
                "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
                "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]))
WGMMA_KERNEL_RS(
    f32_e4m3_e4m3_n64_rs_17, "m64n64k32.f32.e4m3.e4m3",
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}",
    float, 32, "{%32, %33, %34, %35}", "%36", "%37", ", 1, 1", "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
    "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
    "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
    "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
    "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]))
WGMMA_KERNEL_RS(s32_s8_u8_n32_rs_18, "m64n32k32.s32.s8.u8",
                "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}", u32, 16,
                "{%16, %17, %18, %19}", "%20", "%21", "", "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]),
                "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]),
                "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]))

// ---- Elements -----------------------------------------------------------------------------------------------------------

enum type { F32_, F16_, BF16_, TF32_, E4M3_, E5M2_, S8_, U8_, S32_ };
static const struct {
    const char *name;
    void *kernel;
    int n, k;
    type d, a, b;
    int in_registers, a_transposed, b_transposed, sign;
} variants[] = {
    {"f32_bf16_bf16_n8_0", (void *)f32_bf16_bf16_n8_0, 8, 16, F32_, BF16_, BF16_, 0, 0, 0, 1},
    {"f32_bf16_bf16_n24_1", (void *)f32_bf16_bf16_n24_1, 24, 16, F32_, BF16_, BF16_, 0, 0, 0, 1},
    {"f32_bf16_bf16_n64_2", (void *)f32_bf16_bf16_n64_2, 64, 16, F32_, BF16_, BF16_, 0, 0, 0, 1},
    {"f32_bf16_bf16_n256_3", (void *)f32_bf16_bf16_n256_3, 256, 16, F32_, BF16_, BF16_, 0, 0, 0, 1},
    {"f32_bf16_bf16_n64_4", (void *)f32_bf16_bf16_n64_4, 64, 16, F32_, BF16_, BF16_, 0, 1, 1, 1},
    {"f32_f16_f16_n64_5", (void *)f32_f16_f16_n64_5, 64, 16, F32_, F16_, F16_, 0, 0, 1, 1},
    {"f32_f16_f16_n32_6", (void *)f32_f16_f16_n32_6, 32, 16, F32_, F16_, F16_, 0, 1, 0, 1},
    {"f16_f16_f16_n64_7", (void *)f16_f16_f16_n64_7, 64, 16, F16_, F16_, F16_, 0, 0, 0, -1},
    {"f32_tf32_tf32_n64_8", (void *)f32_tf32_tf32_n64_8, 64, 8, F32_, TF32_, TF32_, 0, 0, 0, 1},
    {"f32_e4m3_e4m3_n64_9", (void *)f32_e4m3_e4m3_n64_9, 64, 32, F32_, E4M3_, E4M3_, 0, 0, 0, 1},
    {"f32_e4m3_e5m2_n32_10", (void *)f32_e4m3_e5m2_n32_10, 32, 32, F32_, E4M3_, E5M2_, 0, 0, 0, -1},
    {"f16_e5m2_e5m2_n16_11", (void *)f16_e5m2_e5m2_n16_11, 16, 32, F16_, E5M2_, E5M2_, 0, 0, 0, 1},
    {"s32_s8_s8_n32_12", (void *)s32_s8_s8_n32_12, 32, 32, S32_, S8_, S8_, 0, 0, 0, 1},
    {"s32_u8_s8_n64_13", (void *)s32_u8_s8_n64_13, 64, 32, S32_, U8_, S8_, 0, 0, 0, 1},
    {"f32_bf16_bf16_n64_rs_14", (void *)f32_bf16_bf16_n64_rs_14, 64, 16, F32_, BF16_, BF16_, 1, 0, 1, 1},
    {"f32_f16_f16_n32_rs_15", (void *)f32_f16_f16_n32_rs_15, 32, 16, F32_, F16_, F16_, 1, 0, 0, 1},
    {"f32_tf32_tf32_n32_rs_16", (void *)f32_tf32_tf32_n32_rs_16, 32, 8, F32_, TF32_, TF32_, 1, 0, 0, 1},
    {"f32_e4m3_e4m3_n64_rs_17", (void *)f32_e4m3_e4m3_n64_rs_17, 64, 32, F32_, E4M3_, E4M3_, 1, 0, 0, 1},
    {"s32_s8_u8_n32_rs_18", (void *)s32_s8_u8_n32_rs_18, 32, 32, S32_, S8_, U8_, 1, 0, 0, 1},
};

static int bytes_of(type t)
{
    return t == TF32_ ? 4 : t <= BF16_ ? 2 : 1;
}

static double value(type t, u32 bits)
{
    int e, m, mb, bias;
    if (t == S8_) return (s8)bits;
    if (t == U8_) return (u8)bits;
    if (t == TF32_) bits >>= 13;
    mb = t == F16_ || t == TF32_ ? 10 : t == BF16_ ? 7 : t == E4M3_ ? 3 : 2;
    const int eb = t == F16_ || t == E5M2_ ? 5 : t == E4M3_ ? 4 : 8;
    bias = (1 << (eb - 1)) - 1;
    m = bits & ((1 << mb) - 1), e = bits >> mb & ((1 << eb) - 1);
    const double v = e ? ldexp(m + (1 << mb), e - bias - mb) : ldexp(m, 1 - bias - mb);
    return bits >> (mb + eb) & 1 ? -v : v;
}

// Bits of a small number: `exact`, so that any order of adding gives the same; else any normal one about 1.
static u32 draw_element(type t, bool exact)
{
    const u32 r = (u32)random_u64();
    if (t == S8_ || t == U8_) return r & 0xff;
    const int mb = t == F16_ || t == TF32_ ? 10 : t == BF16_ ? 7 : t == E4M3_ ? 3 : 2;
    const int eb = t == F16_ || t == E5M2_ ? 5 : t == E4M3_ ? 4 : 8, bias = (1 << (eb - 1)) - 1;
    const u32 e = (u32)bias + (exact ? r % 2 : r % 7 - 3), m = r >> 8 & ((1u << mb) - 1);
    const u32 v = (r >> 30 & 1) << (eb + mb) | e << mb | (exact ? m & 1u << (mb - 1) : m);
    return t == TF32_ ? v << 13 | (r & 0x1fff) : v; // the low 13 bits of tf32 are ignored
}

// ---- Where an element lies ----------------------------------------------------------------------------------------------

// mode: 0 none, 1, 2, 3: 32, 64, 128 bytes. `row` of M or N, byte kb of the row, which is 32 bytes.
struct layout {
    int mode, transposed;
    u32 start, lbo, sbo, base;
    u32 at(u32 row, u32 k, u32 bytes) const
    {
        const u32 w = 16u << mode, kb = k * bytes, mb = row * bytes;
        u32 a = start;
        if (!transposed)
            a += row / 8 * sbo + (mode ? row % 8 * w + kb : row % 8 * 16 + kb / 16 * lbo + kb % 16);
        else
            a += mode ? mb / w * lbo + mb % w + k % 8 * w + k / 8 * sbo
                      : mb / 16 * sbo + mb % 16 + k % 8 * 16 + k / 8 * lbo;
        return a ^ (((a >> 7) - base) & ((1u << mode) - 1)) << 4;
    }
    u64 descriptor() const
    {
        return start >> 4 | (u64)(lbo >> 4) << 16 | (u64)(sbo >> 4) << 32 | (u64)base << 49 |
               (u64)(mode ? 4 - mode : 0) << 62;
    }
};

static layout make_layout(int mode, int transposed, u32 rows, u32 bytes, u32 start, u32 base)
{
    const u32 w = 16u << mode;
    layout l = {mode, transposed, start, 0, 0, base};
    if (!transposed)
        l.sbo = mode ? 8 * w : 256, l.lbo = mode ? 16 : 128;
    else if (mode)
        l.sbo = 8 * w, l.lbo = 16 * w; // 2 x 8 k's, then the next W bytes of M or N
    else
        l.lbo = 128, l.sbo = 256;
    (void)rows, (void)bytes;
    return l;
}

// ---- One product, as an H200 accumulates -----------------------------------------------------------------------------------

static float truncated(double x, int precision)
{
    int e;
    frexp(x, &e);
    return (float)ldexp(trunc(ldexp(x, precision + 1 - e)), e - precision - 1);
}

static double fused(const double *a, const double *b, int n, double c, bool fp8, bool f16)
{
    const int fraction = fp8 ? 13 : 25;
    int top = c != 0 ? ilogb(c) : -1000;
    for (int k = 0; k < n; k++)
        if (a[k] != 0 && b[k] != 0 && ilogb(a[k]) + ilogb(b[k]) > top) top = ilogb(a[k]) + ilogb(b[k]);
    double sum = trunc(ldexp(c, fraction - top));
    for (int k = 0; k < n; k++) sum += trunc(ldexp(a[k] * b[k], fraction - top));
    sum = ldexp(sum, top - fraction);
    return f16 ? sum : truncated(sum, fp8 ? 13 : 23);
}

static double of_f16(u32 h)
{
    return value(F16_, h & 0xffff);
}

static u8 image[65536], *device_image;
static u32 a_bits[64][32], b_bits[256][32], registers[128][4], start_out[128 * 128], out[128 * 128];
static u32 *device_registers, *device_out;

template <class V>
static void run(const V &v, int a_mode, int b_mode, u32 base, bool exact, bool adds)
{
    const u32 size_a = bytes_of(v.a), size_b = bytes_of(v.b), count = v.n / (v.d == F16_ ? 4 : 2);
    const layout a = make_layout(a_mode, v.a_transposed, 64, size_a, base * 128, a_mode ? base : 0);
    const layout b = make_layout(b_mode, v.b_transposed, v.n, size_b, 16384 + base * 128, b_mode ? base : 0);
    for (auto &x : image) x = (u8)random_u64();
    for (u32 i = 0; i < 64; i++)
        for (int k = 0; k < v.k; k++) {
            a_bits[i][k] = draw_element(v.a, exact);
            memcpy(image + a.at(i, k, size_a), &a_bits[i][k], size_a);
        }
    for (int i = 0; i < v.n; i++)
        for (int k = 0; k < v.k; k++) {
            b_bits[i][k] = draw_element(v.b, exact);
            memcpy(image + b.at(i, k, size_b), &b_bits[i][k], size_b);
        }
    const u32 each = 4 / size_a;
    for (u32 t = 0; t < 128; t++)
        for (u32 r = 0; r < 4; r++) {
            registers[t][r] = 0;
            for (u32 q = 0; q < each; q++)
                registers[t][r] |=
                    a_bits[16 * (t / 32) + t % 32 / 4 + 8 * (r & 1)][each * (t % 4) + q + 4 * each * (r >> 1)]
                    << 8 * size_a * q;
        }
    for (auto &x : start_out) {
        const int s = (int)(random_u64() % 65) - 32;
        const float f = exact ? (float)s : (float)s / 7;
        memcpy(&x, &f, 4);
        if (v.d == S32_) x = (u32)s * 1000;
        if (v.d == F16_) x = 0x3c00u << 16 | 0xc000u; // 1 and -2
    }
    CUDA_CHECK(cudaMemcpy(device_image, image, sizeof image, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(device_registers, registers, sizeof registers, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(device_out, start_out, sizeof out, cudaMemcpyHostToDevice));
    u64 da = a.descriptor(), db = b.descriptor();
    int scale = adds;
    void *args[] = {&device_image, &da, &db, &device_registers, &device_out, &scale};
    CUDA_CHECK(cudaFuncSetAttribute(v.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
    CUDA_CHECK(cudaLaunchKernel(v.kernel, dim3(1), dim3(128), args, 65536, 0));
    if (!launched(v.name)) exit(1);
    CUDA_CHECK(cudaMemcpy(out, device_out, sizeof out, cudaMemcpyDeviceToHost));
    check_begin(v.name);
    for (u32 t = 0; t < 128; t++)
        for (u32 e = 0; e < (u32)v.n / 2; e++) { // D's elements in f32's order
            const u32 row = 16 * (t / 32) + t % 32 / 4 + 8 * (e >> 1 & 1),
                      col = 2 * (t % 4) + (e & 1) + 8 * (e >> 2);
            const u32 at = v.d == F16_ ? t * count + e / 2 : t * count + e,
                      shift = v.d == F16_ ? 16 * (e & 1) : 0;
            u32 want, c = start_out[at] >> shift;
            double x[32], y[32], sum = 0;
            for (int k = 0; k < v.k; k++)
                x[k] = v.sign * value(v.a, a_bits[row][k]), y[k] = value(v.b, b_bits[col][k]);
            if (v.d == S32_) {
                for (int k = 0; k < v.k; k++) sum += x[k] * y[k];
                want = (u32)((s32)sum + (adds ? (s32)c : 0));
                check(t * 1000 + e, out[at], want);
                continue;
            }
            float cf;
            memcpy(&cf, &c, 4);
            const double c0 = !adds ? 0 : v.d == F16_ ? of_f16(c) : cf;
            sum = fused(x, y, v.k, c0, bytes_of(v.a) == 1, v.d == F16_);
            if (v.d == F16_) {
                check(t * 1000 + e, of_f16(out[at] >> shift) == sum || !exact, 1);
                continue;
            }
            const float f = (float)sum;
            memcpy(&want, &f, 4);
            if (want == 0x80000000) want = 0;
            check(t * 1000 + e, out[at], want);
        }
}

int main(int argc, char **argv)
{
    CUDA_CHECK(cudaMalloc((void **)&device_image, sizeof image));
    CUDA_CHECK(cudaMalloc((void **)&device_registers, sizeof registers));
    CUDA_CHECK(cudaMalloc((void **)&device_out, sizeof out));
    for (const auto &v : variants)
        for (int mode = 0; mode < 4; mode++)
            for (u32 base = 0; base < (mode ? 3 : 1); base++) {
                run(v, mode, 3 - mode, 0, true, base & 1);
                run(v, mode, mode, base, true, true);
                if (argc < 2) run(v, mode, mode, base, false, true); // argument: exact sums only
            }
    return check_end("wgmma");
}
