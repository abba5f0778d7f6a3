// Root and quotient in one special function each (MUFU) instead of a loop that finds their last bit: without the
// subroutine for numbers that the loop cannot take, whose call costs registers.
#pragma once

// Floating point instructions, sqrt.approx.f32: the root of x with a relative error of at most 2^-23; subnormal numbers
// too.
__device__ inline float sqrt_approx(float x)
{
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Floating point instructions, div.approx.f32: x / y, off by at most 2 ulp for y from 2^-126 to 2^126, to which it is
// held here: no root of a float is larger.
__device__ inline float divide_approx(float x, float y)
{
    return __fdividef(x, y);
}
