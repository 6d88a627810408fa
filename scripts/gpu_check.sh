#!/usr/bin/env bash
# Checks lockstep on a machine with a GPU, in two calls of less than six minutes each; each is useful alone. Runs from a
# built checkout, or from an unpacked package (scripts/package.sh --for-gpu-check).
#
#   scripts/gpu_check.sh right --out DIR    # is it right? Tests; where GPT-2's time goes; probes
#   scripts/gpu_check.sh fast --out DIR     # is it fast? PyTorch for comparison; equal bits on several ranks; NCCL; races
#   scripts/gpu_check.sh fast --also tests  # also repeats what failed in the first call and has been fixed
#   scripts/gpu_check.sh --only tests,gpt
#
# --out DIR       folder for the logs of all parts; default: runs/gpu-check
# --archive FILE  archive of all logs; default: DIR.tar.gz
# --build DIR     build folder of a checkout; default: build/release
# --python P      Python that has PyTorch; default: python3
# --limit S       seconds for all parts together; default: 320 for right, 330 for fast, 560 for --only
# --only LIST     parts: device, tests, gpt, ncu, probes, start, kernels, replicas, runs, benchmarks, verify, layouts, nccl,
#                 sanitizer
# --also LIST     parts in addition to those of the call
#
# The archive holds all logs in less than 16 MiB. It is written anew whenever a part ends, so that only the running part is
# lost if time runs out. The output ends with a summary of less than 12,000 characters, also if time runs out or SIGTERM or
# SIGINT ends the check. Exit code 1: a part failed. MISSING or SKIP (the machine lacks something) and TIMEOUT (there was too
# little time) are no failures. If no case of the first part, the device, passes, nothing else is tried. Each part has its
# share of the time; the parts after it may use what it leaves.

# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# In this order, with their shares of the time.
kinds=(device tests gpt ncu probes start kernels replicas runs benchmarks verify layouts nccl sanitizer)
declare -A weights=([device]=8 [tests]=70 [gpt]=30 [ncu]=35 [probes]=90 [start]=15 [kernels]=45 [replicas]=40 [runs]=40
  [benchmarks]=150 [verify]=70 [layouts]=60 [nccl]=40 [sanitizer]=60)
declare -A call_kinds=([right]="device,tests,gpt,ncu,probes,start,kernels,replicas,runs" [fast]="benchmarks,verify,layouts,nccl,sanitizer")
declare -A call_seconds=([right]=320 [fast]=330)

call=
out=$PWD/runs/gpu-check
archive=
build=build/release
python=python3
limit=
only=
also=
while [ $# -gt 0 ]; do
  case "$1" in
    right | fast)
      [ -z "$call" ] || fail "one call at a time: $call or $1"
      call=$1
      shift
      ;;
    --out | --archive | --build | --python | --limit | --only | --also)
      [ $# -ge 2 ] || fail "$1 needs a value"
      declare "${1#--}=$2"
      shift 2
      ;;
    -h | --help)
      sed -n '2,23s/^# \{0,1\}//p' "$script"
      exit 0
      ;;
    *) fail "unknown option $1; see --help" ;;
  esac
done
if [ -n "$call" ]; then
  [ -z "$only" ] || fail "$call has its own parts: --also adds some to them, --only takes no call"
  only=${call_kinds[$call]}${also:+,$also}
  limit=${limit:-${call_seconds[$call]}}
fi
[ -n "$call" ] || [ -z "$also" ] || fail "--also adds to a call; name all of them in --only"
[ -n "$only" ] || fail "say which call: right or fast; or --only LIST"
limit=${limit:-560}
case $out in /*) ;; *) out=$OLDPWD/$out ;; esac
archive=${archive:-$out.tar.gz}
case $archive in /*) ;; *) archive=$OLDPWD/$archive ;; esac
for kind in ${only//,/ }; do
  [ -n "${weights[$kind]:-}" ] || fail "--only and --also take ${kinds[*]}, not $kind"
done
mkdir -p "$out" "$(dirname "$archive")"

use_mpi_on_one_machine
# Two ranks on one GPU talk through the network, and this machine's own is enough.
export NCCL_SOCKET_IFNAME=lo
if [ -f PACKAGE.txt ]; then
  lockstep=bin/lockstep
  mpirun=bin/mpirun
  in_environment=(bin/lockstep-env)
  programs=tests
  export LOCKSTEP_TEST_GOLDENS=$PWD/tests/goldens
  list_tests() { if [ -f tests/list ]; then cat tests/list; fi; }
else
  lockstep=$build/bin/lockstep
  mpirun=mpirun
  in_environment=()
  programs=$build/bin
  list_tests() { if [ -f "$build/CTestTestfile.cmake" ]; then scripts/list_gpu_tests.py "$build"; fi; }
fi
# Under tools, which would look at the shell that starts it in a package.
program_for_gpus=$lockstep
if [ -x libexec/lockstep ]; then program_for_gpus=libexec/lockstep; fi
PATH=$PATH:/usr/local/cuda/bin

# shellcheck source=gpu_check/parts.sh
. scripts/gpu_check/parts.sh
# shellcheck source=gpu_check/machine.sh
. scripts/gpu_check/machine.sh

say "the machine"
read_libraries &
reading=$!
logs+=("$out/machine.log")
machine >"$out/machine.log" 2>&1 </dev/null &
wait $! || true
cat "$out/machine.log"
gpu=
if compgen -G '/dev/nvidia[0-9]*' >/dev/null || timeout 5 nvidia-smi -L >/dev/null 2>&1; then gpu=yes; fi
gpu_name=$(of_gpu name)
gpu_memory_mib=$(of_gpu memory.total)
watch_gpu
wait $reading || true

# --- the parts ---

say "parts; logs are in $out"

if [ ! -x "$lockstep" ]; then record lockstep FAIL 0 "$lockstep is missing: build it, or unpack a package"; fi

# needs NAME PROGRAM: or the part is MISSING, on machines with a GPU.
needs() {
  if [ -z "$gpu" ] || command -v "$2" >/dev/null; then return; fi
  record "$1" MISSING 0 "there is no $2"
  return 1
}

gpt=(train configs/gpt2_124m.textproto --device cuda --json)
for setting in global_batch=64 micro_batch=64 virtual_replicas=1 eval_every_steps=0 eval_at_end=false check_every_steps=0; do
  gpt+=(--set "trainer.$setting")
done
mlp=(train configs/mnist_mlp.textproto --device cuda --quiet --set data.synthetic.classes=10 --set data.synthetic.samples=6400
  --set data.synthetic.eval_samples=640)
benchmark=("${in_environment[@]}" "$programs/kernel_benchmark")

# Only times, of kernels as they run: caches and clocks are left as a step finds them. Numbers have points and one unit.
under_ncu=("${in_environment[@]}" env LC_ALL=C ncu --target-processes all --clock-control none --cache-control none
  --print-units base --metrics gpu__time_duration.sum --csv)

tests=$(list_tests) || record tests MISSING 0 "what tests there are could not be listed"
if [ -z "$tests" ] && [ -n "$gpu" ] && { selected device || selected tests; }; then
  record tests MISSING 0 "no program of tests: build them, or package.sh --for-gpu-check"
fi

# begin_tests SECONDS REGEX: those of one rank whose names match, side by side; those of ops, of which there are thousands, in
# four processes.
begin_tests() {
  local name seconds ranks program shards shard
  while read -r name seconds ranks program; do
    if [ -z "$name" ] || ((ranks != 1)) || ! [[ $name =~ $2 ]] || ! needs "$name" "$program"; then continue; fi
    shards=1
    case $name in ops_*) shards=4 ;; esac
    for ((shard = 0; shard < shards; shard++)); do
      begin_part "$name$( ((shards == 1)) || echo ".$shard")" "$((seconds < $1 ? seconds : $1))" of_tests \
        env "GTEST_TOTAL_SHARDS=$shards" "GTEST_SHARD_INDEX=$shard" "${in_environment[@]}" "$program"
    done
  done <<<"$tests"
}

share device
if selected device; then
  begin_tests 60 '^device_'
  finish_parts
  if [ -n "$failed" ] && ! grep -h '^\[       OK \]' "$out"/device_*.log >/dev/null; then
    say "nothing of the device itself works: nothing else is tried"
    exit 1
  fi
fi

share tests
if selected tests; then
  begin_tests 120 '^(step_kernels|ops|train)_'
  finish_parts
fi

share gpt
trainings=()
on_gpu=(--gpu "$gpu_name" --ceilings "$out/ceilings.log")
if selected gpt; then
  if needs ceilings "$programs/kernel_benchmark"; then part ceilings 30 of_ceilings "${benchmark[@]}" ceilings; fi
  for name in gpt gpt_fused_gelu; do
    fused=false
    if [ $name = gpt_fused_gelu ]; then fused=true; fi
    part $name 60 of_gpt "$lockstep" "${gpt[@]}" --set trainer.steps=25 --set precision.fused_gelu=$fused
    if [ -f "$out/$name.log" ]; then
      trainings+=("$out/$name.log")
      run_limited 10 "$out/gpt_figures.log" "$python" scripts/kernel_times.py training "${on_gpu[@]}" "${trainings[@]}" || true
      if [ $name = gpt ]; then logs+=("$out/gpt_figures.log"); fi
    fi
  done
fi

share ncu
if selected ncu && needs ncu_counters ncu; then
  part ncu_counters 20 of_ncu "${under_ncu[@]}" --launch-count 1 "$program_for_gpus" "${mlp[@]}" --set trainer.steps=1
  if [ "$last_result" = MISSING ]; then
    record gpt_under_ncu SKIP 0 "ncu measures nothing here"
  else
    # About 500 kernels, for each of which ncu stops the program for some 20 ms.
    part gpt_under_ncu 60 of_ncu "${under_ncu[@]}" "$program_for_gpus" "${gpt[@]}" --quiet --set precision.fused_gelu=false \
      --set trainer.steps=1
  fi
  if grep '"gpu__time_duration.sum"' "$out/gpt_under_ncu.log" >/dev/null 2>&1 && needs step_kernels "$python"; then
    part step_kernels 10 of_last_line "$python" scripts/kernel_times.py step "$out/gpt_under_ncu.log" "${on_gpu[@]}" \
      --json-out "$out/step_kernels.json" ${trainings[0]:+--training "${trainings[0]}"}
    logs+=("$out/step_kernels.json")
  fi
fi

share probes
if selected probes; then
  for probe in launches products attention convolutions; do
    if needs "probe_$probe" "$programs/gpu_probe" && needs "probe_$probe" "$python"; then
      part "probe_$probe" 60 of_last_line "$python" -u scripts/gpu_probe.py "$probe" --probe "${in_environment[*]} $programs/gpu_probe" \
        --python "$python"
    fi
  done
fi

share start
if selected start; then
  part start 60 of_training "$lockstep" "${mlp[@]}" --json --set trainer.steps=50
  one_gpu=${CUDA_VISIBLE_DEVICES:-0}
  # shellcheck disable=SC2016  # for the inner shell
  part shared_gpu_refused 60 of_refusal bash -c 'said=$("$@" 2>&1); echo "$said"; grep "pass --allow-shared-gpu" >/dev/null <<<"$said"' -- \
    env "CUDA_VISIBLE_DEVICES=${one_gpu%%,*}" "$mpirun" -n 2 "$lockstep" "${mlp[@]}" --set trainer.steps=1
fi

share kernels
if selected kernels && needs kernels "$programs/kernel_benchmark"; then
  # GPT-2's type first, if time does not suffice. It ends with 1 if kernels are slow, which is a figure.
  # shellcheck disable=SC2016  # for the inner shell
  part kernels 90 of_last_line bash -c '"$@" || { code=$?; [ $code = 1 ] || exit $code; }' -- "${benchmark[@]}" \
    bfloat16 float32 float16
  if [ -f "$out/kernels.log" ]; then
    # The slowest first: ... 61.5 % FAIL
    awk '$NF == "FAIL" {sub(/ *FAIL$/, ""); print $(NF - 1), $0}' "$out/kernels.log" | sort -n | cut -d' ' -f2- >"$out/slow_kernels.log"
    logs+=("$out/slow_kernels.log")
  fi
fi

# shellcheck source=gpu_check/runs.sh
. scripts/gpu_check/runs.sh

share benchmarks
if selected benchmarks && needs benchmarks "$python"; then
  # What PyTorch keeps of a micro-batch of 64 x 1024 tokens does not fit into 80 GB.
  micro_batch=32
  if [ "${gpu_memory_mib:-0}" -gt 100000 ]; then micro_batch=64; fi
  rest=$((end - SECONDS))
  part benchmarks $rest of_last_line "$python" -u scripts/bench_gpu.py --lockstep "$lockstep" --python "$python" \
    --micro-batches $micro_batch --rounds 1 --kernels "${benchmark[*]}" --time-limit $((rest - 8)) --json-out "$out/benchmarks.json"
  logs+=("$out/benchmarks.json")
  if [ -f "$out/benchmarks.log" ]; then
    if grep 'PyTorch is MISSING$' "$out/benchmarks.log" >/dev/null; then
      record PyTorch MISSING 0 "$python has none: lockstep was measured alone"
    fi
    # What it reports at its end; if it was cut off, what it had measured.
    sed -n '/^ceilings by/,$p' "$out/benchmarks.log" >"$out/beside_pytorch.log"
    if [ ! -s "$out/beside_pytorch.log" ]; then tail -n 15 "$out/benchmarks.log" >"$out/beside_pytorch.log"; fi
    logs+=("$out/beside_pytorch.log")
  fi
fi

# shellcheck source=gpu_check/layouts.sh
. scripts/gpu_check/layouts.sh

# Communicators are connected anew in every test, over sockets: a quarter of the 90 tests suffices.
conforms=Checks/Gpu.Conforms
nccl_tests="$conforms/All*:$conforms/*Reduce*:$conforms/LargeMessagesCross:$conforms/SplitByColor:$conforms/TrafficOf*:$conforms/*Expires:$conforms/AbortEnds*"
nccl_tests+=":Checks/GpuStreams.*:Checks/StagedStreams.Conform/FollowsItsStream"
share nccl
if selected nccl; then
  while read -r name seconds ranks program; do
    if [ -z "$name" ] || ((ranks < 2)) || ! needs "$name" "$program"; then continue; fi
    command=("$mpirun")
    for ((rank = 0; rank < ranks; rank++)); do
      if ((rank > 0)); then command+=(:); fi
      # NCCL refuses two ranks on one GPU, unless it takes them to be on two hosts.
      command+=(-n 1 -x "NCCL_HOSTID=rank$rank" -x GTEST_COLOR=no -x GTEST_FILTER="$nccl_tests" "$program")
    done
    part "$name" "$seconds" of_tests "${command[@]}"
  done <<<"$tests"
fi

# Races in lockstep's own kernels: libraries' order their threads in ways that the tool does not know.
share sanitizer
if selected sanitizer; then
  # begin_sanitizer NAME TEST FILTER OPTION...
  begin_sanitizer() {
    local name=$1 program
    program=$(awk -v test="$2" '$1 == test {print $4}' <<<"$tests")
    if [ -z "$program" ] || ! needs "$name" compute-sanitizer; then return 0; fi
    begin_part "$name" 120 of_sanitizer env "GTEST_FILTER=$3" "${in_environment[@]}" compute-sanitizer "${@:4}" --error-exitcode 9 "$program"
  }
  race=(--tool racecheck --kernel-name kns=lockstep)
  begin_sanitizer racecheck_attention ops_gpu_test 'GpuAttention.*' "${race[@]}"
  begin_sanitizer racecheck_embedding ops_gpu_test 'EmbeddingOnGpus.*' "${race[@]}"
  begin_sanitizer racecheck_layer_norm ops_gpu_test '*FusedLayerNorm*' "${race[@]}"
  begin_sanitizer racecheck_step_kernels step_kernels_gpu_test '*' "${race[@]}"
  # What the driver refuses lockstep tells of itself; libraries ask it for functions that it may not have.
  begin_sanitizer memcheck_step_kernels step_kernels_gpu_test '*' --tool memcheck --report-api-errors no
  finish_parts
fi
