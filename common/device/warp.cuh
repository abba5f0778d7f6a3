// What the lanes of a warp tell each other.
#pragma once

// The sum of the values of lanes 0 to this one. All lanes of the warp call it.
__device__ inline int sum_up_to_lane(int value)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int before = __shfl_up_sync(0xffffffff, value, step);
        if (lane >= step) value += before;
    }
    return value;
}
