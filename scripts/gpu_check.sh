#!/usr/bin/env bash
# Tries lockstep on a machine with a GPU, in one call of less than ten minutes, and tells the most first: what the machine
# has; how fast GPT-2 trains; where a step's time goes; probes; tests and training to equal bits on one and two ranks;
# PyTorch beside it; NCCL's tests; compute-sanitizer. From a checkout that is built, or from an unpacked package
# (scripts/package.sh --with-tests). The end of what is printed says all that counts in less than 12,000 characters, and an
# archive of less than 16 MiB holds all logs; both come also where time runs out or SIGTERM or SIGINT ends it.
# Ends with 1 where a part failed. What the machine lacks is told as MISSING or SKIP, and what there was too little time for
# as TIMEOUT: they fail nothing. Each kind of part has its share of the time; what one leaves, those after it may use.
#
#   scripts/gpu_check.sh
#   scripts/gpu_check.sh --out DIR --only tests,verify
#
# --out DIR       for the logs of all parts; left out: runs/gpu-check
# --archive FILE  for all of them; left out: DIR.tar.gz
# --build DIR     build folder, not for packages; left out: build/release
# --python P      Python that has PyTorch; left out: python3
# --limit S       seconds for all parts together; left out: 560
# --only LIST     of: gpt, ncu, probes, start, tests, verify, benchmarks, nccl, sanitizer

# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# In this order, and until how many hundredths of all the time are over.
kinds=(gpt ncu probes start tests verify benchmarks nccl sanitizer)
declare -A until_hundredth=([gpt]=20 [ncu]=26 [probes]=38 [start]=43 [tests]=43 [verify]=49 [benchmarks]=64 [nccl]=99 [sanitizer]=100)

out=$PWD/runs/gpu-check
archive=
build=build/release
python=python3
limit=560
only=$(IFS=, && echo "${kinds[*]}")
while [ $# -gt 0 ]; do
  case "$1" in
    --out | --archive | --build | --python | --limit | --only)
      [ $# -ge 2 ] || fail "$1 needs a value"
      declare "${1#--}=$2"
      shift 2
      ;;
    -h | --help)
      sed -n '2,20s/^# \{0,1\}//p' "$script"
      exit 0
      ;;
    *) fail "unknown option $1; see --help" ;;
  esac
done
case $out in /*) ;; *) out=$OLDPWD/$out ;; esac
archive=${archive:-$out.tar.gz}
case $archive in /*) ;; *) archive=$OLDPWD/$archive ;; esac
for kind in ${only//,/ }; do
  [ -n "${until_hundredth[$kind]:-}" ] || fail "--only takes ${kinds[*]}, not $kind"
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
logs+=("$out/machine.log")
machine >"$out/machine.log" 2>&1 </dev/null &
wait $! || true
cat "$out/machine.log"
gpu=
if compgen -G '/dev/nvidia[0-9]*' >/dev/null || timeout 5 nvidia-smi -L >/dev/null 2>&1; then gpu=yes; fi

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

# Only times, of kernels as they run: caches and clocks are left as a step finds them. Numbers have points and one unit.
under_ncu=("${in_environment[@]}" env LC_ALL=C ncu --target-processes all --clock-control none --cache-control none
  --print-units base --metrics gpu__time_duration.sum --csv)

share ncu
ncu_works=
if selected ncu && needs ncu_counters ncu; then
  part ncu_counters 20 of_ncu "${under_ncu[@]}" --launch-count 1 "$program_for_gpus" "${mlp[@]}" --set trainer.steps=1
  if [ "$last_result" = MISSING ]; then ncu_works=no; fi
fi

share gpt
trainings=()
if selected gpt; then
  for name in gpt gpt_fused_gelu; do
    fused=()
    if [ $name = gpt_fused_gelu ]; then fused=(--set precision.fused_gelu=true); fi
    part $name 60 of_gpt "$lockstep" "${gpt[@]}" --set trainer.steps=25 "${fused[@]}"
    if [ -f "$out/$name.log" ]; then
      trainings+=("$out/$name.log")
      run_limited 10 "$out/gpt_figures.log" "$python" scripts/kernel_times.py training "${trainings[@]}" || true
      if [ $name = gpt ]; then logs+=("$out/gpt_figures.log"); fi
    fi
  done
fi

share ncu
if selected ncu && [ "$ncu_works" = no ]; then
  record gpt_under_ncu SKIP 0 "ncu measures nothing here"
elif selected ncu && needs gpt_under_ncu ncu; then
  # About 500 kernels, for each of which ncu stops the program for some 20 ms.
  part gpt_under_ncu 60 of_ncu "${under_ncu[@]}" "$program_for_gpus" "${gpt[@]}" --quiet --set trainer.steps=1
  if grep '"gpu__time_duration.sum"' "$out/gpt_under_ncu.log" >/dev/null 2>&1 && needs step_kernels "$python"; then
    part step_kernels 10 of_last_line "$python" scripts/kernel_times.py step "$out/gpt_under_ncu.log" \
      --json-out "$out/step_kernels.json" ${trainings[0]:+--training "${trainings[0]}"}
    logs+=("$out/step_kernels.json")
  fi
fi

share probes
if selected probes; then
  for probe in products launches attention convolutions; do
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

tests=$(list_tests) || record tests MISSING 0 "what tests there are could not be listed"

# run_tests SECONDS LEAST MOST: those with so many ranks, each for no longer.
run_tests() {
  local name seconds ranks program rank command
  while read -r name seconds ranks program; do
    if [ -z "$name" ] || ((ranks < $2 || ranks > $3)); then continue; fi
    command=("${in_environment[@]}" "$program")
    if ((ranks > 1)); then
      command=("$mpirun")
      for ((rank = 0; rank < ranks; rank++)); do
        if ((rank > 0)); then command+=(:); fi
        # NCCL refuses two ranks on one GPU, unless it takes them to be on two hosts.
        command+=(-n 1 -x "NCCL_HOSTID=rank$rank" "$program")
      done
    fi
    part "$name" "$((seconds < $1 ? seconds : $1))" of_tests "${command[@]}"
  done <<<"$tests"
}

share tests
if selected tests; then
  if [ -z "$tests" ] && [ -n "$gpu" ]; then record tests MISSING 0 "no program of tests: build them, or package.sh --with-tests"; fi
  run_tests 90 1 1
fi

share verify
if selected verify; then
  verify() {
    local name=$1 config=$2
    shift 2
    part "verify_$name" 40 of_verify "$lockstep" verify "configs/$config.textproto" --layouts "dp=1; dp=2" --steps 10 \
      --device cuda --allow-shared-gpu --set data.synthetic.samples=2000 --set data.synthetic.eval_samples=100 "$@"
  }
  verify mlp mnist_mlp --set data.synthetic.classes=10
  verify lenet mnist_lenet --set data.synthetic.classes=10
  verify gpt shakespeare_gpt --set data.synthetic.classes=65
  verify gpt_bfloat16 shakespeare_gpt --set data.synthetic.classes=65 --set precision.compute=BFLOAT16
  verify lenet_bfloat16 mnist_lenet --set data.synthetic.classes=10 --set precision.compute=BFLOAT16
  verify lenet_tf32 mnist_lenet --set data.synthetic.classes=10 --set precision.compute=TF32
  verify mlp_float16 mnist_mlp --set data.synthetic.classes=10 --set precision.compute=FLOAT16
fi

share benchmarks
if selected benchmarks; then
  kernels=("${in_environment[@]}" "$programs/kernel_benchmark")
  for_kernels=$(((end - SECONDS) / 3))
  if ((for_kernels > 40)); then for_kernels=40; fi
  rest=$((end - SECONDS - for_kernels))
  if needs benchmarks "$python"; then
    part benchmarks $rest of_last_line "$python" -u scripts/bench_gpu.py --lockstep "$lockstep" --python "$python" \
      --kernels "${kernels[*]}" --time-limit $((rest - 10)) --json-out "$out/benchmarks.json"
    logs+=("$out/benchmarks.json")
  fi
  if [ -f "$out/benchmarks.log" ]; then
    if grep 'PyTorch is MISSING$' "$out/benchmarks.log" >/dev/null; then
      record PyTorch MISSING 0 "$python has none: lockstep was measured alone"
    fi
    # What it reports at its end; where it was cut off, what it had measured.
    sed -n '/^ceilings by/,$p' "$out/benchmarks.log" >"$out/beside_pytorch.log"
    if [ ! -s "$out/beside_pytorch.log" ]; then tail -n 15 "$out/benchmarks.log" >"$out/beside_pytorch.log"; fi
    logs+=("$out/beside_pytorch.log")
  fi
  if needs kernels "$programs/kernel_benchmark"; then
    # GPT-2's type first, if time does not suffice. It ends with 1 where kernels are slow, which is a figure.
    # shellcheck disable=SC2016  # for the inner shell
    part kernels 60 of_last_line bash -c '"$@" || { code=$?; [ $code = 1 ] || exit $code; }' -- "${kernels[@]}" \
      bfloat16 float32 float16
  fi
  if [ -f "$out/kernels.log" ]; then
    # The slowest first: ... 61.5 % FAIL
    awk '$NF == "FAIL" {sub(/ *FAIL$/, ""); print $(NF - 1), $0}' "$out/kernels.log" | sort -n | cut -d' ' -f2- >"$out/slow_kernels.log"
    logs+=("$out/slow_kernels.log")
  fi
fi

share nccl
# They make some 80 communicators, over sockets.
if selected nccl; then run_tests 200 2 1000; fi

share sanitizer
if selected sanitizer; then
  of_one_rank=$(awk '$1 ~ /^(ops|step_kernels)_/ && $3 == 1' <<<"$tests")
  left=$((2 * $(grep -c . <<<"$of_one_rank" || true)))
  for tool in memcheck racecheck; do
    while read -r name _ _ program; do
      if [ -z "$name" ] || ! needs "${tool}_$name" compute-sanitizer; then continue; fi
      options=(--tool "$tool" --error-exitcode 9)
      case $tool in
        # What the driver refuses lockstep tells of itself; libraries ask it for functions that it may not have.
        memcheck) options+=(--report-api-errors no) ;;
        # Libraries' kernels order their threads in ways that the tool does not know.
        racecheck) options+=(--kernel-name kns=lockstep) ;;
      esac
      # A tenth of the tests of ops, spread over all of them: under the tool each takes many times as long.
      shards=(GTEST_TOTAL_SHARDS=10 GTEST_SHARD_INDEX=3)
      case $name in step_kernels_*) shards=() ;; esac
      part "${tool}_$name" $(((end - SECONDS) / left)) of_sanitizer env "${shards[@]}" \
        "${in_environment[@]}" compute-sanitizer "${options[@]}" "$program"
      left=$((left - 1))
    done <<<"$of_one_rank"
  done
fi
