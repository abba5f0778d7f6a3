#!/usr/bin/env bash
# Starts a program several times on this machine, once for each GPU, as torchrun does: each process finds its number in RANK, the number
# of processes in WORLD_SIZE, and where rank 0 listens in MASTER_ADDR and MASTER_PORT.
#
#   tools/ranks.sh N PROGRAM [ARGUMENT...]
#
# Exits once all have ended, with the least status that is not 0: a cause (1 wrong, 2 bad input) before its consequence (3, another
# rank has ended), whichever of them was seen first. MASTER_PORT is a free one unless it is set.
set -uo pipefail

ranks=$1
shift
[[ "$ranks" =~ ^[1-9][0-9]*$ ]] || { echo "ranks.sh: found '$ranks' ranks, expected 1 or more" >&2; exit 2; }
export MASTER_ADDR=127.0.0.1 WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks
export MASTER_PORT=${MASTER_PORT:-$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}

for ((rank = 0; rank < ranks; rank++)); do
    RANK=$rank LOCAL_RANK=$rank "$@" &
done
trap 'kill $(jobs -rp) 2>/dev/null' INT TERM
failed=0
for ((rank = 0; rank < ranks; rank++)); do
    wait -n
    status=$?
    [[ $status -eq 0 || ($failed -ne 0 && $failed -le $status) ]] || failed=$status
done
exit "$failed"
