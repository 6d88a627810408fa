# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by gpu_check.sh, whose options it reads: parts, each with a time limit, a log and a line of the table, after which the
# archive is written; and the end, which comes whatever happens: a summary.

most_printed_bytes=11500
most_archived_bytes=$((15 << 20))

table=()
logs=("$out/table.log")  # what the archive gets
failed=
last_result=       # of the last part that ended
declare -A begun=()  # of parts that run: the process that limits it -> name, when it began, its seconds, what follows if they do
                     # not suffice, the function of its figure

# record NAME RESULT SECONDS FIGURE
record() {
  local row
  row=$(printf '%-34s %-8s %5s  %s' "$1" "$2" "$3" "${4:0:150}")
  table+=("$row")
  if [ "$2" = FAIL ]; then failed=yes; fi
  last_result=$2
  echo "$row"
}

selected() { case ",$only," in *",$1,"*) ;; *) return 1 ;; esac; }

# Until when the parts that follow may run.
end=$limit

# share KIND: parts of this kind follow. The kinds that are selected share all the time; what one leaves, those after it have.
share() {
  local kind all=0 until=0 after=
  for kind in "${kinds[@]}"; do
    if selected "$kind"; then
      # shellcheck disable=SC2004  # a key, not a number
      all=$((all + weights[$kind]))
      if [ -z "$after" ]; then until=$all; fi
    fi
    if [ "$kind" = "$1" ]; then after=yes; fi
  done
  end=$((all > 0 ? limit * until / all : limit))
}

# run_limited SECONDS LOG COMMAND...: in the background, since a shell that waits for a program of its own hears no signal.
run_limited() {
  timeout -k 5 "$1" "${@:3}" >"$2" 2>&1 </dev/null &
  wait $!
}

# begin_part NAME SECONDS FIGURE COMMAND...: FIGURE is a function that reads the log. Parts that are begun before
# finish_parts run side by side.
begin_part() {
  local name=$1 seconds=$2 figure=$3 late=FAIL
  local log=$out/$name.log
  shift 3
  rm -f "$log"
  if [ -z "$gpu" ]; then record "$name" SKIP 0 "there is no GPU" && return; fi
  # Whoever has all the time that it asks for, and does not end, hangs.
  if ((seconds > end - SECONDS)); then seconds=$((end - SECONDS)) late=TIMEOUT; fi
  if ((seconds < 5)); then record "$name" SKIP 0 "no time is left of $end s" && return; fi
  case $figure in of_sanitizer | of_ncu) late=TIMEOUT ;; esac
  logs+=("$log")
  timeout -k 5 "$seconds" "$@" >"$log" 2>&1 </dev/null &
  begun[$!]="$name $SECONDS $seconds $late $figure"
}

# finish_parts: waits for all that were begun. Told, and in the archive, is each when it ends.
finish_parts() {
  local process status
  while [ ${#begun[@]} -gt 0 ]; do
    status=0 process=
    wait -n -p process "${!begun[@]}" || status=$?
    # A process that bash has told of meanwhile, and forgotten: one of those that are gone was killed.
    if [ -z "$process" ]; then
      status=137
      for process in "${!begun[@]}"; do
        if ! kill -0 "$process" 2>/dev/null; then break; fi
      done
    fi
    # shellcheck disable=SC2086  # words
    conclude $status ${begun[$process]}
    unset "begun[$process]"
    save
  done
}

part() {
  begin_part "$@"
  finish_parts
}

# conclude STATUS NAME BEGIN SECONDS LATE FIGURE
conclude() {
  local status=$1 name=$2 begin=$3 seconds=$4 late=$5 figure=$6 result=PASS told refused
  local log=$out/$name.log
  told=$("$figure" <"$log") || true
  case $status in
    0)
      case $figure:$told in
        *:"no test ran") result=FAIL ;;  # although there is a GPU
        of_ncu:) result=MISSING told="no kernel was measured" ;;
      esac
      ;;
    124 | 137)
      case $told in *" places told of") late=FAIL ;; esac
      result=$late told="not done in $seconds s${told:+; $told}"
      ;;
    *) result=FAIL told="exit code $status; ${told:-$(tail -n 1 "$log")}" ;;
  esac
  refused=$(refusal_of_tool "$log")
  if [ -n "$refused" ]; then
    case $result in FAIL | MISSING) result=MISSING told=$refused ;; esac
  fi
  record "$name" "$result" $((SECONDS - begin)) "$told"
}

# What compute-sanitizer or ncu says where it cannot work on this machine, as where programs reach the driver through a sandbox.
refusal_of_tool() {
  if grep '^=========.*Device not supported' "$1" >/dev/null; then
    echo "compute-sanitizer says: device not supported"
  else
    grep -h '^==ERROR==' "$1" | grep -v 'application returned' | head -n 1 || true
  fi
}

# Figures of the table.

of_tests() {
  awk '/^\[       OK \]/ {passed++} /^\[  SKIPPED \] .*\(/ {skipped++} /^\[  FAILED  \] .*\(/ {failed++}
       END {
         if (!passed && !failed) print "no test ran"
         else printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
       }'
}
of_training() { sed -n 's/.*"first_step_ms":\([0-9]*\).*"startup_parts_ms":{\([^}]*\)}.*/first step done after \1 ms: \2/p' | tr -d '"'; }
of_gpt() { of_step tokens; }
of_rate() { of_step samples; }
# of_step WHAT: how many a second, and the median step, of which the report has one; other medians follow it.
of_step() {
  sed -n "s/.*\"${1}_per_second\":\([0-9]*\).*\"step_ms\":{[^}]*\"p50\":\([0-9]*\.\{0,1\}[0-9]\{0,2\}\).*/\1 $1\/s, \2 ms a step/p"
}
of_ceilings() {
  sed -n 's/.*"copy_bytes_per_second": *\([0-9.e+]*\).*"product_flops": *\([0-9.e+]*\).*/\1 \2/p' |
    awk '{printf "copy %.2f TB/s, product %.0f TFLOP/s\n", $1 / 1e12, $2 / 1e12}'
}
of_refusal() { sed -n 's/.*\(ranks [0-9, ]*\) on .* \(would share one GPU\).*/\1 \2/p' | head -n 1; }
of_verify() { grep -E '^identical|differs|error' | head -n 1 | cut -c 1-100 || true; }
of_sanitizer() {
  awk '/^========= (ERROR|RACECHECK) SUMMARY: / {sub("^[^:]*: ", ""); summary = $0}
       /^=========     at |^========= Error: Race / {found++}
       END {if (summary != "") print summary; else if (found) print found " places told of"}'
}
of_ncu() { awk '/"gpu__time_duration.sum"/ {found++} END {if (found) print "times of " found " kernels"}'; }
of_last_line() { tail -n 1; }

# --- the end: a summary and the archive ---

# As many of the first lines as fit into BYTES.
first_lines() { awk -v most="$1" '{used += length($0) + 1; if (used > most) {print "..."; exit} print}'; }

# section TITLE LOG BYTES: where this run has made that log.
section() {
  case " ${logs[*]} " in *" $out/$2.log "*) ;; *) return 0 ;; esac
  say "$1"
  if [ -s "$out/$2.log" ]; then first_lines "$3" <"$out/$2.log"; else echo none; fi
}

print_table() {
  local rows passed
  rows=$(printf '%s\n' "${table[@]}")
  # Where it is too long: without what passed, which is in the archive.
  if [ ${#rows} -gt 3600 ]; then
    passed=$(grep -cE '^[^ ]+ +PASS ' <<<"$rows")
    rows=$(grep -vE '^[^ ]+ +PASS ' <<<"$rows" | first_lines 3400; echo "and $passed parts that passed: see table.log")
  fi
  printf '%-34s %-8s %5s\n%s\n' part result s "$rows"
}

# The last line of each, whole: in the table it may be cut.
print_probes() {
  local log name title="probes"
  for log in "${logs[@]}"; do
    name=$(basename "$log" .log)
    case $name in
      probe_*)
        if [ -n "$title" ]; then say "$title" && title=; fi
        echo "${name#probe_}: $(tail -n 1 "$log" | cut -c 1-310)"
        ;;
    esac
  done
}

# What counts most is last: who sees little sees the end.
print_summary() {
  section "kernels bound by memory below 85 % of the copy's bandwidth" slow_kernels 800
  section "beside PyTorch" beside_pytorch 1500
  print_probes
  section "GPT-2 124M, micro-batch 64 x 1024" gpt_figures 1000
  section "its kernels" step_kernels 2900
  say "result after $SECONDS s${stopped:+, stopped by $stopped}"
  print_table
}

# stage_logs FOLDER BYTES: copies of all logs, of longer ones the beginning and, thrice as much, the end. Few processes, since this
# is done after each part.
stage_logs() {
  local log size whole=()
  while read -r size log; do
    if [ "$size" -le "$2" ]; then
      whole+=("$log")
    else
      {
        head -c $(($2 / 4)) "$log"
        printf '\n... left out of %s bytes ...\n' "$size"
        tail -c $(($2 * 3 / 4)) "$log"
      } >"$1/$(basename "$log")"
    fi
  done < <(stat -c '%s %n' "${logs[@]}" 2>/dev/null | sort -u)
  if [ ${#whole[@]} -gt 0 ]; then cp "${whole[@]}" "$1/"; fi
}

write_archive() {
  local most=$((4 << 20)) folder
  folder=$(mktemp -d)
  mkdir "$folder/gpu-check"
  while [ $most -ge 1024 ]; do
    stage_logs "$folder/gpu-check" $most
    tar -C "$folder" -czf "$archive.part" gpu-check
    if [ "$(stat -c %s "$archive.part")" -le $most_archived_bytes ]; then break; fi
    most=$((most / 4))
  done
  mv "$archive.part" "$archive"
  rm -rf "$folder"
}

# What there is so far, if no end comes.
save() {
  printf '%s\n' "${table[@]}" >"$out/table.log"
  write_archive || true
}

# What runs is asked to end, and killed in 5 s if it does not; nothing here waits for that. Its whole group is, since timeout,
# which leads it, forgets its program if a signal comes just when it has started that.
end_parts() {
  local leader
  for leader in $(jobs -pr); do
    kill -TERM -- "-$leader" "$leader" 2>/dev/null
    { sleep 5 && kill -KILL -- "-$leader"; } </dev/null >/dev/null 2>&1 &
  done
}

stopped=
# Also if this is ended by a signal, or by an error of its own.
finish() {
  local code=$? process name begin
  set +e
  trap - EXIT
  trap '' TERM INT HUP PIPE
  end_parts
  for process in "${!begun[@]}"; do
    read -r name begin _ <<<"${begun[$process]}"
    record "$name" STOPPED $((SECONDS - begin)) "by ${stopped:-an error}"
  done
  print_summary >"$out/summary.log"
  logs+=("$out/summary.log")
  save
  tail -c $most_printed_bytes "$out/summary.log"
  if [ -f "$archive" ]; then
    printf '\nall logs: %s\n' "$archive"
  else
    printf '\nthe archive %s could not be written; the logs are in %s\n' "$archive" "$out"
  fi
  if [ $code = 0 ] && [ -n "$failed" ]; then code=1; fi
  exit $code
}
trap finish EXIT
trap 'stopped=SIGTERM; exit 143' TERM
trap 'stopped=SIGINT; exit 130' INT
trap 'stopped=SIGHUP; exit 129' HUP
trap 'stopped="a closed pipe"; exit 141' PIPE
