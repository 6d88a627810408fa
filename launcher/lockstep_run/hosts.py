"""Hosts and their slots, from --host or a hostfile in Open MPI's format."""

import re
import shlex
from typing import NamedTuple, Optional

from .errors import LaunchError


class Host(NamedTuple):
    name: str
    slots: Optional[int]         # None: as many as it has cores


def from_list(text):
    hosts = []
    for part in text.split(","):
        match = re.fullmatch(r"([^\s:]+)(?::(\d+))?", part.strip())
        if not match or match[2] == "0":
            raise LaunchError(f"--host {text}: expected names or NAME:SLOTS, separated by commas, found '{part}'")
        hosts.append(Host(match[1], int(match[2] or 1)))
    return _merged(hosts)


def from_file(path):
    try:
        with open(path, encoding="utf-8", newline="") as file:
            lines = file.read().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"cannot read the hostfile {path}: {getattr(error, 'strerror', None) or error}") from None
    hosts = []
    for number, line in enumerate(lines, 1):
        where = f"{path}:{number}"
        # mpirun reads neither, and with some such files goes on with this host alone.
        if "\r" in line:
            raise LaunchError(f"{where}: ends in a carriage return, as on Windows; use line feeds only: "
                              f"sed -i 's/\\r$//' {shlex.quote(path)}")
        if line.startswith("\ufeff"):
            raise LaunchError(f"{where}: begins with a byte-order mark; save it as UTF-8 without one")
        words = line.split("#")[0].split()
        if not words:
            continue
        with_slots = re.fullmatch(r"([^:]+):(\d+)", words[0])
        if with_slots:
            raise LaunchError(f"{where}: expected 'HOST slots=N', found '{words[0]}'; write '{with_slots[1]} "
                              f"slots={with_slots[2]}'")
        slots = None
        for word in words[1:]:
            match = re.fullmatch(r"(slots|max_slots|max-slots)=([1-9]\d*)", word)
            if not match:
                raise LaunchError(f"{where}: expected 'HOST slots=N', found '{line.strip()}'")
            if match[1] == "slots":
                slots = int(match[2])
        hosts.append(Host(words[0], slots))
    if not hosts:
        raise LaunchError(f"the hostfile {path} names no host: write one 'HOST slots=N' per line")
    return _merged(hosts)


def is_address(name):
    """Rather than a name."""
    return bool(re.fullmatch(r"[\d.]+|[\da-fA-F:]*:[\da-fA-F:.]*", name))


def describe(hosts):
    """For people: "a (2 slots), b (2 slots)"."""
    return ", ".join(host.name if host.slots is None else f"{host.name} ({host.slots} slot{'' if host.slots == 1 else 's'})"
                     for host in hosts)


def _merged(hosts):
    """A host that is named several times has the slots of all its lines."""
    merged = {}
    for host in hosts:
        known = merged.get(host.name)
        merged[host.name] = host if known is None or None in (known.slots, host.slots) else Host(
            host.name, known.slots + host.slots)
    return list(merged.values())


def workers_on(hosts, name, workers):
    """How many of `workers` mpirun puts on host `name`: it fills one host after the other."""
    for host in hosts:
        here = min(workers, host.slots)
        if host.name == name:
            return here
        workers -= here
    return 0
