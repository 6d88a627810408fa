#!/usr/bin/env python3
"""Writes tests/ops/goldens/<op>.txt: inputs, parameters, outputs and gradients of ops as PyTorch computes them, and
tests/optim/goldens: the parameters after each of five updates, their moving averages, and learning rates by step.

    python3 scripts/make_goldens.py [OP ...]      # needs torch, and transformers for llama and rotary_embedding; without OP: all

PyTorch runs in double precision on numbers that float32 represents exactly, so the files hold the true values (except for
narrow_linear). Images are [batch, channels, height, width] in PyTorch and [batch, height, width, channels] in the files;
convolution weights are [out, in, kernel, kernel] in PyTorch and [out, kernel, kernel, in] in the files.

A file has, for each case, the line "case <name>", then for each tensor the line
"tensor <dtype> <rank> <dimensions...> <name>" and one line of values. Names are input<i>, output<i>, the parameter's
name, and "gradient of " any of these. A new op is a function in scripts/goldens that yields
(case, {name: tensor}), and a name in OPS there.
"""

import pathlib
import sys

import torch

from goldens import layers, sequences, updates

TESTS = pathlib.Path(__file__).resolve().parent.parent / "tests"
OPS = [*layers.OPS, *sequences.OPS, *updates.FILES]


def write(op):
    folder = TESTS / ("optim" if op in updates.FILES else "ops") / "goldens"
    torch.manual_seed(1)
    lines = []
    for case, tensors in op():
        lines.append(f"case {case}")
        for name, tensor in tensors.items():
            dtype = "float32" if tensor.is_floating_point() else "int32"
            dimensions = " ".join(map(str, [tensor.dim(), *tensor.shape]))
            lines.append(f"tensor {dtype} {dimensions} {name}")
            lines.append(" ".join(f"{value:.9g}" for value in tensor.flatten().tolist()))
    (folder / f"{op.__name__}.txt").write_text("\n".join(lines) + "\n")


def main():
    chosen = sys.argv[1:] or [op.__name__ for op in OPS]
    unknown = set(chosen) - {op.__name__ for op in OPS}
    if unknown:
        sys.exit(f"make_goldens.py: unknown op {', '.join(sorted(unknown))}; known are "
                 f"{', '.join(op.__name__ for op in OPS)}")
    for op in OPS:
        if op.__name__ in chosen:
            write(op)


if __name__ == "__main__":
    main()
