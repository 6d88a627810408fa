#!/usr/bin/env python3
"""Compares GPT-2 124M on one GPU with its predictions (docs/gpu-results.md): the figures of a training, and where a step's
time goes. scripts/gpu_check.sh makes the measurements.

    scripts/kernel_times.py training [--gpu NAME] [--ceilings LOG] LOG [LOG ...]          # what `lockstep train --json` printed
    scripts/kernel_times.py step CSV [--gpu NAME] [--ceilings LOG] [--training LOG] [--json-out FILE]

Predictions are for the GPU of --gpu (its name as in nvidia-smi). For other GPUs the H200's predictions are used; of these,
times that memory limits are scaled by the speed of the copy that `kernel_benchmark ceilings` measured (--ceilings).

`step` reads Nsight Compute's times of all kernels of one training step (one step, one micro-batch, nothing evaluated):

    ncu --clock-control none --cache-control none --metrics gpu__time_duration.sum --csv lockstep train ... >CSV

(other lines are ignored), and adds them up by what they compute. Bandwidths count the least bytes that must move, by the
model's shapes. Rates count the operations that kernels do; a multiply-add counts twice. lockstep's own kernels are known by
their names. Names of the library's products say nothing of what they multiply, so they are known by their neighbours: ncu
lists kernels in the order of their launches. The head's products are next to the loss's kernels, with no layer norm between.
Products before them belong to forward. Products after them take turns: an input's gradient, and a weight's.
"""

import argparse
import csv
import json
import os
import re
import sys

from bench_gpu import DATA_SHEET_FLOPS, GPT, gpt_flops_per_token, gpt_parameters

BATCH = 64                      # of the predictions
PREDICTED_FIRST_STEP_MS = 4_000
GAPS_MS = 0.8                   # between kernels, of the predicted step
METRIC = "gpu__time_duration.sum"
MILLISECONDS = {"nsecond": 1e-6, "ns": 1e-6, "usecond": 1e-3, "us": 1e-3, "msecond": 1, "ms": 1, "second": 1e3, "s": 1e3}

# lockstep's kernels: name, what the whole name must hold, group. The first line that fits counts.
LAYER_NORM, CROSS_ENTROPY, EMBEDDINGS, GELU, COLUMN_SUMS = "layer norm", "cross entropy", "embeddings", "GELU", "column sums"
ATTENTION_FORWARD, ATTENTION_BACKWARD, ATTENTION_DOT = "attention forward", "attention backward", "attention dot"
OPTIMIZER, NORM, CASTS, TIED_ADD = "optimizer", "norm", "casts", "tied add"
FORWARD, INPUTS, WEIGHTS, HEAD = "block products forward", "block products inputs", "block products weights", "head products"
ELSEWHERE = ""                  # known, and not in a step of GPT
KERNELS = (
    ("norm_forward_kernel", "", LAYER_NORM),
    ("forward_kernel", r"\bAttentionCall\b", ATTENTION_FORWARD),
    ("forward_kernel", r"\bRowTerm\b", CROSS_ENTROPY),
    ("norm_backward_kernel", "", LAYER_NORM),
    ("backward_kernel", r"\bAttentionCall\b", ATTENTION_BACKWARD),
    ("backward_kernel", r"\bSizes\b", CROSS_ENTROPY),
    ("fold_columns_kernel", r"\bFinishParameters\b", LAYER_NORM),
    ("fold_columns_kernel", r"\bFinishTotal\b", COLUMN_SUMS),
    ("fold_columns_kernel", r"\bFinish(Moments|Gradients)\b", ELSEWHERE),
    ("metrics_kernel", r"\bRowTerm\b", CROSS_ENTROPY),
    ("metrics_kernel", "", ELSEWHERE),
    ("dots_kernel", "", ATTENTION_DOT),
    ("map_kernel", r"\bGeluFormula\b", GELU),
    ("map_kernel", "", ELSEWHERE),
    ("column_sum_kernel", r"\bGeluFormula\b", GELU),
    ("column_sum_kernel", r"\bGradientColumns\b", ELSEWHERE),
    ("column_sum_kernel", "", COLUMN_SUMS),
    ("norm_column_sum_kernel", "", COLUMN_SUMS),
    ("sum_replicas_kernel", "", ELSEWHERE),
    ("look_up_kernel", "", EMBEDDINGS),
    ("sum_segments_kernel", "", EMBEDDINGS),
    ("finish_rows_kernel", "", EMBEDDINGS),
    ("count_kernel", "", EMBEDDINGS),
    ("offsets_kernel", "", EMBEDDINGS),
    ("move_kernel", "", EMBEDDINGS),
    ("add_table_kernel", "", EMBEDDINGS),
    ("sum_samples_kernel", "", EMBEDDINGS),
    ("update_kernel", "", OPTIMIZER),
    ("chunk_kernel", "", NORM),
    ("conclude_kernel", "", NORM),
    ("agree_kernel", "", NORM),
    ("cast_kernel", "", CASTS), ("feedback_kernel", "", CASTS),
    ("add_kernel", "", TIED_ADD),
    *((name, "", ELSEWHERE) for name in (
        "add_bias_kernel", "add_narrow_kernel", "digest_kernel", "documents_kernel", "dropout_kernel", "mean_kernel", "spread_kernel", "max_forward_kernel", "max_backward_kernel",
        "average_forward_kernel", "average_backward_kernel", "squares_kernel", "moments_kernel",
        "running_scale_kernel", "normalize_kernel", "gradient_sums_kernel", "input_gradient_kernel",
        "images_to_columns_kernel", "columns_to_images_kernel", "split_groups_kernel", "join_groups_kernel", "rotate_kernel",
        "lstm_forward_kernel", "lstm_backward_kernel", "lstm_states_kernel", "sequence_pool_kernel", "sequence_spread_kernel",
        "array_copy_kernel", "clear_kernel", "prepend_kernel", "drop_token_kernel", "sum_tokens_kernel",
        "propose_kernel", "ratios_kernel", "factor_kernel", "next_kernel",
        "upsample_kernel", "gather_kernel", "expand_kernel", "image_means_kernel", "mixed_means_kernel")),
)
# ncu leaves out the outermost namespace.
OWN = re.compile(r"(void )?(lockstep::)?(ops|run|device|pixels)::")
# What cuBLASLt's kernels of products are called, and those that only finish one.
PRODUCT = re.compile(r"nvjet|gemm|cutlass|xmma|cublas|gemv", re.IGNORECASE)
FINISHES_PRODUCT = re.compile(r"split_?k_?reduce|reduce_?kernel", re.IGNORECASE)


def own_name(name):
    """The kernel's own name in a demangled signature, without namespaces and template arguments."""
    depth, plain = 0, ""
    for character in name.replace("(anonymous namespace)", "").replace("<unnamed>", ""):
        if character == "(" and depth == 0:
            break
        depth += {"<": 1, ">": -1}.get(character, 0)
        if depth == 0 and character != ">":
            plain += character
    return re.split(r"::|\s", plain.strip())[-1]


def group_of(name):
    """The group of one of lockstep's kernels, ELSEWHERE, or None where it is unknown or not lockstep's."""
    if not OWN.match(name):
        return None
    own = own_name(name)
    return next((group for kernel, holds, group in KERNELS if kernel == own and re.search(holds, name)), None)


def is_product(name):
    return not OWN.match(name) and bool(PRODUCT.search(name))


class Gpu:
    """What is expected of one: how many times as long as on an H200 what is bound by memory takes, and a whole step."""

    def __init__(self, name, memory_factor, step_ms):
        self.name, self.memory_factor, self.step_ms = name, memory_factor, step_ms

    @property
    def tokens_per_second(self):
        return BATCH * GPT["context"] / self.step_ms * 1e3

    def predicted_ms(self, work):
        """(least, most) of a group."""
        factor = self.memory_factor if work.size_bytes else 1
        return factor * work.least_ms, factor * work.most_ms


H200 = Gpu("H200", 1, 123)
H200_COPY = 4.3e12              # bytes per second, read and written
GPUS = (H200, Gpu("H100", 1.43, 134))


def gpu_named(name, ceilings):
    """The first of GPUS whose name is part of `name`; another one by its copy, whose log is `ceilings`; without it an H200."""
    known = next((gpu for gpu in GPUS if gpu.name in (name or "")), None)
    copy = read_copy(ceilings)
    if known or not copy:
        return known or H200
    factor = H200_COPY / copy
    slower = sum(work.predicted_ms for work in works(GPT, BATCH).values() if work.size_bytes) * (factor - 1)
    return Gpu(name or "GPU", factor, H200.step_ms + slower)


def read_copy(path):
    """Bytes per second of a copy, among what `kernel_benchmark ceilings` printed; None if it is not there."""
    report = read_line(path, '"copy_bytes_per_second"') if path else None
    return report and report["copy_bytes_per_second"]


class Work:
    """What a group must move (bytes) or do (operations) in one step at the least, and what it was predicted to take on an H200."""

    def __init__(self, least_ms, most_ms=None, size_bytes=0, flops=0):
        self.least_ms, self.most_ms, self.size_bytes, self.flops = least_ms, most_ms or least_ms, size_bytes, flops

    def rate(self, milliseconds):
        """GB/s or TFLOP/s."""
        return self.size_bytes / milliseconds / 1e6 if self.size_bytes else self.flops / milliseconds / 1e9

    @property
    def predicted_ms(self):
        return (self.least_ms + self.most_ms) / 2

    @property
    def unit(self):
        return "GB/s" if self.size_bytes else "TFLOP/s"


def works(shape, batch):
    """By group. Predictions are those of 64 sequences."""
    layers, width, vocabulary, context = shape["layers"], shape["width"], shape["vocabulary"], shape["context"]
    rows = batch * context
    parameters = gpt_parameters(shape)
    tensor = 2 * rows * width                                   # bytes of [rows, width] in two bytes an element
    table = vocabulary * width
    block = layers * 2 * rows * 12 * width * width              # operations of one of the three kinds
    half_square = layers * 2 * rows * context * width / 2       # of one causal product of attention, all heads
    norms = 2 * layers + 1
    return {
        FORWARD: Work(17, flops=block),
        INPUTS: Work(17, flops=block),
        WEIGHTS: Work(20, flops=block),
        HEAD: Work(22, flops=3 * 2 * rows * table),
        ATTENTION_FORWARD: Work(5.5, flops=2 * half_square),
        # Seven: scores and gradients of probabilities twice, once for those that own keys and once for those that own queries.
        ATTENTION_BACKWARD: Work(17, 22, flops=7 * half_square),
        ATTENTION_DOT: Work(0.6, size_bytes=layers * (2 * tensor + 4 * rows * shape["heads"])),
        # Forward reads and writes one each, and one more each where it adds a residual; backward reads two and writes one, and
        # reads the other branch's gradient, which the last norm does not have.
        LAYER_NORM: Work(5.5, size_bytes=tensor * (2 * norms + 2 * (norms - 1) + 3 * norms + norms - 1)),
        GELU: Work(6.0, size_bytes=layers * 4 * tensor * (2 + 3)),
        # As predicted, by passes of their own; since then only those of attention's input are.
        COLUMN_SUMS: Work(2.8, size_bytes=layers * 9 * tensor),
        # The least: logits are read, and their gradient takes their place. They are read again for it.
        CROSS_ENTROPY: Work(3.3, size_bytes=2 * 2 * rows * vocabulary),
        # Look-up and positions read and write one each, their gradients read one each; the table's is written in float32.
        EMBEDDINGS: Work(0.5, size_bytes=6 * tensor + 4 * table),
        OPTIMIZER: Work(0.85, size_bytes=7 * 4 * parameters),
        NORM: Work(0.13, size_bytes=4 * parameters),
        CASTS: Work(0.18, size_bytes=6 * parameters),
        TIED_ADD: Work(0.11, size_bytes=3 * 4 * table),
    }


def read_kernels(lines):
    """[(name, milliseconds)] in the order of their launches, of what ncu --csv printed. Lines that are not of the table are
    left out, and so are kernels without a time."""
    rows = [line for line in lines if line.startswith('"')]
    header = next((i for i, line in enumerate(rows) if line.startswith('"ID"')), None)
    if header is None:
        return []
    kernels = []
    for row in csv.DictReader(rows[header:]):
        if row.get("Metric Name") != METRIC:
            continue
        try:
            value = float(row["Metric Value"].replace(",", "")) * MILLISECONDS[row["Metric Unit"]]
        except (KeyError, ValueError):   # as "n/a", of a kernel that could not be measured
            continue
        kernels.append((int(row["ID"]), row["Kernel Name"], value))
    return [kernel[1:] for kernel in sorted(kernels)]


def roles_of_products(kernels):
    """{index: group} of the library's kernels. Without the loss's kernels nothing can be told, and the answer is empty."""
    groups = [group_of(name) for name, _ in kernels]
    loss = [i for i, group in enumerate(groups) if group == CROSS_ENTROPY]
    if not loss:
        return {}
    norms = [i for i, group in enumerate(groups) if group == LAYER_NORM]
    head_begin = max((i for i in norms if i < loss[0]), default=-1)
    head_end = min((i for i in norms if i > loss[-1]), default=len(kernels))
    roles, last, behind = {}, None, 0
    for i, (name, _) in enumerate(kernels):
        if not is_product(name):
            continue
        if FINISHES_PRODUCT.search(name) and last is not None:
            roles[i] = roles[last]
        elif head_begin < i < head_end:
            roles[i] = HEAD
        elif i < loss[0]:
            roles[i] = FORWARD
        else:
            roles[i] = (INPUTS, WEIGHTS)[behind % 2]
            behind += 1
        last = i
    return roles


def add_up(kernels):
    """({group: [milliseconds, launches]}, {name of what is in none: the same})."""
    roles, sums, strangers = roles_of_products(kernels), {}, {}
    for i, (name, milliseconds) in enumerate(kernels):
        group = group_of(name) or roles.get(i)
        into = sums.setdefault(group, [0.0, 0]) if group else strangers.setdefault(name, [0.0, 0])
        into[0] += milliseconds
        into[1] += 1
    return sums, strangers


def unlike_the_model(kernels, shape):
    """What makes the division of products doubtful, or an empty text."""
    roles = roles_of_products(kernels)
    counts = {group: 0 for group in (FORWARD, INPUTS, WEIGHTS, HEAD)}
    for i, group in roles.items():
        counts[group] += not FINISHES_PRODUCT.search(kernels[i][0])
    expected = {FORWARD: 4 * shape["layers"], INPUTS: 4 * shape["layers"], WEIGHTS: 4 * shape["layers"], HEAD: 3}
    wrong = [f"{counts[group]} of {group}, expected {count}" for group, count in expected.items() if counts[group] != count]
    return "products may be in the wrong group: " + "; ".join(wrong) if wrong else ""


def read_line(path, holds):
    """The first line of JSON among what was printed that holds a text; None if there is none."""
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("{") and holds in line:
                return json.loads(line)
    return None


def read_training(path):
    return read_line(path, '"first_step_ms"')


def predicted(least_ms, most_ms):
    return f"{least_ms:.3g}" if least_ms == most_ms else f"{least_ms:.3g}-{most_ms:.3g}"


def print_step(kernels, shape, step_ms, gpu):
    sums, strangers = add_up(kernels)
    print(f"predictions of one {gpu.name}")
    print(f"{'one step, 64 x 1024':<24} {'launches':>8} {'ms':>8} {'predicted':>9} {'times':>6} {'rate':>7} {'predicted':>9}")
    for group, work in works(shape, BATCH).items():
        milliseconds, launches = sums.get(group, (0.0, 0))
        expected = gpu.predicted_ms(work)
        line = f"{group:<24} {launches:>8} {milliseconds:>8.3f} {predicted(*expected):>9}"
        if milliseconds:
            middle = sum(expected) / 2
            line += f" {milliseconds / middle:>6.2f} {work.rate(milliseconds):>7.0f} {work.rate(middle):>9.0f} {work.unit}"
        print(line)
    rest = sum(milliseconds for milliseconds, _ in strangers.values())
    if strangers:
        print(f"{'in no group':<24} {sum(launches for _, launches in strangers.values()):>8} {rest:>8.3f}")
    total = rest + sum(milliseconds for milliseconds, _ in sums.values())
    if step_ms is not None:
        print(f"{'words, waits and gaps':<24} {'':>8} {step_ms - total:>8.3f} {GAPS_MS:>9}   "
              f"(the step of {step_ms:.2f} ms without ncu, less all kernels)")
    for name, (milliseconds, launches) in sorted(strangers.items(), key=lambda item: -item[1][0])[:6]:
        print(f"  in no group: {milliseconds:.3f} ms, {launches} x {name[:90]}")
    doubt = unlike_the_model(kernels, shape)
    if doubt:
        print(doubt)
    over = {group: sums[group][0] - sum(gpu.predicted_ms(work)) / 2 for group, work in works(shape, BATCH).items() if sums.get(group)}
    far = sorted(over.items(), reverse=True, key=lambda item: item[1])[:3]
    told = ", ".join(f"{group} {milliseconds:+.1f}" for group, milliseconds in far)
    print(f"{len(kernels)} kernels, {total:.1f} ms; most above the prediction, in ms: {told or 'nothing'}")
    return sums, strangers


def step(options):
    with open(options.csv, encoding="utf-8", errors="replace") as file:
        kernels = read_kernels(file)
    if not kernels:
        print(f"{options.csv} has no kernels: see what ncu said there")
        return 1
    training = read_training(options.training) if options.training else None
    sums, strangers = print_step(kernels, GPT, training["step_ms"]["p50"] if training else None,
                                 gpu_named(options.gpu, options.ceilings))
    if options.json_out:
        with open(options.json_out, "w", encoding="utf-8") as file:
            json.dump({name: {"ms": milliseconds, "launches": launches} for name, (milliseconds, launches) in
                       {**sums, **strangers}.items()}, file, indent=1)
    return 0


def training(options):
    """One line for each training."""
    gpu, found = gpu_named(options.gpu, options.ceilings), False
    for path in options.logs:
        report = read_training(path)
        name = os.path.splitext(os.path.basename(path))[0]
        if report is None or "step_ms" not in report:
            print(f"{name}: no report")
            continue
        found = True
        tokens = report["tokens_per_second"]
        parts = ", ".join(f"{part} {milliseconds:.0f}" for part, milliseconds in report["startup_parts_ms"].items() if milliseconds >= 0.5)
        print(f"{name}: {tokens:,.0f} tokens/s (predicted {gpu.tokens_per_second:,.0f}, {gpu.name}), {report['step_ms']['p50']:.1f} ms a step "
              f"({gpu.step_ms:.0f}), MFU {tokens * gpt_flops_per_token(GPT) / DATA_SHEET_FLOPS:.1%}, waits for data "
              f"{report['data_wait_ms']:.2f} ms, planned memory {report['peak_memory_bytes'] / (1 << 30):.1f} GiB, "
              f"first step after {report['first_step_ms']:.0f} ms ({PREDICTED_FIRST_STEP_MS}): {parts}")
    return 0 if found else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("step", help="adds up one step's kernels")
    command.add_argument("csv", metavar="CSV")
    command.add_argument("--training", metavar="LOG", help="log of the same training without ncu: shows the part of a step that is in no kernel")
    command.add_argument("--json-out", metavar="FILE", help="file for milliseconds and launches of each group")
    command.set_defaults(run=step)
    command = commands.add_parser("training", help="says what a training reached")
    command.add_argument("logs", metavar="LOG", nargs="+")
    command.set_defaults(run=training)
    for command in commands.choices.values():
        command.add_argument("--gpu", metavar="NAME", help="name of the GPU, as in nvidia-smi")
        command.add_argument("--ceilings", metavar="LOG", help="output of kernel_benchmark ceilings on this GPU")
    options = parser.parse_args()
    sys.exit(options.run(options))


if __name__ == "__main__":
    main()
