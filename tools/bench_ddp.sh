#!/usr/bin/env bash
# Times GPT-2's smallest, 124 million parameters, on 1, 2 and 4 of this machine's GPUs, 16 x 1,024 tokens on each, and adds the results to
# results/: on one GPU chapter 11's last step, on more each step of chapter 22, beside PyTorch, compiled, with
# DistributedDataParallel, where the user's Python has it. Then prints which fraction of so many times one GPU's speed that is; a
# training's own last lines say how much of the exchange was hidden.
#
#   tools/bench_ddp.sh [STEPS]     (200, since a card that has just begun is cool and quick; make build-11 build-22 first)
#
# Environment, for tests: GPUS="1 2", MODEL="FLAG...", TOKENS, ALONE and PROGRAM, the trainers, START, what they are started with, RESULTS,
# the file.
set -euo pipefail
cd "$(dirname "$0")/.."

steps=${1:-200}
name=$(sed -n 's/^GPU_NAME *:= *//p' build/config.mk)
RESULTS=${RESULTS:-results/$(tr 'A-Z ' 'a-z_' <<<"$name" | tr -dc 'a-z0-9_').json}
COOKBOOK_COMMIT=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
export COOKBOOK_COMMIT RESULTS
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0} # NVLink's multicast: not every machine that has it lets a guest use it
NCCL_LIB=${NCCL_LIB:-$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0] + "/lib")' 2>/dev/null || true)}
export NCCL_LIB
read -ra counts <<<"${GPUS:-1 2 4}"
read -ra model <<<"${MODEL:---layers 12 --heads 12 --channels 768 --length 1024 --attention 17}"
read -ra start <<<"${START:-}"
each=16 # sequences a GPU
present=$(find /dev -maxdepth 1 -name 'nvidia[0-9]*' | wc -l)
tokens=${TOKENS:-build/random_tokens.bin}
python=$(sed -n 's/^PYTHON *:= *//p' build/config.mk)
[[ -n "${TOKENS:-}" ]] || "$python" -c 'import sys, numpy as np
header = np.zeros(256, np.int32); header[:3] = 20240520, 1, 1 << 22
open(sys.argv[1], "wb").write(header.tobytes() + np.random.default_rng(1).integers(0, 50257, 1 << 22).astype(np.uint16).tobytes())' "$tokens"

# timed GPUS STEP: one training, and where its time goes.
timed() {
    local program=${PROGRAM:-build/gpt2_parallel}
    [[ $1 -gt 1 ]] || program=${ALONE:-build/gpt2}
    echo "== $2 on $1"
    tools/ranks.sh "$1" "${start[@]}" "$program" "${model[@]}" --type bf16 --batch $((each * $1)) --steps "$steps" --lr 1e-4 \
        --sample 0 --validation 0 --profile 5 --step "$2" --record "$RESULTS" "$tokens" | tail -n 26
}

for count in "${counts[@]}"; do
    if [[ $count -gt $present && -z "${START:-}" ]]; then
        echo "== $count GPUs: this machine has $present"
        continue
    fi
    unset COOKBOOK_BASELINE
    if [[ -z "${START:-}" ]] && python3 -c 'import torch' 2>/dev/null; then
        speed=$(python3 -m torch.distributed.run --standalone --nproc-per-node "$count" tools/ddp_baseline.py "$steps" | tail -n 1)
        echo "== PyTorch on $count: $speed tokens/s"
        export COOKBOOK_BASELINE="$speed PyTorch DDP"
    fi
    if [[ $count -eq 1 ]]; then
        timed 1 recorded
    else
        for step in replicate buckets sharded one_graph; do timed "$count" $step; done
    fi
done

"$python" -c 'import json, os
speed = {}
for r in json.load(open(os.environ["RESULTS"])):
    if (r["chapter"], r["step"]) in (("11_gpt2_training", "recorded"), ("22_data_parallel_training", "one_graph")):
        speed.setdefault(r["case"].partition(",gpus=")[0], {})[int(r["case"].partition(",gpus=")[2] or 1)] = r
for case, by_gpus in speed.items():
    if len(by_gpus) < 2: continue
    print(f"== {case}")
    for gpus, r in sorted(by_gpus.items()):
        print(gpus, "GPUs:", round(r["value"]), "tokens/s",
              f"= {r['\''value'\''] / gpus / by_gpus[1]['\''value'\'']:.3f} of linear" if 1 in by_gpus else "",
              f"= {r['\''ratio'\'']:.3f} of {r['\''baseline'\'']}" if r["baseline"] else "")'
