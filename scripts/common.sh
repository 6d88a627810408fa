# shellcheck shell=bash
# Sourced by the other scripts: what they share. Leaves the current folder at the repository's root.

set -euo pipefail
script=$(realpath "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '\n== %s\n' "$*"; }

fail() {
  printf '%s: %s\n' "$(basename "$script")" "$*" >&2
  exit 2
}

# What mpirun needs for several ranks on one machine: to run as root at all, more ranks than cores, ranks that may use
# every core (by default each is pinned to one, with all its threads) and give theirs up while they wait.
use_mpi_on_one_machine() {
  if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  export OMPI_MCA_rmaps_base_oversubscribe=1
  export OMPI_MCA_hwloc_base_binding_policy=none
  export OMPI_MCA_mpi_yield_when_idle=1
}

# Where ccache is used, another clone of the same files finds what this one compiled.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=true
