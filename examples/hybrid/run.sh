#!/usr/bin/env bash
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(realpath "$0")")/../common.sh"

draw_digits
[ "$workers" -ge 4 ] || device=cpu
train() {  # PROCESSES LAYOUT
  "${run[@]}" -n "$1" -- train "$example/digits.textproto" --data-dir "$OUT/digits" --device "$device" --layout "$2" \
    --set parallel.reduction=REPRODUCIBLE --set trainer.steps=100 --json --quiet > "$OUT/$1.json"
  echo "$2: parameters $(field "$OUT/$1.json" params_hash)"
}
train 1 dp=1
train 4 dp=2,pp=2,shard=optimizer
[ "$(field "$OUT/1.json" params_hash)" = "$(field "$OUT/4.json" params_hash)" ] || fail "bits differ"
echo "one process and four hold the same bits"
