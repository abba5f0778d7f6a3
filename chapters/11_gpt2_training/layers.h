// Layers that the configuration lets different chapters compute: products and attention.
#pragma once

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

// Notes that `what` has been launched in `stream`, of so many FLOPs (0: what counts is bytes), for the profile if one is taken.
// Exits on an error of the launch, and names it.
void ran(struct model *model, const char *what, double flops, cudaError_t error, cudaStream_t stream);

// out (rows, OC) = inp (rows, C) weight (OC, C)^T + bias (OC). In `parts` > 1 out is (parts, rows, OC / parts): each part's
// columns by themselves.
void linear_forward(struct model *model, const void *inp, const void *weight, const void *bias, void *out,
                    int C, int OC, int parts, cudaStream_t stream);

// fc (rows, OC) likewise, gelu = GELU(fc): in the product's epilogue, where products are cuBLAS's.
void linear_gelu_forward(struct model *model, const void *inp, const void *weight, const void *bias, void *fc,
                         void *gelu, int C, int OC, cudaStream_t stream);

// The gradients of linear_forward: dinp (rows, C), dweight (OC, C), and added to what is there dbias (OC).
void linear_backward(struct model *model, const void *inp, const void *weight, const void *dout, void *dinp,
                     float *dweight, float *dbias, int C, int OC, int parts, cudaStream_t stream);

// The same of a layer behind a GELU, and through that: dfc (rows, C), the gradient of fc, where inp was gelu = GELU(fc). In bf16 in the
// product's epilogue.
void linear_gelu_backward(struct model *model, const void *fc, const void *gelu, const void *weight,
                          const void *dout, void *dfc, float *dweight, float *dbias, int C, int OC,
                          cudaStream_t stream);

// logits (rows, padded vocabulary) = norm wte^T. Backward: dnorm and dwte, of the gradient that lies where the logits were.
void logits_forward(struct model *model, const void *norm, cudaStream_t stream);
void logits_backward(struct model *model, const void *norm, void *dnorm, cudaStream_t stream);

// ATT and ATTY of a layer, of its QKV; D_QKV of dout (rows, C). How many parts QKV has: 1, or 3 where Q, K and V lie apart.
int attention_parts(const struct model *model);
void attend_forward(struct model *model, int layer, cudaStream_t stream);
void attend_backward(struct model *model, int layer, const void *dout, cudaStream_t stream);
size_t attention_workspace_bytes(const struct model *model);

#ifdef __cplusplus
}
#endif
