#!/usr/bin/env bash
# Installs missing packages, builds, and runs the tests. Safe to repeat.
#
#   scripts/test.sh                                        # all tests, release
#   scripts/test.sh --preset asan --tests '^(program|proof)_test$' # some tests; builds only what they need
#
# --preset NAME   release, debug, asan or tsan (CMakePresets.json)
# --tests REGEX   only tests whose names match, as ctest -R
# --build-only    builds what the tests need, and runs none
# --jobs N        number of cores; default: all. Tests that wait run beside those that compute (tests/costs)
# --cuda ON|OFF   build for GPUs, or not. ON fails if CUDA or NCCL is missing. Default: as the preset says: for GPUs if
#                 everything for them is found
#
# A new build folder is for this machine's GPUs or, without any, for one kind of GPU (CUDAARCHS names others).

# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=release
tests=
jobs=
cuda=
build_only=
while [ $# -gt 0 ]; do
  case "$1" in
    --preset | --tests | --jobs | --cuda)
      [ $# -ge 2 ] || fail "$1 needs a value"
      declare "${1#--}=$2"
      shift 2
      ;;
    --build-only)
      build_only=yes
      shift
      ;;
    -h | --help)
      sed -n '2,14s/^# \{0,1\}//p' "$script"
      exit 0
      ;;
    *) fail "unknown option $1; see --help" ;;
  esac
done

scripts/install_dependencies.sh --with-tests
use_mpi_on_one_machine
build=build/$preset

say "configuring $build"
options=(-DLOCKSTEP_TESTS=ON)
[ -z "$cuda" ] || options+=("-DLOCKSTEP_CUDA=$cuda")
if [ ! -f "$build/CMakeCache.txt" ] && [ -z "${CUDAARCHS:-}" ]; then
  options+=("-DLOCKSTEP_CUDA_ARCHITECTURES=$(cuda_architectures)")
fi
cmake --preset "$preset" "${options[@]}"

select=()
targets=()
if [ -n "$tests" ]; then
  select=(-R "$tests")
  # A test is a target of the same name, or the target's name and a number of ranks or a share of its cases; scripts
  # among the tests are none.
  known=$(cmake --build "$build" --target help | sed -n 's/: phony$//p')
  while read -r name; do
    if grep -qx -- "$name" <<<"$known"; then targets+=("$name"); fi
  done < <(ctest --test-dir "$build" -N "${select[@]}" | sed -n 's/^ *Test *#[0-9]*: //p' | sed -E 's/\.[0-9]+(ranks|of[0-9]+)$//' | sort -u)
fi

say "building $build"
if [ ${#targets[@]} -gt 0 ]; then
  cmake --build "$build" -j "${jobs:-$(nproc)}" --target "${targets[@]}"
else
  cmake --build "$build" -j "${jobs:-$(nproc)}"
fi

[ -z "$build_only" ] || exit 0

say "testing $build"
log=$build/ctest.log
status=0
ctest --test-dir "$build" -j "$((3 * ${jobs:-$(nproc)}))" --output-on-failure --no-tests=error "${select[@]}" 2>&1 | tee "$log" || status=$?
# ctest goes on with lists behind this line.
say "$preset: $(grep -E 'tests passed|No tests were found' "$log" | tail -n 1 || echo 'ctest did not finish')"
exit "$status"
