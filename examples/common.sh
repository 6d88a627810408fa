# shellcheck shell=bash
# Sourced by every example's run.sh: finds the program, says how many workers this machine has room for, and draws the data.
# Leaves the current folder at the repository's root; OUT takes what the example writes.

example=$(dirname "$(realpath "$0")")
# Before the current folder changes: what was named is named from where the user is.
[ -z "${LOCKSTEP_PROGRAM:-}" ] || LOCKSTEP_PROGRAM=$(realpath "$LOCKSTEP_PROGRAM")
[ -z "${OUT:-}" ] || OUT=$(realpath -m "$OUT")
# shellcheck source=../scripts/common.sh
. "$example/../../scripts/common.sh"
use_mpi_on_one_machine
lockstep=${LOCKSTEP_PROGRAM:-build/release/bin/lockstep}
[ -x "$lockstep" ] || fail "there is no $lockstep yet: scripts/quickstart.sh builds it, and installs what is missing"
run=(launcher/lockstep-run --program "$lockstep")

# A worker for each GPU where there are two or more that this program can use; otherwise two, on CPUs.
gpus=$(nvidia-smi --list-gpus 2> /dev/null | grep -c ^GPU || true)
if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
  gpus=$(tr ',' '\n' <<< "$CUDA_VISIBLE_DEVICES" | grep -c . || true)
fi
[ "$gpus" -le 8 ] || gpus=8  # of which a batch has equal parts
if [ "$gpus" -ge 2 ] && "$lockstep" --version | grep -q 'CUDA'; then
  workers=$gpus device=cuda
else
  workers=2 device=cpu
fi

# What an example wrote by itself, it replaces; a folder that somebody names must be empty.
if [ -n "${OUT:-}" ]; then
  [ -z "$(ls -A "$OUT" 2> /dev/null)" ] || fail "OUT=$OUT is not empty; name another folder"
else
  OUT=runs/examples/$(basename "$example")
  rm -rf "$OUT"
fi
mkdir -p "$OUT"
OUT=$(realpath "$OUT")

# Images of digits, drawn in a second.
draw_digits() { "$lockstep" data digits --out "$OUT/digits" --train 6000 --eval 1000 > "$OUT/digits.txt"; }
# A field of the JSON that a command wrote: field FILE NAME.
field() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$1" "$2"; }
