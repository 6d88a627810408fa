#!/usr/bin/env bash
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(realpath "$0")")/../common.sh"

# SHAKESPEARE names the text if it is here already; otherwise it is downloaded.
from=()
[ ! -f "${SHAKESPEARE:-}" ] || from=(--from "$SHAKESPEARE")
if ! "$lockstep" data shakespeare --out "$OUT/data" "${from[@]}" > "$OUT/data.txt"; then
  echo "there is no text, and it could not be downloaded: name it by SHAKESPEARE=tinyshakespeare.txt" >&2
  exit 77
fi
# Shows what it writes after 100, 200 and 300 steps; the words are in metrics.jsonl and report.html, too.
"${run[@]}" -n "$workers" -- train "$example/gpt.textproto" --data-dir "$OUT/data" --out "$OUT/run" --device "$device" \
  --set metrics.progress=false
"$lockstep" generate --checkpoint "$OUT/run" --prompt "JULIET:" --tokens 300 --temperature 0.8 --seed 1 | tee "$OUT/text.txt"
echo "$(wc -c < "$OUT/text.txt") characters of a play; open $OUT/run/report.html"
