#!/usr/bin/env bash
# Writes tests/train/programs/compiled/*.program anew: what the compilers make of small configs. Look at the difference
# before you keep it.
#
#   scripts/write_compiled_goldens.sh [build/release]

# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build=${1:-build/release}
cmake --build "$build" --target train_goldens_test
LOCKSTEP_WRITE_GOLDENS=1 "$build/bin/train_goldens_test" --gtest_filter='*CompiledGolden*'
git diff --stat -- tests/train/programs/compiled
