#!/usr/bin/env bash
# Tries lockstep on a machine with a GPU, in one call of less than ten minutes: says what the machine has, runs the tests
# that need a GPU, two ranks on one GPU, training to equal bits on one and two ranks, compute-sanitizer and benchmarks,
# and ends with a table. From a checkout that is built, or from an unpacked package (scripts/package.sh --with-tests).
# Ends with 1 where a part failed. What the machine lacks is told as MISSING or SKIP, and what there was too little time for
# as TIMEOUT: they fail nothing. Each kind of part has its share of the time; what one leaves, those behind it may use.
#
#   scripts/gpu_check.sh
#   scripts/gpu_check.sh --out DIR --only tests,verify
#
# --out DIR     for the logs of all parts; left out: runs/gpu-check
# --build DIR   build folder, not for packages; left out: build/release
# --python P    Python that has PyTorch; left out: python3
# --limit S     seconds for all parts together; left out: 560
# --only LIST   of: start, tests, verify, sanitizer, benchmarks

# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

out=$PWD/runs/gpu-check
build=build/release
python=python3
limit=560
only=start,tests,verify,sanitizer,benchmarks
while [ $# -gt 0 ]; do
  case "$1" in
    --out | --build | --python | --limit | --only)
      [ $# -ge 2 ] || fail "$1 needs a value"
      declare "${1#--}=$2"
      shift 2
      ;;
    -h | --help)
      sed -n '2,16s/^# \{0,1\}//p' "$script"
      exit 0
      ;;
    *) fail "unknown option $1; see --help" ;;
  esac
done
case $out in /*) ;; *) out=$OLDPWD/$out ;; esac
mkdir -p "$out"

use_mpi_on_one_machine
# Two ranks on one GPU talk through the network, and this machine's own is enough.
export NCCL_SOCKET_IFNAME=lo
if [ -f PACKAGE.txt ]; then
  lockstep=bin/lockstep
  mpirun=bin/mpirun
  in_environment=(bin/lockstep-env)
  export LOCKSTEP_TEST_GOLDENS=$PWD/tests/goldens
  list_tests() { if [ -f tests/list ]; then cat tests/list; fi; }
else
  lockstep=$build/bin/lockstep
  mpirun=mpirun
  in_environment=()
  list_tests() { if [ -f "$build/CTestTestfile.cmake" ]; then scripts/list_gpu_tests.py "$build"; fi; }
fi

# --- parts: each has a time limit, a log and a line of the table ---

table=()
failed=

# record NAME RESULT SECONDS FIGURE
record() {
  table+=("$(printf '%-38s %-8s %5s  %s' "$1" "$2" "$3" "$4")")
  if [ "$2" = FAIL ]; then failed=yes; fi
  printf '%-38s %-8s %5s  %s\n' "$1" "$2" "$3" "$4"
}

# Until when the parts that follow may run.
end=$limit

# share PERCENT KIND...: they end when so much of all the time is over; later where none of the kinds behind is selected.
share() {
  local kind
  end=$limit
  for kind in "${@:2}"; do
    if selected "$kind"; then end=$((limit * $1 / 100)); fi
  done
}

# part NAME SECONDS FIGURE COMMAND...: FIGURE is a function that reads the log.
part() {
  local name=$1 seconds=$2 figure=$3 begin=$SECONDS status=0 result=PASS late=FAIL
  local log=$out/$name.log
  shift 3
  rm -f "$log"
  if [ -z "$gpu" ]; then record "$name" SKIP 0 "there is no GPU" && return; fi
  # Whoever has all the time that it asks for, and does not end, hangs.
  if ((seconds > end - SECONDS)); then seconds=$((end - SECONDS)) late=TIMEOUT; fi
  if ((seconds < 5)); then record "$name" SKIP 0 "no time is left of $end s" && return; fi
  if [ "$figure" = of_sanitizer ]; then late=TIMEOUT; fi
  timeout -k 5 "$seconds" "$@" >"$log" 2>&1 </dev/null || status=$?
  local told
  told=$("$figure" <"$log")
  case $status in
    0) if [ "$told" = "no test ran" ]; then result=FAIL; fi ;;  # although there is a GPU
    124 | 137)
      case $told in *" places told of") late=FAIL ;; esac
      result=$late told="not done in $seconds s${told:+; $told}"
      ;;
    *) result=FAIL told="exit code $status; ${told:-$(tail -n 1 "$log")}" ;;
  esac
  # As where programs reach the driver through a sandbox of the machine's.
  if [ $result = FAIL ] && grep '^=========.*Device not supported' "$log" >/dev/null; then
    result=MISSING told="compute-sanitizer says: device not supported"
  fi
  record "$name" "$result" $((SECONDS - begin)) "$told"
}

selected() { case ",$only," in *",$1,"*) ;; *) return 1 ;; esac; }

# Figures of the table.

of_tests() {
  awk '/^\[       OK \]/ {passed++} /^\[  SKIPPED \] .*\(/ {skipped++} /^\[  FAILED  \] .*\(/ {failed++}
       END {
         if (!passed && !failed) print "no test ran"
         else printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
       }'
}
of_training() { sed -n 's/.*"first_step_ms":\([0-9]*\).*"startup_parts_ms":{\([^}]*\)}.*/first step done after \1 ms: \2/p' | tr -d '"'; }
of_refusal() { sed -n 's/.*\(ranks [0-9, ]*\) on .* \(would share one GPU\).*/\1 \2/p' | head -n 1; }
of_verify() { grep -E '^identical|differs|error' | head -n 1 | cut -c 1-100 || true; }
of_sanitizer() {
  awk '/^========= (ERROR|RACECHECK) SUMMARY: / {sub("^[^:]*: ", ""); summary = $0}
       /^=========     at |^========= Error: Race / {found++}
       END {if (summary != "") print summary; else if (found) print found " places told of"}'
}
of_benchmark() { tail -n 1; }

# --- what the machine has ---

machine() {
  echo "host          $(uname -sr), $(nproc) cores, glibc $(ldd --version | sed -n '1s/.* //p')"
  echo "processor     $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)"
  if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,memory.total,driver_version,compute_cap --format=csv,noheader 2>&1 | sed 's/^/GPU           /'
  else
    echo "GPU           there is no nvidia-smi; devices: $(echo /dev/nvidia[0-9]*)"
  fi
  for program in nvcc compute-sanitizer ncu mpirun ctest; do
    printf '%-13s %s\n' "$program" "$(command -v "$program" || echo missing)"
  done
  echo "PyTorch       $("$python" -c 'import torch; print(torch.__version__, torch.cuda.is_available())' 2>/dev/null || echo missing)"
  if [ -f PACKAGE.txt ]; then sed -n '1p;s/^source/package from /p;s/^needs from CUDA/needs/p' PACKAGE.txt; fi
  local library found
  for library in libcudart libcublasLt libnccl; do
    found=$("${in_environment[@]}" env LD_TRACE_LOADED_OBJECTS=1 "$program_for_gpus" 2>&1 |
      sed -n "s/^[[:space:]]*\($library\.so.*\)/\1/p")
    printf '%-13s %s\n' "$library" "${found:-not what this lockstep is linked to}"
  done
}

program_for_gpus=$lockstep
if [ -x libexec/lockstep ]; then program_for_gpus=libexec/lockstep; fi
PATH=$PATH:/usr/local/cuda/bin
say "the machine"
machine 2>&1 | tee "$out/machine.log" || true
gpu=
if compgen -G '/dev/nvidia[0-9]*' >/dev/null || nvidia-smi -L >/dev/null 2>&1; then gpu=yes; fi

# --- the parts ---

say "parts; logs are in $out"

if [ ! -x "$lockstep" ]; then record lockstep FAIL 0 "$lockstep is missing: build it, or unpack a package"; fi

share 30 verify benchmarks sanitizer
if selected start; then
  part start 60 of_training "$lockstep" train configs/mnist_mlp.textproto --device cuda --json --quiet \
    --set data.synthetic.classes=10 --set data.synthetic.samples=6400 --set data.synthetic.eval_samples=640 --set trainer.steps=50
  one_gpu=${CUDA_VISIBLE_DEVICES:-0}
  # shellcheck disable=SC2016  # for the inner shell
  part shared_gpu_refused 60 of_refusal bash -c 'said=$("$@" 2>&1); echo "$said"; grep "pass --allow-shared-gpu" >/dev/null <<<"$said"' -- \
    env "CUDA_VISIBLE_DEVICES=${one_gpu%%,*}" "$mpirun" -n 2 "$lockstep" train configs/mnist_mlp.textproto --device cuda --quiet \
    --set data.synthetic.classes=10 --set data.synthetic.samples=6400 --set data.synthetic.eval_samples=640 --set trainer.steps=1
fi

tests=$(list_tests)
if selected tests; then
  if [ -z "$tests" ] && [ -n "$gpu" ]; then record tests MISSING 0 "no program of tests: build them, or package.sh --with-tests"; fi
  # Those with several ranks last: they have most to hang in.
  while read -r name seconds ranks program; do
    if [ -z "$name" ]; then continue; fi
    command=("${in_environment[@]}" "$program")
    if ((ranks > 1)); then
      command=("$mpirun")
      for ((rank = 0; rank < ranks; rank++)); do
        if ((rank > 0)); then command+=(:); fi
        # NCCL refuses two ranks on one GPU, unless it takes them to be on two hosts.
        command+=(-n 1 -x "NCCL_HOSTID=rank$rank" "$program")
      done
    fi
    part "$name" "$((seconds < 90 ? seconds : 90))" of_tests "${command[@]}"
  done < <(sort -s -n -k 3,3 <<<"$tests")
fi

share 45 benchmarks sanitizer
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

share 91 sanitizer
if selected benchmarks; then
  kernels=("$build/bin/kernel_benchmark")
  if [ -f PACKAGE.txt ]; then kernels=(bin/lockstep-env tests/kernel_benchmark); fi
  if [ -n "$gpu" ] && [ ! -x "${kernels[-1]}" ]; then
    record kernels MISSING 0 "${kernels[-1]} is not built"
  else
    part kernels 60 of_benchmark "${kernels[@]}"
  fi
  rest=$((end - SECONDS - 10))
  if [ -n "$gpu" ] && ! command -v "$python" >/dev/null; then
    record benchmarks MISSING 0 "there is no $python"
  else
    part benchmarks $((rest + 10)) of_benchmark "$python" -u scripts/bench_gpu.py --lockstep "$lockstep" --python "$python" \
      --kernels "${kernels[*]}" --time-limit "$rest" --json-out "$out/benchmarks.json"
  fi
  if grep 'PyTorch is MISSING$' "$out/benchmarks.log" >/dev/null 2>&1; then
    record PyTorch MISSING 0 "$python has none: lockstep was measured alone"
  fi
  for log in kernels benchmarks; do
    if [ -f "$out/$log.log" ]; then say "$log" && cat "$out/$log.log"; fi
  done
fi

end=$limit
if selected sanitizer; then
  of_one_rank=$(awk '$1 ~ /^(ops|step_kernels)_/ && $3 == 1' <<<"$tests")
  left=$((2 * $(grep -c . <<<"$of_one_rank" || true)))
  for tool in memcheck racecheck; do
    while read -r name _ _ program; do
      if [ -z "$name" ]; then continue; fi
      if [ -n "$gpu" ] && ! command -v compute-sanitizer >/dev/null; then
        record "${tool}_$name" MISSING 0 "there is no compute-sanitizer"
        continue
      fi
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

say "result after $SECONDS s"
printf '%-38s %-8s %5s\n' part result s
printf '%s\n' "${table[@]}"
if [ -n "$failed" ]; then exit 1; fi
