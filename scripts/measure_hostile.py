#!/usr/bin/env python3
"""Sends hostile messages to the control port of a job and reports how many it withstood per second; or measures what hostile
clients and a tracker that hangs cost the steps of a training.

    scripts/measure_hostile.py --program build/release/bin/control_rank     # starts a job, attacks it, lets it continue
    scripts/measure_hostile.py 127.0.0.1:4321                               # attacks an open port
    scripts/measure_hostile.py --training build/release/bin/lockstep --messages 1000000

A job's control port is open from its start until the last rank has connected. control_rank (built with the tests) holds
it open: `mpirun -n 3 control_rank late` prints where it listens, and admits its last rank when it reads a line from stdin.

Sends in turn: nothing; parts of a hello; whole hellos with wrong tokens, also of ranks that are already connected or do not
exist; random bytes; a web request; lengths of 2 GiB; and hellos byte by byte, by clients that stay until they are thrown
out. Exit code 1: the job did not continue as if nothing had happened.

With --training, two trainings take turns: while one has a window, the other is stopped by a signal. One has
metrics.prometheus_port; its windows are calm, with garbage requests to another program's port, and with as many to its own.
What clients themselves take of the processors is in both of the latter, so that these are what to compare. The other sends
to a tracker that accepts connections and answers nothing. The medians of steps of a window are compared with those of the
windows beside it, and the median of these ratios is what is reported, so that other work on the machine is in both. The
processor time of the whole process by step counts the threads that serve, too. Exit code 1: a training has ended."""

import argparse
import collections
import json
import os
import pathlib
import random
import re
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
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


GARBAGE = [b"", b"\0" * 100, b"POST /metrics HTTP/1.1\r\n\r\n", b"GET /" + b"A" * 3000, bytes(range(256)) * 8, b"GET / HTTP/1.1\r\n"]
CONFIG = """
model { mlp { image: [16, 16, 1] hidden: [256, 256] classes: 10 } }
data { synthetic { samples: 4096 classes: 10 } }
trainer { global_batch: 64 steps: 100000000 seed: 1 }
optimizer { learning_rate: 0.01 sgd { momentum: 0.9 } }
metrics { progress: false %s }
"""


def send_garbage(port, count):
    """How many of so many requests came through to the program; the kernel turns the others away."""
    through = 0
    for number in range(count):
        with socket.socket() as client:
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
            try:
                client.send(GARBAGE[number % len(GARBAGE)])
                through += 1
            except OSError:
                pass
    return through


class Decoy:
    """Another program's port: it takes as many connections as lockstep's, reads what they say and closes them."""

    CODE = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", 0), backlog=16)
print(listener.getsockname()[1], flush=True)
while True:
    client, _ = listener.accept()
    client.settimeout(0.01)
    try:
        client.recv(4096)
    except OSError:
        pass
    client.close()
    time.sleep(0.01)
"""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, "-c", self.CODE], stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())


class Training:
    """A run without end, whose steps are read from metrics.jsonl as windows of time pass."""

    def __init__(self, program, folder, name, metrics):
        config = folder / f"{name}.textproto"
        config.write_text(CONFIG % metrics)
        self.lines = folder / name / "metrics.jsonl"
        self.process = subprocess.Popen(
            [program, "train", str(config), "--quiet", "--device", "cpu", "--out", str(folder / name)],
            env=dict(os.environ, OMP_NUM_THREADS="1"), stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while not self.lines.exists() or self.lines.stat().st_size < 10000:
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{name}: the training has not started")
            time.sleep(0.1)
        self.pause()

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def processor_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def window(self, action):
        """Milliseconds of the median step, and of the processor by step, while `action` runs."""
        self.process.send_signal(signal.SIGCONT)
        time.sleep(0.5)  # the step that was interrupted
        begin, used = self.lines.stat().st_size, self.processor_seconds()
        action()
        end, used = self.lines.stat().st_size, self.processor_seconds() - used
        if self.process.poll() is not None:
            sys.exit("a training has ended")
        self.pause()
        with open(self.lines, "rb") as file:
            file.seek(begin)
            lines = file.read(end - begin).split(b"\n")[1:-1]
        steps = [json.loads(line)["step_ms"] for line in lines if b"step_ms" in line]
        if len(steps) < 10:
            sys.exit(f"only {len(steps)} steps in a window: the machine is too busy")
        return {"step_ms": statistics.median(steps), "processor_ms": 1e3 * used / len(steps)}


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def windows_of(program, folder, messages, rounds):
    """Windows by kind, of each round, and how many requests came through."""
    port, decoy, silent = free_port(), Decoy(), socket.create_server(("127.0.0.1", 0), backlog=64)
    trainings, windows, through = [], collections.defaultdict(list), 0
    try:
        served = Training(program, folder, "served", f"prometheus_port: {port} machine_every_seconds: 0")
        trainings.append(served)
        tracker = f'mlflow {{ uri: "http://127.0.0.1:{silent.getsockname()[1]}" }}'
        trainings.append(Training(program, folder, "hanging", tracker + " machine_every_seconds: 0"))
        trainings.append(Training(program, folder, "plain", "machine_every_seconds: 0"))
        for _ in range(rounds):
            counts = []
            began = time.monotonic()
            windows["decoy attacked"].append(served.window(lambda: send_garbage(decoy.port, messages // rounds)))
            seconds = time.monotonic() - began
            windows["port attacked"].append(served.window(lambda: counts.append(send_garbage(port, messages // rounds))))
            windows["calm"].append(served.window(lambda: time.sleep(seconds)))
            windows["tracker hangs"].append(trainings[1].window(lambda: time.sleep(seconds)))
            windows["no tracker"].append(trainings[2].window(lambda: time.sleep(seconds)))
            through += sum(counts)
    finally:
        for process in [training.process for training in trainings] + [decoy.process]:
            process.kill()
            process.wait()
        silent.close()
    return windows, through


def measure_training(program, messages, rounds):
    with tempfile.TemporaryDirectory(prefix="lockstep-hostile-") as folder:
        windows, through = windows_of(program, pathlib.Path(folder), messages, rounds)
    result = {"messages": messages // rounds * rounds, "through": through, "rounds": rounds}
    for kind, found in windows.items():
        result[kind] = {figure: round(statistics.median(one[figure] for one in found), 4) for figure in found[0]}
    for name, kind, base in (("port against decoy", "port attacked", "decoy attacked"), ("port against calm", "port attacked", "calm"),
                             ("tracker hangs against none", "tracker hangs", "no tracker")):
        result[name] = {}
        for figure in ("step_ms", "processor_ms"):
            ratios = sorted(one[figure] / other[figure] for one, other in zip(windows[kind], windows[base]))
            result[name][figure] = {"median": round(statistics.median(ratios), 4), "quarters": [round(ratios[len(ratios) // 4], 4), round(ratios[-1 - len(ratios) // 4], 4)]}
    return result


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


def show(result, as_json):
    if as_json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name}: {value}")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?", help="HOST:PORT")
    parser.add_argument("--program", type=pathlib.Path, help="control_rank, to start a job to attack")
    parser.add_argument("--training", type=pathlib.Path, help="lockstep, to start trainings whose steps are measured")
    parser.add_argument("--rounds", type=int, default=20, help="of windows, with --training (default: 20)")
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--messages", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if sum(one is not None for one in (options.address, options.program, options.training)) != 1:
        parser.error("name one of HOST:PORT, --program and --training")
    if options.training:
        return show(measure_training(str(options.training), options.messages, options.rounds), options.json)
    job = Job(str(options.program), options.mpirun) if options.program else None
    host, port = (job.address if job else options.address).rsplit(":", 1)
    sent, failures, seconds = attack((host.strip("[]"), int(port)), options.messages, options.seed)
    result = {"messages": sum(sent.values()), "per_second": round(sum(sent.values()) / seconds, 1),
              "seconds": round(seconds, 3), "kinds": dict(sent), "not_connected": dict(failures)}
    if job:
        result["job_went_on"] = job.go_on()
    show(result, options.json)
    return 0 if result.get("job_went_on", True) and sum(sent.values()) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
