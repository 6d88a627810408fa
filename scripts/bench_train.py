#!/usr/bin/env python3
"""Compares training speed on this machine's CPUs with PyTorch, eager and compiled, and JAX, in one run: medians of
interleaved rounds, and the ratio to the fastest peer.

    scripts/bench_train.py [--python PYTHON_WITH_TORCH_AND_JAX] [--lockstep build/release/bin/lockstep] [--rounds 5]

All train the model, batch and optimizer of configs/<model>.textproto on data in memory; lockstep uses synthetic data of
the same shapes. REPRODUCIBLE divides the batch into the config's virtual_replicas. "1x1" is one process of one thread, "2x1" two
processes (MPI; DistributedDataParallel over gloo; no JAX). Peers that are not installed are skipped.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys

from measure_targets import ENVIRONMENT

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = {"mnist_mlp": 1500, "mnist_lenet": 300, "shakespeare_gpt": 100}
SYNTHETIC = {"mnist_mlp": 10, "mnist_lenet": 10, "shakespeare_gpt": 65}   # classes, or different tokens

# By the name of the column: script, module that it needs, flags, whether it runs with several processes.
PEERS = {"eager": ("pytorch_train.py", "torch", [], True), "compiled": ("pytorch_train.py", "torch", ["--compile"], True),
         "JAX": ("jax_train.py", "jax", [], False)}


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


def peer(options, model, processes, name):
    script, _, flags, _ = PEERS[name]
    command = [options.python, os.path.join(HERE, "peers", script), model, str(STEPS[model]), *flags]
    if processes > 1:
        command += ["--processes", str(processes)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def installed_peers(options):
    found = []
    for name, (_, module, _, _) in PEERS.items():
        if subprocess.run([options.python, "-c", f"import {module}"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            found.append(name)
        else:
            print(f"{name}: {options.python} has no {module}; left out")
    return found


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        facts = dict(map(str.strip, line.split(":", 1)) for line in file if ":" in line)
    sets = [name for name, flag in (("AVX2", "avx2"), ("AVX-512", "avx512f")) if flag in facts.get("flags", "").split()]
    family = f", family {facts['cpu family']} model {facts['model']}" if "cpu family" in facts else ""
    return f"{facts.get('model name', platform.machine())}{family}, {', '.join(sets) or 'neither AVX2 nor AVX-512'}"


def measure(options, model, processes, peers):
    """Medians by name."""
    rates = {name: [] for name in peers if processes == 1 or PEERS[name][3]}
    rates.update({"FAST": [], "REPRODUCIBLE": []})
    for _ in range(options.rounds):
        for name, samples in rates.items():
            samples.append(peer(options, model, processes, name) if name in PEERS else lockstep(options, model, processes, name))
    return {name: statistics.median(samples) for name, samples in rates.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--lockstep", default="build/release/bin/lockstep")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=sorted(STEPS))
    parser.add_argument("--processes", type=int, nargs="+", choices=(1, 2), default=(1, 2))
    options = parser.parse_args()
    print(f"{processor()}\n{subprocess.run([options.lockstep, '--version'], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()}")
    peers = installed_peers(options)
    print(f"samples/s, medians of {options.rounds}; ratios to the fastest peer")
    print(f"{'model':<16} {'layout':<6}" + "".join(f" {name:>9}" for name in PEERS) + f" {'FAST':>9} {'ratio':>6} {'REPRODUCIBLE':>13} {'ratio':>6}")
    for model in STEPS:
        if options.only not in (None, model):
            continue
        for processes in options.processes:
            medians = measure(options, model, processes, peers)
            best = max((medians[name] for name in PEERS if name in medians), default=float("nan"))
            line = "".join(f" {medians[name]:>9.0f}" if name in medians else f" {'-':>9}" for name in PEERS)
            for reduction, width in (("FAST", 9), ("REPRODUCIBLE", 13)):
                line += f" {medians[reduction]:>{width}.0f} {medians[reduction] / best:>6.2f}"
            print(f"{model:<16} {processes}x1   {line}", flush=True)


if __name__ == "__main__":
    main()
