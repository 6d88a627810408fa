# shellcheck shell=bash disable=SC2154
# Sourced by gpu_check.sh: what several virtual replicas at once gain, and runs with everything that looks at them.

share replicas
if selected replicas; then
  # replicas NAME SETTING...: under REPRODUCIBLE eight virtual replicas, one after the other or all at once, and FAST.
  replicas() {
    local name=$1 variant settings
    shift
    for variant in fast apart joined; do
      settings=(parallel.reduction=REPRODUCIBLE trainer.virtual_replicas=8 "trainer.micro_batch=$((batch / 8))")
      case $variant in
        fast) settings=(parallel.reduction=FAST "trainer.micro_batch=$batch") ;;
        joined) settings[2]="trainer.micro_batch=$batch" ;;
      esac
      for setting in "trainer.global_batch=$batch" "$@"; do settings+=("$setting"); done
      part "replicas_${name}_$variant" 40 of_rate "$lockstep" train "${command[@]}" --device cuda --json --quiet \
        $(printf -- '--set %s ' "${settings[@]}")
    done
  }
  still=(trainer.eval_every_steps=0 trainer.eval_at_end=false trainer.check_every_steps=0)
  batch=64 command=(configs/gpt2_124m.textproto)
  replicas gpt2 trainer.steps=15 "${still[@]}"
  batch=128 command=(configs/mnist_mlp.textproto)
  replicas mlp trainer.steps=1500 data.synthetic.classes=10 data.synthetic.samples=6400 data.synthetic.eval_samples=640 \
    data.prefetch_threads=8 data.prefetch_depth=64 "${still[@]}"
  command=(configs/mnist_lenet.textproto)
  replicas lenet trainer.steps=1000 data.synthetic.classes=10 data.synthetic.samples=6400 data.synthetic.eval_samples=640 \
    data.prefetch_threads=8 data.prefetch_depth=64 "${still[@]}"
fi

share runs
if selected runs; then
  run=$out/watched
  rm -rf "$run" "$out/compared"
  # shellcheck disable=SC2016  # for the inner shell
  part watched_run 40 of_last_line bash -c 'out=$1 lockstep=$2; shift 2
    "$lockstep" "$@" --out "$out" --timeline "$out.timeline.json" && "$lockstep" explain "$out" && "$lockstep" timeline "$out.timeline.json" &&
    "$lockstep" report "$out" && grep "\"power_watts\"" "$out/metrics.jsonl" | tail -n 1' -- \
    "$run" "$lockstep" "${gpt[@]}" --quiet --set trainer.steps=40 --set metrics.machine_every_seconds=1
  for file in metrics.jsonl explain.json report.html; do
    if [ -f "$run/$file" ]; then logs+=("$run/$file"); fi
  done
  part profile 40 of_last_line "$lockstep" profile configs/gpt2_124m.textproto --device cuda --layout dp=1 --steps 5 \
    --set trainer.global_batch=16 --set trainer.micro_batch=16 --set trainer.virtual_replicas=1 --out "$out/gpt2.profile"
  one_gpu=(--device cuda --allow-shared-gpu --set data.synthetic.classes=10 --set data.synthetic.samples=6400 --set data.synthetic.eval_samples=640)
  part compare 60 of_last_line "$lockstep" compare configs/mnist_mlp.textproto --layouts "sync=all_reduce; shard=optimizer; sync=ps,servers=1" \
    --workers 1,2 --steps 10 --minutes 0.1 --out "$out/compared" "${one_gpu[@]}"
  part chaos 60 of_last_line "$lockstep" chaos configs/mnist_mlp.textproto --runs 3 --layout dp=2 --kinds kill,nan,preempt \
    --set trainer.steps=60 --out "$out/chaos" "${one_gpu[@]}"
fi
