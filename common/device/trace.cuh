// Timelines: trace(EVENT) says what the warp does from here on (trace.h has the events), until its next mark. In the timed
// program it is nothing at all, not even an instruction; -DTRACE (make trace-N) makes it one lane a warp that notes the clock.
//
//      trace(WAIT_FULL);
//      mbarrier_wait(&smem.full[stage], parity);
//      wgmma_fence();                  marks MULTIPLY itself (wgmma.cuh),
//      …
//      wgmma_wait_group<0>();          and this one that no products are in flight any more
//      trace(STORE);
//      …
//      trace(END);
//
// On a GPU a mark is a load, of what the warp stored last, and two stores that nobody waits for; what all of them cost is measured
// with every trace. The compiler keeps a mark in its place among waits, copies and products; arithmetic on registers it may move across.
#pragma once

#ifndef TRACE
#define trace(event)
#else
#define trace(event) trace_mark(TRACE_##event)

#include <cuda_runtime_api.h>

#include "trace.h"

extern "C" void trace_register(const void *log_symbol); // common/harness/trace.c

static __constant__ struct trace_log trace_log; // set by the harness before a launch
static const int trace_registered = (trace_register(&trace_log), 0);

// Special registers, %clock64: cycles of this SM. The simulated GPU counts instructions.
__device__ inline uint64_t clock64_now()
{
    uint64_t clock;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(clock)::"memory");
    return clock;
}

// Special registers, %globaltimer: nanoseconds, the same on every SM. In which steps it moves is left to the GPU.
__device__ inline uint64_t globaltimer_now()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
    return ns;
}

// The first mark of a warp: finds it a place among the traced ones, if it is to be traced.
__device__ inline uint32_t trace_begin(uint32_t block, uint64_t clock)
{
    const struct trace_log &log = trace_log;
    uint32_t sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    // Each block of the simulated GPU has a clock of its own, which begins at 0: only the first of an SM is shown.
    if (sm >= TRACE_SMS || (log.simulated && block != sm)) return TRACE_NOT;
    const uint32_t place = atomicAdd(log.traced, 1);
    if (place >= TRACE_MAX_TRACED) {
        atomicAdd(log.lost, 1);
        return TRACE_NOT;
    }
    struct trace_warp &warp = log.warps[place];
    warp.block = block;
    warp.warp = threadIdx.x / 32;
    warp.sm = sm;
    warp.first_clock = clock;
    warp.first_ns = globaltimer_now();
    return 1 + place;
}

// Lane 0 of each warp notes the event and the time; a producer that is one thread is that lane too (elect_one in tma.cuh). It alone
// knows and changes what belongs to its warp.
__device__ inline void trace_mark(enum trace_event event)
{
    const struct trace_log &log = trace_log;
    if (log.simulated) asm volatile("pmevent 0;"); // What it executes here does not count,
    if (threadIdx.x % 32 == 0 && log.places) {
        const uint64_t clock = clock64_now();
        const uint32_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        const uint64_t number = (uint64_t)block * (blockDim.x / 32) + threadIdx.x / 32;
        if (number >= TRACE_MAX_WARPS) {
            if (event == TRACE_END) atomicAdd(log.lost, 1);
        } else {
            struct trace_place place = log.places[number];
            if (place.traced == 0) place.traced = trace_begin(block, clock);
            if (place.traced != TRACE_NOT) {
                if (place.count < log.records)
                    log.marks[(size_t)(place.traced - 1) * log.records + place.count] = clock << 8 | event;
                place.count++;
                if (event == TRACE_END) {
                    struct trace_warp &warp = log.warps[place.traced - 1];
                    warp.count = place.count;
                    warp.last_clock = clock;
                    warp.last_ns = globaltimer_now();
                }
            }
            log.places[number] = place;
        }
    }
    if (log.simulated) asm volatile("pmevent 1;"); // and on from here all does again.
}
#endif
