#!/usr/bin/env bash
# The timelines that the notes show. `make timelines` does all three:
#
#   tools/timelines.sh programs    prints the programs that it needs
#   tools/timelines.sh record      runs them: a trace for each, in build/traces; a GPU's compressed, in results/traces, to be kept,
#                                  with what was printed in timelines.GPU.txt
#   tools/timelines.sh draw        draws notes/figures/NN_name_timeline_GPU.svg from the traces
#
# Recording needs the programs and nothing else, so that it can be done on a machine that has a GPU but not our Python.
# Environment: DEVICE=auto|gpu|sim; TRACES, another folder; GPU_NAME (make has it from build/config.mk).
set -euo pipefail
cd "$(dirname "$0")/.."

device=${DEVICE:-auto}
[[ "$device" != auto ]] || device=$([[ -n "${GPU_NAME:-}" ]] && echo gpu || echo sim)
if [[ "$device" == gpu ]]; then
    gpu=$(tr 'A-Z ' 'a-z_' <<<"${GPU_NAME:?which GPU is it?}" | tr -dc 'a-z0-9_')
    traces=${TRACES:-results/traces} ending=json.gz
else
    gpu=simulated_gpu
    traces=${TRACES:-build/traces} ending=json
fi

# A figure a line: the chapter, what tells figures of a chapter apart, the operation, the shape, from when to when, and the steps;
# - stands for nothing. The simulated GPU has two SMs then, so that blocks stay for several tiles.
plan() {
    if [[ "$device" == sim ]]; then
        cat <<END
13_tma_wgmma_matmul - matmul m=128,n=256,k=512 - - tma_wgmma multi_stage large_tile
14_warp_specialized_matmul - matmul m=512,n=512,k=512 - - tma_store ping_pong
15_sm90_attention_forward - - b=1,q=256,k=768,h=2,g=2,d=128,causal=0 - - producer_consumer ping_pong overlapped packed_growth
17_sm90_attention_backward - attention b=1,q=384,k=256,h=1,g=1,d=128,causal=0 - - in_registers tiles
17_sm90_attention_backward _d256 attention b=1,q=384,k=128,h=1,g=1,d=256,causal=0 - - tiles
END
    else
        cat <<END
13_tma_wgmma_matmul - matmul m=4096,n=4096,k=4096 0 40 tma_wgmma multi_stage large_tile
14_warp_specialized_matmul - matmul m=4096,n=4096,k=1024 0 40 producer_consumer tma_store ping_pong stream_k
15_sm90_attention_forward - - b=1,q=4096,k=4096,h=16,g=16,d=128,causal=0 0 40 producer_consumer ping_pong overlapped packed_growth tma_store
15_sm90_attention_forward _causal - b=1,q=4096,k=4096,h=16,g=16,d=128,causal=1 0 40 producer_consumer ping_pong overlapped packed_growth tma_store
17_sm90_attention_backward - attention b=1,q=4096,k=4096,h=16,g=16,d=128,causal=0 0 40 in_registers tiles
17_sm90_attention_backward _d256 attention b=1,q=4096,k=4096,h=8,g=8,d=256,causal=0 0 40 tiles
END
    fi
}

# The program of a chapter with marks in one step.
program_of() { echo "build/trace/$1/$(basename "$(compgen -G "chapters/$1/step*[0-9]_$2.cu")" .cu)"; }

trace_of() { echo "$traces/$1.$2$3.$gpu.$4"; } # chapter, step, name, ending

programs() {
    local chapter step steps
    while read -r chapter _ _ _ _ _ steps; do
        for step in $steps; do program_of "$chapter" "$step"; done
    done < <(plan) | sort -u
}

record() {
    local chapter name op shape steps step file simgpu=()
    [[ "$device" == gpu ]] || simgpu=(build/simgpu/simgpu --sms 2)
    while read -r chapter name op shape _ _ steps; do
        for step in $steps; do
            file=$(trace_of "$chapter" "$step" "${name#-}" json)
            [[ "$op" != - ]] || op=
            "${simgpu[@]}" "$(program_of "$chapter" "$step")" ${op:+--op "$op"} --step "$step" --type bf16 --shape "$shape" --trace "$file" </dev/null
            [[ "$device" == sim ]] || gzip -9 -n -f "$file"
        done
    done < <(plan)
}

draw() {
    local chapter name begin end steps step files
    while read -r chapter name _ _ begin end steps; do
        files=()
        for step in $steps; do files+=("$(trace_of "$chapter" "$step" "${name#-}" "$ending")"); done
        [[ "$begin" == - ]] || files+=(--from "$begin" --to "$end")
        .venv/bin/python3 tools/timeline.py "${files[@]}" -o "notes/figures/${chapter}_timeline${name#-}_$gpu.svg"
    done < <(plan)
}

case "${1:-}" in
record)
    mkdir -p "$traces"
    record | tee "$traces/timelines.$gpu.txt"
    ;;
programs | draw) "$1" ;;
*) echo "tools/timelines.sh: found '${1:-}', expected programs, record or draw" >&2; exit 2 ;;
esac
