#!/usr/bin/env bash
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(realpath "$0")")/../common.sh"

# Where another build of the program is tried, its own is installed.
build=$(realpath "$(dirname "$(realpath "$lockstep")")/..")
cmake --install "$build" --prefix "$OUT/lockstep" > "$OUT/install.txt" || fail "see $OUT/install.txt: cmake --build $build makes what is missing"
{
  cmake -S examples/own_model -B "$OUT/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$OUT/lockstep"
  cmake --build "$OUT/build"
} > "$OUT/build.txt" 2>&1 || fail "$(tail -n 20 "$OUT/build.txt")"
# One process would take a GPU, and two would have to share it: equal bits are between equals.
[ "$device" = cuda ] || export CUDA_VISIBLE_DEVICES=
"$OUT/build/spirals" "$OUT/weights.txt" | tee "$OUT/one"
mpirun -n 2 "$OUT/build/spirals" "$OUT/weights2.txt" > "$OUT/two"
tail -n 1 "$OUT/two"
hash_of() { sed -n 's/.*parameters //p' "$OUT/$1"; }
[ -n "$(hash_of one)" ] && [ "$(hash_of one)" = "$(hash_of two)" ] || fail "bits differ"
cmp "$OUT/weights.txt" "$OUT/weights2.txt" || fail "weights differ"
echo "one process and two hold the same bits"
