#!/usr/bin/env bash
# Makes the timelines that the notes show: make timelines. On a GPU of the chapters the traces are kept, compressed, in
# results/traces, and notes/figures/NN_name_timeline_GPU.svg drawn from them; on the simulated GPU only the figures.
#
# Environment: DEVICE=auto|gpu|sim, and from build/config.mk GPU_NAME.
set -euo pipefail
cd "$(dirname "$0")/.."

device=${DEVICE:-auto}
[[ "$device" != auto ]] || device=$([[ -n "${GPU_NAME:-}" ]] && echo gpu || echo sim)
gpu=simulated_gpu
[[ "$device" == sim ]] || gpu=$(tr 'A-Z ' 'a-z_' <<<"${GPU_NAME:?}" | tr -dc 'a-z0-9_')

# trace CHAPTER NAME OP SHAPE STEP...: a file for each step; NAME tells shapes of one chapter apart.
trace() {
    local chapter=$1 name=$2 op=$3 shape=$4 step
    for step in "${@:5}"; do
        make --no-print-directory "trace-$((10#${chapter%%_*}))" DEVICE="$device" TYPE=bf16 ${op:+OP="$op"} STEP="$step" SHAPE="$shape" \
            TRACE="build/traces/$chapter.$step$name.$gpu.json"
        [[ "$device" == gpu ]] || continue
        mkdir -p results/traces
        gzip -9 -n -c "build/traces/$chapter.$step$name.$gpu.json" >"results/traces/$chapter.$step$name.$gpu.json.gz"
    done
}

# draw CHAPTER NAME FROM TO STEP...: these steps, one below the other.
draw() {
    local chapter=$1 name=$2 from=$3 to=$4 step files=()
    for step in "${@:5}"; do files+=("build/traces/$chapter.$step$name.$gpu.json"); done
    .venv/bin/python3 tools/timeline.py "${files[@]}" ${from:+--from "$from"} ${to:+--to "$to"} \
        -o "notes/figures/${chapter}_timeline${name}_$gpu.svg"
}

if [[ "$device" == sim ]]; then # a device of two SMs, where blocks stay for several tiles
    export SIMGPU_SMS=2
    trace 13_tma_wgmma_matmul "" matmul m=128,n=256,k=512 tma_wgmma multi_stage large_tile
    draw 13_tma_wgmma_matmul "" "" "" tma_wgmma multi_stage large_tile
    trace 14_warp_specialized_matmul "" matmul m=512,n=512,k=512 tma_store ping_pong
    draw 14_warp_specialized_matmul "" "" "" tma_store ping_pong
    trace 15_sm90_attention_forward "" "" b=1,q=256,k=768,h=2,g=2,d=128,causal=0 producer_consumer ping_pong overlapped packed_growth
    draw 15_sm90_attention_forward "" "" "" producer_consumer ping_pong overlapped packed_growth
else # the first 40 µs of SM 0
    trace 13_tma_wgmma_matmul "" matmul m=4096,n=4096,k=4096 tma_wgmma multi_stage large_tile
    draw 13_tma_wgmma_matmul "" 0 40 tma_wgmma multi_stage large_tile
    trace 14_warp_specialized_matmul "" matmul m=4096,n=4096,k=1024 producer_consumer tma_store ping_pong stream_k
    draw 14_warp_specialized_matmul "" 0 40 producer_consumer tma_store ping_pong stream_k
    for causal in 0 1; do
        name=_causal$causal
        trace 15_sm90_attention_forward $name "" b=1,q=4096,k=4096,h=16,g=16,d=128,causal=$causal \
            producer_consumer ping_pong overlapped packed_growth tma_store
        draw 15_sm90_attention_forward $name 0 40 producer_consumer ping_pong overlapped packed_growth tma_store
    done
fi
