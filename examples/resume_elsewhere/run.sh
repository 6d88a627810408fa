#!/usr/bin/env bash
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(realpath "$0")")/../common.sh"

draw_digits
train() {  # PROCESSES NAME LAYOUT OPTIONS...
  local processes=$1 name=$2 layout=$3
  shift 3
  "${run[@]}" -n "$processes" -- train "$example/digits.textproto" --data-dir "$OUT/digits" --device cpu --layout "$layout" \
    --set parallel.reduction=REPRODUCIBLE --set trainer.steps=120 --json --quiet "$@" > "$OUT/$name.json"
  echo "$layout: stands at step $(field "$OUT/$name.json" steps), parameters $(field "$OUT/$name.json" params_hash)"
}
train 1 whole dp=1
train 2 first dp=2 --out "$OUT/run" --stop-after 60
train 3 second dp=3,shard=optimizer --out "$OUT/run" --resume auto
[ "$(field "$OUT/whole.json" params_hash)" = "$(field "$OUT/second.json" params_hash)" ] || fail "bits differ"
echo "stopped on two workers and resumed on three: the bits of one that never stopped"
