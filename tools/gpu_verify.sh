#!/bin/bash
# Verify operators on the card, several processes at a time: gpu_verify.sh FOLDER PROCESSES FORMATS [OP ...]
folder=$1; processes=$2; formats=$3; shift 3
operators=("$@")
if [ ${#operators[@]} -eq 0 ]; then mapfile -t operators < <(python3 -c 'from tokitai.ops import registry; print("\n".join(registry()))'); fi
for o in "${operators[@]}"; do for f in $formats; do echo "$o $f"; done; done | OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 xargs -P "$processes" -L 1 bash -c \
  's=$SECONDS; r=$(timeout 400 python3 -m tokitai verify $0 --device cuda --dtype $1 --out '"$folder"' 2>&1 | grep -v certificates: | tail -4 | cut -c1-500); echo "$r [$((SECONDS-s)) s] $0 $1"'
