// Chapter 20's masked recorded in a CUDA graph once and replayed with other counts, which the host writes to the device between the
// launches: rows that are there are the product, the others as they were. Numbers are -1, 0 and 1, so that all sums are exact.
#include <string.h>

#include "../../chapters/20_grouped_gemm/launchers.h"
#include "device.h"

enum { GROUPS = 3, CAPACITY = 140, N = 72, K = 144, CALLS = 5, ROWS = GROUPS * CAPACITY, UNTOUCHED = 0x4242 };

static int digit(int i) // -1, 0 or 1
{
    return (int)((unsigned)i * 2654435761u >> 7) % 3 - 1;
}

int main(void)
{
    static const int counts[CALLS][GROUPS] = {
        {140, 0, 65}, {0, 0, 0}, {1, 140, 64}, {64, 129, 0}, {7, 3, 140}};
    static unsigned char A[ROWS * K], B[GROUPS * N * K];
    static unsigned short D[ROWS * N], got[CALLS][ROWS * N]; // bf16: the upper half of a float
    static float ones[2 * (ROWS + 3)];
    static const unsigned char E4M3[] = {0xb8, 0, 0x38};
    for (int i = 0; i < ROWS * K; i++) A[i] = E4M3[digit(i) + 1];
    for (int i = 0; i < GROUPS * N * K; i++) B[i] = E4M3[digit(i + 77777) + 1];
    for (int i = 0; i < ROWS * N; i++) D[i] = UNTOUCHED;
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++) ones[i] = 1;
    void *d_A = upload(A, sizeof A), *d_B = upload(B, sizeof B), *d_D = upload(D, sizeof D);
    float *d_ones = upload(ones, sizeof ones);
    int *d_counts = upload(NULL, sizeof counts[0]), wrong = 0;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check(cudaStreamCreate(&stream));
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    check(masked(d_A, d_B, d_ones, d_ones, d_counts, d_D, CAPACITY, 50, N, K, GROUPS, stream));
    check(cudaStreamEndCapture(stream, &graph));
    check(cudaGraphInstantiate(&exec, graph, 0));
    for (int call = 0; call < CALLS; call++) {
        check(cudaMemcpyAsync(d_counts, counts[call], sizeof counts[0], cudaMemcpyHostToDevice, stream));
        check(cudaMemcpyAsync(d_D, D, sizeof D, cudaMemcpyHostToDevice, stream));
        check(cudaGraphLaunch(exec, stream));
        check(cudaMemcpyAsync(got[call], d_D, sizeof D, cudaMemcpyDeviceToHost, stream));
    }
    check(cudaStreamSynchronize(stream));
    for (int call = 0; call < CALLS; call++)
        for (int row = 0; row < ROWS; row++)
            for (int col = 0; col < N; col++) {
                const int group = row / CAPACITY;
                float sum = 0;
                unsigned bits;
                for (int k = 0; k < K; k++)
                    sum += (float)(digit(row * K + k) * digit((group * N + col) * K + k + 77777));
                memcpy(&bits, &sum, 4);
                wrong += got[call][row * N + col] !=
                         (row % CAPACITY < counts[call][group] ? bits >> 16 : UNTOUCHED);
            }
    printf("%d of %d elements wrong\n", wrong, CALLS * ROWS * N);
    return 0;
}
