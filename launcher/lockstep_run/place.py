"""What lockstep-run finds around it: an allocation of Slurm, or a job of Kubernetes' MPI Operator."""

import re
import subprocess
from typing import List, NamedTuple, Optional

from . import hosts
from .errors import LaunchError, UNAVAILABLE


class Place(NamedTuple):
    name: str                    # for people
    hosts: List[hosts.Host]
    workers: Optional[int]       # None: as many as the hosts have slots


def find(environment):
    """None where there is nothing but this host."""
    if "SLURM_JOB_ID" in environment:
        return _slurm(environment)
    # The operator's hostfile reaches Open MPI by this variable.
    if "KUBERNETES_SERVICE_HOST" in environment and "OMPI_MCA_orte_default_hostfile" in environment:
        known = hosts.from_file(environment["OMPI_MCA_orte_default_hostfile"])
        workers = None if any(host.slots is None for host in known) else sum(host.slots for host in known)
        return Place(f"a job of Kubernetes' MPI Operator: {hosts.describe(known)}", known, workers)
    return None


def _slurm(environment):
    job, nodes = environment["SLURM_JOB_ID"], environment.get("SLURM_JOB_NODELIST")
    if not nodes:                # as in a shell that salloc did not start
        return Place(f"Slurm's job {job}", [], None)
    try:
        names = subprocess.run(["scontrol", "show", "hostnames", nodes], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               check=True).stdout.split()
    except OSError:              # mpirun asks Slurm by a way of its own
        wanted = environment.get("SLURM_NTASKS", "")
        return Place(f"Slurm's job {job} on {nodes}", [], int(wanted) if wanted.isdigit() else None)
    except subprocess.CalledProcessError as error:
        raise LaunchError(f"Slurm's job {job} has nodes {nodes}, but scontrol does not say which: {error}", UNAVAILABLE) from None
    tasks = _per_node(environment.get("SLURM_TASKS_PER_NODE", ""), len(names))
    known = [hosts.Host(name, count) for name, count in zip(names, tasks)]
    wanted = environment.get("SLURM_NTASKS", "")
    workers = int(wanted) if wanted.isdigit() else None
    return Place(f"Slurm's job {job}: {hosts.describe(known)}", known, workers)


def _per_node(text, nodes):
    """Slurm's "4(x2),3": 4, 4, 3."""
    counts = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match:
            counts += [int(match[1])] * int(match[2] or 1)
    return counts if len(counts) == nodes else [None] * nodes
