#!/usr/bin/env bash
# From a fresh clone to a trained model: installs missing packages, builds, draws a data set of digits, and trains LeNet-5
# on it with two workers. Safe to repeat: existing files are kept, and each training gets a new folder.
#
#   scripts/quickstart.sh

# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
  "") ;;
  -h | --help)
    sed -n '2,5s/^# \{0,1\}//p' "$script"
    exit 0
    ;;
  *) fail "takes no arguments, but got $1" ;;
esac

scripts/install_dependencies.sh
use_mpi_on_one_machine

say "building build/release/bin/lockstep"
# A folder that is configured stays as it is. Tests need further packages.
if [ -f build/release/CMakeCache.txt ]; then
  cmake --preset release
else
  options=(-DLOCKSTEP_TESTS=OFF)
  [ -n "${CUDAARCHS:-}" ] || options+=("-DLOCKSTEP_CUDA_ARCHITECTURES=$(cuda_architectures)")
  cmake --preset release "${options[@]}"
fi
cmake --build --preset release --target lockstep lockstep_library
lockstep=build/release/bin/lockstep

say "drawing digits"
"$lockstep" data digits --out runs/quickstart/digits

number=1
while [ -e "runs/quickstart/run-$number" ]; do number=$((number + 1)); done
run=runs/quickstart/run-$number
say "training LeNet-5 on them, on two workers, into $run"
# The model is small, and few machines have a GPU for each of two workers.
mpirun -n 2 "$lockstep" train configs/digits_quickstart.textproto --data-dir runs/quickstart/digits --out "$run" --device cpu

say "done. To evaluate the model that was saved:"
echo "$lockstep eval --checkpoint $run"
