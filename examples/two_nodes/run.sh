#!/usr/bin/env bash
# run.sh [HOSTFILE]: on its hosts; without one on two that are made on this machine, for which it needs root.
hostfile=${1:+$(realpath "$1")}
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(realpath "$0")")/../common.sh"

draw_digits
train=(train "$example/digits.textproto" --data-dir "$OUT/digits" --out "$OUT/run" --json --quiet)
if [ -n "$hostfile" ]; then
  "${run[@]}" --hostfile "$hostfile" -- "${train[@]}" > "$OUT/result.json"
else
  # Joined by a link of 1 Gbit/s. Ends with 77 where they cannot be made, and says why.
  scripts/two_hosts.sh --id example with -- bash -c 'scripts/two_hosts.sh throttle 1gbit && exec scripts/two_hosts.sh run -n 2 -- "$@"' \
    two_nodes "$(realpath "$lockstep")" "${train[@]}" --device cpu > "$OUT/result.json"
fi
hosts=$(python3 -c 'import json, sys; print(len({rank["host"] for rank in json.load(open(sys.argv[1]))["ranks"]}))' "$OUT/result.json")
echo "$(field "$OUT/result.json" world_size) workers on $hosts hosts: accuracy $(field "$OUT/result.json" eval_accuracy)"
