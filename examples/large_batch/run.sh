#!/usr/bin/env bash
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(realpath "$0")")/../common.sh"

# MNIST names a folder that `lockstep data mnist` has filled; otherwise digits are drawn.
if [ -n "${MNIST:-}" ]; then
  images='"t10k-images-idx3-ubyte.gz"' labels='"t10k-labels-idx1-ubyte.gz"'
  data=(--data-dir "$MNIST" --set "data={idx {train_images: $images train_labels: $labels eval_images: $images eval_labels: $labels
    train_range {begin: 0 end: 9000} eval_range {begin: 9000 end: 10000} mean: 0.1307 deviation: 0.3081}}")
else
  "$lockstep" data digits --out "$OUT/digits" --train 16384 --eval 4096 > "$OUT/digits.txt"
  data=(--data-dir "$OUT/digits")
fi
read -ra seeds <<< "${SEEDS:-1}"

train() {  # NAME OPTIONS...
  local name=$1 seed code
  shift
  for seed in "${seeds[@]}"; do
    code=0
    "${run[@]}" -n "$workers" -- train "$example/digits.textproto" "${data[@]}" --device "$device" --out "$OUT/$name-$seed" --quiet \
      --set "trainer.seed=$seed" --set "trainer.epochs=${EPOCHS:-10}" "$@" > "$OUT/$name-$seed.txt" || code=$?
    # A loss that is not finite is a result, too.
    [ "$code" -eq 0 ] || [ "$code" -eq 70 ] || fail "$name: exit code $code"
  done
}
large=(--set trainer.global_batch=2048)
train small
train scaled "${large[@]}"
train clipped "${large[@]}" --set trainer.clip_norm=1
train lars "${large[@]}" --set 'optimizer.lars={trust: 0.4}' --set optimizer.learning_rate=0.0025
train lamb "${large[@]}" --set 'optimizer.lamb={adapt_without_decay: true}' --set optimizer.learning_rate=0.01 \
  --set optimizer.scale_with_batch.rule=SQUARE_ROOT

"$lockstep" report "$OUT/"{small,scaled,clipped,lars,lamb}"-${seeds[0]}" --out "$OUT/all.html" > /dev/null
python3 "$example/table.py" "$OUT" "${seeds[@]}"
