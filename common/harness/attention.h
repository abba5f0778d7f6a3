// What the attention chapters declare alike: O = softmax(Q Kᵀ / sqrt(d)) V and LSE, their tensors, how a step is launched, and
// PyTorch's scaled_dot_product_attention as the baseline.
#pragma once

#include "../device/attention.h"
#include "../device/attention_variant.h"
#include "chapter.h"

// b batches of q queries and k keys, h heads, g of them with K and V, d numbers a head.
#define ATTENTION_DIMS                         \
    {                                          \
        "b", "q", "k", "h", "g", "d", "causal" \
    }
#define ATTENTION_TENSORS                                                                                \
    {                                                                                                    \
        {"causal", I32, PARAM, ""}, {"Q", RUN_TYPE, IN, "b,q,h,d"}, {"K", RUN_TYPE, IN, "b,k,g,d"},      \
            {"V", RUN_TYPE, IN, "b,k,g,d"}, {"O", RUN_TYPE, OUT, "b,q,h,d"}, {"LSE", F32, OUT, "b,h,q"}, \
    }
#define ATTENTION_FLOPS "4*b*h*q*k*d/(1+causal)"

// Shapes to time: 16384 tokens in sequences of 512 to 16384, H heads of D numbers, without and with the causal mask.
#define ATTENTION_LENGTHS(heads)                                                        \
    "b=32,q=512,k=512," heads, "b=16,q=1024,k=1024," heads, "b=8,q=2048,k=2048," heads, \
        "b=4,q=4096,k=4096," heads, "b=2,q=8192,k=8192," heads, "b=1,q=16384,k=16384," heads
#define ATTENTION_BENCH(H, D)                                 \
    ATTENTION_LENGTHS("h=" #H ",g=" #H ",d=" #D ",causal=0"), \
        ATTENTION_LENGTHS("h=" #H ",g=" #H ",d=" #D ",causal=1")

// What a step is told of the run, whose tensors have the names of ATTENTION_TENSORS.
struct attention attention_of(const struct run *run);

// The same by the names of dimensions, parameters and tensors; what the run's operation does not have is a variant left out.
struct attention_variant attention_variant_of(const struct run *run);

// Draws an I32 tensor of b + 1: where b sequences begin that have q, q / 3, q, q / 3, … rows.
void attention_draw_lengths(const struct run *run, int32_t *values);

// Launches a step whose launcher is an attention_launcher.
cudaError_t attention_launch(any_launcher *launcher, const struct run *run, cudaStream_t stream);

// PyTorch's FLASH and CUDNN backends on the same tensors (sdpa_baseline.h), and what fetches the outputs of either.
cudaError_t attention_sdpa_flash(const struct run *run, cudaStream_t stream);
cudaError_t attention_sdpa_cudnn(const struct run *run, cudaStream_t stream);
cudaError_t attention_sdpa_fetch(const struct run *run, cudaStream_t stream);

// The head dimension of a check_shape's dimensions, and what every kernel needs of the others: NULL, or what it is.
int64_t attention_head_dim(const int64_t *dim);
const char *attention_check_shape(const int64_t *dim);
