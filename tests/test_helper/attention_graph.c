// Chapter 9's attention and its backward, recorded in a CUDA graph after a first launch: a replay gives the bits of that launch, of
// other inputs too. Prints how many elements differ.
#include <string.h>

#include "../../chapters/09_cublas_attention/launchers.h"
#include "device.h"

enum { B = 2, T = 37, H = 3, D = 16, ROWS = B * T, WIDTH = H * D };
enum { QKV = ROWS * 3 * WIDTH, OUT = ROWS * WIDTH, ATT = B * H * T * T };

static float *qkv, *out, *att, *datt, *dqkv, *dbias;

static void launch(cudaStream_t stream)
{
    check(attention_reverse(F32, qkv, att, out, NULL, B, T, H, D, stream));
    check(gradient_in_place(F32, qkv, att, out, datt, dqkv, NULL, B, T, H, D, stream));
    check(cudaMemsetAsync(dbias, 0, 3 * WIDTH * sizeof *dbias, stream));
    check(bias_partials(F32, dqkv, dbias, ROWS, 3 * WIDTH, stream));
}

static void set_inputs(unsigned seed)
{
    static float values[QKV];
    srand(seed);
    for (int i = 0; i < QKV; i++) values[i] = (float)rand() / RAND_MAX - 0.5f;
    check(cudaMemcpy(qkv, values, sizeof values, cudaMemcpyHostToDevice));
}

int main(void)
{
    static float expected[3 * WIDTH], got[3 * WIDTH];
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check(cudaMalloc((void **)&qkv, QKV * sizeof *qkv));
    check(cudaMalloc((void **)&out, OUT * sizeof *out));
    check(cudaMalloc((void **)&att, ATT * sizeof *att));
    check(cudaMalloc((void **)&datt, ATT * sizeof *datt));
    check(cudaMalloc((void **)&dqkv, QKV * sizeof *dqkv));
    check(cudaMalloc((void **)&dbias, sizeof expected));
    check(cudaStreamCreate(&stream));
    set_inputs(1);
    launch(stream);
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    launch(stream);
    check(cudaStreamEndCapture(stream, &graph));
    check(cudaGraphInstantiate(&exec, graph, 0));
    for (unsigned seed = 1; seed <= 2; seed++) {
        int differ = 0;
        set_inputs(seed);
        launch(stream);
        check(cudaMemcpy(expected, dbias, sizeof expected, cudaMemcpyDeviceToHost));
        check(cudaMemset(dqkv, 0xff, QKV * sizeof *dqkv));
        check(cudaGraphLaunch(exec, stream));
        check(cudaStreamSynchronize(stream));
        check(cudaMemcpy(got, dbias, sizeof got, cudaMemcpyDeviceToHost));
        for (int i = 0; i < 3 * WIDTH; i++) differ += memcmp(&got[i], &expected[i], sizeof got[i]) != 0;
        printf("%d of %d differ, the first is %g\n", differ, 3 * WIDTH, expected[0]);
    }
    return 0;
}
