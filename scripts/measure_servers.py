#!/usr/bin/env python3
"""Compares parameter servers with a ring all-reduce. Makes hosts on this machine (two_hosts.sh), with a process on each.

    scripts/measure_servers.py link [--rate 200mbit] [--rounds 3] [--only LAYOUT]...
    scripts/measure_servers.py hidden [--rate 1gbit] [--rounds 3]
    scripts/measure_servers.py update [--rounds 3]
    scripts/measure_servers.py idle [--seconds 10]

All take --lockstep build/release/bin/lockstep. Each measurement is printed to stderr at once. Nothing else should run meanwhile.
Exits with 77 if two_hosts.sh cannot work.

link     a model with next to nothing to compute, so that a step is its communication. For each layout the mean step, the median of interleaved
         rounds; what its bytes take on the wire by the formulas (n workers, k servers, M bytes, links of B in each direction: ring
         and colocated servers 2(n-1)M/(nB), dedicated ones max(M/B, nM/(kB))); the same at the rate that messages of a MiB reach in
         both directions at once, measured by `lockstep bench`; and the bytes that crossed the busiest link per step, beside those
         of the formula. Updates wait for nothing but their bucket (trainer.nonfinite: IGNORE), unless the line says that they wait for the whole step.
         "whole" is a model of which one layer holds 96 %.
hidden   a model that computes about as long as its bytes take: how much of the communication is hidden behind it.
update   on one host, two workers and a server: bytes that the server reads and writes, to fold two gradients and to update by
         AdamW, over the time in which it is busy, beside copies of the same machine.
idle     how much of a core a server takes, beside what it computes, while its worker computes for some seconds a step.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = f"servers{os.getpid()}"
HOSTS = [os.path.join(HERE, "two_hosts.sh"), "--id", NAME]
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
AS_IT_LANDS = ["--set", "trainer.nonfinite=IGNORE"]
MANY_LAYERS = "model { mlp { image: [28, 28, 1] hidden: [%s] classes: 10 } }" % ", ".join(["512"] * 17)
ONE_LAYER = "model { mlp { image: [28, 28, 1] hidden: [2048, 32] classes: 10 } }"
CONFIG = """
%s
data { synthetic { samples: 4096 eval_samples: 0 classes: 10 shape: 28 shape: 28 shape: 1 } }
trainer { global_batch: 12 steps: 1 seed: 1 eval_at_end: false }
optimizer { learning_rate: 0.001 adamw {} }
"""
GPT = """
model { gpt { vocabulary: 65 context: 128 layers: 6 heads: 4 width: 256 } }
data { synthetic { samples: 4096 eval_samples: 0 classes: 65 context: 128 } }
trainer { global_batch: %d steps: 1 seed: 1 eval_at_end: false }
optimizer { learning_rate: 0.001 adamw {} }
"""
# Layout, options, model.
LINES = [
    ("dp=2", [], MANY_LAYERS),
    ("dp=2,sync=ps,servers=2,placement=colocated", [], MANY_LAYERS),
    ("dp=3", [], MANY_LAYERS),
    ("dp=3,sync=ps,servers=3,placement=colocated", [], MANY_LAYERS),
    ("dp=2,sync=ps,servers=1", AS_IT_LANDS, MANY_LAYERS),
    ("dp=2,sync=ps,servers=2", AS_IT_LANDS, MANY_LAYERS),
    ("dp=2,sync=ps,servers=3", AS_IT_LANDS, MANY_LAYERS),
    ("dp=3,sync=ps,servers=1", AS_IT_LANDS, MANY_LAYERS),
    ("dp=3,sync=ps,servers=2", AS_IT_LANDS, MANY_LAYERS),
    ("dp=3,sync=ps,servers=3", AS_IT_LANDS, MANY_LAYERS),
    ("dp=2,sync=ps,servers=2", [], MANY_LAYERS),
    ("dp=2,sync=ps,servers=2,mode=stale", AS_IT_LANDS, MANY_LAYERS),
    ("dp=2,sync=ps,servers=2,mode=async", AS_IT_LANDS, MANY_LAYERS),
    ("dp=2,sync=ps,servers=2", AS_IT_LANDS, ONE_LAYER),
    ("dp=2,sync=ps,servers=2,assign=whole", AS_IT_LANDS, ONE_LAYER),
]
STEPS = 8
# Of a step of some seconds on one core: what messages take is little beside it.
IDLE_BATCH = 64


def said(text):
    print(text, file=sys.stderr, flush=True)


def keys(layout):
    return dict(part.split("=") for part in layout.split(","))


def processes(layout):
    value = keys(layout)
    dedicated = value.get("sync") == "ps" and value.get("placement") != "colocated"
    return int(value["dp"]) + (int(value.get("servers", 1)) if dedicated else 0)


class Hosts:
    """So many, while it lasts."""

    def __init__(self, count, rate=""):
        self.count, self.rate = count, rate

    def __enter__(self):
        up = subprocess.run(HOSTS + ["--hosts", str(self.count), "up"])
        if up.returncode != 0:
            sys.exit(up.returncode)
        if self.rate:
            subprocess.run(HOSTS + ["throttle", self.rate], check=True)
        return self

    def __exit__(self, *_):
        subprocess.run(HOSTS + ["down"], check=True)


def result_of(command):
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout)


def train(options, config, layout, more, steps, hosts=True):
    count = ["-n", str(processes(layout))]
    start = HOSTS + ["run"] + count + ["--"] if hosts else ["mpirun", "--bind-to", "none"] + count
    return result_of(start + [options.lockstep, "train", config, "--json", "--quiet", "--layout", layout, "--set", f"trainer.steps={steps}"] + more)


def config_file(text):
    file = tempfile.NamedTemporaryFile("w", suffix=".textproto")
    file.write(text)
    file.flush()
    return file


def inspected(options, config, layout):
    return result_of([options.lockstep, "inspect", config, "--json", "--layout", layout, "--several-hosts"])


def counted(count):
    """Bytes that each host has sent and received."""
    found = []
    for letter in "abcdefgh"[:count]:
        text = subprocess.run(["ip", "-n", f"lockstep-{NAME}-{letter}", "-s", "-j", "link", "show", "net0"], stdout=subprocess.PIPE, check=True).stdout
        stats = json.loads(text)[0]["stats64"]
        found += [stats["tx"]["bytes"], stats["rx"]["bytes"]]
    return found


def messages_ms_per_byte(options, rate):
    """Of messages in both directions at once, between two hosts, nothing else."""
    with Hosts(2, rate):
        bench = result_of(HOSTS + ["run", "-n", "2", "--", options.lockstep, "bench", "--json", "--brief", "--largest", str(1 << 20)])
    return 1e3 * bench["pairs"][0]["both_ways_seconds_per_byte"]


def on_wire(layout, largest, model_bytes):
    """Bytes of the busiest link in its busier direction. `largest`: of a server's part, where parameters stay whole."""
    value = keys(layout)
    n, k = int(value["dp"]), int(value.get("servers", 1))
    if value.get("sync") != "ps" or value.get("placement") == "colocated":
        return 2 * (n - 1) / n * model_bytes
    return max(model_bytes, n * (largest if value.get("assign") == "whole" else model_bytes / k))


def measure_link(options):
    number, unit = re.fullmatch(r"(\d+)(kbit|mbit|gbit)", options.rate).groups()
    bytes_per_ms = int(number) * UNITS[unit] / 8e3
    reached = messages_ms_per_byte(options, options.rate)
    lines = [line for line in LINES if not options.only or line[0] in options.only]
    found = [[] for _ in lines]
    theory = []
    for layout, _, model in lines:
        with config_file(CONFIG % model) as config:
            model_bytes = sum(inspected(options, config.name, "dp=1")["bucket_bytes"])
            largest = max(rank["updated_bytes"] for rank in inspected(options, config.name, layout)["ranks"])
            theory.append(on_wire(layout, largest, model_bytes))
    for round_number in range(options.rounds):
        for i, (layout, more, model) in enumerate(lines):
            count = max(2, processes(layout))
            with Hosts(count, options.rate), config_file(CONFIG % model) as config:
                before = counted(count)
                train(options, config.name, layout, more, STEPS)
                between = counted(count)
                step_ms = train(options, config.name, layout, more, 2 * STEPS)["step_ms"]["mean"]
                after = counted(count)
            # What start and end take is the same in both.
            wire = max(last - middle - (middle - first) for first, middle, last in zip(before, between, after)) / STEPS
            found[i].append((step_ms, wire))
            said(f"round {round_number + 1}: {layout}: {step_ms:.1f} ms")
    print(f"Links of {options.rate}; messages of 1 MiB in both directions at once reach {1 / reached / bytes_per_ms:.0%} of it.\n")
    print("| layout | updates | model | step, ms | wire, ms | step / wire | step / messages | MB counted | MB of the formula |")
    print("|---|---|---|---|---|---|---|---|---|")
    for samples, expected, (layout, more, model) in zip(found, theory, lines):
        step, wire = (statistics.median(sample[i] for sample in samples) for i in (0, 1))
        print(f"| `{layout}` | {'as they arrive' if more else 'wait for the whole step'} | {'one layer' if model == ONE_LAYER else 'many layers'} | {step:.1f} "
              f"| {expected / bytes_per_ms:.1f} | {step * bytes_per_ms / expected:.2f} | {step / (expected * reached):.2f} "
              f"| {wire / 1e6:.2f} | {expected / 1e6:.2f} |")


def measure_hidden(options):
    batch = 16
    lines = [("dp=2", [])] + [(f"dp=1,sync=ps{mode}", more) for mode in ("", ",mode=stale", ",mode=async") for more in (AS_IT_LANDS, [])]
    found = [[] for _ in lines]
    with Hosts(2, options.rate), config_file(GPT % batch) as config:
        for round_number in range(options.rounds):
            for i, (layout, more) in enumerate(lines):
                each = batch // int(keys(layout)["dp"])
                alone = result_of(HOSTS + ["on", "host-a", "--", options.lockstep, "train", config.name, "--json", "--quiet", "--set", "trainer.steps=15", "--set",
                                           f"trainer.global_batch={each}"])["step_ms"]["p50"]
                idle = train(options, config.name, layout, more + ["--set", "trainer.global_batch=2", "--set", "model.gpt.context=1", "--set",
                                                                   "data.synthetic.context=1"], 15)["step_ms"]["p50"]
                report = train(options, config.name, layout, more, 15)
                found[i].append((alone, idle, report["step_ms"]["p50"], report["exposed_comm_ms"]))
                said(f"round {round_number + 1}: {layout}: {report['step_ms']['p50']:.1f} ms")
    print(f"Links of {options.rate}, {batch} samples a step.\n")
    print("| layout | updates | compute, ms | communication, ms | step, ms | exposed, ms | hidden | by step time |")
    print("|---|---|---|---|---|---|---|---|")
    for samples, (layout, more) in zip(found, lines):
        compute, communication, step, exposed = (statistics.median(sample[i] for sample in samples) for i in range(4))
        print(f"| `{layout}` | {'as they arrive' if more else 'wait for the whole step'} | {compute:.0f} | {communication:.0f} | {step:.0f} | {exposed:.0f} "
              f"| {1 - exposed / communication:.0%} | {1 - (step - compute) / communication:.0%} |")


def measure_update(options):
    benchmark = os.path.join(os.path.dirname(options.lockstep), "update_benchmark")
    text = subprocess.run([benchmark], stdout=subprocess.PIPE, check=True, text=True).stdout
    print(text)
    busy = []
    with config_file(CONFIG % "model { mlp { image: [28, 28, 1] hidden: [2048, 4096, 2048] classes: 10 } }") as config:
        parameters = sum(inspected(options, config.name, "dp=1")["bucket_bytes"]) / 4
        for _ in range(options.rounds):
            report = train(options, config.name, "dp=2,sync=ps", AS_IT_LANDS, 15, hosts=False)
            server = report["ranks"][-1]
            busy.append(server["server_busy"] * report["step_ms"]["mean"])
            said(f"busy for {busy[-1]:.1f} ms of {report['step_ms']['mean']:.1f}")
    # Fold: two read, one written. AdamW: parameter, gradient and two moments read, all but the gradient written.
    moved = parameters * (3 * 4 + 7 * 4)
    print(f"{parameters / 1e6:.1f} million parameters: {moved / 1e6:.0f} MB read and written in {statistics.median(busy):.1f} ms: "
          f"{moved / statistics.median(busy) / 1e6:.1f} GB/s")


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def server_of(job, rank):
    """The process of a rank of a job that has begun to train."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    variables = file.read().split(b"\0")
            except OSError:
                continue
            if b"LOCKSTEP_MEASURED=%d" % job in variables and b"OMPI_COMM_WORLD_RANK=%d" % rank in variables:
                return int(pid)
        time.sleep(0.1)
    sys.exit("the server does not show")


def measure_idle(options):
    print("| mode | of a core | of it computing | beside |")
    print("|---|---|---|---|")
    with config_file(GPT % IDLE_BATCH) as config:
        for number, mode in enumerate(["sync", "stale", "async"]):
            layout = "dp=1,sync=ps" + ("" if mode == "sync" else f",mode={mode}")
            with tempfile.TemporaryFile("w+") as output:
                job = subprocess.Popen(["mpirun", "--bind-to", "none", "-n", "2", options.lockstep, "train", config.name, "--json", "--quiet", "--layout", layout,
                                        "--set", f"trainer.steps={int(options.seconds * 2)}"], stdout=output,
                                       env={**os.environ, "OMP_NUM_THREADS": "1", "LOCKSTEP_MEASURED": str(number)})
                server = server_of(number, 1)
                time.sleep(3)
                began, before = time.monotonic(), processor_seconds(server)
                time.sleep(options.seconds)
                share = (processor_seconds(server) - before) / (time.monotonic() - began)
                if job.wait() != 0:
                    sys.exit(f"{layout}: ended with {job.returncode}")
                output.seek(0)
                busy = json.load(output)["ranks"][-1]["server_busy"]
            print(f"| `{mode}` | {share:.1%} | {busy:.1%} | {share - busy:.1%} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["link", "hidden", "update", "idle"])
    parser.add_argument("--rate")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--only", action="append", metavar="LAYOUT", choices=sorted({layout for layout, _, _ in LINES}))
    parser.add_argument("--lockstep", default="build/release/bin/lockstep")
    options = parser.parse_args()
    options.rate = options.rate or ("1gbit" if options.part == "hidden" else "200mbit")
    os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
    os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    os.environ.setdefault("OMPI_MCA_rmaps_base_oversubscribe", "1")
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    {"link": measure_link, "hidden": measure_hidden, "update": measure_update, "idle": measure_idle}[options.part](options)


if __name__ == "__main__":
    main()
