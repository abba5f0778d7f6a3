// A row of a matrix as 16-byte packs, wherever the row begins.
//
// Loads and stores of 16 bytes want addresses that are multiples of 16, and rows of an odd length begin
// anywhere. So a row is covered by the aligned packs that hold a part of it. The first and the last may
// belong partly to the neighbouring rows; these two are moved element by element.
//
//      a row of 11 bf16 that begins 3 elements into a pack:  skip = 3, count = 2, full packs [1, 1)
//
//      |n n n r r r r r|r r r r r r n n|        n: a neighbour's
//       pack 0          pack 1
#pragma once
#include "../../common/device/pack.cuh"
#include "../../common/device/ptx.cuh"

#include <stdint.h>

template <typename T>
struct Row {
    T *data;
    int cols;
    int skip;                 // elements of pack 0 before the row
    int count;                // packs
    int full_begin, full_end; // packs [full_begin, full_end) hold the row and nothing else
    int load_end; // packs [full_begin, load_end) may be loaded whole: past full_end is what first_cols cut off
};

template <typename T>
__device__ inline Row<T> make_row(T *data, int cols)
{
    Row<T> row;
    row.data = data;
    row.cols = cols;
    row.skip = (int)((uintptr_t)data % PACK_BYTES / sizeof(T));
    row.count = (int)(((unsigned)row.skip + (unsigned)cols + PACK<T> - 1) / PACK<T>);
    row.full_begin = row.skip > 0;
    row.full_end = row.load_end = (int)(((unsigned)row.skip + (unsigned)cols) / PACK<T>);
    return row;
}

// The same place in another matrix of the same shape, which begins at a multiple of 16 bytes too.
template <typename T, typename U>
__device__ inline Row<T> same_row(const Row<U> &row, T *matrix, size_t offset)
{
    return {matrix + offset, row.cols, row.skip, row.count, row.full_begin, row.full_end, row.load_end};
}

// The first `cols` columns of a row.
template <typename T>
__device__ inline Row<T> first_cols(const Row<T> &row, int cols)
{
    const unsigned end = (unsigned)row.skip + (unsigned)cols;
    const int count = (int)((end + PACK<T> - 1) / PACK<T>);
    return {row.data, cols, row.skip, count, row.full_begin, (int)(end / PACK<T>), min(count, row.full_end)};
}

// The most packs that a row of a (rows, cols) matrix can have; the matrix begins at a multiple of 16 bytes.
template <typename T>
constexpr int max_packs(int cols)
{
    return cols % PACK<T> == 0 ? cols / PACK<T> : (int)(((unsigned)cols + 2 * PACK<T> - 2) / PACK<T>);
}

// How many of a row's packs each of `split` blocks takes: whole lines of 128 bytes, so that no two read the same sector.
__host__ __device__ constexpr int packs_each(int packs, int split)
{
    return ((packs - 1) / split / 8 + 1) * 8;
}

// The column of a pack's first element; negative in a pack 0 that a neighbour begins.
template <typename T>
__device__ inline int pack_col(const Row<T> &row, int p)
{
    return p * PACK<T> - row.skip;
}

// The largest element of a pack; of bf16 two at a time, without unpacking.
__device__ inline float pack_max(uint4 pack, float)
{
    return fmaxf(fmaxf(__uint_as_float(pack.x), __uint_as_float(pack.y)),
                 fmaxf(__uint_as_float(pack.z), __uint_as_float(pack.w)));
}

__device__ inline __nv_bfloat162 as_pair(uint32_t word)
{
    return *reinterpret_cast<__nv_bfloat162 *>(&word);
}

__device__ inline float pack_max(uint4 pack, __nv_bfloat16)
{
    const __nv_bfloat162 pair =
        __hmax2(__hmax2(as_pair(pack.x), as_pair(pack.y)), __hmax2(as_pair(pack.z), as_pair(pack.w)));
    return fmaxf(__low2float(pair), __high2float(pair));
}

template <typename T>
__device__ inline bool is_full(const Row<T> &row, int p)
{
    return p >= row.full_begin && p < row.full_end;
}

template <typename T>
__device__ inline bool is_loadable(const Row<T> &row, int p)
{
    return p >= row.full_begin && p < row.load_end;
}

// A pack with `outside` for what is not the row's.
template <typename T>
__device__ inline uint4 only_row(const Row<T> &row, int p, uint4 pack, float outside)
{
    float values[PACK<T>];
    unpack(values, pack, T());
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) {
        const int col = pack_col(row, p) + k;
        if (col < 0 || col >= row.cols) values[k] = outside;
    }
    return make_pack(values, T());
}

// The pack's elements one by one; `outside` stands for those that are not the row's.
template <typename T>
__device__ inline uint4 load_edge(const Row<T> &row, int p, float outside)
{
    float values[PACK<T>];
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) {
        const int col = pack_col(row, p) + k;
        values[k] = col >= 0 && col < row.cols ? to_float(row.data[col]) : outside;
    }
    return make_pack(values, T());
}

template <typename T>
__device__ inline void store_edge(const Row<T> &row, int p, uint4 pack)
{
    float values[PACK<T>];
    unpack(values, pack, T());
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) {
        const int col = pack_col(row, p) + k;
        if (col >= 0 && col < row.cols) from_float(&row.data[col], values[k]);
    }
}

template <typename T>
__device__ inline uint4 *pack_address(const Row<T> &row, int p)
{
    return (uint4 *)(row.data - row.skip) + p; // only written to when T is not const
}

// One pack of the row, which stays in the caches for a second reader.
template <typename T>
__device__ inline uint4 load_pack(const Row<T> &row, int p, float outside)
{
    return is_full(row, p) ? *pack_address(row, p) : load_edge(row, p, outside);
}

// EVICT_FIRST, here and below (ld.cs, st.cs): what is read once and written once leaves the L2 to what is read again. Where nothing
// is, it is only slower, and the packs that go to registers are loaded as the last that the L2 evicts (as load_piece_streamed, pack.cuh).
template <bool EVICT_FIRST = true, typename T>
__device__ inline void store_pack(const Row<T> &row, int p, uint4 pack)
{
    if (!is_full(row, p))
        store_edge(row, p, pack);
    else if (EVICT_FIRST)
        __stcs(pack_address(row, p), pack);
    else
        *pack_address(row, p) = pack;
}

// The packs of a row that a thread keeps: `first`, first + 32, ..., PACKS of them, as far as they are below `end`. A
// warp's packs are neighbours, and their addresses differ by constants, which take no registers.
//
//      warp 0: packs 0 to 32 * PACKS - 1, 32 at a time      warp 1: the next 32 * PACKS      ...
template <int PACKS>
__device__ inline int first_pack(int begin, int thread)
{
    return begin + thread / 32 * (32 * PACKS) + thread % 32;
}

// Which of the thread's packs p is; PACKS when it is another's.
template <int PACKS>
__device__ inline int pack_index(int first, int end, int p)
{
    const int ahead = p - first;
    return p < end && ahead >= 0 && ahead < 32 * PACKS && ahead % 32 == 0 ? ahead / 32 : PACKS;
}

// A thread's packs into registers. All full ones are asked for before anything waits; then come the first and the last of the row.
template <int PACKS, bool EVICT_FIRST = true, typename T>
__device__ inline void load_packs(uint4 (&frag)[PACKS], const Row<T> &row, int first, int end, float outside)
{
    float nothing[PACK<T>];
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) nothing[k] = outside;
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const int p = first + 32 * i;
        frag[i] = make_pack(nothing, T());
        if (p < end && is_loadable(row, p))
            frag[i] = EVICT_FIRST ? __ldcs(pack_address(row, p))
                                  : ld_global_cache_hint(pack_address(row, p), createpolicy_evict_last());
    }
    if (row.load_end > row.full_end) { // the last pack of a row that was cut
        const int index = pack_index<PACKS>(first, end, row.full_end);
#pragma unroll
        for (int i = 0; i < PACKS; i++)
            if (i == index) frag[i] = only_row(row, row.full_end, frag[i], outside);
    }
    if (row.full_begin == 0 && row.load_end == row.count) return;
#pragma unroll 1
    for (int edge = 0; edge < 2; edge++) {
        const int p = edge ? row.count - 1 : 0;
        const int index = pack_index<PACKS>(first, end, p);
        if (index == PACKS || is_loadable(row, p)) continue;
        const uint4 pack = load_edge(row, p, outside);
#pragma unroll
        for (int i = 0; i < PACKS; i++)
            if (i == index) frag[i] = pack;
    }
}

// What `value(pack, p)` makes of each of the same packs to the row.
template <int PACKS, bool EVICT_FIRST = true, typename T, typename Value>
__device__ inline void store_packs(const Row<T> &row, int first, int end, const uint4 (&frag)[PACKS],
                                   Value value)
{
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const int p = first + 32 * i;
        if (p >= end || !is_full(row, p)) continue;
        if (EVICT_FIRST)
            __stcs(pack_address(row, p), value(frag[i], p));
        else
            *pack_address(row, p) = value(frag[i], p);
    }
    if (row.full_begin == 0 && row.full_end == row.count) return;
#pragma unroll 1
    for (int edge = 0; edge < 2; edge++) {
        const int p = edge ? row.count - 1 : 0;
        const int index = pack_index<PACKS>(first, end, p);
        if (index == PACKS || is_full(row, p)) continue;
        uint4 pack = frag[0];
#pragma unroll
        for (int i = 1; i < PACKS; i++)
            if (i == index) pack = frag[i];
        store_edge(row, p, value(pack, p));
    }
}

// A block's part of a row in shared memory, packs [begin, end) of it. Each warp has packs that are neighbours, and each
// thread every 32nd of them, from `first` to below `last`: only the thread itself reads what it copied, so that no
// barrier is needed.
//
//      warp 0: packs begin to begin + each - 1, 32 at a time      warp 1: the next `each`      ...
struct Part {
    uint4 *smem; // pack p is smem[p - begin]
    int begin;
    int first, last;
};

__device__ inline Part make_part(uint4 *smem, int begin, int end)
{
    const int warps = blockDim.x / 32;
    const int warp = threadIdx.x / 32;
    const int each = ((end - begin - 1) / (32 * warps) + 1) * 32;
    const int warp_begin = begin + warp * each;
    return {smem, begin, warp_begin + (int)threadIdx.x % 32, min(warp_begin + each, end)};
}

// Whether pack p is this thread's.
__device__ inline bool has_pack(const Part &part, int p)
{
    return p >= part.first && p < part.last && (p - part.first) % 32 == 0;
}

// Starts to copy the thread's packs of the row, past the registers; edges go one by one.
template <bool EVICT_FIRST = true, typename T>
__device__ inline void fetch_part(const Part &part, const Row<T> &row, float outside)
{
    for (int p = part.first; p < min(part.last, row.count); p += 32) {
        const uint32_t dst_addr = smem_addr(&part.smem[p - part.begin]);
        if (!is_loadable(row, p))
            part.smem[p - part.begin] = load_edge(row, p, outside);
        else if (EVICT_FIRST)
            cp_async_cg_16_cache_hint(dst_addr, pack_address(row, p), createpolicy_evict_first());
        else
            cp_async_cg_16(dst_addr, pack_address(row, p), PACK_BYTES);
    }
    cp_async_commit_group();
}

// Waits for the thread's packs, and cuts off what is not the row's.
template <typename T>
__device__ inline void wait_part(const Part &part, const Row<T> &row, float outside)
{
    cp_async_wait_group<0>();
    const int p = row.full_end;
    if (row.load_end > p && has_pack(part, p))
        part.smem[p - part.begin] = only_row(row, p, part.smem[p - part.begin], outside);
}
