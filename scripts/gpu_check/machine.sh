# shellcheck shell=bash disable=SC2154
# Sourced by gpu_check.sh: what the machine has. Ten seconds are for it, so nothing is asked that may take long.

# mpirun fails where it is down, as machines are that have no network at all. A port where nobody listens says so at once.
loopback_is_down() {
  case $(LC_ALL=C timeout 2 bash -c 'exec 3<>/dev/tcp/127.0.0.1/1' 2>&1) in
    *unreachable* | *"Cannot assign"* | *"No such device"*) ;;
    *) return 1 ;;
  esac
}

bring_loopback_up() {
  ip link set dev lo up || ifconfig lo up || "$python" -c '
import fcntl, socket, struct
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1
of_any = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
flags = struct.unpack_from("16sH", fcntl.ioctl(of_any, GET_FLAGS, struct.pack("16s24x", b"lo")))[1]
fcntl.ioctl(of_any, SET_FLAGS, struct.pack("16sH22x", b"lo", flags | UP))'
}

loopback() {
  if ! loopback_is_down; then
    echo "up"
  elif bring_loopback_up >/dev/null 2>&1 && ! loopback_is_down; then
    echo "was down, and was brought up"
  else
    echo "is down, and could not be brought up: mpirun will fail; try: ip link set dev lo up"
  fi
}

# Of the libraries that lockstep loads: what they say of themselves, and where they are.
libraries() {
  local loaded
  loaded=$("${in_environment[@]}" env LD_TRACE_LOADED_OBJECTS=1 "$program_for_gpus" 2>&1 |
    sed -n 's/^[[:space:]]*lib\(cudart\|cublasLt\|nccl\)\.so[^ ]* => \([^ ]*\) .*/\1 \2/p') || true
  # shellcheck disable=SC2086  # words
  timeout 8 "${in_environment[@]}" "$python" - $loaded <<'VERSIONS' 2>/dev/null ||
import ctypes, sys

FUNCTIONS = {"cudart": "cudaRuntimeGetVersion", "nccl": "ncclGetVersion"}
for name, path in zip(sys.argv[1::2], sys.argv[2::2]):
    library, version = ctypes.CDLL(path), ctypes.c_int()
    if name in FUNCTIONS:
        getattr(library, FUNCTIONS[name])(ctypes.byref(version))
    else:
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        version.value = library.cublasLtGetVersion()
    print(f"{name:<13} {version.value}, {path}")
sys.exit(len(sys.argv) == 1)
VERSIONS
    echo "libraries     ${loaded:-lockstep is linked to none of CUDA}"
}

# Of the first GPU: name, memory.total (MiB), ... Empty if nvidia-smi does not say.
of_gpu() { timeout 5 nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null | head -n 1 | tr -d '\r' || true; }

# CUDA's libraries are hundreds of megabytes, and the first to load them waits for a cold disk, which is nobody's figure.
read_libraries() {
  local path
  "${in_environment[@]}" env LD_TRACE_LOADED_OBJECTS=1 "$program_for_gpus" 2>/dev/null |
    sed -n 's/^[[:space:]]*lib\(cudart\|cublasLt\|nccl\)\.so[^ ]* => \([^ ]*\) .*/\2/p' |
    while read -r path; do timeout 30 cat "$path"; done >/dev/null 2>&1
}

# Power, temperature, clocks and load, second by second, as long as this check runs.
watch_gpu() {
  if [ -z "$gpu" ] || ! command -v nvidia-smi >/dev/null; then return 0; fi
  nvidia-smi dmon -s pucm -d 1 -o T >"$out/dmon.log" 2>&1 </dev/null &
  logs+=("$out/dmon.log")
}

machine() {
  set +e   # of what fails or takes too long only its own line is lost
  echo "lo            $(loopback)"
  echo "host          $(uname -sr), $(nproc) cores, glibc $(ldd --version | sed -n '1s/.* //p')"
  echo "processor     $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)"
  if command -v nvidia-smi >/dev/null; then
    { timeout 5 nvidia-smi --query-gpu=name,memory.total,driver_version,compute_cap --format=csv,noheader 2>&1 ||
      echo "nvidia-smi ended with $?"; } | sed 's/^/GPU           /'
  else
    echo "GPU           there is no nvidia-smi; devices: $(echo /dev/nvidia[0-9]*)"
  fi
  if [ -f /proc/driver/nvidia/version ]; then sed -n '1s/^/driver        /p' /proc/driver/nvidia/version; fi
  echo "/dev/shm      $(df -h --output=size,avail /dev/shm 2>/dev/null | sed -n '2s/^ *\([^ ]*\) *\(.*\)/\1, \2 free/p')"
  for program in nvcc compute-sanitizer ncu mpirun ctest; do
    printf '%-13s %s\n' "$program" "$(command -v "$program" || echo missing)"
  done
  echo "PyTorch       $(timeout 5 "$python" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null || echo missing)"
  if [ -f PACKAGE.txt ]; then sed -n '1p;s/^source/package from /p;s/^needs from CUDA/needs/p' PACKAGE.txt; fi
  libraries
}
