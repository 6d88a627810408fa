#!/usr/bin/env python3
"""Sends hostile messages to the control port of a job and reports how many it withstood per second.

    scripts/measure_hostile.py --program build/release/bin/control_rank     # starts a job, attacks it, lets it continue
    scripts/measure_hostile.py 127.0.0.1:4321                               # attacks an open port

A job's control port is open from its start until the last rank has connected. control_rank (built with the tests) holds
it open: `mpirun -n 3 control_rank late` prints where it listens, and admits its last rank when it reads a line from stdin.

Sends in turn: nothing; parts of a hello; whole hellos with wrong tokens, also of ranks that are already connected or do not
exist; random bytes; a web request; lengths of 2 GiB; and hellos byte by byte, by clients that stay until they are thrown
out. Exit code 1: the job did not continue as if nothing had happened."""

import argparse
import collections
import json
import os
import pathlib
import random
import re
import socket
import struct
import subprocess
import sys
import time

KINDS = ["silent", "half_hello", "wrong_token", "wrong_rank", "garbage", "web_request", "huge_length", "slow"]
MOST_SLOW = 200  # connections that are kept at once


def hello(source, rank):
    return struct.pack("<8sIIq32s", b"LOCKSTEP", 1, rank, 4711, source.randbytes(32))


def message(kind, source):
    if kind == "half_hello":
        return hello(source, 1)[:source.randrange(1, 56)]
    if kind == "wrong_token":
        return hello(source, source.randrange(1, 3))
    if kind == "wrong_rank":
        return hello(source, source.choice([0, 3, 65535, 0xFFFFFFFF]))
    if kind == "garbage":
        return source.randbytes(source.randrange(1, 4096))
    if kind == "web_request":
        return b"GET / HTTP/1.1\r\nHost: lockstep\r\n\r\n"
    if kind == "huge_length":
        return struct.pack("<IBxxx", 0x7FFFFFFF, 4) + bytes(64)
    return b""


def attack(address, count, seed):
    """Counts by kind, connections that were not accepted, and seconds."""
    source = random.Random(seed)
    sent = collections.Counter()
    failures = collections.Counter()
    slow = collections.deque()
    began = time.monotonic()
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        try:
            connection = socket.create_connection(address, timeout=30)
            connection.sendall(message(kind, source))
            sent[kind] += 1
        except OSError as error:
            failures[error.__class__.__name__] += 1
            continue
        if kind != "slow":
            connection.close()
            continue
        slow.append((connection, hello(source, 1)))
        if len(slow) > MOST_SLOW:
            slow.popleft()[0].close()
        for other, bytes_of_hello in list(slow)[-5:]:
            position = source.randrange(len(bytes_of_hello))
            try:
                other.send(bytes_of_hello[position:position + 1])
            except OSError:
                pass  # it was thrown out
    seconds = time.monotonic() - began
    for connection, _ in slow:
        connection.close()
    return sent, failures, seconds


class Job:
    """Three ranks, the last of which is held back."""

    def __init__(self, program, mpirun):
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                           OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_hwloc_base_binding_policy="none",
                           OMPI_MCA_mpi_yield_when_idle="1")
        # Only the last rank reads what is typed.
        self.process = subprocess.Popen([mpirun, "-n", "3", "--stdin", "2", program, "late"], text=True, env=environment,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        line = self.process.stdout.readline()
        match = re.match(r"rank 0 listens at ([^,;]+)", line)
        if not match:
            sys.exit("the job did not start: " + line + self.process.stderr.read())
        self.address = match[1]

    def go_on(self):
        """Whether all ranks came together and said nothing of the attack."""
        out, err = self.process.communicate("\n", timeout=120)
        return self.process.returncode == 0 and "all 3 ranks have met" in out and err == ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?", help="HOST:PORT")
    parser.add_argument("--program", type=pathlib.Path, help="control_rank, to start a job to attack")
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--messages", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if (options.address is None) == (options.program is None):
        parser.error("name either HOST:PORT or --program")
    job = Job(str(options.program), options.mpirun) if options.program else None
    host, port = (job.address if job else options.address).rsplit(":", 1)
    sent, failures, seconds = attack((host.strip("[]"), int(port)), options.messages, options.seed)
    result = {"messages": sum(sent.values()), "per_second": round(sum(sent.values()) / seconds, 1),
              "seconds": round(seconds, 3), "kinds": dict(sent), "not_connected": dict(failures)}
    if job:
        result["job_went_on"] = job.go_on()
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name}: {value}")
    return 0 if result.get("job_went_on", True) and sum(sent.values()) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
