// Chapter 16, step 2: scores that a tanh bounds.
//
// Question: Gemma 2 takes c tanh(s / c) for each score s, so that none is above c. What does one more function a score
// cost, where chapter 15 fought for every instruction?
//
// cap_scores: two MUFU instructions, ex2 and rcp, beside the softmax's one: the exponentials' unit, which has 512 cycles of
// work a tile before, has 1,536, more than the products of D = 128. tanh.approx would be one instruction instead of two, with a
// relative error of 2^-11: a score of 30 off by 0.015, and P by 1.5 %. This is a parameter of the template: the kernels
// without it must not carry its branch through the loop.
//
// Grows from: step 1 (window).
// Code: kernel.cuh, cap_scores.
// Run: make chapter-16 OP=softcap
#include "launchers.h"
#include "plan.h"

extern "C" cudaError_t softcap(const struct attention_variant *v, cudaStream_t stream)
{
    return launch_attention(*v, SOFTCAP, stream);
}
