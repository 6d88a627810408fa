#!/usr/bin/env bash
# Measures how long `lockstep inspect` takes to compile and prove the programs of all ranks of shakespeare_gpt, by number of
# ranks and way of summing gradients: seconds, and the process's peak memory. Rank 0 does the same before its first step.
# The first line, of one rank, shows what everything else takes.
#
#   scripts/bench_ranks.sh
#   scripts/bench_ranks.sh --ranks "96 192" --sums "tree" --leaves 768
#
# --ranks LIST    default: "64 256 1024 4096"
# --sums LIST     default: "library ring memory memory_tree tree sharded_tree sharded_ring"
# --leaves N      leaves under REPRODUCIBLE; default: one for each rank
# --limit N       seconds after which a measurement is given up; default: 120
# --build DIR     build folder of lockstep; default: build/release

# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

ranks="64 256 1024 4096"
sums="library ring memory memory_tree tree sharded_tree sharded_ring"
leaves=0
limit=120
build=build/release
while [ $# -gt 0 ]; do
  case "$1" in
    --ranks | --sums | --leaves | --limit | --build)
      [ $# -ge 2 ] || fail "$1 needs a value"
      declare "${1#--}=$2"
      shift 2
      ;;
    -h | --help)
      sed -n '2,13s/^# \{0,1\}//p' "$script"
      exit 0
      ;;
    *) fail "unknown option $1; see --help" ;;
  esac
done

# measure NAME RANKS LAYOUT OPTION...: one line.
measure() {
  local name=$1 count=$2 layout=$3
  shift 3
  local trees=$leaves
  [ "$trees" -gt 0 ] || trees=$count
  python3 - "$name" "$count" "$limit" "$build/bin/lockstep" inspect configs/shakespeare_gpt.textproto \
    --set "trainer.global_batch=$trees" --set "trainer.virtual_replicas=$trees" --layout "dp=$count$layout" "$@" --json <<'EOF'
import json, resource, subprocess, sys, time
name, ranks, limit, command = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4:]
begin = time.monotonic()
try:
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
except subprocess.TimeoutExpired:
    print(f"{name:<14}{ranks:>7}   more than {limit:.0f} s", flush=True)
    sys.exit(0)
seconds = time.monotonic() - begin
if done.returncode != 0:
    sys.exit(done.stderr)
mebibytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
instructions = json.loads(done.stdout)["instructions"]["step"]
print(f"{name:<14}{ranks:>7}{instructions:>9}{seconds:>9.1f} s{mebibytes:>9.0f} MiB", flush=True)
EOF
}

cmake --build "$build" --target lockstep >&2
fast=(--set parallel.reduction=FAST)
reproducible=(--set parallel.reduction=REPRODUCIBLE)
printf '%-14s%7s%9s%11s%13s\n' sums ranks instr. time memory
measure "one rank" 1 "" "${fast[@]}"
for kind in $sums; do
  for count in $ranks; do
    case "$kind" in
      library) measure "$kind" "$count" "" "${fast[@]}" --set parallel.algorithm=LIBRARY --several-hosts ;;
      ring) measure "$kind" "$count" "" "${fast[@]}" --set parallel.algorithm=RING --several-hosts ;;
      memory) measure "$kind" "$count" "" "${fast[@]}" ;;
      memory_tree) measure "$kind" "$count" "" "${reproducible[@]}" ;;
      tree) measure "$kind" "$count" "" "${reproducible[@]}" --several-hosts ;;
      sharded_tree) measure "$kind" "$count" ",shard=optimizer" "${reproducible[@]}" --several-hosts ;;
      sharded_ring) measure "$kind" "$count" ",shard=optimizer" "${fast[@]}" --several-hosts ;;
      *) fail "unknown kind of sum '$kind'; see --help" ;;
    esac
  done
done
