#!/usr/bin/env bash
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(realpath "$0")")/../common.sh"

# Measurements of flowers that grow nowhere: draw SEED COUNT.
draw() {
  python3 - "$1" "$2" << 'END'
import random
import sys

draw = random.Random(int(sys.argv[1]))
kinds = {"meadow": ((5.0, 3.4, 1.5, 0.3), ("white", "blue")), "marsh": ((5.9, 2.8, 4.3, 1.3), ("blue", "violet")),
         "mountain": ((6.6, 3.0, 5.6, 2.0), ("violet", "white"))}
print("sepal_length,sepal_width,petal_length,petal_width,color,species")
for _ in range(int(sys.argv[2])):
    species = draw.choice(sorted(kinds))
    means, colors = kinds[species]
    print(",".join([f"{draw.gauss(mean, 0.4):.2f}" for mean in means] + [draw.choice(colors), species]))
END
}
mkdir "$OUT/flowers"
draw 1 600 > "$OUT/flowers/flowers.csv"
draw 2 200 > "$OUT/flowers/others.csv"

"$lockstep" data check "$example/flowers.textproto" --data-dir "$OUT/flowers"
"${run[@]}" -n 2 -- train "$example/flowers.textproto" --data-dir "$OUT/flowers" --device cpu --out "$OUT/run" --quiet
# By the means, deviations and values that the checkpoint keeps.
"$lockstep" eval --checkpoint "$OUT/run" --json --quiet --set 'data.table.files=["others.csv"]' \
  --set data.table.eval_fraction=1 > "$OUT/evaluation.json"
echo "accuracy $(field "$OUT/evaluation.json" eval_accuracy) on other flowers"
