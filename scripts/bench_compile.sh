#!/usr/bin/env bash
# Measures how long compiling one worker's step program takes, for steps of many micro-batches: writing it, deriving
# dependencies, placing buffers, hashing, proving. Times are milliseconds; memory is the process's peak. The hash shows
# whether programs or plans have changed; bytes are what the plan allocates.
#
#   scripts/bench_compile.sh
#   scripts/bench_compile.sh --micro-batches "4096 65536" --models mnist_mlp
#
# --models LIST          default: "mnist_mlp shakespeare_gpt"
# --micro-batches LIST   micro-batches of one leaf; default: "256 1024 4096 65536"
# --leaves LIST          leaves of 64 micro-batches each; default: "64 1024"
# --bucket-bytes N       default: 1048576. Smaller buckets make more segments, and more instructions.
# --build DIR            build folder of compile_benchmark; default: build/release

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
