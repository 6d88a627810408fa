#!/usr/bin/env bash
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(realpath "$0")")/../common.sh"

program=${OWN_MODEL_PROGRAM:-build/release/bin/train_mlp}
[ -n "${OWN_MODEL_PROGRAM:-}" ] || cmake --build --preset release --target train_mlp > "$OUT/build.txt"
reproducible=(--set parallel.reduction=REPRODUCIBLE)
"$program" "${reproducible[@]}" 2> "$OUT/one.txt" | tee "$OUT/one"
mpirun -n 2 "$program" "${reproducible[@]}" 2> "$OUT/two.txt" | tee "$OUT/two"
hash_of() { sed 's/.*parameters //' "$OUT/$1"; }
[ "$(hash_of one)" = "$(hash_of two)" ] || fail "bits differ"
echo "one process and two hold the same bits"
