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
    --set 'data={tokens {files: "tokens_*.bin" eval_fraction: 0.5}}' > "$OUT/$1.json" &&
    field "$OUT/$1.json" eval_loss
}
evaluate first > /dev/null
before=$(evaluate imported)
[ "$(field "$OUT/first.json" params_hash)" = "$(field "$OUT/imported.json" params_hash)" ] || fail "bits differ"

# The second block goes. What is left is a Llama of one block.
python3 "$example/drop_block.py" "$OUT/exported/model.safetensors" "$OUT/changed.safetensors"
tune() {  # RUN, further arguments
  "${run[@]}" -n 2 -- train "$example/llama.textproto" --from "$OUT/changed.safetensors" --layout pp=2 --data-dir "$OUT/other" \
    --device cpu --set model.llama.layers=1 --set data.tokens.eval_fraction=0.5 --set trainer.epochs=8 \
    --set optimizer.learning_rate=1e-3 --out "$OUT/$1" --quiet "${@:2}" > "$OUT/$1.txt" 2>&1
}
tune tuned || fail "see $OUT/tuned.txt"

# A head of its own, in place of the embedding's weight, is not in the file: that is refused, unless it shall begin at random.
if tune refused --set model.llama.tied_head=false; then fail "a model without its head was trained"; fi
grep -m 1 "lm_head.weight" "$OUT/refused.txt"
tune new_head --set model.llama.tied_head=false --new lm_head || fail "see $OUT/new_head.txt"
# On lines of their own: inside of an echo a failure would not end the script.
after=$(evaluate tuned)
with_new_head=$(evaluate new_head)
echo "exported, cut to one block, and trained as two stages: loss $before before, $after after;" \
  "$with_new_head with a new head" | sed -E 's/([0-9]\.[0-9]{3})[0-9]*/\1/g'
