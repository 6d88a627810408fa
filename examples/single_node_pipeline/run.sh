#!/usr/bin/env bash
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(realpath "$0")")/../common.sh"

echo "On one device of 40 MiB:"
if "$lockstep" train "$example/gpt.textproto" --device "$device" 2> "$OUT/refusal.txt"; then
  echo "it fitted, which was not expected" >&2
  exit 1
fi
sed -n 's/^lockstep: error: /  refused: /p' "$OUT/refusal.txt" | head -n 1
"${run[@]}" -n 2 -- train "$example/gpt.textproto" --layout dp=1,pp=2 --device "$device" --out "$OUT/run" --json --quiet > "$OUT/result.json"
echo "On two, as a pipeline: $(field "$OUT/result.json" steps) steps, $(field "$OUT/result.json" peak_memory_bytes) bytes on the fuller one"
