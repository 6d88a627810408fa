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
  # An mpirun that ends removes this folder if it is empty, also where another one has just begun to use it.
  mkdir -p "${TMPDIR:-/tmp}/ompi.${HOSTNAME%%.*}.$(id -u)/kept"
}

# What -DLOCKSTEP_CUDA_ARCHITECTURES is to be for the GPUs of this machine, as far as nvcc compiles for them; without any,
# one, so that a build takes no longer than it must. A driver that fails says so where figures are expected, or hangs.
cuda_architectures() {
  local nvcc known capability found=()
  nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
  known=$("$nvcc" --list-gpu-arch 2>/dev/null || true)
  while read -r capability; do
    if [[ $capability =~ ^[0-9]+\.[0-9]+$ ]] && [ "${capability/./}" -ge 80 ] &&
      grep -qx "compute_${capability/./}" <<<"$known"; then
      found+=("${capability/./}")
    fi
  done < <({ timeout 20 nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null || true; } | sort -u)
  (
    IFS=';'
    echo "${found[*]:-90}"
  )
}

# Where ccache is used, another clone of the same files finds what this one compiled.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=true
