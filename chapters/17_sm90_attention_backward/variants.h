// What one attention backward with variants is: the tensors and options that the launchers from step 6 on take.
#pragma once

#include "../../common/device/attention_variant.h"
#include "backward.h"

// The gradients of sum(O ∘ dO). Of `forward`, O and LSE are read: what the forward pass wrote. Of its options window, softcap
// and cu_q with cu_k can be served; head_dim and v_head_dim are equal, 64, 128 or 256.
struct attention_variant_backward {
    struct attention_variant forward;
    const void *dO;     // as Q
    void *dQ;           // as Q; 0 in rows that see no key
    void *dK, *dV;      // as K; 0 in rows that no query sees
    bool deterministic; // dQ is added up in one order, so that every run gives the same bits
    void *workspace;    // attention_backward_variant_bytes()
};

#ifdef __cplusplus
extern "C" {
#endif

// NULL when the sizes and options can be served, else the one that cannot and what it would have to be.
const char *attention_backward_refused(const struct attention_variant_backward *b);

// How many bytes of device memory a launch with these sizes takes besides its tensors.
size_t attention_backward_variant_bytes(const struct attention_variant_backward *b);

// A launcher: starts it in `stream` and returns the launch's error, cudaErrorInvalidValue for what attention_backward_refused
// names. Launches with the same workspace must not overlap.
typedef cudaError_t attention_variant_backward_launcher(const struct attention_variant_backward *b,
                                                        cudaStream_t stream);

#ifdef __cplusplus
}
#endif
