#!/usr/bin/env python3
"""Compares all-reduce with parameter servers, pipelines and sharded optimizers over links of several rates, for
docs/comparison.md. Makes two hosts on this machine (two_hosts.sh), which needs root.

    scripts/measure_comparison.py --data-dir DATA [--minutes 15] [--only MODEL]... [--report docs/comparison.md] [--allow-few]

DATA has tinyshakespeare.txt and mnist/. Runs `lockstep compare` for each model, with one worker, and with two and four. Writes
tables between the marks of the report. The folder beside the report gets figures.csv (all rows), figures.md and drawings.
Measurements that are already in --out are kept (--resume), so the script can be stopped and started again. Nothing else
should run meanwhile. The report is not written if a row has fewer than three runs, unless --allow-few is given. Exits with
77 if two_hosts.sh cannot work.
"""

import argparse
import csv
import json
import os
import re
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
LINKS = "none,1gbit,100mbit"
FEWEST_RUNS = 3
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
# The models of the page's first table, by the names of its columns.
OVERVIEW = [("mlp", "MLP"), ("lenet", "LeNet"), ("gpt", "GPT"), ("huge", "huge layer")]
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
PREDICTIONS_BEGIN, PREDICTIONS_END = "<!-- predictions: begin -->", "<!-- predictions: end -->"


def compare(options, name, config, folder, assignments, workers, layouts, minutes):
    out = os.path.join(options.out, f"{name}-{workers.replace(',', '-')}")
    command = [options.lockstep, "compare", os.path.join(HERE, "..", "configs", config + ".textproto"), "--data-dir",
               os.path.join(options.data_dir, folder), "--workers", workers, "--layouts", layouts, "--link", LINKS, "--steps", "30",
               "--price", "1", "--minutes", str(minutes), "--out", out, "--resume"]
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
    dedicated = row["processes"] - row["workers"]
    return row["workers"] * results["threads"] + dedicated * results["server_threads"] <= results["cores"]


def mean(row, field):
    return sum(sample[field] or 0 for sample in row["samples"]) / len(row["samples"])


def megabytes(size):
    return f"{size / 1e6:.3g}" if size > 0 else ""


def rate_text(bits):
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if bits >= unit or name == "M":
            return f"{float(f'{bits / unit:.2g}'):g} {name}bit/s"


def predictions_of(title, ties):
    """A sentence if all-reduce is predicted to win everywhere; otherwise a table of the rates at which servers are as fast."""
    ties = [tie for tie in ties if "rates" in tie]
    if not ties:
        return ""
    beside = ties[0]["beside"]
    if not any(tie["rates"] for tie in ties):
        return f"{title}: predicted, `{beside}` beats every layout with servers at every link rate."
    lines = [f"Predicted: these layouts with servers take at most 2 % longer than `{beside}` at these link rates. It is faster than all others",
             "with servers at every link rate.", "", "| layout | workers | link rates |", "|---|---|---|"]
    for tie in ties:
        if tie["rates"]:
            ranges = ", ".join(f"{rate_text(one['from'])} to {rate_text(one['to'])}" for one in tie["rates"])
            lines.append(f"| `{tie['kind']}` | {tie['workers']} | {ranges} |")
    return "\n".join(lines)


def links_of(results):
    lines = ["| link | measured, one way | latency |", "|---|---|---|"]
    lines += [f"| {link['link'] or 'as it is'} | {rate_text(link['one_way_bits_per_second'])} | {1e6 * link['latency_seconds']:.0f} us |"
              for link in results["links"]]
    return "\n".join(lines) if len(lines) > 2 else ""


PARTS = [("compute_ms", "computing", "#0072b2"), ("wait_ms", "communication", "#d55e00"), ("server_ms", "servers' work", "#009e73"),
         ("bubble_ms", "pipeline bubble", "#cc79a7"), ("data_wait_ms", "waiting for data", "#e69f00"), ("rest_ms", "the rest", "#56b4e9")]


def step_times_drawing(results, link):
    """Stacked bars of what a step's time goes to over one link, as a file of its own."""
    rows = [row for row in results["rows"] if row["link"] == link and row["samples"]]
    most = max((mean(row, "step_ms") for row in rows), default=1)
    lines, y = [], 40
    for x, (_, name, color) in zip((0, 100, 215, 320, 440, 570), PARTS):
        lines.append(f'<rect x="{x}" y="6" width="14" height="10" fill="{color}"/><text x="{x + 18}" y="15">{name}</text>')
    for row in rows:
        step = mean(row, "step_ms")
        parts = {field: mean(row, field) for field, _, _ in PARTS if field not in ("wait_ms", "rest_ms")}
        parts["wait_ms"] = max(mean(row, "exposed_comm_ms") - parts["bubble_ms"] - parts["server_ms"], 0)
        lines.append(f'<text x="0" y="{y}">{row["workers"]} workers, {row["kind"]}</text>')
        x, left = 0.0, step
        for field, _, color in PARTS:
            part = left if field == "rest_ms" else min(parts[field], left)
            left -= part
            lines.append(f'<rect x="{x:.1f}" y="{y + 5}" width="{560 * part / most:.1f}" height="14" fill="{color}"/>')
            x += 560 * part / most
        lines.append(f'<text x="{x + 6:.1f}" y="{y + 16}">{step:.3g} ms</text>')
        y += 40
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 {y}" width="680" height="{y}">\n'
            '<style>text { font: 12px system-ui, sans-serif; fill: #666; }</style>\n' + "\n".join(lines) + "\n</svg>\n")


COLUMNS = ["model", "link", "workers", "layout", "processes", "share_cores", "hosts", "step_ms", "step_low_ms", "step_high_ms",
           "predicted_ms", "samples_per_second", "link_mb_by_programs", "link_mb_counted", "cost", "bits", "failure"]


def figures_of(name, results):
    """A row of the data file for each measured one."""
    lines = []
    for row in results["rows"]:
        line = {"model": name, "link": row["link"], "workers": row["workers"], "layout": row["kind"], "processes": row["processes"],
                "share_cores": "no" if has_cores(results, row) else "yes", "bits": row["proof"],
                "failure": " ".join(row.get("failure", "").split())}
        if row["samples"]:
            step, hosts = row["step_ms"], mean(row, "hosts")
            cost = results["price"] * hosts * 1e6 / row["samples_per_second"] / 3600
            line |= {"hosts": f"{hosts:g}", "step_ms": f"{step['median']:.2f}", "step_low_ms": f"{step['low']:.2f}",
                     "step_high_ms": f"{step['high']:.2f}", "predicted_ms": f"{row['predicted_ms']:.2f}",
                     "samples_per_second": f"{row['samples_per_second']:.0f}", "link_mb_by_programs": megabytes(row["link_bytes_theory"]),
                     "link_mb_counted": megabytes(mean(row, "link_bytes_per_step")), "cost": f"{cost:.3g}"}
        lines.append(line)
    return lines


def overview_of(figures):
    """The table that the page begins with: steps of all models over one link, with one worker and with two."""
    steps = {(line["model"], line["layout"], int(line["workers"])): line for line in figures if line["link"] == "1gbit"}
    first = MANY.split("; ")[0]
    lines = ["| layout | workers | " + " | ".join(title for _, title, *_ in OVERVIEW) + " |", "|---" * (2 + len(OVERVIEW)) + "|"]
    for layout, workers in [(first, 1)] + [(layout, 2) for layout in MANY.split("; ")]:
        rows = [steps.get((name, layout, workers), {}) for name, _ in OVERVIEW]
        cells = [row.get("step_ms", "-") + ("*" if row.get("share_cores") == "yes" else "") for row in rows]
        lines.append(f"| `{layout}` | {workers} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def drawing_of(page, link):
    """The throughput over one link, as a file of its own."""
    part = page.split(f"<h3>Link: {link}</h3>")[1]
    svg = re.search(r"<svg.*?</svg>", part, re.S).group(0)
    style = re.search(r"(svg text .*?)</style>", page, re.S).group(1)
    return svg.replace(">\n", ">\n<style>" + style + "</style>\n", 1) + "\n"


def error_of(all_results, link=None):
    """Rows whose processes have a core each, and the median error of their predictions."""
    errors = [abs(row["predicted_ms"] / row["step_ms"]["median"] - 1) for results in all_results for row in results["rows"]
              if row["samples"] and row["predicted_ms"] > 0 and has_cores(results, row) and link in (None, row["link"])]
    return len(errors), statistics.median(errors) if errors else None


def between(page, begin, end, text):
    """The page with other text between two marks."""
    head, rest = page.split(begin)
    return f"{head}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--minutes", type=float, default=15, help="minutes for each model's comparison with several workers; with one worker a quarter of it")
    parser.add_argument("--only", action="append", choices=[model[0] for model in MODELS], help="measure only these, and leave the report as it is")
    parser.add_argument("--report", default=os.path.join(HERE, "..", "docs", "comparison.md"))
    parser.add_argument("--out", default="comparison", help="folder of the measurements")
    parser.add_argument("--allow-few", action="store_true", help=f"write the report even if rows have fewer than {FEWEST_RUNS} runs")
    parser.add_argument("--lockstep", default=os.path.join(HERE, "..", "build", "release", "bin", "lockstep"))
    options = parser.parse_args()
    drawings = os.path.splitext(options.report)[0]
    os.makedirs(drawings, exist_ok=True)
    text, everything, figures = [], [], []
    for name, title, config, folder, assignments, workers in MODELS:
        if options.only and name not in options.only:
            continue
        many, page = compare(options, name, config, folder, assignments, workers, MANY, options.minutes)
        one, _ = compare(options, name, config, folder, assignments, "1", ONE, options.minutes / 4)
        everything += [one, many]
        with open(os.path.join(drawings, f"{name}.svg"), "w") as file:
            file.write(drawing_of(page, "1gbit"))
        with open(os.path.join(drawings, f"{name}-steps.svg"), "w") as file:
            file.write(step_times_drawing(many, "1gbit"))
        figures += figures_of(name, one) + figures_of(name, many)
        text.append(f"## {title}\n\n{many['headline']}\n\n![Samples per second against workers, link of 1 Gbit/s]({name}.svg)\n\n"
                    f"![What a step's time goes to, link of 1 Gbit/s]({name}-steps.svg)\n\n{links_of(many)}\n\n{predictions_of(title, many['ties'])}\n")
    if options.only:
        return print("\n".join(text))
    few = [row for results in everything for row in results["rows"] if "failure" not in row and len(row["samples"]) < FEWEST_RUNS]
    if few and not options.allow_few:
        sys.exit(f"{len(few)} rows have fewer than {FEWEST_RUNS} runs, such as '{few[0]['kind']}' with {few[0]['workers']} workers; start again "
                 "with more --minutes, or with --allow-few; the report stays as it was")
    errors = ["| link | rows whose processes have a core each | median error of prediction |", "|---|---|---|"]
    for link in LINKS.split(",") + [None]:
        rows, median = error_of(everything, link)
        if rows:
            errors.append(f"| {link or 'all'} | {rows} | {100 * median:.1f} % |")
    first = everything[0]
    with open(os.path.join(drawings, "figures.csv"), "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(figures)
    with open(os.path.join(drawings, "figures.md")) as file:
        head = file.read().split(BEGIN)[0]
    with open(os.path.join(drawings, "figures.md"), "w") as file:
        file.write(head + BEGIN + "\n\n" + "\n".join(text) + "\n" + END + "\n")
    with open(options.report) as file:
        report = file.read()
    measured = f"Measured {first['began'][:10]} with lockstep {first['version']} on {first['cores']} cores."
    report = between(report, BEGIN, END, f"{overview_of(figures)}\n\n{measured}")
    report = between(report, PREDICTIONS_BEGIN, PREDICTIONS_END, "\n".join(errors))
    with open(options.report, "w") as file:
        file.write(report)


if __name__ == "__main__":
    main()
