// ldmatrix, stmatrix and movmatrix by index codes: element (row, col) of matrix m holds m * 64 + row * 8 + col, so that
// each register half says where it came from.
#include "../check.h"

enum { MATRICES = 4, ROW_BYTES = 16 };

#define LDMATRIX(TRANS, SPACE, ADDRESS, R, P)                                               \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" TRANS SPACE ".b16 {%0, %1, %2, %3}, [%4];" \
                 : "=r"((R)[0]), "=r"((R)[1]), "=r"((R)[2]), "=r"((R)[3])                   \
                 : ADDRESS(P)                                                               \
                 : "memory")
#define LDMATRIX_X2(TRANS, SPACE, ADDRESS, R, P)                                    \
    asm volatile("ldmatrix.sync.aligned.m8n8.x2" TRANS SPACE ".b16 {%0, %1}, [%2];" \
                 : "=r"((R)[0]), "=r"((R)[1])                                       \
                 : ADDRESS(P)                                                       \
                 : "memory")
#define LDMATRIX_X1(TRANS, SPACE, ADDRESS, R, P)                                \
    asm volatile("ldmatrix.sync.aligned.m8n8.x1" TRANS SPACE ".b16 {%0}, [%1];" \
                 : "=r"((R)[0])                                                 \
                 : ADDRESS(P)                                                   \
                 : "memory")
#define STMATRIX(TRANS, SPACE, ADDRESS, R, P)                                                              \
    asm volatile("stmatrix.sync.aligned.m8n8.x4" TRANS SPACE ".b16 [%4], {%0, %1, %2, %3};" ::"r"((R)[0]), \
                 "r"((R)[1]), "r"((R)[2]), "r"((R)[3]), ADDRESS(P)                                         \
                 : "memory")
#define STMATRIX_X2(TRANS, SPACE, ADDRESS, R, P)                                                   \
    asm volatile("stmatrix.sync.aligned.m8n8.x2" TRANS SPACE ".b16 [%2], {%0, %1};" ::"r"((R)[0]), \
                 "r"((R)[1]), ADDRESS(P)                                                           \
                 : "memory")
#define STMATRIX_X1(TRANS, SPACE, ADDRESS, R, P)                                                          \
    asm volatile("stmatrix.sync.aligned.m8n8.x1" TRANS SPACE ".b16 [%1], {%0};" ::"r"((R)[0]), ADDRESS(P) \
                 : "memory")

enum form { X1, X2, X4, X1_TRANS, X2_TRANS, X4_TRANS, X4_GENERIC, FORMS };
static const char *const names[] = {
    "x1", "x2", "x4", "x1.trans", "x2.trans", "x4.trans", "x4, generic address"};

__host__ __device__ static int matrices_of(int form)
{
    return form % 3 == X1 && form != X4_GENERIC ? 1 : form % 3 == X2 ? 2 : 4;
}

// Row r of matrix m starts at pitch * r + 16 * m: as in a tile of four matrices side by side. Lanes that give no row
// address give a bad one.
__global__ void load_kernel(u32 *out, const u16 *codes, int pitch)
{
    __shared__ __align__(128) u8 tile[8 * 256];
    const int lane = threadIdx.x, m = lane / 8, row = lane % 8;
    for (int i = lane; i < 256; i += 32)
        *(u16 *)&tile[i % 64 / 8 * pitch + i / 64 * ROW_BYTES + i % 8 * 2] = codes[i];
    __syncthreads();
    const u8 *p = &tile[row * pitch + m * ROW_BYTES];
    const u32 address = (u32)__cvta_generic_to_shared(p);
    for (int form = 0; form < FORMS; form++) {
        u32 r[MATRICES] = {~0u, ~0u, ~0u, ~0u};
        const u32 used = m < matrices_of(form) ? address : 1;
        switch (form) {
        case X1: LDMATRIX_X1("", ".shared", "r", r, used); break;
        case X2: LDMATRIX_X2("", ".shared", "r", r, used); break;
        case X4: LDMATRIX("", ".shared::cta", "r", r, used); break;
        case X1_TRANS: LDMATRIX_X1(".trans", ".shared", "r", r, used); break;
        case X2_TRANS: LDMATRIX_X2(".trans", ".shared", "r", r, used); break;
        case X4_TRANS: LDMATRIX(".trans", ".shared", "r", r, used); break;
        default: LDMATRIX("", "", "l", r, p);
        }
        for (int k = 0; k < MATRICES; k++) out[(form * MATRICES + k) * 32 + lane] = r[k];
    }
}

__global__ void store_kernel(u16 *out, int pitch)
{
    __shared__ __align__(128) u8 tile[8 * 256];
    const int lane = threadIdx.x, m = lane / 8, row = lane % 8;
    u32 r[MATRICES];
    for (int k = 0; k < MATRICES; k++) {
        const u32 code = k * 64 + lane / 4 * 8 + lane % 4 * 2;
        r[k] = code | (code + 1) << 16;
    }
    u8 *p = &tile[row * pitch + m * ROW_BYTES];
    const u32 address = (u32)__cvta_generic_to_shared(p);
    for (int form = 0; form < FORMS; form++) {
        for (int i = lane; i < 8 * 256; i += 32) tile[i] = 0xee;
        __syncthreads();
        const u32 used = m < matrices_of(form) ? address : 1;
        switch (form) {
        case X1: STMATRIX_X1("", ".shared", "r", r, used); break;
        case X2: STMATRIX_X2("", ".shared", "r", r, used); break;
        case X4: STMATRIX("", ".shared::cta", "r", r, used); break;
        case X1_TRANS: STMATRIX_X1(".trans", ".shared", "r", r, used); break;
        case X2_TRANS: STMATRIX_X2(".trans", ".shared", "r", r, used); break;
        case X4_TRANS: STMATRIX(".trans", ".shared", "r", r, used); break;
        default: STMATRIX("", "", "l", r, p);
        }
        __syncthreads();
        for (int i = lane; i < 256; i += 32)
            out[form * 256 + i] = *(u16 *)&tile[i % 64 / 8 * pitch + i / 64 * ROW_BYTES + i % 8 * 2];
        __syncthreads();
    }
}

__global__ void move_kernel(u32 *out)
{
    const u32 code = threadIdx.x / 4 * 8 + threadIdx.x % 4 * 2, in = code | (code + 1) << 16;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out[threadIdx.x]) : "r"(in));
}

static u32 code_at(int m, int row, int col)
{
    return m * 64 + row * 8 + col;
}

int main(int argc, char **argv)
{
    u8 *device;
    static u16 codes[256], stored[FORMS * 256];
    static u32 loaded[FORMS * MATRICES * 32];
    for (int i = 0; i < 256; i++) codes[i] = (u16)i;
    CUDA_CHECK(cudaMalloc((void **)&device, 65536));
    CUDA_CHECK(cudaMemcpy(device + 32768, codes, sizeof codes, cudaMemcpyHostToDevice));
    if (argc > 1) { // "conflicts": rows 128 bytes apart, all in the same banks; "free": 16 bytes more
        load_kernel<<<1, 32>>>((u32 *)device, (const u16 *)(device + 32768),
                               strcmp(argv[1], "free") ? 128 : 144);
        return !launched(argv[1]);
    }
    for (int pitch = 64; pitch <= 80; pitch += 16) {
        load_kernel<<<1, 32>>>((u32 *)device, (const u16 *)(device + 32768), pitch);
        if (!launched("ldmatrix")) return 1;
        CUDA_CHECK(cudaMemcpy(loaded, device, sizeof loaded, cudaMemcpyDeviceToHost));
        for (int form = 0; form < FORMS; form++) {
            check_begin(names[form]);
            for (int m = 0; m < MATRICES; m++)
                for (int lane = 0; lane < 32; lane++) {
                    const bool trans = form >= X1_TRANS && form <= X4_TRANS;
                    const int row = lane / 4, col = lane % 4 * 2;
                    const u32 low = trans ? code_at(m, col, row) : code_at(m, row, col);
                    const u32 high = trans ? code_at(m, col + 1, row) : code_at(m, row, col + 1);
                    check(m * 32 + lane, loaded[(form * MATRICES + m) * 32 + lane],
                          m < matrices_of(form) ? low | high << 16 : ~0u);
                }
        }
        store_kernel<<<1, 32>>>((u16 *)device, pitch);
        if (!launched("stmatrix")) return 1;
        CUDA_CHECK(cudaMemcpy(stored, device, sizeof stored, cudaMemcpyDeviceToHost));
        for (int form = 0; form < FORMS; form++) {
            check_begin(names[form]);
            for (int i = 0; i < 256; i++) {
                const bool trans = form >= X1_TRANS && form <= X4_TRANS;
                const int m = i / 64, row = i % 64 / 8, col = i % 8;
                const u32 want = trans ? code_at(m, col, row) : code_at(m, row, col);
                check(i, stored[form * 256 + i], m < matrices_of(form) ? want : 0xeeee);
            }
        }
    }
    check_begin("movmatrix");
    move_kernel<<<1, 32>>>((u32 *)device);
    if (!launched("movmatrix")) return 1;
    CUDA_CHECK(cudaMemcpy(loaded, device, 128, cudaMemcpyDeviceToHost));
    for (int lane = 0; lane < 32; lane++)
        check(lane, loaded[lane],
              code_at(0, lane % 4 * 2, lane / 4) | code_at(0, lane % 4 * 2 + 1, lane / 4) << 16);
    return check_end("fragments");
}
