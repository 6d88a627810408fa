#!/usr/bin/env bash
# Feeds parsers of bytes from outside with changed files (libFuzzer), under AddressSanitizer and UndefinedBehaviorSanitizer.
# Stops at the first file that a sanitizer objects to, and leaves it in the build folder below fuzz/TARGET.
#
#   scripts/fuzz.sh TARGET RUNS          # until RUNS files were read, such as: scripts/fuzz.sh csv 1000000
#   scripts/fuzz.sh TARGET --seconds N   # for so long
#   scripts/fuzz.sh --all                # every target for two seconds, as tests; says so and succeeds if it is skipped
#   scripts/fuzz.sh --wide               # likewise those that --all leaves out, since they need the ops: longer to build
#
# --build-only     builds them, and runs nothing
# --build FOLDER   programs are built there already; default: builds them with the preset `fuzz`
# --jobs N         number of cores for --all; default: all
#
# Needs clang 16 or newer (CXX says which), its runtime library and OpenMP: clang-16, libclang-rt-16-dev, libomp-16-dev.
# tests/fuzz has the targets.

# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  sed -n '5,15s/^# \{0,1\}//p' "$script"
}

target='' limit='' build='' build_only='' jobs=$(nproc)
while [ $# -gt 0 ]; do
  case "$1" in
    --all | --wide) target=$1 ;;
    --build-only) build_only=yes ;;
    --seconds | --build | --jobs)
      [ $# -ge 2 ] || fail "$1 needs a value"
      case "$1" in
        --seconds) limit=-max_total_time=$2 ;;
        --build) build=$2 ;;
        --jobs) jobs=$2 ;;
      esac
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    -*) fail "unknown option $1; see --help" ;;
    *) if [ -z "$target" ]; then target=$1; else limit=-runs=$1; fi ;;
  esac
  shift
done
case "$target" in
  --all) suite=fuzzers ;;
  --wide) suite=fuzzers_wide ;;
  *) suite= ;;
esac
if [ -z "$target" ] || { [ -z "$suite" ] && [ -z "$limit$build_only" ]; }; then
  usage >&2
  exit 64
fi

# The first compiler that has everything: prints its name.
find_compiler() {
  local name known=(clang++ clang++-{16..30})
  [ -z "${CXX:-}" ] || known=("$CXX")
  for name in "${known[@]}"; do
    if command -v "$name" >/dev/null && [ "$("$name" -dumpversion | cut -d. -f1)" -ge 16 ] &&
      echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
      "$name" -x c++ - -fsanitize=fuzzer,address,undefined -fopenmp -o /dev/null 2>/dev/null; then
      echo "$name"
      return
    fi
  done
}

if [ -z "$build" ]; then
  compiler=$(find_compiler)
  if [ -z "$compiler" ]; then
    missing="found no clang 16 or newer with libFuzzer and OpenMP: scripts/install_dependencies.sh --with-fuzzing installs it"
    [ -n "$suite" ] || fail "$missing"
    echo "fuzz.sh: skipped: $missing"
    exit 0
  fi
  build=build/fuzz
  [ -f $build/build.ninja ] ||
    cmake --preset fuzz -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_C_COMPILER="${compiler/clang++/clang}"
  cmake --build $build -j "$jobs" --target "${suite:-fuzz_$target}"
fi

[ -z "$build_only" ] || exit 0
if [ -n "$suite" ]; then
  exec ctest --test-dir "$build" -j "$jobs" --output-on-failure --no-tests=error -L "^$suite\$"
fi
folder=$build/fuzz/$target
mkdir -p "$folder/corpus"
rm -rf "$folder/seeds"  # of earlier builds
"$build/bin/fuzz_$target" --write-seeds="$folder/seeds"
# Files up to about twice the largest seed: how many are read counts more than how long they are.
largest=$(find "$folder/seeds" -type f -printf '%s\n' | sort -n | tail -n 1)
# 512 MiB at once is a claim of a header that nobody checked.
exec "$build/bin/fuzz_$target" "$limit" -timeout=20 -rss_limit_mb=2560 -malloc_limit_mb=512 -max_len=$((2 * largest + 512)) \
  -print_final_stats=1 -artifact_prefix="$folder/" "$folder/corpus" "$folder/seeds"
