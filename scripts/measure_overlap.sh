#!/usr/bin/env bash
# Measures how much communication of a training is hidden behind its computation, over a slow link between two hosts of
# scripts/two_hosts.sh. Prints medians of interleaved rounds:
#
#   compute   a step of two trainings of one rank each, one per host, at the same time: computation alone
#   comm      a step of the same model on two ranks with almost nothing to compute: communication alone
#   step      a step of the training on two ranks
#   exposed   its exposed_comm_ms: the time in which a rank only waited for communication
#   hidden    1 - exposed / comm and, measured from outside, 1 - (step - compute) / comm
#
#   scripts/measure_overlap.sh [--rate 1gbit] [--rounds 5] [--batch 16] [--reduction FAST] [--mpi-args "ARGS"]
#     [--lockstep build/release/bin/lockstep]
#
# Needs what two_hosts.sh needs, two idle cores and python3. Exits with 77 if two_hosts.sh cannot work.

# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

rate=1gbit
rounds=5
batch=16
reduction=FAST
mpi_args=
lockstep=build/release/bin/lockstep
while [ $# -gt 0 ]; do
  case "$1" in
    --rate | --rounds | --batch | --reduction | --mpi-args | --lockstep)
      [ $# -ge 2 ] || fail "$1 needs a value"
      name=${1#--}
      declare "${name//-/_}=$2"
      shift 2
      ;;
    -h | --help)
      sed -n '2,15s/^# \{0,1\}//p' "$script"
      exit 0
      ;;
    *) fail "unknown option $1; see --help" ;;
  esac
done
[ -x "$lockstep" ] || fail "there is no program $lockstep: build it, or say where it is (--lockstep)"

hosts=(scripts/two_hosts.sh --id "overlap$$")
work=$(mktemp -d)
trap 'rm -rf "$work"; "${hosts[@]}" down' EXIT
"${hosts[@]}" up
# Many buckets of about a megabyte, so that a backward pass has something to hide each of them but the last behind.
cat >"$work/config" <<END
model { gpt { vocabulary: 65 context: 128 layers: 6 heads: 4 width: 256 } }
data { synthetic { samples: 4096 eval_samples: 2 classes: 65 } }
trainer { global_batch: $batch virtual_replicas: 2 steps: 15 seed: 1 eval_at_end: false }
optimizer { learning_rate: 0.001 adamw {} }
parallel { reduction: $reduction }
END
export OMP_NUM_THREADS=1
train=("$lockstep" train "$work/config" --json --quiet)
read -ra options <<<"$mpi_args"

"${hosts[@]}" throttle "$rate"
for ((round = 0; round < rounds; ++round)); do
  for host in host-a host-b; do
    "${hosts[@]}" on "$host" -- "${train[@]}" --set trainer.global_batch=$((batch / 2)) --set trainer.virtual_replicas=1 \
      >"$work/compute.$host.$round" &
  done
  wait
  "${hosts[@]}" run -n 2 "${options[@]}" -- "${train[@]}" --set trainer.global_batch=2 --set model.gpt.context=1 \
    >"$work/comm.$round"
  "${hosts[@]}" run -n 2 "${options[@]}" -- "${train[@]}" >"$work/step.$round"
done

"$lockstep" inspect "$work/config" --world 2 --json >"$work/plan"
python3 - "$work" "$rate" "$batch" "$reduction" <<'END'
import glob, json, re, statistics, sys
work, rate, batch, reduction = sys.argv[1:]
def median(name, value):
    return statistics.median(value(json.load(open(path))) for path in glob.glob(f"{work}/{name}.*"))
def p50(run):
    return run["step_ms"]["p50"]
compute, comm, step = (median(name, p50) for name in ("compute", "comm", "step"))
exposed = median("step", lambda run: run["exposed_comm_ms"])
size = json.load(open(f"{work}/plan"))["memory_bytes"]["parameters"]
number, unit = re.fullmatch(r"(\d+)(kbit|mbit|gbit)", rate).groups()
wire = size * 8 / (int(number) * {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}[unit]) * 1e3
print(f"{reduction}, {size / 1e6:.1f} MB of gradients, {batch} samples a step, link of {rate}: at least {wire:.0f} ms on the wire")
print(f"compute {compute:.0f} ms   comm {comm:.0f} ms   step {step:.0f} ms   exposed {exposed:.0f} ms")
print(f"hidden {100 * (1 - exposed / comm):.0f} %   (by step time: {100 * (1 - (step - compute) / comm):.0f} %)")
END
