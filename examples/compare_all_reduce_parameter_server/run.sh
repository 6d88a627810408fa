#!/usr/bin/env bash
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(realpath "$0")")/../common.sh"

draw_digits
"$lockstep" compare "$example/digits.textproto" --data-dir "$OUT/digits" --device cpu --workers 1,2 --minutes "${MINUTES:-2}" \
  --layouts "sync=all_reduce; sync=ps,servers=1; sync=ps,servers=1,placement=colocated; sync=ps,servers=1,mode=async" \
  --out "$OUT/report" | tee "$OUT/table.txt"
[ -s "$OUT/report/report.html" ]
echo "open $OUT/report/report.html"
