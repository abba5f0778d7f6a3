// Attention forward and backward on random data, by libcookbook_attention.a: main is all that it takes. Every row of P sums up to 1, so
// dO and dV = Pᵀ dO have the same sum, but for rounding; and Q dQ and K dK have that of S dS.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cookbook_attention.h"

enum {
    BATCH = 2,
    LEN = 200,
    HEADS = 4,
    KV_HEADS = 2,
    D = 128,
    Q_SIZE = BATCH * LEN * HEADS * D,
    K_SIZE = BATCH * LEN * KV_HEADS * D
};

// Memory for `size` bf16 numbers between -1 and 1.
static void *random_array(int size)
{
    unsigned short *array;
    if (cudaMallocManaged((void **)&array, size * sizeof *array, cudaMemAttachGlobal) != cudaSuccess) exit(1);
    for (int i = 0; i < size; i++) {
        const float x = (float)rand() / RAND_MAX * 2 - 1;
        memcpy(&array[i], (const char *)&x + 2, 2); // the upper half of an fp32 number
    }
    return array;
}

static float number(unsigned short bf16)
{
    float x = 0;
    memcpy((char *)&x + 2, &bf16, 2);
    return x;
}

// The sum of x[i] y[i], or of x[i].
static double sum(const unsigned short *x, const unsigned short *y, int size)
{
    double sum = 0;
    for (int i = 0; i < size; i++) sum += number(x[i]) * (y ? number(y[i]) : 1);
    return sum;
}

int main(void)
{
    struct cookbook_attention a = {.type = COOKBOOK_BF16,
                                   .batch = BATCH,
                                   .heads = HEADS,
                                   .kv_heads = KV_HEADS,
                                   .head_dim = D,
                                   .q_len = LEN,
                                   .k_len = LEN,
                                   .left = COOKBOOK_UNBOUNDED,
                                   .right = 0};
    a.Q = random_array(Q_SIZE), a.O = random_array(Q_SIZE), a.dO = random_array(Q_SIZE),
    a.dQ = random_array(Q_SIZE);
    a.K = random_array(K_SIZE), a.V = random_array(K_SIZE), a.dK = random_array(K_SIZE),
    a.dV = random_array(K_SIZE);
    a.LSE = random_array(BATCH * LEN * HEADS * 2);
    if (cudaMalloc(&a.workspace, cookbook_attention_workspace_bytes(&a)) != cudaSuccess) return 1;
    const char *error = cookbook_attention_forward(&a, 0);
    if (!error) error = cookbook_attention_backward(&a, 0);
    if (!error && cudaDeviceSynchronize() != cudaSuccess) error = "the kernels failed";
    if (error) return fprintf(stderr, "%s\n", error), 1;
    printf("sum of dO %.1f, of dV %.1f\n", sum(a.dO, NULL, Q_SIZE), sum(a.dV, NULL, K_SIZE));
    printf("sum of Q dQ %.3f, of K dK %.3f\n", sum(a.Q, a.dQ, Q_SIZE), sum(a.K, a.dK, K_SIZE));
    return 0;
}
