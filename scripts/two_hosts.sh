#!/usr/bin/env bash
# Makes two to eight hosts on one machine, to test what happens between hosts. Each is a network namespace with its own
# host name and one network interface (net0). Two hosts are joined by a cable, more by a switch. Links can be throttled
# and cut.
#
#   scripts/two_hosts.sh run -n 2 -- build/release/bin/lockstep train CONFIG   # mpirun on host-a, over all hosts
#   scripts/two_hosts.sh on host-a -- COMMAND...     # any command on one host, such as lockstep-run
#   scripts/two_hosts.sh with -- COMMAND...          # up, COMMAND on this machine, down
#   scripts/two_hosts.sh up | down                   # `run` and `on` need `up` first, or `with` around them
#   scripts/two_hosts.sh throttle 1gbit | unthrottle | cut | restore
#
# --id NAME (or LOCKSTEP_TWO_HOSTS, which `with` sets): name of the set of hosts, so that several sets can exist at once.
# At most 20 letters and digits; default: main.
# --hosts N: number of hosts that `up` and `with` make: host-a, host-b and so on; default: 2.
#
# A rate limits each direction of a host's link. `cut` separates host-b from the others. Before `--`, `run` takes options
# of mpirun. Needs root and the right to create network namespaces; otherwise `up` and `with` say so and exit with 77.
# Interfaces and namespaces of others are never touched.

set -euo pipefail
script=$(realpath "$0")
id=${LOCKSTEP_TWO_HOSTS:-main}

usage() { sed -n '2,19s/^# \{0,1\}//p' "$script"; }
fail() {
  printf 'two_hosts.sh: %s\n' "$*" >&2
  exit 2
}
skip() {
  printf 'two_hosts.sh: skipped: %s\n' "$*" >&2
  exit 77
}

count=2
while :; do
  case "${1:-}" in
    --id | --hosts)
      [ $# -ge 2 ] || fail "$1 needs a value"
      if [ "$1" = --id ]; then id=$2; else count=$2; fi
      shift 2
      ;;
    *) break ;;
  esac
done
[[ $id =~ ^[A-Za-z0-9]{1,20}$ ]] || fail "--id takes at most 20 letters and digits, but got '$id'"
[[ $count =~ ^[2-8]$ ]] || fail "--hosts takes 2 to 8, but got '$count'"
action=${1:-help}
[ $# -eq 0 ] || shift

prefix=lockstep-$id
switch=$prefix-switch
letters=(a b c d e f g h)
# The namespace of a host. Those that are there tell how many were made.
namespace() {
  local where=$prefix-${1#host-}
  if ! [[ $1 =~ ^host-[a-h]$ ]] || ! { [ -e "/run/netns/$where" ] || ! is_up; }; then
    fail "there is no host '$1': there are $(hosts | paste -sd ' ')"
  fi
  echo "$where"
}
hosts() {
  local letter
  for letter in "${letters[@]}"; do
    if [ -e "/run/netns/$prefix-$letter" ]; then echo "host-$letter"; fi
  done
}
is_up() { [ -n "$(hosts)" ]; }
# Of a token bucket: what the rate passes in a millisecond, so that a link that was idle makes up for little of
# it; at least 32 KiB, so that slow ones reach their rate.
burst_of() {
  local number=${1%%[a-z]*} unit=0
  case "$1" in
    *kbit) unit=1000 ;;
    *mbit) unit=1000000 ;;
    *gbit) unit=1000000000 ;;
    *) fail "a rate is a whole number with kbit, mbit or gbit, such as 200mbit; found '$1'" ;;
  esac
  local bytes=$((number * unit / 8000))
  echo "$((bytes > 32768 ? bytes : 32768))"
}

need_up() { is_up || fail "hosts '$id' are not up; run: $script --id $id up"; }

up() {
  command -v ip >/dev/null || skip "there is no ip (Debian: apt-get install iproute2)"
  command -v tc >/dev/null || skip "there is no tc, which limits the link (Debian: apt-get install iproute2)"
  [ "$(id -u)" -eq 0 ] || skip "only root may create network namespaces"
  ! is_up || fail "hosts '$id' are up already; choose another --id, or run: $script --id $id down"
  local first=$prefix-a letter number=0 names='127.0.0.1 localhost'
  ip netns add "$first" 2>/dev/null || skip "this system does not let root create network namespaces (in a container: --privileged)"
  if ! ip netns exec "$first" true 2>/dev/null; then
    ip netns delete "$first"
    skip "programs cannot be run in network namespaces here (as in a chroot, whose root is no mount of its own)"
  fi
  trap down ERR
  trap 'down; exit 130' INT TERM
  for letter in "${letters[@]:1:count-1}"; do ip netns add "$prefix-$letter"; done
  # Made inside, so that this machine's own interfaces never see them; the same addresses serve every set of hosts.
  if [ "$count" -eq 2 ]; then
    ip link add net0 netns "$first" type veth peer name net0 netns "$prefix-b"
  else
    ip netns add "$switch"
    ip -n "$switch" link add switch type bridge
    ip -n "$switch" link set switch up
  fi
  for letter in "${letters[@]:0:count}"; do names+=$'\n'"10.77.0.$((++number)) host-$letter"; done
  number=0
  for letter in "${letters[@]:0:count}"; do
    local where=$prefix-$letter
    if [ "$count" -gt 2 ]; then
      ip link add net0 netns "$where" type veth peer name "port-$letter" netns "$switch"
      ip -n "$switch" link set "port-$letter" master switch up
    fi
    ip -n "$where" address add "10.77.0.$((++number))/24" dev net0
    ip -n "$where" link set net0 up
    ip -n "$where" link set lo up
    # What `ip netns exec` shows as /etc/hosts.
    mkdir -p "/etc/netns/$where"
    printf '%s\n' "$names" >"/etc/netns/$where/hosts"
  done
  trap - ERR INT TERM
}

down() {
  local where letter
  for letter in "${letters[@]}" switch; do
    where=$prefix-$letter
    [ -e "/run/netns/$where" ] || continue
    # Whatever still runs there was started there.
    ip netns pids "$where" | xargs -r kill -9 2>/dev/null || true
    ip netns delete "$where"
    rm -rf "/etc/netns/$where"
  done
  rmdir /etc/netns 2>/dev/null || true
}

# Where packets leave for a host and from it: calls "$@" NAMESPACE INTERFACE for each.
for_links() {
  local host
  for host in $(hosts); do
    "$@" "$(namespace "$host")" net0
    if [ -e "/run/netns/$switch" ]; then "$@" "$switch" "port-${host#host-}"; fi
  done
}
throttle_link() { tc -n "$2" qdisc replace dev "$3" root tbf rate "$1" burst "$(burst_of "$1")" latency 50ms; }
unthrottle_link() { tc -n "$1" qdisc delete dev "$2" root 2>/dev/null || true; }

# Replaces this process.
on() {
  local host=$1 where
  where=$(namespace "$host")
  shift
  exec env LOCKSTEP_TWO_HOSTS="$id" OMPI_MCA_plm_rsh_agent="$script --id $id rsh" \
    OMPI_MCA_btl_tcp_if_include=net0 OMPI_MCA_oob_tcp_if_include=net0 \
    ip netns exec "$where" unshare --uts sh -c "hostname $host && exec \"\$@\"" sh "$@"
}

run() {
  local options=()
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    options+=("$1")
    shift
  done
  [ $# -ge 2 ] || fail "run needs a command behind --"
  shift
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_hwloc_base_binding_policy=none
  # Both hosts share this machine's cores, and neither knows of the other's ranks.
  export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_rmaps_base_oversubscribe=1
  on host-a mpirun --host "$(hosts | paste -sd ,)" --map-by node --rank-by slot "${options[@]}" "$@"
}

case "$action" in
  up) up ;;
  down) down ;;
  with)
    if [ $# -lt 2 ] || [ "$1" != -- ]; then fail "with needs a command behind --"; fi
    shift
    up
    trap down EXIT
    # In the background, so that a signal ends it at once and the pair with it.
    LOCKSTEP_TWO_HOSTS=$id "$@" <&0 &
    child=$!
    # shellcheck disable=SC2064
    for signal in TERM INT HUP; do trap "kill -$signal $child 2>/dev/null || true" "$signal"; done
    while :; do
      status=0
      wait "$child" || status=$?
      kill -0 "$child" 2>/dev/null || break
    done
    exit "$status"
    ;;
  run)
    need_up
    run "$@"
    ;;
  on)
    need_up
    if [ $# -lt 3 ] || [ "$2" != -- ]; then fail "on needs a host and a command, as in: on host-a -- hostname"; fi
    host=$1
    shift 2
    on "$host" "$@"
    ;;
  rsh) # what mpirun calls in place of ssh
    host=$1
    shift
    on "$host" sh -c "$*"
    ;;
  cut)
    need_up
    ip -n "$(namespace host-b)" link set net0 down
    ;;
  restore)
    need_up
    ip -n "$(namespace host-b)" link set net0 up
    ;;
  throttle)
    need_up
    [ $# -eq 1 ] || fail "throttle needs a rate, such as 1gbit"
    burst_of "$1" >/dev/null
    for_links throttle_link "$1"
    ;;
  unthrottle)
    need_up
    for_links unthrottle_link
    ;;
  help | -h | --help) usage ;;
  *) fail "unknown action '$action'; see --help" ;;
esac
