#!/usr/bin/env python3
"""What a narrower wire costs in loss: trains three models from several seeds, with gradients summed as float32, as bfloat16, and as
bfloat16 with error feedback.

    scripts/measure_wire.py [--lockstep build/release/bin/lockstep] --data-dir DATA [--seeds 1 2 3] [--model NAME ...] [--replicas 8]
        [--quick]

DATA holds mnist/ (the files that configs/mnist_lenet.textproto names) and tinyshakespeare.txt. Every run is REPRODUCIBLE, in one
process: then its bits are those of as many workers as there are virtual replicas, each node of whose sums' tree is rounded. Prints
a Markdown table: the last evaluation's loss, as a mean over the seeds with the smallest and the largest; its mean distance from
FLOAT32's of the same seed; and, for classifiers, accuracies. Beside them what each of `--replicas` workers would send in a step (error
feedback sends nothing more). A distance says something if it is larger than what lies between seeds. --quick: few steps, to try the script.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from measure_targets import ENVIRONMENT

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIRES = {"FLOAT32": ["parallel.wire=FLOAT32"], "BFLOAT16": ["parallel.wire=BFLOAT16"],
         "with feedback": ["parallel.wire=BFLOAT16", "parallel.error_feedback=true"]}

GROUP = ('layer {{ name: "conv{0}" {2} conv2d {{ channels: {1} kernel: 3 padding: 1 bias: false }} }} layer {{ name: "norm{0}" batch_norm {{}} }} '
         'layer {{ name: "relu{0}" relu {{}} }} layer {{ name: "pool{0}" pool2d {{ kernel: 2 }} }}\n')


def convolutions():
    """Batch norm, whose running statistics follow means that travel with the gradients; data as LeNet's, SGD."""
    config = (ROOT / "configs" / "mnist_lenet.textproto").read_text()
    layers = "".join(GROUP.format(number, channels, 'input: "image"' if number == 0 else "") for number, channels in enumerate((16, 32, 64)))
    model = ('model { input { name: "image" shape: [28, 28, 1] } input { name: "label" type: INT32 }\n' + layers +
             'layer { name: "flat" flatten {} } layer { name: "fc" linear { units: 10 } }\n'
             'layer { name: "loss" input: ["fc", "label"] softmax_cross_entropy {} } }')
    config = config.replace("model { lenet { image: [28, 28, 1] classes: 10 } }", model)
    return config.replace("learning_rate: 2e-3\n  adam {}", "learning_rate: 0.05\n  sgd { momentum: 0.9 }")


# Name, config or its text, folder of its data, batch, steps, steps of --quick.
MODELS = [("mnist_lenet", None, "mnist", 64, 1410, 20),
          ("mnist_batch_norm", convolutions, "mnist", 64, 705, 10),
          ("shakespeare_gpt", None, ".", 16, 2000, 5)]


def command_of(options, command, config, overrides):
    line = [options.lockstep, command, str(config), "--json"]
    for override in overrides:
        line += ["--set", override]
    return line


def run(line):
    done = subprocess.run(line, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(line)}: exit code {done.returncode}")
    return json.loads(done.stdout)


def numbers(values, digits):
    return f"{statistics.mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def row(options, name, text, config, data_dir, batch, steps):
    common = ["parallel.reduction=REPRODUCIBLE", f"trainer.virtual_replicas={options.replicas}", f"trainer.global_batch={batch}",
              f"trainer.steps={steps}", "trainer.eval_every_steps=0"]
    results, sent = {}, {}
    for wire in ("FLOAT32", "BFLOAT16"):
        overrides = [*common, *WIRES[wire]]
        # On several hosts: on one, shared memory takes what is counted here.
        ranks = run(command_of(options, "inspect", config, overrides) + ["--world", str(options.replicas), "--several-hosts"])["ranks"]
        sent[wire] = max(rank["wire_bytes_theory"] for rank in ranks)
    if options.replicas > 1 and not sent["BFLOAT16"] < 0.75 * sent["FLOAT32"]:
        sys.exit(f"{name}: a worker would send {sent['BFLOAT16']} bytes with BFLOAT16 and {sent['FLOAT32']} with FLOAT32: not fewer")
    for wire, fields in WIRES.items():
        if "error_feedback" in str(fields) and text is convolutions:
            continue    # refused with running statistics
        overrides = [*common, *fields]
        results[wire] = [run(command_of(options, "train", config, [*overrides, f"trainer.seed={seed}"]) +
                             ["--data-dir", str(data_dir), "--quiet", "--device", "cpu"])
                         for seed in options.seeds]
    losses = {wire: [result["eval_loss"] for result in results[wire]] for wire in results}
    cells = [name, str(steps)] + [numbers(losses[wire], 4) if wire in losses else "-" for wire in WIRES]
    for wire in list(WIRES)[1:]:
        if wire not in losses:
            cells.append("-")
            continue
        apart = statistics.mean(narrow - wide for wide, narrow in zip(losses["FLOAT32"], losses[wire]))
        cells.append(f"{apart:+.4f}")
    for wire in WIRES:
        accuracies = [result.get("eval_accuracy") for result in results.get(wire, [{}])]
        cells.append("-" if None in accuracies else f"{100 * statistics.mean(accuracies):.2f} %")
    cells += [f"{sent[wire] / 1e6:.2f} MB" for wire in sent]
    print("| " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", default="build/release/bin/lockstep")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--seeds", nargs="+", default=["1", "2", "3"])
    parser.add_argument("--model", nargs="+", choices=[name for name, *_ in MODELS])
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    print("| | steps | loss, FLOAT32 | loss, BFLOAT16 | loss, with feedback | apart, BFLOAT16 | with feedback "
          "| accuracy, FLOAT32 | BFLOAT16 | with feedback | sent, FLOAT32 | BFLOAT16 |\n"
          "|---|---|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, text, data, batch, steps, quick in MODELS:
            if options.model and name not in options.model:
                continue
            config = ROOT / "configs" / f"{name}.textproto"
            if text is not None:
                config = pathlib.Path(folder) / "model.textproto"
                config.write_text(text())
            row(options, name, text, config, pathlib.Path(options.data_dir) / data, batch, quick if options.quick else steps)


if __name__ == "__main__":
    main()
