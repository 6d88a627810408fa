#!/usr/bin/env bash
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(realpath "$0")")/../common.sh"

"$lockstep" data tokens docs/*.md --out "$OUT/tokens" --vocabulary 512
"$lockstep" train "$example/llama.textproto" --data-dir "$OUT/tokens" --device cpu --out "$OUT/first" --quiet > "$OUT/first.txt"
"$lockstep" export "$OUT/first" --format huggingface --out "$OUT/exported"
"$lockstep" import "$OUT/exported" --out "$OUT/imported"

# Other texts, by the model's own tokenizer.
"$lockstep" data tokens examples/*/README.md --out "$OUT/other" --tokenizer "$OUT/exported/tokenizer.json"
evaluate() {  # RUN
  "$lockstep" eval --checkpoint "$OUT/$1" --data-dir "$OUT/other" --device cpu --json --quiet \
    --set 'data={tokens {files: "tokens_*.bin" eval_fraction: 0.5}}' > "$OUT/$1.json"
  field "$OUT/$1.json" eval_loss
}
evaluate first > /dev/null
before=$(evaluate imported)
[ "$(field "$OUT/first.json" params_hash)" = "$(field "$OUT/imported.json" params_hash)" ] || fail "bits differ"
"${run[@]}" -n 2 -- train "$example/llama.textproto" --from "$OUT/exported" --layout pp=2 --data-dir "$OUT/other" --device cpu \
  --set data.tokens.eval_fraction=0.5 --set trainer.epochs=8 --set optimizer.learning_rate=1e-3 --out "$OUT/tuned" --quiet \
  > "$OUT/tuned.txt"
echo "exported, imported, and trained on as two stages: loss $before before, $(evaluate tuned) after" | sed -E 's/([0-9]\.[0-9]{3})[0-9]*/\1/g'
