// mma.sync on f64: every shape, each element of A, B, C where PTX ISA's fragments have it, against sums on the host. PTX leaves
// the order of the additions open, so a result may be as far off as any order can be.
#include "../check.h"

enum { N = 8 };

// One lane's registers by PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type .f64" and the smaller ones.
template <int M, int K>
__global__ void kernel(const double *A, const double *B, const double *C, double *D)
{
    const int group = threadIdx.x / 4, thread = threadIdx.x % 4;
    double a[M * K / 32], b[N * K / 32], c[M * N / 32], d[M * N / 32];
    for (int i = 0; i < M * K / 32; i++) {
        const int row = M == 8 || i % 2 == 0 ? group : group + 8, column = (M == 8 ? i : i / 2) * 4 + thread;
        a[i] = A[row * K + column];
    }
    for (int i = 0; i < N * K / 32; i++) b[i] = B[(thread + 4 * i) * N + group];
    for (int i = 0; i < M * N / 32; i++) c[i] = C[(group + (i < 2 ? 0 : 8)) * N + thread * 2 + (i & 1)];
    if constexpr (M == 8)
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%4, %5};"
                     : "=d"(d[0]), "=d"(d[1])
                     : "d"(a[0]), "d"(b[0]), "d"(c[0]), "d"(c[1]));
    else if constexpr (K == 4)
        asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
                     "{%7, %8, %9, %10};"
                     : "=d"(d[0]), "=d"(d[1]), "=d"(d[2]), "=d"(d[3])
                     : "d"(a[0]), "d"(a[1]), "d"(b[0]), "d"(c[0]), "d"(c[1]), "d"(c[2]), "d"(c[3]));
    else if constexpr (K == 8)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%10, %11, %12, %13};"
                     : "=d"(d[0]), "=d"(d[1]), "=d"(d[2]), "=d"(d[3])
                     : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]), "d"(c[0]), "d"(c[1]),
                       "d"(c[2]), "d"(c[3]));
    else
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, "
            "%9, %10, %11}, {%12, %13, %14, %15}, {%16, %17, %18, %19};"
            : "=d"(d[0]), "=d"(d[1]), "=d"(d[2]), "=d"(d[3])
            : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]),
              "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]), "d"(c[0]), "d"(c[1]), "d"(c[2]), "d"(c[3]));
    for (int i = 0; i < M * N / 32; i++) D[(group + (i < 2 ? 0 : 8)) * N + thread * 2 + (i & 1)] = d[i];
}

static double draw_double(void)
{
    return (double)(s64)random_u64() * 0x1p-63;
}

template <int M, int K>
static void shape(const char *name)
{
    double host[4][16 * 16], *device;
    check_begin(name);
    CUDA_CHECK(cudaMalloc((void **)&device, sizeof host));
    for (int turn = 0; turn < 20; turn++) {
        for (auto &matrix : host)
            for (double &x : matrix) x = draw_double();
        CUDA_CHECK(cudaMemcpy(device, host, sizeof host, cudaMemcpyHostToDevice));
        kernel<M, K><<<1, 32>>>(device, device + 256, device + 512, device + 768);
        if (!launched(name)) return;
        CUDA_CHECK(cudaMemcpy(host[3], device + 768, sizeof host[3], cudaMemcpyDeviceToHost));
        for (int i = 0; i < M * N; i++) {
            double want = host[2][i], terms = fabs(want);
            for (int k = 0; k < K; k++) {
                const double product = host[0][i / N * K + k] * host[1][k * N + i % N];
                want += product;
                terms += fabs(product);
            }
            check((u64)i, fabs(host[3][i] - want) <= (K + 1) * terms * 0x1p-52, 1);
        }
    }
    CUDA_CHECK(cudaFree(device));
}

int main()
{
    shape<8, 4>("m8n8k4");
    shape<16, 4>("m16n8k4");
    shape<16, 8>("m16n8k8");
    shape<16, 16>("m16n8k16");
    return check_end("mma_f64");
}
