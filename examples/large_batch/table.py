#!/usr/bin/env python3
"""The runs of run.sh as a table, and what each large batch keeps of the small one's accuracy.

    table.py FOLDER SEED...
"""

import json
import pathlib
import statistics
import sys

# Folders, as run.sh names them, with the batch and the optimizer of each.
RUNS = {
    "small": (64, "SGD"),
    "scaled": (2048, "SGD, rate by the linear rule"),
    "clipped": (2048, "SGD, likewise, clipped"),
    "lars": (2048, "LARS, rate by trial"),
    "lamb": (2048, "LAMB, rate by trial"),
}


def read(run):
    """A run's figures. A run whose loss was not finite has no report, and so only its peak rate."""
    figures = {"peak": max(json.loads(line).get("learning_rate", 0) for line in (run / "metrics.jsonl").open())}
    if (run / "report.json").exists():
        report = json.loads((run / "report.json").read_text())
        figures.update(epochs=report["epochs"], steps=report["steps"], accuracy=100 * report["eval_accuracy"],
                       seconds=report["steps"] * report["step_ms"]["mean"] / 1000)
    return figures


def row(name, runs):
    """Cells of a line of the table, and the mean accuracy of the seeds whose losses were finite."""
    batch, optimizer = RUNS[name]
    cells = [optimizer, str(batch), f"{max(run['peak'] for run in runs):.3g}"]
    ended = [run for run in runs if "accuracy" in run]
    lost = f"{len(runs) - len(ended)} of {len(runs)} not finite" if len(ended) < len(runs) else ""
    if not ended:
        return [*cells, "", "", "", "", lost], None
    accuracies = [run["accuracy"] for run in ended]
    mean = statistics.mean(accuracies)
    seconds = statistics.median(run["seconds"] for run in ended)
    range_of_seeds = f"{min(accuracies):.2f} to {max(accuracies):.2f} {lost}".strip()
    return [*cells, f"{ended[0]['epochs']:.0f}", str(ended[0]["steps"]), f"{seconds:.1f}", f"{mean:.2f} %", range_of_seeds], mean


def main():
    folder, seeds = pathlib.Path(sys.argv[1]), sys.argv[2:]
    rows, means = [["optimizer", "batch", "peak rate", "epochs", "steps", "seconds", "accuracy", "seeds"]], {}
    for name in RUNS:
        cells, means[name] = row(name, [read(folder / f"{name}-{seed}") for seed in seeds])
        rows.append(cells)
    widths = [max(map(len, column)) for column in zip(*rows)]
    for cells in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip())
    print(f"open {folder}/all.html: losses and rates by step")
    if means["small"] is None:
        sys.exit("the loss of the small batch was not finite: there is nothing to compare with")
    kept = [f"{name} {'not finite' if mean is None else format(mean - means['small'], '+.2f')}" for name, mean in means.items()]
    print(f"accuracy {means['small']:.2f} % with a batch of 64; points more with 2048: {', '.join(kept[1:])}")


if __name__ == "__main__":
    main()
