#!/usr/bin/env python3
"""All-reduce beside parameter servers, pipelines and sharded optimizers, over links of several rates: what docs/comparison.md
shows. Two hosts are made on this machine (two_hosts.sh), which needs root.

    scripts/measure_comparison.py --data-dir DATA [--minutes 6] [--only MODEL]... [--report docs/comparison.md]

DATA has tinyshakespeare.txt and mnist/. Runs `lockstep compare` for each model, with one worker, and with two and four, and
writes tables between the marks of the report, and drawings beside it. What an earlier start has measured into --out is taken
over (--resume), so that it can be stopped and gone on with. Nothing else should run meanwhile. Exits with 77 where two_hosts.sh
cannot work.
"""

import argparse
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
LINKS = "none,1gbit,100mbit"
ONE = "sync=all_reduce; sync=ps,servers=1; sync=ps,servers=1,mode=async"
MANY = "; ".join([
    "sync=all_reduce",
    "shard=optimizer",
    "sync=ps,servers=1",
    "sync=ps,servers=2",
    "sync=ps,servers=2,assign=whole",
    "sync=ps,servers=2,placement=colocated",
    "sync=ps,servers=1,mode=stale",
    "sync=ps,servers=1,mode=async",
    "pp=2",
])
WIDE = "model={mlp {image: [28, 28, 1] hidden: [%s] classes: 10}}"
# Name, what it is, config, folder of the data, assignments, workers beside two.
MODELS = [
    ("mlp", "MLP 784-512-512-10, bound by communication", "mnist_mlp", "mnist", [WIDE % "512, 512"], "2,4"),
    ("lenet", "LeNet", "mnist_lenet", "mnist", [], "2,4"),
    ("gpt", "GPT of 0.8 million parameters, bound by computing", "shakespeare_gpt", "", [], "2"),
    ("huge", "MLP 784-768-10, of which one layer holds 99 %", "mnist_mlp", "mnist", [WIDE % "768"], "2"),
]
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def compare(options, name, config, folder, assignments, workers, layouts):
    out = os.path.join(options.out, f"{name}-{workers.replace(',', '-')}")
    command = [options.lockstep, "compare", os.path.join(HERE, "..", "configs", config + ".textproto"), "--data-dir",
               os.path.join(options.data_dir, folder), "--workers", workers, "--layouts", layouts, "--link", LINKS, "--steps", "30",
               "--minutes", str(options.minutes), "--out", out, "--resume"]
    for assignment in assignments:
        command += ["--set", assignment]
    code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
    if code == 69:
        sys.exit(77)
    if code not in (0, 70):  # 70: a row failed, which its line says
        sys.exit(f"{name}: lockstep compare ended with {code}; the report stays as it was")
    with open(os.path.join(out, "results.json")) as file:
        results = json.load(file)
    with open(os.path.join(out, "report.html")) as file:
        return results, file.read()


def has_cores(results, row):
    return row["processes"] <= results["cores"]


def table_of(results):
    lines = ["| link | workers | layout | processes | step, ms | 95 % | predicted | samples/s | bits |", "|---|---|---|---|---|---|---|---|---|"]
    for row in results["rows"]:
        if not row["samples"]:
            lines.append(f"| {row['link']} | {row['workers']} | `{row['kind']}` | {row['processes']} | {row.get('failure', 'not measured')} | | | | |")
            continue
        step = row["step_ms"]
        shared = "" if has_cores(results, row) else "*"
        lines.append(f"| {row['link']} | {row['workers']} | `{row['kind']}` | {row['processes']}{shared} | {step['median']:.2f} "
                     f"| {step['low']:.2f} to {step['high']:.2f} | {row['predicted_ms']:.2f} | {row['samples_per_second']:.0f} | {row['proof']} |")
    return "\n".join(lines)


def drawing_of(page, link):
    """The throughput over one link, as a file of its own."""
    part = page.split(f"<h3>Link: {link}</h3>")[1]
    svg = re.search(r"<svg.*?</svg>", part, re.S).group(0)
    style = re.search(r"(svg text .*?)</style>", page, re.S).group(1)
    return svg.replace(">\n", ">\n<style>" + style + "</style>\n", 1) + "\n"


def error_of(all_results):
    errors = [abs(row["predicted_ms"] / row["step_ms"]["median"] - 1) for results in all_results for row in results["rows"]
              if row["samples"] and row["predicted_ms"] > 0 and has_cores(results, row)]
    errors.sort()
    if not errors:
        return 0, None
    middle = len(errors) // 2
    return len(errors), errors[middle] if len(errors) % 2 else (errors[middle - 1] + errors[middle]) / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--minutes", type=float, default=6, help="of each model's comparison with several workers")
    parser.add_argument("--only", action="append", choices=[model[0] for model in MODELS], help="measure these, and leave the report as it is")
    parser.add_argument("--report", default=os.path.join(HERE, "..", "docs", "comparison.md"))
    parser.add_argument("--out", default="comparison", help="folder of the measurements")
    parser.add_argument("--lockstep", default=os.path.join(HERE, "..", "build", "release", "bin", "lockstep"))
    options = parser.parse_args()
    drawings = os.path.splitext(options.report)[0]
    os.makedirs(drawings, exist_ok=True)
    text, everything = [], []
    for name, title, config, folder, assignments, workers in MODELS:
        if options.only and name not in options.only:
            continue
        many, page = compare(options, name, config, folder, assignments, workers, MANY)
        one, _ = compare(options, name, config, folder, assignments, "1", ONE)
        everything += [one, many]
        with open(os.path.join(drawings, f"{name}.svg"), "w") as file:
            file.write(drawing_of(page, "1gbit"))
        text.append(f"### {title}\n\n{many['headline']}\n\n![Samples per second against workers, link of 1 Gbit/s]"
                    f"({os.path.basename(drawings)}/{name}.svg)\n\nWith one worker:\n\n{table_of(one)}\n\nWith several:\n\n{table_of(many)}\n")
    if options.only:
        return print("\n".join(text))
    count, error = error_of(everything)
    first = everything[0]
    text.append(f"Of {count} rows whose processes have a core each the median error of prediction is {100 * error:.1f} %." if count else "")
    text.append(f"Measured {first['began'][:10]} with lockstep {first['version']} on {first['cores']} cores.\n")
    with open(options.report) as file:
        report = file.read()
    head, tail = report.split(BEGIN)[0], report.split(END)[1]
    with open(options.report, "w") as file:
        file.write(head + BEGIN + "\n\n" + "\n".join(text) + "\n" + END + tail)


if __name__ == "__main__":
    main()
