#!/usr/bin/env python3
"""Compares what layouts learn: trains one config in several layouts from several seeds, on the same number of samples.

    scripts/measure_convergence.py configs/mnist_lenet.textproto --data-dir FOLDER [--seeds 1,2,3]
        [--layouts "dp=4,sync=ps; dp=4,sync=ps,mode=stale; dp=4,sync=ps,mode=async"] [--set path=value ...]

Assignments for one layout follow it after a blank: "dp=4,sync=ps,mode=async trainer.clip_norm=0". Quote an assignment that
contains blanks.
Prints for each layout the last evaluation of each seed, their mean, its distance from the first layout's mean, and the
staleness of pushes. Exit code 1: a mean is worse than the first layout's by more than --tolerance (percentage points of
accuracy, or units of the loss for language models and models that are no classifiers). Exit code 2: a training failed.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
LAYOUTS = "dp=4,sync=ps; dp=4,sync=ps,mode=stale; dp=4,sync=ps,mode=stale,bound=4; dp=4,sync=ps,mode=async"


def compared(text):
    """[layout, assignments...] of each."""
    try:
        rows = [words for words in (shlex.split(one) for one in text.split(";")) if words]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, in {text!r}") from error
    for layout, *assignments in rows:
        wrong = [part for part in [*layout.split(","), *assignments] if "=" not in part]
        if wrong:
            raise argparse.ArgumentTypeError(f"expected key=value, found {wrong[0]!r}")
    if not rows:
        raise argparse.ArgumentTypeError("expected a layout, such as 'dp=4,sync=ps'")
    return rows


def processes(layout):
    value = dict(part.split("=", 1) for part in layout.split(","))
    dedicated = value.get("sync") == "ps" and value.get("placement") != "colocated"
    return int(value.get("dp", 1)) + (int(value.get("servers", 1)) if dedicated else 0)


def train(options, layout, assignments, seed):
    command = [os.path.join(HERE, "..", "launcher", "lockstep-run"), "-n", str(processes(layout)), "--", "train", options.config,
               "--data-dir", options.data_dir, "--layout", layout, "--set", f"trainer.seed={seed}", "--json", "--quiet"]
    for assignment in [*options.set, *assignments]:
        command += ["--set", assignment]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode != 0:
        print(f"{' '.join([layout, *assignments])}, seed {seed}: exit code {run.returncode}", file=sys.stderr)
        sys.exit(2)
    return json.loads(run.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--data-dir", default=".")
    parser.add_argument("--layouts", type=compared, default=LAYOUTS)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--tolerance", type=float, default=0.5)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    first, failed = None, False
    for layout, *assignments in options.layouts:
        reports = [train(options, layout, assignments, seed) for seed in options.seeds.split(",")]
        classifier = "perplexity" not in reports[0] and "eval_accuracy" in reports[0]
        values = [100 * r["eval_accuracy"] if classifier else r["eval_loss"] for r in reports]
        mean = statistics.mean(values)
        first = mean if first is None else first
        worse = first - mean if classifier else mean - first
        failed = failed or worse > options.tolerance
        stale = [r["staleness"] for r in reports if "staleness" in r]
        told = f", staleness {statistics.mean(s['mean'] for s in stale):.2f} (at most {max(s['max'] for s in stale)})" if stale else ""
        print(f"{' '.join([layout, *assignments])}: {'accuracy' if classifier else 'loss'} {mean:.3f} ({', '.join(f'{v:.3f}' for v in values)}), "
              f"{mean - first:+.3f}; {statistics.mean(r['samples_per_second'] for r in reports):.0f} samples/s{told}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
