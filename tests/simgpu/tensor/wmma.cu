// wmma as C++ has it: every shape and type, all layouts, loads from global and shared memory, against integers.
#include "../check.h"
#include <cuda_bf16.h>
#include <mma.h>

using namespace nvcuda;
using precision_tf32 = wmma::precision::tf32;

template <class T>
struct memory_of {
    using type = T;
};
template <>
struct memory_of<precision_tf32> {
    using type = float;
};

enum { MATRIX = 2048 * 8 }; // bytes of the largest matrix, with its padding

// D = 2 (A B + C): the factor in the fragment's own elements.
template <int M, int N, int K, class T, class ACC, class LAYOUT_A, class LAYOUT_B, bool IN_SHARED>
__global__ void product_kernel(const typename memory_of<T>::type *A, const typename memory_of<T>::type *B,
                               const ACC *C, ACC *D, wmma::layout_t layout_C, int pad)
{
    using element = typename memory_of<T>::type;
    __shared__ __align__(128) element B_smem[32 * 32];
    const bool A_rows = std::is_same<LAYOUT_A, wmma::row_major>::value;
    const bool B_rows = std::is_same<LAYOUT_B, wmma::row_major>::value;
    const int lda = (A_rows ? K : M) + pad, ldb = (B_rows ? N : K) + pad;
    const int ldc = (layout_C == wmma::mem_row_major ? N : M) + pad;
    if (IN_SHARED) {
        for (int i = threadIdx.x; i < (B_rows ? K : N) * ldb; i += 32) B_smem[i] = B[i];
        __syncwarp();
    }
    wmma::fragment<wmma::matrix_a, M, N, K, T, LAYOUT_A> a;
    wmma::fragment<wmma::matrix_b, M, N, K, T, LAYOUT_B> b;
    wmma::fragment<wmma::accumulator, M, N, K, ACC> c;
    wmma::load_matrix_sync(a, A, lda);
    wmma::load_matrix_sync(b, IN_SHARED ? B_smem : B, ldb);
    wmma::load_matrix_sync(c, C, ldc, layout_C);
    wmma::mma_sync(c, a, b, c);
    for (int i = 0; i < c.num_elements; i++) c.x[i] = c.x[i] + c.x[i];
    wmma::store_matrix_sync(D, c, ldc, layout_C);
}

static int draw_value(bool is_unsigned)
{
    return (int)(random_u64() % 9) - (is_unsigned ? 0 : 4);
}

template <class T>
static T value_of(int v)
{
    return (T)(float)v;
}
template <>
s8 value_of<s8>(int v)
{
    return (s8)v;
}
template <>
u8 value_of<u8>(int v)
{
    return (u8)v;
}
template <>
int value_of<int>(int v)
{
    return v;
}

template <int M, int N, int K, class T, class ACC, class LAYOUT_A, class LAYOUT_B, bool IN_SHARED>
static void product(const char *name)
{
    using element = typename memory_of<T>::type;
    const bool A_rows = std::is_same<LAYOUT_A, wmma::row_major>::value;
    const bool B_rows = std::is_same<LAYOUT_B, wmma::row_major>::value;
    static int A[32 * 16], B[16 * 32], C[32 * 32];
    static element A_host[2048], B_host[2048];
    static ACC C_host[2048];
    u8 *device;
    CUDA_CHECK(cudaMalloc((void **)&device, 4 * MATRIX));
    check_begin(name);
    for (int pad = 0; pad <= 16; pad += 16)
        for (int c_rows = 0; c_rows < 2; c_rows++) {
            for (int i = 0; i < M * K; i++) {
                A[i] = draw_value(std::is_same<T, u8>::value);
                A_host[A_rows ? i / K * (K + pad) + i % K : i % K * (M + pad) + i / K] =
                    value_of<element>(A[i]);
            }
            for (int i = 0; i < K * N; i++) {
                B[i] = draw_value(std::is_same<T, u8>::value);
                B_host[B_rows ? i / N * (N + pad) + i % N : i % N * (K + pad) + i / N] =
                    value_of<element>(B[i]);
            }
            for (int i = 0; i < M * N; i++) {
                C[i] = draw_value(false);
                C_host[c_rows ? i / N * (N + pad) + i % N : i % N * (M + pad) + i / N] = value_of<ACC>(C[i]);
            }
            CUDA_CHECK(cudaMemcpy(device, A_host, sizeof A_host, cudaMemcpyHostToDevice));
            CUDA_CHECK(cudaMemcpy(device + MATRIX, B_host, sizeof B_host, cudaMemcpyHostToDevice));
            CUDA_CHECK(cudaMemcpy(device + 2 * MATRIX, C_host, sizeof C_host, cudaMemcpyHostToDevice));
            product_kernel<M, N, K, T, ACC, LAYOUT_A, LAYOUT_B, IN_SHARED><<<1, 32>>>(
                (element *)device, (element *)(device + MATRIX), (ACC *)(device + 2 * MATRIX),
                (ACC *)(device + 3 * MATRIX), c_rows ? wmma::mem_row_major : wmma::mem_col_major, pad);
            if (!launched(name)) return;
            CUDA_CHECK(cudaMemcpy(C_host, device + 3 * MATRIX, sizeof C_host, cudaMemcpyDeviceToHost));
            for (int i = 0; i < M * N; i++) {
                int want = C[i];
                for (int k = 0; k < K; k++) want += A[i / N * K + k] * B[k * N + i % N];
                const ACC got = C_host[c_rows ? i / N * (N + pad) + i % N : i % N * (M + pad) + i / N];
                check(i, (u64)(s64)(float)got, (u64)(s64)(2 * want));
            }
        }
    CUDA_CHECK(cudaFree(device));
}

// The four pairs of layouts; one of them with B in shared memory.
#define LAYOUTS(M, N, K, T, ACC)                                                                           \
    product<M, N, K, T, ACC, wmma::row_major, wmma::col_major, false>(#M "x" #N "x" #K " " #T " row col"); \
    product<M, N, K, T, ACC, wmma::row_major, wmma::row_major, true>(#M "x" #N "x" #K " " #T " row row");  \
    product<M, N, K, T, ACC, wmma::col_major, wmma::col_major, false>(#M "x" #N "x" #K " " #T " col col"); \
    product<M, N, K, T, ACC, wmma::col_major, wmma::row_major, false>(#M "x" #N "x" #K " " #T " col row");
#define SHAPES(T, ACC) LAYOUTS(16, 16, 16, T, ACC) LAYOUTS(32, 8, 16, T, ACC) LAYOUTS(8, 32, 16, T, ACC)

int main(void)
{
    SHAPES(half, float)
    SHAPES(half, half)
    SHAPES(__nv_bfloat16, float)
    SHAPES(s8, int)
    SHAPES(u8, int)
    LAYOUTS(16, 16, 8, precision_tf32, float)
    LAYOUTS(8, 8, 4, double, double)
    return check_end("wmma");
}
