#!/usr/bin/env bash
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(realpath "$0")")/../common.sh"

# Programs that others wrote, started where they are installed, and ended with this script.
started=()
stop() { for process in "${started[@]}"; do kill "$process" 2> /dev/null && wait "$process" 2> /dev/null || true; done; }
trap stop EXIT
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
answers() {  # URL
  for _ in $(seq 120); do
    python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=2)' "$1" 2> /dev/null && return
    sleep 0.5
  done
  fail "nothing answers at $1"
}

draw_digits
tracker=()
if command -v mlflow > /dev/null; then
  port=$(free_port)
  (cd "$OUT" && exec mlflow server --backend-store-uri "sqlite:///$OUT/mlflow.db" --artifacts-destination "$OUT/mlflow" --port "$port") > "$OUT/mlflow.txt" 2>&1 &
  started+=($!)
  answers "http://127.0.0.1:$port/health"
  tracker=(--set "metrics.mlflow.uri=http://127.0.0.1:$port" --set metrics.mlflow.experiment=digits)
  echo "MLflow: http://127.0.0.1:$port"
else
  echo "MLflow is not installed (pip install mlflow): the runs are not tracked there"
fi

train() {  # NAME OPTIONS...
  local name=$1
  shift
  "${run[@]}" -n "$workers" -- train "$example/digits.textproto" --data-dir "$OUT/digits" --device "$device" --out "$OUT/$name" \
    --set trainer.eval_every_steps=50 --set metrics.machine_every_seconds=1 --set metrics.histogram_every_steps=100 --quiet "${tracker[@]}" "$@"
}
train gentle --set optimizer.learning_rate=0.02 --set "metrics.prometheus_port=$(free_port)"
train brisk --set optimizer.learning_rate=0.05 --timeline "$OUT/steps.json" --timeline-steps 100:105

"$lockstep" explain "$OUT/brisk"
"$lockstep" timeline "$OUT/steps.json"
"$lockstep" report "$OUT/gentle" "$OUT/brisk" --out "$OUT/both.html" > /dev/null

if command -v tensorboard > /dev/null; then
  port=$(free_port)
  tensorboard --logdir "$OUT" --port "$port" > "$OUT/tensorboard.txt" 2>&1 &
  started+=($!)
  answers "http://127.0.0.1:$port/"
  echo "TensorBoard: http://127.0.0.1:$port"
else
  echo "TensorBoard is not installed (pip install tensorboard): it would show $OUT"
fi
echo "open $OUT/both.html"
# For somebody who looks, what was started goes on.
if [ -t 0 ] && [ -t 1 ] && [ ${#started[@]} -gt 0 ]; then
  read -r -p "Enter ends TensorBoard and MLflow " _
fi
