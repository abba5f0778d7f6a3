// Chapter 18's delayed scaling recorded in a CUDA graph once and replayed on tensors that grow, shrink, vanish and overflow: the host
// writes them and reads nothing until the end. The scale of every call is compared with the definition.
#include <math.h>

#include "../../chapters/18_fp8_quantization/launchers.h"
#include "device.h"

enum { N = 4099, CALLS = 12, LENGTH = 3 };

int main(void)
{
    static unsigned short x[CALLS][N]; // bf16: the upper half of a float
    const float largest[CALLS] = {1, 2, 4, 0.5f, 0.25f, 0.5f, 0.5f, INFINITY, 8, 1, 0, 0};
    float scale = 1, history[LENGTH] = {0}, one = 1, used[CALLS], *d_used = upload(NULL, sizeof used);
    struct delayed_state state = {upload(&one, 4), upload(NULL, sizeof history), upload(NULL, 4), LENGTH};
    void *d_x = upload(NULL, sizeof x[0]), *out = upload(NULL, N);
    float *d_one = upload(NULL, 4);
    int wrong = 0;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check(cudaStreamCreate(&stream));
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    check(delayed(E4M3, d_x, out, d_one, N, state, 0, false, stream));
    check(cudaStreamEndCapture(stream, &graph));
    check(cudaGraphInstantiate(&exec, graph, 0));
    for (int call = 0; call < CALLS; call++) {
        unsigned bits;
        __builtin_memcpy(&bits, &largest[call], 4);
        for (int i = 0; i < N; i++) x[call][i] = i % 500 == 77 ? bits >> 16 | 0x8000 : 0;
        check(cudaMemcpyAsync(d_x, x[call], sizeof x[0], cudaMemcpyHostToDevice, stream));
        check(cudaGraphLaunch(exec, stream));
        check(cudaMemcpyAsync(&d_used[call], d_one, 4, cudaMemcpyDeviceToDevice, stream));
    }
    check(cudaStreamSynchronize(stream));
    check(cudaMemcpy(used, d_used, sizeof used, cudaMemcpyDeviceToHost));
    for (int call = 0; call < CALLS; call++) {
        wrong += !(used[call] == scale);
        history[call % LENGTH] = largest[call];
        const float amax = fmaxf(history[0], fmaxf(history[1], history[2]));
        if (amax > 0 && isfinite(amax)) scale = amax / 448;
    }
    printf("%d of %d scales wrong, the last is %g\n", wrong, CALLS, used[CALLS - 1]);
    return 0;
}
