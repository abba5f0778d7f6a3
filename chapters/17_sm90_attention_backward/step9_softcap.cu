// Chapter 17, step 9: scores that went through tanh, and its derivative.
//
// Question: with s' = c tanh(s / c), P is of s', and ds = ds' (1 - tanh^2). tanh is known before the mask and the exponential, and wanted
// behind dP. Who keeps it, when registers are too few for another tile?
//
// Nobody: the derivative depends on P's arguments alone, so P (1 - tanh^2) takes the place of P in fp32, once P is rounded for dV
// (capped_exponentials). dS = P (1 - tanh^2) (dP - dPsum) is then the line that it was. dPsum is as before: it belongs to the softmax, not
// to what its scores are made of.
//
// Grows from: step 8 (window).
// Code: kernel.cuh, cap_scores and capped_exponentials.
// Run: make chapter-17 OP=softcap STEP=softcap
#include "launchers.h"
#include "plan.h"

extern "C" cudaError_t softcap(const attention_variant_backward *b, cudaStream_t stream)
{
    return launch_backward(*b, SOFTCAP, stream);
}
