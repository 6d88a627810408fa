#!/usr/bin/env python3
"""What parameter servers cost on a slow link, beside a ring all-reduce: two hosts on this machine (two_hosts.sh), a model
with next to nothing to compute, so that a step is its communication.

    scripts/measure_servers.py [--rate 200mbit] [--rounds 3] [--only LAYOUT]... [--lockstep build/release/bin/lockstep]

--only: nothing but these of its layouts. Each measurement is told on stderr as it is made, a minute or so for each. Prints for each layout the median step of interleaved rounds; the time that its bytes take on the wire, which are known from who
is where (ranks alternate between the hosts); and the bytes that crossed the link per step in the busier direction, as the
interface counted them, beside those of the formula. Updates wait for nothing but their bucket (trainer.nonfinite: IGNORE), unless
the line says "verdict". Exits with 77 where two_hosts.sh cannot work.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
HOSTS = [os.path.join(HERE, "two_hosts.sh"), "--id", f"servers{os.getpid()}"]
NAMESPACE = f"lockstep-servers{os.getpid()}-a"
STEPS = 8
CONFIG = """
model { gpt { vocabulary: 65 context: 1 layers: 6 heads: 4 width: 256 } }
data { synthetic { samples: 4096 eval_samples: 2 classes: 65 } }
trainer { global_batch: 12 steps: %d seed: 1 eval_at_end: false }
optimizer { learning_rate: 0.001 adamw {} }
""" % STEPS
AS_IT_LANDS = ["--set", "trainer.nonfinite=IGNORE"]
# Layout, options, and how many times the model's bytes cross the link in each direction.
LINES = [
    ("dp=2", [], 1),
    ("dp=2,sync=ps,servers=2,placement=colocated", [], 1),
    ("dp=1,sync=ps", AS_IT_LANDS, 1),
    ("dp=1,sync=ps", [], 1),
    ("dp=2,sync=ps", AS_IT_LANDS, 1),
    ("dp=2,sync=ps,servers=2", AS_IT_LANDS, 1),
    ("dp=3,sync=ps,servers=3", AS_IT_LANDS, 5 / 3),
    ("dp=2,sync=ps,mode=stale", AS_IT_LANDS, 1),
    ("dp=2,sync=ps,mode=async", AS_IT_LANDS, 1),
    ("dp=4,sync=ps", AS_IT_LANDS, 2),
    ("dp=4,sync=ps,aggregate=host", AS_IT_LANDS, 1),
]


def processes(layout):
    value = dict(part.split("=") for part in layout.split(","))
    dedicated = value.get("sync") == "ps" and value.get("placement") != "colocated"
    return int(value["dp"]) + (int(value.get("servers", 1)) if dedicated else 0)


def counted():
    """Bytes that host-a has sent and received."""
    text = subprocess.run(["ip", "-n", NAMESPACE, "-s", "-j", "link", "show", "net0"], stdout=subprocess.PIPE, check=True).stdout
    stats = json.loads(text)[0]["stats64"]
    return stats["tx"]["bytes"], stats["rx"]["bytes"]


def train(options, config, layout, more, steps):
    command = HOSTS + ["run", "-n", str(processes(layout)), "--", options.lockstep, "train", config, "--json", "--quiet",
                       "--layout", layout, "--set", f"trainer.steps={steps}"] + more
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout)


def measure(options, config, layout, more):
    before = counted()
    report = train(options, config, layout, more, STEPS)
    between = counted()
    train(options, config, layout, more, 2 * STEPS)
    after = counted()
    # What start and end take is the same in both.
    wire = max((after[d] - between[d]) - (between[d] - before[d]) for d in (0, 1)) / STEPS
    return report["step_ms"]["p50"], wire


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", metavar="LAYOUT", choices=sorted({layout for layout, _, _ in LINES}))
    parser.add_argument("--lockstep", default="build/release/bin/lockstep")
    options = parser.parse_args()
    number, unit = re.fullmatch(r"(\d+)(kbit|mbit|gbit)", options.rate).groups()
    bytes_per_ms = int(number) * {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}[unit] / 8e3
    up = subprocess.run(HOSTS + ["up"])
    if up.returncode != 0:
        sys.exit(up.returncode)
    try:
        subprocess.run(HOSTS + ["throttle", options.rate], check=True)
        with tempfile.NamedTemporaryFile("w", suffix=".textproto") as config:
            config.write(CONFIG)
            config.flush()
            plan = subprocess.run([options.lockstep, "inspect", config.name, "--json", "--layout", "dp=1"], stdout=subprocess.PIPE,
                                  check=True)
            model_bytes = sum(json.loads(plan.stdout)["bucket_bytes"])
            print(f"{model_bytes / 1e6:.1f} MB of gradients, link of {options.rate}\n")
            print("| layout | updates | step, ms | wire, ms | step / wire | MB counted | MB of the formula |")
            print("|---|---|---|---|---|---|---|")
            lines = [line for line in LINES if not options.only or line[0] in options.only]
            found = [[] for _ in lines]
            for number in range(options.rounds):
                for samples, (layout, more, _) in zip(found, lines):
                    samples.append(measure(options, config.name, layout, more))
                    print(f"round {number + 1}: {layout}: {samples[-1][0]:.1f} ms", file=sys.stderr)
            for samples, (layout, more, times) in zip(found, lines):
                step = statistics.median(s[0] for s in samples)
                wire = statistics.median(s[1] for s in samples)
                theory = times * model_bytes
                print(f"| `{layout}` | {'as they land' if more else 'verdict'} | {step:.1f} | {theory / bytes_per_ms:.1f} "
                      f"| {step * bytes_per_ms / theory:.2f} | {wire / 1e6:.2f} | {theory / 1e6:.2f} |")
    finally:
        subprocess.run(HOSTS + ["down"], check=True)


if __name__ == "__main__":
    main()
