#!/usr/bin/env bash
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(realpath "$0")")/../common.sh"

# Where another build of the program is tried, its own is installed.
build=$(realpath "$(dirname "$(realpath "$lockstep")")/..")
cmake --install "$build" --prefix "$OUT/lockstep" > "$OUT/install.txt" || fail "see $OUT/install.txt: cmake --build $build makes what is missing"
{
  cmake -S examples/own_op -B "$OUT/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$OUT/lockstep"
  cmake --build "$OUT/build"
} > "$OUT/build.txt" 2>&1 || fail "$(tail -n 20 "$OUT/build.txt")"
export CUDA_VISIBLE_DEVICES=  # ops of a program's own run on CPUs
waves() { "$@" "$OUT/build/waves" "$example/waves.textproto"; }
waves env | tee "$OUT/one"
waves mpirun -n 2 > "$OUT/two"
mpirun -n 2 "$OUT/build/waves" "$example/waves.textproto" pp=2 | tee "$OUT/stages"
hash_of() { sed -n 's/.*parameters //p' "$OUT/$1"; }
for other in two stages; do
  [ -n "$(hash_of one)" ] && [ "$(hash_of one)" = "$(hash_of $other)" ] || fail "bits differ: $(cat "$OUT/$other")"
done
echo "one process, two, and two stages hold the same bits"
