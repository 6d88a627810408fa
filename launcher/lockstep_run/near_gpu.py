"""Runs a rank on the cores that are nearest to its GPU:

    mpirun ... python3 near_gpu.py lockstep train ...

Which GPU that is, lockstep decides likewise: of those that the process sees, one for each of its host's ranks in turn.
"""

import os
import re
import subprocess
import sys

_UNAVAILABLE = 69
# A driver may need some time to wake up, and one that hangs must not keep the job from starting.
_LONGEST_QUERY_S = 20


def bus_ids():
    """Of this host's GPUs, in the order of their buses, as sysfs writes them."""
    try:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader"],
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
                                timeout=_LONGEST_QUERY_S).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[word.strip() for word in line.split(",")] for line in listed.splitlines() if line.count(",") == 2]
    return [(index, uuid, bus[-12:].lower()) for index, uuid, bus in rows]


def bus_of_rank(gpus, visible, local_rank):
    """None where there is none, or it cannot be told."""
    if visible is not None:
        # CUDA sees what stands before the first entry that it does not know.
        seen = []
        for word in (word.strip() for word in visible.split(",")):
            gpu = next((gpu for gpu in gpus if word and (word == gpu[0] or gpu[1].startswith(word))), None)
            if gpu is None:
                break
            seen.append(gpu)
        gpus = seen
    return gpus[local_rank % len(gpus)][2] if gpus else None


def cores_near(bus, devices="/sys/bus/pci/devices"):
    """The cores of the GPU's NUMA node; none where the system does not say."""
    try:
        with open(os.path.join(devices, bus, "local_cpulist"), encoding="ascii") as file:
            ranges = re.findall(r"(\d+)(?:-(\d+))?", file.read())
    except OSError:
        return set()
    return {core for first, last in ranges for core in range(int(first), int(last or first) + 1)}


def main(command, devices="/sys/bus/pci/devices"):
    # So that numbers mean the same to CUDA as to nvidia-smi; in another order, which GPU is whose cannot be told.
    order = os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    local_rank = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))
    gpus = bus_ids() if order == "PCI_BUS_ID" else []
    bus = bus_of_rank(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"), local_rank)
    near = cores_near(bus, devices) & os.sched_getaffinity(0) if bus else set()
    if near:
        os.sched_setaffinity(0, near)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"lockstep-run: error: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(_UNAVAILABLE)


if __name__ == "__main__":
    main(sys.argv[1:])
