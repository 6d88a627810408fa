#!/usr/bin/env python3
"""What REPRODUCIBLE costs on CPUs: samples per second as a share of FAST's, interleaved, medians, as a table.

    scripts/measure_reproducible.py [--lockstep build/release/bin/lockstep] [--rounds 5] [--only NAME] [--processes 1 2]

Synthetic data of the configs' shapes; one thread for each process. Each model has 8 virtual replicas, and where its rows
are cheap 64 besides. Exits with 1 if a ratio is below its aim. Takes about 25 minutes on an idle machine of two cores.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from measure_targets import ENVIRONMENT

HERE = os.path.dirname(os.path.abspath(__file__))
CONFIGS = os.path.join(HERE, "..", "configs")

SYNTHETIC_IMAGES = "data { synthetic { classes: 10 samples: 9000 eval_samples: 10 } }"
TRAINER = "trainer { steps: 1 global_batch: 64 seed: 1 }\noptimizer { learning_rate: 1e-3 adam {} }\n"
WIDE_MLP = f"format_version: 1\nmodel {{ mlp {{ image: [28, 28, 1] hidden: [1024, 1024] classes: 10 }} }}\n{SYNTHETIC_IMAGES}\n{TRAINER}"
GROUP = ('layer {{ name: "conv{0}" {2} conv2d {{ channels: {1} kernel: 3 padding: 1 }} }} layer {{ name: "norm{0}" batch_norm {{}} }} '
         'layer {{ name: "relu{0}" relu {{}} }} layer {{ name: "pool{0}" pool2d {{ kernel: 2 }} }}\n')
CONVOLUTIONS = ('format_version: 1\nmodel { input { name: "image" shape: [28, 28, 1] } input { name: "label" type: INT32 }\n'
                + "".join(GROUP.format(number, channels, 'input: "image"' if number == 0 else "") for number, channels in enumerate((16, 32, 64)))
                + 'layer { name: "flat" flatten {} } layer { name: "fc" linear { units: 10 } }\n'
                + 'layer { name: "loss" input: ["fc", "label"] softmax_cross_entropy {} } }\n'
                + f"{SYNTHETIC_IMAGES}\n{TRAINER}")

# Name, config or its text, classes (or different tokens), batch, virtual replicas, steps, the least ratio wanted.
CASES = [("mnist_mlp", "mnist_mlp.textproto", 10, 64, 8, 4000, 0.85),
         ("MLP 784-1024-1024-10", WIDE_MLP, 10, 128, 8, 300, 0.90),
         ("mnist_lenet", "mnist_lenet.textproto", 10, 64, 8, 800, 0.90),
         ("shakespeare_gpt", "shakespeare_gpt.textproto", 65, 16, 8, 100, 0.90),
         ("convolutions, batch norm", CONVOLUTIONS, 10, 64, 8, 250, 0.90),
         ("mnist_mlp", "mnist_mlp.textproto", 10, 512, 64, 600, 0.85),
         ("MLP 784-1024-1024-10", WIDE_MLP, 10, 512, 64, 80, 0.85),
         ("mnist_lenet", "mnist_lenet.textproto", 10, 512, 64, 100, 0.85),
         ("shakespeare_gpt", "shakespeare_gpt.textproto", 65, 64, 64, 25, 0.85),
         ("convolutions, batch norm", CONVOLUTIONS, 10, 512, 64, 40, 0.85)]


def rate(options, config, case, processes, reduction):
    _, _, classes, batch, replicas, steps, _ = case
    command = [options.lockstep, "train", config, "--device", "cpu", "--json", "--quiet"]
    if processes > 1:
        command = ["mpirun", "-n", str(processes)] + command
    for override in (f"data.synthetic.classes={classes}", "data.synthetic.samples=9000", "data.synthetic.eval_samples=10",
                     f"trainer.global_batch={batch}", f"trainer.virtual_replicas={replicas}", f"trainer.steps={steps * processes}",
                     "trainer.eval_every_steps=0", "trainer.eval_at_end=false", f"parallel.reduction={reduction}"):
        command += ["--set", override]
    run = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {run.returncode}")
    return json.loads(run.stdout)["samples_per_second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", default="build/release/bin/lockstep")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="cases whose name begins so")
    parser.add_argument("--processes", type=int, nargs="+", choices=(1, 2), default=(1, 2))
    options = parser.parse_args()
    print("| | batch | virtual replicas | processes | FAST | REPRODUCIBLE | ratio | wanted |\n|---|---|---|---|---|---|---|---|")
    met = True
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            name, config, _, batch, replicas, _, wanted = case
            if options.only and not name.startswith(options.only):
                continue
            if config.endswith(".textproto"):
                path = os.path.join(CONFIGS, config)
            else:
                path = os.path.join(folder, "model.textproto")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(config)
            for processes in options.processes:
                rates = {"FAST": [], "REPRODUCIBLE": []}
                for _ in range(options.rounds):
                    for reduction, samples in rates.items():
                        samples.append(rate(options, path, case, processes, reduction))
                fast, exact = (statistics.median(rates[reduction]) for reduction in rates)
                met &= exact / fast >= wanted
                print(f"| {name} | {batch} | {replicas} | {processes} | {fast:,.0f} | {exact:,.0f} | {exact / fast:.2f} | {wanted:.2f} |", flush=True)
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
