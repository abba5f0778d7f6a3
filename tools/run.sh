#!/usr/bin/env bash
# Runs a chapter's program against its golden files, on the GPU if it can run there, else on the simulated GPU.
#
#   tools/run.sh CHAPTER ARCH MODULE [GOLDEN FLAGS]     (make chapter-N calls it; run make to build first)
#
# Environment: DEVICE=auto|gpu|sim, OP, TYPE, STEP, CASE, SHAPE, SEED, PROFILE=0|1, RANKS, how many processes run it side by side, and from build/config.mk PYTHON, GPU_NAME,
# GPU_ARCH and GPU_DRIVER_CUDA. For make trace-N: PROGRAM, the one with marks, and TRACE, the file to write. FEW_SMS: a simulated GPU runs it
# once more with so many multiprocessors. Cases are small: on 132 a block that stays seldom takes a second tile, nor comes round its ring of stages.
set -euo pipefail

chapter=$1 arch=$2
golden_arguments=("${@:3}")

refuse() { printf '%s\n' "$*" >&2; exit 2; }

# Prints why the GPU cannot run this chapter; nothing when it can. An architecture such as 90a runs nowhere else.
gpu_refusal() {
    if [[ -z "${GPU_NAME:-}" ]]; then
        echo "this machine has no GPU"
    elif [[ "${GPU_DRIVER_CUDA%%.*}" -lt 13 ]]; then
        echo "the driver of $GPU_NAME supports CUDA $GPU_DRIVER_CUDA, and 13.0 is needed"
    elif [[ "$arch" == *a && "$GPU_ARCH" != "${arch%a}" ]] || [[ "$GPU_ARCH" -lt "${arch%a}" ]]; then
        echo "$GPU_NAME is sm_$GPU_ARCH, and the chapter needs sm_$arch"
    fi
}

device=${DEVICE:-auto}
case "$device" in
auto | gpu)
    refusal=$(gpu_refusal)
    [[ "$device" == auto || -z "$refusal" ]] || refuse "DEVICE=gpu: $refusal"
    if [[ -z "$refusal" ]]; then device=gpu; else device=sim; fi
    ;;
sim) refusal="DEVICE=sim" ;;
*) refuse "DEVICE=$device: expected auto, gpu or sim" ;;
esac

chosen=(${OP:+--op "$OP"} ${TYPE:+--type "$TYPE"} ${STEP:+--step "$STEP"} ${CASE:+--case "$CASE"})
if [[ -n "${TRACE:-}" ]]; then
    program=("$PROGRAM" "${chosen[@]}" ${SHAPE:+--shape "$SHAPE"} --trace "$TRACE")
    if [[ "$device" == gpu ]]; then
        echo "on $GPU_NAME (sm_$GPU_ARCH)"
        exec "${program[@]}"
    fi
    echo "on the simulated GPU: $refusal"
    exec build/simgpu/simgpu "${program[@]}"
fi

# A shape of the user's own is generated once; its golden files stay until the reference changes.
golden=build/golden/$chapter
if [[ -n "${SHAPE:-}" ]]; then
    golden=build/golden/shapes/$chapter/${OP:+$OP/}$SHAPE,seed=${SEED:-1}
    if [[ ! -e "$golden" || -n "$(find reference -name '*.py' -newer "$golden")" ]]; then
        "$PYTHON" reference/golden.py "${golden_arguments[@]}" ${OP:+--op "$OP"} --out "$golden" --shape "$SHAPE" --seed "${SEED:-1}"
        touch "$golden"
    fi
elif [[ -n "${SEED:-}" ]]; then
    refuse "SEED=$SEED: only with SHAPE; the chapter's own cases have a fixed seed"
fi

start=(${RANKS:+tools/ranks.sh "$RANKS"})
program=("build/chapters/$chapter" --golden "$golden" "${chosen[@]}")
if [[ "$device" == gpu ]]; then
    echo "on $GPU_NAME (sm_$GPU_ARCH)"
    exec "${start[@]}" "${program[@]}" --bench
fi
echo "on the simulated GPU${RANKS:+, $RANKS of them}: $refusal"
profile=(--profile)
[[ "${PROFILE:-1}" != 0 && -z "${RANKS:-}" ]] || profile=() # several processes would print it across each other
"${start[@]}" build/simgpu/simgpu --explain "${profile[@]}" "${program[@]}"
[[ -n "${FEW_SMS:-}" && -z "${SIMGPU_SMS:-}" ]] || exit 0
few="with $FEW_SMS multiprocessors, where blocks that stay take tile after tile:"
if output=$("${start[@]}" build/simgpu/simgpu --explain --sms "$FEW_SMS" "${program[@]}" 2>&1); then
    echo "$few ${output##*$'\n'}"
else
    status=$?
    printf '%s\n' "$few" "$output"
    exit $status
fi
