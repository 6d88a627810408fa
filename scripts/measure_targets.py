#!/usr/bin/env python3
"""Trains the shipped configs on real data and prints what they reach, next to their targets.

    scripts/measure_targets.py --data-dir DATA [--lockstep build/release/bin/lockstep] [--only mnist|shakespeare]

DATA holds mnist/t10k-*-ubyte.gz and tinyshakespeare.txt (README.md says where to get them). Takes about ten minutes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
               "OMPI_MCA_mpi_yield_when_idle": "1"}


def train(options, config, data_dir, overrides, workers=2):
    command = [options.lockstep, "train", config, "--data-dir", data_dir, "--json", "--quiet"]
    if workers > 1:
        command = ["mpirun", "-n", str(workers)] + command
    for override in overrides:
        command += ["--set", override]
    run = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {run.returncode}")
    return json.loads(run.stdout)


def report(what, reached, relation, target):
    met = reached >= target if relation == ">=" else reached <= target
    print(f"{what:<58} {reached:>9.4f}   {relation} {target:<8} {'met' if met else 'MISSED'}", flush=True)
    return met


def mnist(options):
    met = True
    for config, target in (("mnist_lenet", 0.975), ("mnist_mlp", 0.942)):
        accuracies = [train(options, f"configs/{config}.textproto", os.path.join(options.data_dir, "mnist"),
                            [f"trainer.seed={seed}"])["eval_accuracy"] for seed in (1, 2, 3)]
        met &= report(f"{config}: accuracy, mean of seeds 1, 2, 3", statistics.mean(accuracies), ">=", target)
    return met


def shakespeare(options):
    config = "configs/shakespeare_gpt.textproto"
    nano = ["optimizer.learning_rate=0.001", "optimizer.schedule.cosine.minimum=0.0001"]
    own = train(options, config, options.data_dir, [])
    theirs = train(options, config, options.data_dir, nano)
    met = report("shakespeare_gpt: validation loss, nanoGPT's rates", theirs["eval_loss"], "<=", 1.93)
    return report("shakespeare_gpt: validation loss, the config's own rates", own["eval_loss"], "<=", 1.82) and met


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--lockstep", default="build/release/bin/lockstep")
    parser.add_argument("--only", choices=["mnist", "shakespeare"])
    options = parser.parse_args()
    parts = {"mnist": mnist, "shakespeare": shakespeare}
    results = [part(options) for name, part in parts.items() if options.only in (None, name)]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
