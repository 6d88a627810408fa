#!/usr/bin/env bash
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(realpath "$0")")/../common.sh"

draw_digits
"${run[@]}" -n "$workers" -- train "$example/digits.textproto" --data-dir "$OUT/digits" --out "$OUT/run" --device "$device" \
  --json --quiet > "$OUT/result.json"
"$lockstep" eval "$example/digits.textproto" --data-dir "$OUT/digits" --checkpoint "$OUT/run" --device "$device" --json --quiet \
  > "$OUT/evaluation.json"
echo "$workers workers: $(field "$OUT/result.json" steps) steps, accuracy $(field "$OUT/evaluation.json" eval_accuracy) after them"
