#!/usr/bin/env bash
# How long it takes, before the first step, to write one worker's step program, to derive its dependencies, to give
# its buffers places, to hash it and to prove it, for steps of many micro-batches. Milliseconds; memory is the most
# that the process took. The hash tells whether programs or plans have changed; bytes are what the plan allocates.
#
#   scripts/bench_compile.sh
#   scripts/bench_compile.sh --micro-batches "4096 65536" --models mnist_mlp
#
# --models LIST          left out: "mnist_mlp shakespeare_gpt"
# --micro-batches LIST   of one leaf; left out: "256 1024 4096 65536"
# --leaves LIST          with 64 micro-batches each; left out: "64 1024"
# --bucket-bytes N       left out: 1048576. Smaller buckets make more segments, and more instructions.
# --build DIR            where compile_benchmark is built; left out: build/release

# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

models="mnist_mlp shakespeare_gpt"
micro_batches="256 1024 4096 65536"
leaves="64 1024"
bucket_bytes=1048576
build=build/release
while [ $# -gt 0 ]; do
  case "$1" in
    --models | --micro-batches | --leaves | --bucket-bytes | --build)
      [ $# -ge 2 ] || fail "$1 needs a value"
      name=${1#--}
      declare "${name//-/_}=$2"
      shift 2
      ;;
    -h | --help)
      sed -n '2,14s/^# \{0,1\}//p' "$script"
      exit 0
      ;;
    *) fail "unknown option $1; see --help" ;;
  esac
done

cmake --build "$build" --target compile_benchmark >&2
printf '%-16s%14s%9s%9s%8s%8s%8s%8s%8s%13s  %-16s %10s\n' model 'leaves x each' instr. buffers write order place hash \
  prove memory hash bytes
for model in $models; do
  # One process each, so that each tells its own memory.
  for count in $micro_batches; do "$build/bin/compile_benchmark" "$model" 1 "$count" "$bucket_bytes"; done
  for count in $leaves; do "$build/bin/compile_benchmark" "$model" "$count" 64 "$bucket_bytes"; done
done
