#!/usr/bin/env bash
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(realpath "$0")")/../common.sh"

"$lockstep" data tokens docs/*.md --out "$OUT/tokens" --vocabulary 512
"${run[@]}" -n "$workers" -- train "$example/gpt.textproto" --data-dir "$OUT/tokens" --out "$OUT/run" --device "$device" --quiet \
  > "$OUT/training.txt"
# What the tokenizer has not seen, encoded by the one that the checkpoint keeps.
"$lockstep" eval --checkpoint "$OUT/run" --device "$device" --json --quiet --data-dir . \
  --set 'data={text {file: "CONTRIBUTING.md" train_fraction: 0}}' > "$OUT/evaluation.json"
echo "perplexity $(field "$OUT/evaluation.json" perplexity) on another text"
