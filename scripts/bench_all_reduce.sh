#!/usr/bin/env bash
# Compares all_reduce through shared memory with the installed MPI's MPI_Allreduce, on 2 and 4 ranks of this machine,
# from 1 KiB to 100 MiB. Ratios above 1 mean that shared memory is faster.
#
#   scripts/bench_all_reduce.sh
#   scripts/bench_all_reduce.sh --ranks "2" --seconds 3 --build build/release
#
# --ranks LIST    numbers of ranks; default: "2 4"
# --seconds S     time for each size; default: 1
# --largest N     largest size in bytes; default: 104857600
# --build DIR     build folder of all_reduce_benchmark; default: build/release

# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

ranks="2 4"
seconds=1
largest=104857600
build=build/release
while [ $# -gt 0 ]; do
  case "$1" in
    --ranks | --seconds | --largest | --build)
      [ $# -ge 2 ] || fail "$1 needs a value"
      declare "${1#--}=$2"
      shift 2
      ;;
    -h | --help)
      sed -n '2,11s/^# \{0,1\}//p' "$script"
      exit 0
      ;;
    *) fail "unknown option $1; see --help" ;;
  esac
done

use_mpi_on_one_machine
cmake --build "$build" --target all_reduce_benchmark >&2
for count in $ranks; do
  say "$count ranks on $(nproc) cores"
  mpirun -n "$count" "$build/bin/all_reduce_benchmark" "$seconds" "$largest"
done
