#!/usr/bin/env bash
# Times GPT-2's smallest, 124 million parameters, on this machine's GPU, and adds the results to results/: each step of chapter 11, then
# cuBLASLt's fastest algorithms, products by chapter 14, each attention, fp32 and TF32. The tokens are random: none is common, as in a
# text (chapter 6, step 14).
#
#   tools/bench_gpt2.sh [STEPS]     (60; make build/gpt2 first)
set -euo pipefail
cd "$(dirname "$0")/.."

name=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)
file=results/$(tr 'A-Z ' 'a-z_' <<<"$name" | tr -dc 'a-z0-9_').json
COOKBOOK_COMMIT=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
export COOKBOOK_COMMIT
tokens=build/random_tokens.bin
python=$(sed -n 's/^PYTHON *:= *//p' build/config.mk)
"$python" -c 'import sys, numpy as np
header = np.zeros(256, np.int32); header[:3] = 20240520, 1, 1 << 22
open(sys.argv[1], "wb").write(header.tobytes() + np.random.default_rng(1).integers(0, 50257, 1 << 22).astype(np.uint16).tobytes())' $tokens

# timed FLAG...: one training, its last line and where its time goes.
timed() {
    echo "== $*"
    build/gpt2 --layers 12 --heads 12 --channels 768 --length 1024 --batch 16 --steps "${steps:-60}" --lr 1e-4 --sample 0 --validation 0 \
        --profile 5 --record "$file" "$@" $tokens | tail -n 30
}

steps=${1:-60}
for step in layer_by_layer fused recorded; do timed --type bf16 --attention 17 --step $step; done
rm -f build/algorithms
timed --type bf16 --attention 17 --algorithms build/algorithms
timed --type bf16 --attention 17 --products 14
timed --type bf16 --attention 12
timed --type bf16 --attention 9
timed --type bf16 --attention 17 --deterministic
timed --type bf16 --attention 17 --recompute
timed --tf32 --batch 8
timed --type f32 --batch 8
