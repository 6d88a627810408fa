#!/usr/bin/env bash
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(realpath "$0")")/../common.sh"

"$lockstep" data digits --as-images --out "$OUT/jpegs" --train 4000 --eval 500
config=$example/digits.textproto
"$lockstep" data summary "$config" --data-dir "$OUT/jpegs"
"$lockstep" data show "$config" --data-dir "$OUT/jpegs" --out "$OUT/samples.png" --samples 6 --draws 5

# Many small files become few large ones, with the bits that the files have.
"$lockstep" data pack "$config" --data-dir "$OUT/jpegs" --out "$OUT/packed"
"$lockstep" data show "$config" --set "data.records.folder=$OUT/packed" --out "$OUT/packed.png" --samples 6 --draws 5
cmp "$OUT/samples.png" "$OUT/packed.png" || { echo "packed samples look different" >&2; exit 1; }

"${run[@]}" -n 2 -- train "$config" --set "data.records.folder=$OUT/packed" --device cpu --out "$OUT/run" --json --quiet > "$OUT/run.json"
echo "open $OUT/samples.png: digits as the model gets them"
accuracy=$(field "$OUT/run.json" eval_accuracy)
echo "two workers: 400 steps on packed JPEGs, accuracy $accuracy"
