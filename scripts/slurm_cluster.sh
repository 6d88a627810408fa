#!/usr/bin/env bash
# Makes a Slurm cluster of two nodes on one machine, to try and test launcher/slurm/train.sbatch: munge, slurmctld and two
# slurmd, in a temporary folder, on the two hosts of scripts/two_hosts.sh. Runs a command on the first host, then removes
# everything.
#
#   scripts/slurm_cluster.sh -- bash                     # then sinfo, sbatch, squeue, scancel, ...
#   scripts/slurm_cluster.sh -- sbatch --wait launcher/slurm/train.sbatch CONFIG --out runs/a
#
# Jobs of the partition `urgent` preempt those of `all`, the default, which get 60 seconds to save.
#
# Needs root, Debian's slurmctld, slurmd, slurm-client and munge, and what two_hosts.sh needs. If any is missing, it
# says so and exits with 77. Daemons that already run on this machine are not touched.

set -euo pipefail
script=$(realpath "$0")
two_hosts=$(dirname "$script")/two_hosts.sh
nodes=(host-a host-b)

skip() {
  printf 'slurm_cluster.sh: skipped: %s\n' "$*" >&2
  exit 77
}
fail() {
  printf 'slurm_cluster.sh: %s\n' "$*" >&2
  exit 70
}

if [ "${1:-}" != --in-pair ]; then
  if [ $# -lt 2 ] || [ "$1" != -- ]; then
    sed -n '2,13s/^# \{0,1\}//p' "$script"
    exit 2
  fi
  for program in munged slurmctld slurmd sbatch; do
    PATH=$PATH:/usr/sbin command -v "$program" >/dev/null ||
      skip "there is no $program (Debian: apt-get install slurmctld slurmd slurm-client munge)"
  done
  exec "$two_hosts" --id "slurm$$" with -- "$script" --in-pair "$@"
fi
shift 2
export PATH=$PATH:/usr/sbin

folder=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-slurm-XXXXXX")
clean_up() {
  local daemons
  mapfile -t daemons < <(jobs -p)
  kill "${daemons[@]}" 2>/dev/null || true
  wait || true
  # What the daemons leave behind writes for a moment longer; two_hosts.sh ends it.
  rm -rf "$folder" 2>/dev/null || { sleep 1 && rm -rf "$folder"; } || true
}
trap clean_up EXIT
chmod 755 "$folder"
head -c 1024 /dev/urandom >"$folder/munge.key"
chmod 600 "$folder/munge.key"
export SLURM_CONF=$folder/slurm.conf

cat >"$SLURM_CONF" <<END
ClusterName=lockstep
SlurmctldHost=host-a
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/%n
TmpFS=$folder/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=100000,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=5
MpiDefault=pmix
NodeName=host-a,host-b CPUs=4 Sockets=1 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=1000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
END
# Debian's Slurm asks for a version of cgroups even where nothing uses them.
echo CgroupPlugin=cgroup/v1 >"$folder/cgroup.conf"

mkdir "$folder/state"
daemon() {
  local host=$1 name=$2
  shift 2
  "$two_hosts" on "$host" -- "$@" >"$folder/$name.out" 2>&1 </dev/null &
}
daemon host-a munged munged --foreground --force --socket="$folder/munge.socket" --key-file="$folder/munge.key" \
  --pid-file="$folder/munge.pid" --log-file="$folder/munge.log" --seed-file="$folder/munge.seed"
until_it_holds() {
  local _
  for _ in $(seq 300); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.1
  done
  tail -n 20 "$folder"/*.out "$folder"/*.log >&2
  fail "the cluster does not come up: '$*' does not hold after 30 s"
}
until_it_holds test -S "$folder/munge.socket"
daemon host-a slurmctld slurmctld -D
for host in "${nodes[@]}"; do
  mkdir "$folder/$host"
  daemon "$host" "slurmd-$host" slurmd -D -N "$host"
done
both_are_idle() { [ "$("$two_hosts" on host-a -- sinfo --noheader --format=%D --states=idle --responding)" = 2 ]; }
until_it_holds both_are_idle

status=0
"$two_hosts" on host-a -- "$@" || status=$?
[ "$status" -eq 0 ] || [ -z "${LOCKSTEP_SLURM_LOGS:-}" ] || cp -r "$folder" "$LOCKSTEP_SLURM_LOGS"
exit "$status"
