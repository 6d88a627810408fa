#!/usr/bin/env python3
"""Training speed on this machine's CPUs beside PyTorch, in one run: interleaved, medians, and their ratio.

    scripts/bench_train.py [--python PYTHON_WITH_TORCH] [--lockstep build/release/bin/lockstep] [--rounds 5]

Both train the model, batch and optimizer of configs/<model>.textproto on data in memory: lockstep on synthetic data of
the same shapes. REPRODUCIBLE divides the batch into the config's virtual_replicas. "1x1" is one process of one thread, "2x1" two processes (MPI; DistributedDataParallel over gloo).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

from measure_targets import ENVIRONMENT

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = {"mnist_mlp": 1500, "mnist_lenet": 300, "shakespeare_gpt": 100}
SYNTHETIC = {"mnist_mlp": 10, "mnist_lenet": 10, "shakespeare_gpt": 65}   # classes, or different tokens


def lockstep(options, model, processes, reduction):
    command = [options.lockstep, "train", os.path.join(HERE, "..", "configs", f"{model}.textproto"), "--json", "--quiet"]
    for override in (f"data.synthetic.classes={SYNTHETIC[model]}", "data.synthetic.samples=9000", "data.synthetic.eval_samples=10",
                     f"trainer.steps={STEPS[model]}", "trainer.eval_every_steps=0", "trainer.eval_at_end=false",
                     f"parallel.reduction={reduction}"):
        command += ["--set", override]
    if processes > 1:
        command = ["mpirun", "-n", str(processes)] + command
    run = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout)["samples_per_second"]


def pytorch(options, model, processes):
    command = [options.python, os.path.join(HERE, "peers", "pytorch_train.py"), model, str(STEPS[model]),
               "--processes", str(processes)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--lockstep", default="build/release/bin/lockstep")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=sorted(STEPS))
    options = parser.parse_args()
    print(f"{'model':<18} {'layout':<6} {'PyTorch':>10} {'FAST':>10} {'ratio':>6} {'REPRODUCIBLE':>13} {'ratio':>6}   samples/s, medians of {options.rounds}")
    for model in STEPS:
        if options.only not in (None, model):
            continue
        for processes in (1, 2):
            rates = {"pytorch": [], "FAST": [], "REPRODUCIBLE": []}
            for _ in range(options.rounds):
                rates["pytorch"].append(pytorch(options, model, processes))
                for reduction in ("FAST", "REPRODUCIBLE"):
                    rates[reduction].append(lockstep(options, model, processes, reduction))
            peer, fast, exact = (statistics.median(rates[k]) for k in ("pytorch", "FAST", "REPRODUCIBLE"))
            print(f"{model:<18} {processes}x1    {peer:>10.0f} {fast:>10.0f} {fast / peer:>6.2f} {exact:>13.0f} {exact / peer:>6.2f}", flush=True)


if __name__ == "__main__":
    main()
