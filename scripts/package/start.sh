#!/bin/sh
# bin/lockstep, lockstep-cpu, mpirun, orted and lockstep-env of a package (scripts/package.sh): sets up the environment
# that the package's programs need where it lies, and becomes the program of the same name in libexec/; lockstep-env
# becomes the program that it is given. Uses no program beside the shell, except to follow a symbolic link to itself and
# to ask Python for its folders.

set -eu

own=$0
while [ -h "$own" ]; do
  link=$(readlink "$own")
  case $link in
    /*) own=$link ;;
    *) own=${own%/*}/$link ;;
  esac
done
case $own in
  */*) ;;
  *) own=./$own ;;
esac
name=${own##*/}
root=$(CDPATH='' cd -- "${own%/*}/.." && pwd -P)

# `list` with the folder in front, or behind, unless it is in it.
with_first() { case ":$1:" in *":$2:"*) echo "$1" ;; *) echo "$2${1:+:$1}" ;; esac; }
with_last() { case ":$1:" in *":$2:"*) echo "$1" ;; *) echo "${1:+$1:}$2" ;; esac; }

PATH=$(with_first "${PATH:-/usr/bin:/bin}" "$root/bin")
LD_LIBRARY_PATH=$(with_first "${LD_LIBRARY_PATH:-}" "$root/lib")
export PATH LD_LIBRARY_PATH
# Where Open MPI and PMIx look, in place of where they were installed when they were built.
export OPAL_PREFIX="$root" OPAL_LIBDIR="$root/lib" OPAL_PKGLIBDIR="$root/lib/openmpi"
export OPAL_PKGDATADIR="$root/share/openmpi" OPAL_SYSCONFDIR="$root/etc"
export PMIX_PKGLIBDIR="$root/lib/pmix" PMIX_PKGDATADIR="$root/share/pmix" PMIX_SYSCONFDIR="$root/etc"
# None: the system's would be those of another hwloc.
export HWLOC_PLUGINS_PATH="$root/lib/hwloc"

# Two processes on one host copy large messages out of each other's memory, unless told not to. Containers and sandboxes
# refuse that system call (process_vm_readv), and then Open MPI fails or warns; copies through shared memory always work.
export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism:-none}"

# Libraries that libexec/lockstep needs and the loader does not find, one a line. The loader looks into LD_LIBRARY_PATH
# and ldconfig's cache.
missing_libraries() {
  LD_TRACE_LOADED_OBJECTS=1 "$root/libexec/lockstep" 2>&1 | while read -r library found; do
    case $found in
      *"not found"*) echo "$library" ;;
    esac
  done
}

# Adds each of these folders that has a missing library.
add_folders() {
  for folder in "$@"; do
    for library in $missing; do
      if [ -e "$folder/$library" ]; then
        LD_LIBRARY_PATH=$(with_last "$LD_LIBRARY_PATH" "$folder")
      fi
    done
  done
}

find_cuda() {
  missing=$(missing_libraries)
  if [ -n "$missing" ]; then
    add_folders /usr/local/cuda*/lib64
    missing=$(missing_libraries)
  fi
  # Python's packages nvidia-cuda-runtime, nvidia-cublas, nvidia-nccl-cu13, ... share the namespace `nvidia`.
  if [ -n "$missing" ] && command -v python3 >/dev/null; then
    namespace=$(python3 -c 'import nvidia; print(*nvidia.__path__, sep="\n")' 2>/dev/null || true)
    while read -r folder; do
      if [ -n "$folder" ]; then add_folders "$folder"/*/lib; fi
    done <<NAMESPACE
$namespace
NAMESPACE
    missing=$(missing_libraries)
  fi
}

# Ranks inherit what mpirun finds.
missing=
if [ -e "$root/libexec/lockstep" ] && [ "$name" != lockstep-cpu ]; then
  find_cuda
fi

# Without ssh Open MPI 4.1 refuses to start anything, even on this machine alone.
if [ -z "${OMPI_MCA_plm:-}${OMPI_MCA_plm_rsh_agent:-}" ] && ! command -v ssh >/dev/null && ! command -v rsh >/dev/null; then
  export OMPI_MCA_plm=^rsh
fi

case $name in
  mpirun) exec "$root/libexec/orterun" --prefix "$root" "$@" ;;
  lockstep-env) exec "$@" ;;
  orted | lockstep-cpu) exec "$root/libexec/$name" "$@" ;;
  lockstep)
    if [ -e "$root/libexec/lockstep" ] && [ -z "$missing" ]; then
      exec "$root/libexec/lockstep" "$@"
    fi
    if [ -n "$missing" ]; then
      # What the program without GPUs says where it is asked for them, or looks for some.
      # shellcheck disable=SC2086,SC2116  # on one line
      LOCKSTEP_MISSING_GPU_LIBRARIES="these libraries are not in LD_LIBRARY_PATH, the system's folders, /usr/local/cuda*/lib64 \
or Python's package nvidia: $(echo $missing)"
      export LOCKSTEP_MISSING_GPU_LIBRARIES
    fi
    exec "$root/libexec/lockstep-cpu" "$@"
    ;;
  *)
    echo "$own: a program of lockstep's package must be called lockstep, lockstep-cpu, lockstep-env, mpirun or orted" >&2
    exit 2
    ;;
esac
