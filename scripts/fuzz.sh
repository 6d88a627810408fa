#!/usr/bin/env bash
# Feeds a parser with changed files until it has read RUNS of them, or for some seconds. Stops at the first that a sanitizer
# objects to, and leaves it in the build folder below fuzz/TARGET.
#
#     scripts/fuzz.sh TARGET RUNS              such as: scripts/fuzz.sh csv 1000000
#     scripts/fuzz.sh TARGET --seconds N       [--build FOLDER, of the preset fuzz]
#
# Builds it first with the preset `fuzz`, unless --build says where it is. Needs clang 16 or newer (CXX says which).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh

[ $# -ge 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 64; }
target=$1 limit=-runs=$2 build=
shift
if [ "$1" = --seconds ]; then
  limit=-max_total_time=$2
  shift
fi
shift
if [ "${1:-}" = --build ]; then build=$2; fi
if [ -z "$build" ]; then
  compiler=${CXX:-}
  for name in clang++ clang++-{16..30}; do
    [ -n "$compiler" ] || ! command -v "$name" >/dev/null || [ "$("$name" -dumpversion | cut -d. -f1)" -lt 16 ] || compiler=$name
  done
  [ -n "$compiler" ] || { echo "fuzz.sh: found no clang 16 or newer, which has libFuzzer: install clang-16 and libclang-rt-16-dev" >&2; exit 69; }
  build=build/fuzz
  [ -f $build/build.ninja ] || cmake --preset fuzz -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_C_COMPILER="${compiler/clang++/clang}"
  cmake --build $build --target "fuzz_$target"
fi
folder=$build/fuzz/$target
mkdir -p "$folder/corpus"
"$build/bin/fuzz_$target" --write-seeds="$folder/seeds"
# 512 MiB at once is a claim of a header that nobody checked.
exec "$build/bin/fuzz_$target" "$limit" -timeout=20 -rss_limit_mb=2560 -malloc_limit_mb=512 -max_len=16384 -print_final_stats=1 \
  -artifact_prefix="$folder/" "$folder/corpus" "$folder/seeds"
