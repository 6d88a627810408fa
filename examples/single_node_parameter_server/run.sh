#!/usr/bin/env bash
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(realpath "$0")")/../common.sh"

draw_digits
# Servers of GPU workers that wait for all workers would need GPUs of their own: here everything is on CPUs.
train() {  # NAME LAYOUT
  "${run[@]}" -n 3 -- train "$example/digits.textproto" --data-dir "$OUT/digits" --out "$OUT/$1" --device cpu --layout "$2" --json \
    --quiet > "$OUT/$1.json"
  echo "$2: accuracy $(field "$OUT/$1.json" eval_accuracy), $(field "$OUT/$1.json" samples_per_second | cut -d. -f1) samples/s"
}
train sync "dp=2,sync=ps,servers=1"
train stale "dp=2,sync=ps,servers=1,mode=stale,bound=1"
train async "dp=2,sync=ps,servers=1,mode=async"
