#!/usr/bin/env python3
"""Measures what shard=optimizer costs and saves on one host: medians of step times, interleaved with the same job without it.

    scripts/bench_sharded.py --data-dir DIR [--lockstep build/release/bin/lockstep] [--rounds 5]

DIR holds tinyshakespeare.txt and mnist/. Bytes are those that `lockstep inspect` prints. Of optimizer state: the most that
a worker holds. On the wire: what all workers together send in a step if they share no memory.
"""

import argparse
import json
import os
import statistics
import subprocess

from measure_targets import ENVIRONMENT

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = {"mnist_mlp": ("mnist", 600), "shakespeare_gpt": ("", 60)}  # data, steps


def config(model):
    return os.path.join(HERE, "..", "configs", f"{model}.textproto")


def run(command):
    return json.loads(subprocess.run(command, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE, text=True, check=True).stdout)


def step_ms(options, model, layout, workers, reduction):
    folder, steps = MODELS[model]
    report = run(["mpirun", "-n", str(workers), options.lockstep, "train", config(model), "--json", "--quiet", "--layout", layout,
                  "--data-dir", os.path.join(options.data_dir, folder), "--set", f"trainer.steps={steps}",
                  "--set", "trainer.eval_every_steps=0", "--set", "trainer.eval_at_end=false",
                  "--set", f"parallel.reduction={reduction}", "--set", "trainer.global_batch=12" if model == "shakespeare_gpt" else "trainer.global_batch=96"])
    return report["step_ms"]["p50"]


def bytes_of(options, model, layout, reduction):
    ranks = run([options.lockstep, "inspect", config(model), "--json", "--several-hosts", "--layout", layout,
                 "--set", f"parallel.reduction={reduction}",
                 "--set", "trainer.global_batch=12" if model == "shakespeare_gpt" else "trainer.global_batch=96"])["ranks"]
    return max(r["optimizer_state_bytes"] for r in ranks), sum(r["wire_bytes_theory"] for r in ranks)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--lockstep", default="build/release/bin/lockstep")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("| | workers | mode | step, ms | sharded, ms | costs | optimizer bytes | sharded | bytes sent | sharded |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for model in MODELS:
        for workers in (2, 3):
            for reduction in ("FAST", "REPRODUCIBLE"):
                layouts = (f"dp={workers}", f"dp={workers},shard=optimizer")
                times = {layout: [] for layout in layouts}
                for _ in range(options.rounds):
                    for layout in layouts:
                        times[layout].append(step_ms(options, model, layout, workers, reduction))
                whole, cut = (statistics.median(times[layout]) for layout in layouts)
                (state, wire), (cut_state, cut_wire) = (bytes_of(options, model, layout, reduction) for layout in layouts)
                print(f"| `{model}` | {workers} | {reduction} | {whole:.2f} | {cut:.2f} | {100 * (cut / whole - 1):+.0f} % "
                      f"| {state:,} | {cut_state:,} | {wire:,} | {cut_wire:,} |", flush=True)


if __name__ == "__main__":
    main()
