// Lanes of a warp together: shfl (all modes, clamps, segments), vote, match, redux, activemask, elect, in full warps, in
// partial masks and in diverged ones.
#include "../check.h"

enum { LANES = 32 };

// ---- shfl ------------------------------------------------------------------------------------------------------------

// As PTX states it: c holds the clamp in bits 0-4 and the segment mask in bits 8-12; an out-of-range lane keeps its own.
static u32 shfl(int mode, const u32 *a, u32 lane, u32 b, u32 c, bool *in_range)
{
    const u32 bval = b & 31, clamp = c & 31, segment = c >> 8 & 31;
    const u32 max_lane = (lane & segment) | (clamp & ~segment), min_lane = lane & segment;
    int j = 0;
    switch (mode) {
    case 0: // up
        j = (int)lane - (int)bval;
        *in_range = j >= (int)max_lane;
        break;
    case 1: // down
        j = (int)(lane + bval);
        *in_range = j <= (int)max_lane;
        break;
    case 2: // bfly
        j = (int)(lane ^ bval);
        *in_range = j <= (int)max_lane;
        break;
    default: // idx
        j = (int)(min_lane | (bval & ~segment));
        *in_range = j <= (int)max_lane;
    }
    return a[*in_range ? j : (int)lane];
}

// Mode by mode, with b and c from a table, b the same in all lanes or each lane's own.
__global__ void shfl_kernel(u32 *d, const u32 *a, const u32 *b, const u32 *c)
{
    const u32 lane = threadIdx.x, x = a[lane];
    b += blockIdx.x * LANES, c += blockIdx.x, d += blockIdx.x * LANES * 8;
#define SHFL(MODE, K)                                                                                        \
    {                                                                                                        \
        u32 r, p;                                                                                            \
        asm volatile("{ .reg .pred p; shfl.sync." #MODE ".b32 %0|p, %2, %3, %4, -1; selp.u32 %1, 1, 0, p; }" \
                     : "=r"(r), "=r"(p)                                                                      \
                     : "r"(x), "r"(b[lane]), "r"(*c));                                                       \
        d[lane * 8 + 2 * K] = r, d[lane * 8 + 2 * K + 1] = p;                                                \
    }
    SHFL(up, 0)
    SHFL(down, 1)
    SHFL(bfly, 2)
    SHFL(idx, 3)
}

// The lanes of a mask shuffle while the others do something else.
__global__ void shfl_masked_kernel(u32 *d, const u32 *masks)
{
    const u32 mask = masks[blockIdx.x], lane = threadIdx.x;
    u32 x = lane * 3 + 1;
    if (mask >> lane & 1)
        for (u32 step = 1; step < 32; step *= 2) {
            const u32 other = __shfl_xor_sync(mask, x, (int)step);
            if (mask >> (lane ^ step) & 1)
                x = x * 5 + other; // another lane's value is undefined when it is not in mask
        }
    else
        x = x * x;
    d[blockIdx.x * LANES + lane] = x;
}

static void check_shfl(void)
{
    enum { ROUNDS = 256 };
    static u32 a[LANES], b[ROUNDS][LANES], c[ROUNDS], got[ROUNDS][LANES][8];
    const u32 usual[] = {0x1f, 0, 0x1c1f, 0x181f, 0x1c00, 0x1800, 0x1000, 0x101f, 0x1e1f};
    for (u32 i = 0; i < LANES; i++) a[i] = (u32)random_u64();
    for (u32 r = 0; r < ROUNDS; r++) {
        const u32 common = (u32)random_u64() % 33;
        for (u32 i = 0; i < LANES; i++) b[r][i] = r % 2 ? (u32)random_u64() % 40 : common;
        c[r] = r % 3 ? usual[random_u64() % 9] : (u32)(random_u64() & 0x1f1f);
    }
    u32 *a_gmem, *b_gmem, *c_gmem, *d;
    CUDA_CHECK(cudaMalloc((void **)&a_gmem, sizeof a));
    CUDA_CHECK(cudaMalloc((void **)&b_gmem, sizeof b));
    CUDA_CHECK(cudaMalloc((void **)&c_gmem, sizeof c));
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    CUDA_CHECK(cudaMemcpy(a_gmem, a, sizeof a, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(b_gmem, b, sizeof b, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(c_gmem, c, sizeof c, cudaMemcpyHostToDevice));
    shfl_kernel<<<ROUNDS, LANES>>>(d, a_gmem, b_gmem, c_gmem);
    if (launched("shfl")) {
        CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
        const char *names[] = {"shfl.up", "shfl.down", "shfl.bfly", "shfl.idx"};
        for (int mode = 0; mode < 4; mode++) {
            check_begin(names[mode]);
            for (u32 r = 0; r < ROUNDS; r++)
                for (u32 lane = 0; lane < LANES; lane++) {
                    bool in_range;
                    const u32 want = shfl(mode, a, lane, b[r][lane], c[r], &in_range);
                    const u64 where = (u64)c[r] << 32 | b[r][lane] << 8 | lane; // c, b and the lane
                    check(where, got[r][lane][2 * mode + 1], in_range);
                    check(where, got[r][lane][2 * mode], want);
                }
        }
    }
    static u32 masks[64], masked[64][LANES];
    for (int i = 0; i < 64; i++) masks[i] = i < 32 ? 1u << i : (u32)random_u64() | 1;
    masks[63] = ~0u;
    CUDA_CHECK(cudaMemcpy(b_gmem, masks, sizeof masks, cudaMemcpyHostToDevice));
    shfl_masked_kernel<<<64, LANES>>>(d, b_gmem);
    if (!launched("shfl in a mask")) return;
    CUDA_CHECK(cudaMemcpy(masked, d, sizeof masked, cudaMemcpyDeviceToHost));
    check_begin("shfl in a mask");
    for (int k = 0; k < 64; k++) {
        u32 x[LANES];
        for (u32 i = 0; i < LANES; i++) x[i] = masks[k] >> i & 1 ? i * 3 + 1 : (i * 3 + 1) * (i * 3 + 1);
        for (u32 step = 1; step < 32; step *= 2) {
            u32 next[LANES];
            for (u32 i = 0; i < LANES; i++)
                next[i] = (masks[k] >> i & 1) && (masks[k] >> (i ^ step) & 1) ? x[i] * 5 + x[i ^ step] : x[i];
            memcpy(x, next, sizeof x);
        }
        for (u32 i = 0; i < LANES; i++) check((u64)masks[k] << 8 | i, masked[k][i], x[i]);
    }
}

// ---- vote, match, redux, activemask, elect -------------------------------------------------------------------------------

enum { RESULTS = 24 };
__global__ void collective_kernel(u32 *d, const u32 *a, const u64 *wide, const u32 *masks)
{
    const u32 lane = threadIdx.x, mask = masks[blockIdx.x], x = a[blockIdx.x * LANES + lane];
    const u64 y = wide[blockIdx.x * LANES + lane];
    u32 r[RESULTS] = {};
    if (mask >> lane & 1) {
        u32 p;
#define VOTE(MODE, K, NEGATE)                                                                             \
    asm volatile("{ .reg .pred p, q; setp.gt.u32 p, %1, 1; vote.sync." #MODE ".pred q, " NEGATE "p, %2; " \
                 "selp.u32 %0, 1, 0, q; }"                                                                \
                 : "=r"(r[K])                                                                             \
                 : "r"(x), "r"(mask));
        VOTE(all, 0, "")
        VOTE(any, 1, "")
        VOTE(uni, 2, "")
        VOTE(all, 3, "!")
        asm volatile("{ .reg .pred p; setp.gt.u32 p, %1, 1; vote.sync.ballot.b32 %0, p, %2; }"
                     : "=r"(r[4])
                     : "r"(x), "r"(mask));
        asm volatile("match.any.sync.b32 %0, %1, %2;" : "=r"(r[5]) : "r"(x), "r"(mask));
        asm volatile("match.any.sync.b64 %0, %1, %2;" : "=r"(r[6]) : "l"(y), "r"(mask));
        asm volatile("{ .reg .pred p; match.all.sync.b32 %0|p, %2, %3; selp.u32 %1, 1, 0, p; }"
                     : "=r"(r[7]), "=r"(r[8])
                     : "r"(x >> 1), "r"(mask));
        asm volatile("{ .reg .pred p; match.all.sync.b64 %0|p, %2, %3; selp.u32 %1, 1, 0, p; }"
                     : "=r"(r[9]), "=r"(r[10])
                     : "l"(y >> 40), "r"(mask));
#define REDUX(OPERATION, K) \
    asm volatile("redux.sync." #OPERATION " %0, %1, %2;" : "=r"(r[K]) : "r"(x * 0x9e3779b9u), "r"(mask));
        REDUX(add.u32, 11)
        REDUX(add.s32, 12)
        REDUX(min.u32, 13)
        REDUX(max.u32, 14)
        REDUX(min.s32, 15)
        REDUX(max.s32, 16)
        REDUX(and.b32, 17)
        REDUX(or.b32, 18)
        REDUX(xor.b32, 19)
        asm volatile("{ .reg .pred p; elect.sync %0|p, %2; selp.u32 %1, 1, 0, p; }"
                     : "=r"(r[20]), "=r"(p)
                     : "r"(mask));
        r[21] = p;
        r[22] = __reduce_add_sync(mask, lane);
        r[23] = __popc(__ballot_sync(mask, 1));
    }
    for (int i = 0; i < RESULTS; i++) d[(blockIdx.x * LANES + lane) * RESULTS + i] = r[i];
}

static void check_collectives(void)
{
    enum { ROUNDS = 200 };
    static u32 a[ROUNDS][LANES], masks[ROUNDS], got[ROUNDS][LANES][RESULTS];
    static u64 wide[ROUNDS][LANES];
    for (int k = 0; k < ROUNDS; k++) {
        masks[k] = k % 4 == 0 ? ~0u : k % 4 == 1 ? 1u << k % 32 : (u32)random_u64() | 1u << k % 32;
        const u32 range = k % 5 == 0 ? 1 : k % 5 == 1 ? 2 : 6;
        for (int i = 0; i < LANES; i++) {
            a[k][i] = (u32)random_u64() % range + (k % 3 ? 0 : 2);
            wide[k][i] = (u64)a[k][i] << 40 | (random_u64() & 1);
        }
    }
    u32 *a_gmem, *masks_gmem, *d;
    u64 *wide_gmem;
    CUDA_CHECK(cudaMalloc((void **)&a_gmem, sizeof a));
    CUDA_CHECK(cudaMalloc((void **)&wide_gmem, sizeof wide));
    CUDA_CHECK(cudaMalloc((void **)&masks_gmem, sizeof masks));
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    CUDA_CHECK(cudaMemcpy(a_gmem, a, sizeof a, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(wide_gmem, wide, sizeof wide, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(masks_gmem, masks, sizeof masks, cudaMemcpyHostToDevice));
    collective_kernel<<<ROUNDS, LANES>>>(d, a_gmem, wide_gmem, masks_gmem);
    if (!launched("vote, match, redux")) return;
    CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
    const char *names[RESULTS] = {"vote.all",
                                  "vote.any",
                                  "vote.uni",
                                  "vote.all of !p",
                                  "vote.ballot",
                                  "match.any.b32",
                                  "match.any.b64",
                                  "match.all.b32",
                                  "match.all.b32's predicate",
                                  "match.all.b64",
                                  "match.all.b64's predicate",
                                  "redux.add.u32",
                                  "redux.add.s32",
                                  "redux.min.u32",
                                  "redux.max.u32",
                                  "redux.min.s32",
                                  "redux.max.s32",
                                  "redux.and",
                                  "redux.or",
                                  "redux.xor",
                                  "elect.sync's lane",
                                  "elect.sync",
                                  "__reduce_add_sync",
                                  "__ballot_sync"};
    for (int n = 0; n < RESULTS; n++) {
        check_begin(names[n]);
        for (int k = 0; k < ROUNDS; k++) {
            const u32 mask = masks[k];
            u32 ballot = 0, first = 32, sum = 0, least = ~0u, most = 0, all = ~0u, any = 0, parity = 0,
                lanes = 0, count = 0;
            s32 least_s = INT32_MAX, most_s = INT32_MIN;
            bool same32 = true, same64 = true;
            for (u32 i = 0; i < LANES; i++) {
                if (!(mask >> i & 1)) continue;
                if (first == 32) first = i;
                const u32 x = a[k][i] * 0x9e3779b9u;
                ballot |= (u32)(a[k][i] > 1) << i;
                sum += x, all &= x, any |= x, parity ^= x, lanes += i, count++;
                least = x < least ? x : least, most = x > most ? x : most;
                least_s = (s32)x < least_s ? (s32)x : least_s, most_s = (s32)x > most_s ? (s32)x : most_s;
                same32 &= a[k][i] >> 1 == a[k][first] >> 1;
                same64 &= wide[k][i] >> 40 == wide[k][first] >> 40;
            }
            for (u32 i = 0; i < LANES; i++) {
                u32 match32 = 0, match64 = 0;
                for (u32 j = 0; j < LANES; j++)
                    if (mask >> j & 1)
                        match32 |= (u32)(a[k][j] == a[k][i]) << j, match64 |= (u32)(wide[k][j] == wide[k][i])
                                                                              << j;
                const u32 want[RESULTS] = {ballot == mask,
                                           ballot != 0,
                                           ballot == mask || !ballot,
                                           !ballot,
                                           ballot,
                                           match32,
                                           match64,
                                           same32 ? mask : 0,
                                           same32,
                                           same64 ? mask : 0,
                                           same64,
                                           sum,
                                           sum,
                                           least,
                                           most,
                                           (u32)least_s,
                                           (u32)most_s,
                                           all,
                                           any,
                                           parity,
                                           first,
                                           i == first,
                                           lanes,
                                           count};
                check((u64)mask << 8 | i, got[k][i][n], mask >> i & 1 ? want[n] : 0);
            }
        }
    }
}

// activemask where the program's own control flow decides which lanes run together is not defined by CUDA, but it must at
// least contain the lane, and in a converged warp it is everybody.
__global__ void activemask_kernel(u32 *d)
{
    u32 everybody, branch;
    asm volatile("activemask.b32 %0;" : "=r"(everybody));
    if (threadIdx.x % 3 == 0)
        asm volatile("activemask.b32 %0;" : "=r"(branch));
    else
        asm volatile("activemask.b32 %0;" : "=r"(branch));
    d[threadIdx.x * 2] = everybody;
    d[threadIdx.x * 2 + 1] = branch;
}
static void check_activemask(void)
{
    u32 *d, got[48][2];
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    activemask_kernel<<<1, 48>>>(d);
    check_begin("activemask");
    if (!launched("activemask")) return;
    CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
    for (u32 t = 0; t < 48; t++) {
        check(t, got[t][0], t < 32 ? ~0u : 0xffff);
        check(t, got[t][1] >> t % 32 & 1, 1);
    }
}

// A reduction in a function that lanes call from two places: the same instruction, in different calls. And a long stretch in
// which half of the lanes work while the others wait for them, after which they reduce together.
__device__ __noinline__ static u32 total(u32 x)
{
    u32 sum;
    asm volatile("redux.sync.add.u32 %0, %1, -1;" : "=r"(sum) : "r"(x));
    const u32 neighbour = __shfl_xor_sync(~0u, x, 1);
    return sum * 3 + neighbour;
}
__global__ void two_calls_kernel(u32 *d)
{
    const u32 lane = threadIdx.x;
    u32 x;
    if (lane % 3)
        x = total(lane * 5) + 1;
    else
        x = total(lane * 7) + 2;
    if (lane % 2)
        for (u32 i = 0; i < 20000; i++) x = x * 1664525 + 1013904223;
    d[lane] = x ^ total(x);
}
static void check_two_calls(void)
{
    u32 *d, got[LANES], x[LANES], sum = 0;
    CUDA_CHECK(cudaMalloc((void **)&d, sizeof got));
    two_calls_kernel<<<1, LANES>>>(d);
    check_begin("a collective in a function, from two calls");
    if (!launched(check_name)) return;
    CUDA_CHECK(cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
    for (u32 i = 0; i < LANES; i++) sum += i * (i % 3 ? 5 : 7);
    for (u32 i = 0; i < LANES; i++) {
        x[i] = sum * 3 + (i ^ 1) * ((i ^ 1) % 3 ? 5 : 7) + (i % 3 ? 1 : 2);
        if (i % 2)
            for (u32 k = 0; k < 20000; k++) x[i] = x[i] * 1664525 + 1013904223;
    }
    sum = 0;
    for (u32 i = 0; i < LANES; i++) sum += x[i];
    for (u32 i = 0; i < LANES; i++) check(i, got[i], x[i] ^ (sum * 3 + x[i ^ 1]));
}

int main(void)
{
    check_shfl();
    check_collectives();
    check_activemask();
    check_two_calls();
    return check_end("warp");
}
