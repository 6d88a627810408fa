"""Runs a rank on the cores that are nearest to its GPU:

    mpirun ... python3 near_gpu.py lockstep train ...

Which GPU that is, lockstep decides likewise: the only one that the process sees, or the one of its place on its host.
"""

import os
import re
import subprocess
import sys


def bus_ids():
    """Of this host's GPUs, in the order of their buses, as sysfs writes them."""
    try:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader"],
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    rows = [[word.strip() for word in line.split(",")] for line in listed.splitlines() if line.count(",") == 2]
    return [(index, uuid, bus[-12:].lower()) for index, uuid, bus in rows]


def bus_of_rank(gpus, visible, local_rank):
    """None where there is none, or it cannot be told."""
    if visible is not None:
        wanted = [word.strip() for word in visible.split(",") if word.strip()]
        gpus = [next((gpu for gpu in gpus if word == gpu[0] or gpu[1].startswith(word)), None) for word in wanted]
    if not gpus:
        return None
    place = 0 if len(gpus) == 1 else local_rank
    return gpus[place][2] if place < len(gpus) and gpus[place] else None


def cores_near(bus, devices="/sys/bus/pci/devices"):
    """The cores of the GPU's NUMA node; none where the system does not say."""
    try:
        with open(os.path.join(devices, bus, "local_cpulist"), encoding="ascii") as file:
            ranges = re.findall(r"(\d+)(?:-(\d+))?", file.read())
    except OSError:
        return set()
    return {core for first, last in ranges for core in range(int(first), int(last or first) + 1)}


def main(command):
    # So that numbers mean the same to CUDA as to nvidia-smi.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    local_rank = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))
    bus = bus_of_rank(bus_ids(), os.environ.get("CUDA_VISIBLE_DEVICES"), local_rank)
    near = cores_near(bus) & os.sched_getaffinity(0) if bus else set()
    if near:
        os.sched_setaffinity(0, near)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
