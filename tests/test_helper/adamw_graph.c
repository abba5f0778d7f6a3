// Chapter 10's whole update recorded in a CUDA graph once and replayed for a training of a few steps, two of which overflow: the
// host writes gradients and reads nothing until the end. Compared with AdamW in double.
#include <math.h>

#include "../../chapters/10_adamw_mixed_precision/launchers.h"
#include "device.h"

enum { N = 1003, STEPS = 12, INTERVAL = 4 };

int main(void)
{
    static float grads[STEPS][N], master[N];
    static double param[N], m[N], v[N];
    const struct adamw_settings settings = {0, 0.9f, 0.95f, 1e-8f, 0.1f};
    const float max_norm = 20, lr = 0.01f;
    float scale = 8;
    int good_steps = 0, t = 0;
    srand(1);
    for (int i = 0; i < N; i++) param[i] = master[i] = (float)rand() / RAND_MAX - 0.5f;

    const float one_scale = scale;
    struct update_state state = {upload(&one_scale, 4), upload(NULL, 4), upload(NULL, 4), upload(NULL, 4),
                                 upload(NULL, 12)};
    float *grad = upload(NULL, sizeof grads[0]), *d_master = upload(master, sizeof master);
    float *d_m = upload(NULL, sizeof master), *d_v = upload(NULL, sizeof master), *d_lr = upload(&lr, 4);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check(cudaStreamCreate(&stream));
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    check(update_in_one_pass(F32, grad, NULL, d_master, d_m, d_v, N, d_lr, max_norm, settings, INTERVAL,
                             state, stream));
    check(cudaStreamEndCapture(stream, &graph));
    check(cudaGraphInstantiate(&exec, graph, 0));

    for (int k = 0; k < STEPS; k++) {
        double squares = 0;
        for (int i = 0; i < N; i++) {
            grads[k][i] = ((float)rand() / RAND_MAX - 0.5f) * (k % 3 ? 1 : 10);
            squares += (double)grads[k][i] * grads[k][i];
        }
        const double factor = fmin(1, max_norm / (sqrt(squares) + 1e-6));
        const int overflow = k == 5 || k == 6;
        t += !overflow;
        for (int i = 0; i < N && !overflow; i++) {
            const double g = factor * grads[k][i];
            m[i] = settings.beta1 * m[i] + (1.0 - settings.beta1) * g;
            v[i] = settings.beta2 * v[i] + (1.0 - settings.beta2) * g * g;
            const double c1 = 1 - pow(settings.beta1, t), c2 = 1 - pow(settings.beta2, t);
            param[i] -=
                lr * (m[i] / c1 / (sqrt(v[i] / c2) + settings.epsilon) + settings.weight_decay * param[i]);
        }
        for (int i = 0; i < N; i++) grads[k][i] *= scale;
        if (overflow) grads[k][N - 1] = k == 5 ? INFINITY : NAN;
        good_steps = overflow ? 0 : good_steps + 1;
        if (overflow) scale /= 2;
        if (good_steps == INTERVAL) scale *= 2, good_steps = 0;
        check(cudaMemcpyAsync(grad, grads[k], sizeof grads[k], cudaMemcpyHostToDevice, stream));
        check(cudaGraphLaunch(exec, stream));
    }
    check(cudaStreamSynchronize(stream));

    float d_scale;
    int d_t, d_good_steps;
    check(cudaMemcpy(master, d_master, sizeof master, cudaMemcpyDeviceToHost));
    check(cudaMemcpy(&d_scale, state.scale, 4, cudaMemcpyDeviceToHost));
    check(cudaMemcpy(&d_t, state.steps, 4, cudaMemcpyDeviceToHost));
    check(cudaMemcpy(&d_good_steps, state.good_steps, 4, cudaMemcpyDeviceToHost));
    double worst = 0;
    for (int i = 0; i < N; i++) worst = fmax(worst, fabs(master[i] - param[i]));
    printf("steps %d of %d, scale %g of %g, good %d of %d\n", d_t, t, d_scale, scale, d_good_steps,
           good_steps);
    printf("parameters %s\n", worst < 1e-5 ? "right" : "wrong");
    return 0;
}
