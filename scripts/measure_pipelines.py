#!/usr/bin/env python3
"""Compares the times of pipelines of two stages on two cores with what their schedules predict.

    scripts/measure_pipelines.py bubble     share of steps in which stages wait, for every schedule and 4 to 32 micro-batches
    scripts/measure_pipelines.py dp         a step, compared with a step of two replicas with the same batch
    scripts/measure_pipelines.py hosts      the same between two hosts on this machine (two_hosts.sh), for a model with many
                                            parameters and few activations

Options: [--rounds 3] [--rate 1gbit] [--lockstep build/release/bin/lockstep]. Runs are interleaved, figures are medians, tables
are markdown. Needs an idle machine with two cores or more. `hosts` exits with 77 if two_hosts.sh cannot work.
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
ID = f"pipelines{os.getpid()}"
HOSTS = [os.path.join(HERE, "two_hosts.sh"), "--id", ID]
# Both halves take the same time within a percent (lockstep inspect), and a forward of a stage takes some milliseconds.
MODELS = {
    "GPT": ("model { gpt { vocabulary: 65 context: 64 layers: 8 heads: 4 width: 192 } }\n"
            "data { synthetic { samples: 4096 eval_samples: 2 classes: 65 } }\n", 2),
    "MLP": ("model { mlp { image: 32 image: 32 image: 1 hidden: 1024 hidden: 1024 hidden: 1024 hidden: 1024 hidden: 1024 "
            "hidden: 1024 hidden: 1024 classes: 1024 } }\n"
            "data { synthetic { samples: 4096 eval_samples: 2 classes: 1024 shape: 32 shape: 32 shape: 1 } }\n", 32),
}
REST = "trainer { global_batch: 64 steps: 12 seed: 1 eval_at_end: false }\noptimizer { learning_rate: 0.001 adamw {} }\n"
SCHEDULES = ["gpipe", "1f1b", "interleaved", "zero_bubble"]
WIDE = ("model { mlp { image: 32 image: 32 image: 1 hidden: 2048 hidden: 2048 hidden: 2048 hidden: 2048 classes: 1024 } }\n"
        "data { synthetic { samples: 4096 eval_samples: 2 classes: 1024 shape: 32 shape: 32 shape: 1 } }\n" + REST)


def report_of(options, config, layout, batch, micro_batch, hosts=False, more=()):
    """The report of a short run on two processes."""
    start = HOSTS + ["run"] if hosts else [os.path.join(HERE, "..", "launcher", "lockstep-run"), "--program", options.lockstep]
    command = start + ["-n", "2", "--", *([options.lockstep] if hosts else []), "train", config, "--json", "--quiet", "--layout",
                       layout, "--set", f"trainer.global_batch={batch}", "--set", f"trainer.micro_batch={micro_batch}", *more]
    ran = subprocess.run(command, stdout=subprocess.PIPE,
                         env={**os.environ, "OMP_NUM_THREADS": "1"})
    if ran.returncode != 0:
        sys.exit(f"a run ended with {ran.returncode}: {' '.join(command)}")
    return json.loads(ran.stdout)


def write_config(folder, name, text):
    path = os.path.join(folder, f"{name}.textproto")
    with open(path, "w", encoding="utf-8") as file:
        file.write("format_version: 1\n" + text)
    return path


def medians(runs, options, measure):
    """By run, the median of what `measure` returns of it, a tuple, over interleaved rounds."""
    values = {run: [] for run in runs}
    for number in range(options.rounds):
        for run in runs:
            values[run].append(measure(*run))
            print(f"round {number + 1}: {run}: {values[run][-1]}", file=sys.stderr)
    return {run: tuple(statistics.median(column) for column in zip(*of_run)) for run, of_run in values.items()}


def bubble(options, folder):
    for name, (text, samples) in MODELS.items():
        config = write_config(folder, name, text + REST)

        def measure(schedule, count, config=config, samples=samples):
            report = report_of(options, config, f"dp=1,pp=2,schedule={schedule}", count * samples, samples)
            return report["bubble_fraction"], report["bubble_fraction_theory"], report["step_ms"]["p50"]

        runs = [(schedule, count) for count in (4, 8, 16, 32) for schedule in SCHEDULES]
        found = medians(runs, options, measure)
        print(f"\n{name}: the part of a step in which a stage waits, measured / by its schedule (step, ms)\n")
        print("| micro-batches: | 4 | 8 | 16 | 32 |\n|---|---|---|---|---|")
        for schedule in SCHEDULES:
            cells = [found[(schedule, count)] for count in (4, 8, 16, 32)]
            print(f"| `{schedule}` | " + " | ".join(f"{100 * a:.1f} / {100 * b:.1f} % ({ms:.0f})" for a, b, ms in cells) + " |")

    text, samples = MODELS["GPT"]
    config = write_config(folder, "again", text + REST)

    def again(schedule, recompute):
        report = report_of(options, config, f"dp=1,pp=2,schedule={schedule},recompute={recompute}", 8 * samples, samples)
        return report["step_ms"]["p50"], report["peak_memory_bytes"] / 2**20

    runs = [(schedule, recompute) for schedule in ("1f1b", "interleaved", "zero_bubble") for recompute in ("none", "selective", "full")]
    found = medians(runs, options, again)
    print("\nGPT, 8 micro-batches: a step, ms (planned memory of the fullest rank, MiB)\n")
    print("| | `none` | `selective` | `full` |\n|---|---|---|---|")
    for schedule in ("1f1b", "interleaved", "zero_bubble"):
        cells = [found[(schedule, recompute)] for recompute in ("none", "selective", "full")]
        print(f"| `{schedule}` | " + " | ".join(f"{ms:.0f} ({memory:.1f})" for ms, memory in cells) + " |")


def beside_dp(options, folder):
    runs = [(name, layout) for name in MODELS for layout in ("dp=2", "dp=1,pp=2")]

    def measure(name, layout):
        text, samples = MODELS[name]
        config = write_config(folder, name, text + REST)
        return (report_of(options, config, layout, 16 * samples, samples)["step_ms"]["p50"],)

    found = medians(runs, options, measure)
    print("\n| 16 micro-batches | `dp=2`, ms | `dp=1,pp=2`, ms | ratio |\n|---|---|---|---|")
    for name in MODELS:
        replicas, stages = found[(name, "dp=2")][0], found[(name, "dp=1,pp=2")][0]
        print(f"| {name} | {replicas:.0f} | {stages:.0f} | {stages / replicas:.3f} |")


def between_hosts(options, folder):
    started = subprocess.run(HOSTS + ["up"])
    if started.returncode != 0:
        sys.exit(started.returncode)
    try:
        subprocess.run(HOSTS + ["throttle", options.rate], check=True)
        config = write_config(folder, "wide", WIDE)
        batch, micro_batch, width = 64, 8, 2048
        runs = [("dp=2", True), ("dp=1,pp=2", True), ("dp=2", False), ("dp=1,pp=2", False)]

        def measure(layout, hosts):
            report = report_of(options, config, layout, batch, micro_batch, hosts)
            sent = [rank["wire_bytes"]["sent"] for rank in report["ranks"]]
            theory = [rank["wire_bytes_theory"]["sent"] for rank in report["ranks"]]
            return report["step_ms"]["p50"], max(sent), max(theory)

        found = medians(runs, options, measure)
        activations = batch * width * 4
        print(f"\nTwo hosts, {options.rate}; activations of a step at the cut: {activations} bytes in each direction\n")
        print("| | step, ms | on one host | bytes sent per step, measured / theory |\n|---|---|---|---|")
        for layout in ("dp=2", "dp=1,pp=2"):
            far, near = found[(layout, True)], found[(layout, False)]
            print(f"| `{layout}` | {far[0]:.0f} | {near[0]:.0f} | {far[1]:.0f} / {far[2]:.0f} |")
        ratio = found[("dp=2", True)][0] / found[("dp=1,pp=2", True)][0]
        print(f"\nstages are {ratio:.2f} times as fast as replicas")
    finally:
        subprocess.run(HOSTS + ["down"], check=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["bubble", "dp", "hosts"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", default="1gbit", help="rate of the link between the hosts")
    parser.add_argument("--lockstep", default=os.path.join(HERE, "..", "build", "release", "bin", "lockstep"))
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    if not re.fullmatch(r"[1-9]\d*(kbit|mbit|gbit)", options.rate):
        parser.error(f"--rate: '{options.rate}' is no rate such as 200mbit or 1gbit")
    options.lockstep = os.path.abspath(options.lockstep)
    if not os.access(options.lockstep, os.X_OK):
        parser.error(f"{options.lockstep} is no program; build it, or name it by --lockstep")
    with tempfile.TemporaryDirectory() as folder:
        {"bubble": bubble, "dp": beside_dp, "hosts": between_hosts}[options.part](options, folder)


if __name__ == "__main__":
    main()
