"""What comparisons of trainings in lockstep and in PyTorch share: trainings and their losses, parameters under PyTorch's names,
and how far two trainings from the same weights are apart."""

import argparse
import importlib
import json
import pathlib
import subprocess
import sys
import tempfile

TOLERANCE = 1e-5


def train(lockstep, folder, name, config, data_dir=None, overrides=()):
    """Trains a config's text; returns the losses by step, and the folder of the run."""
    run, text = folder / name, folder / f"{name}.textproto"
    text.write_text(config)
    command = [lockstep, "train", text, "--data-dir", data_dir or folder, "--out", run, "--quiet", "--device", "cpu"]
    for override in overrides:
        command += ["--set", override]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line], run


def tensors_in(path):
    """The tensors of a file of safetensors."""
    import torch
    content = pathlib.Path(path).read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    tensors = {}
    for name in header.keys() - {"__metadata__"}:
        first, end = (begin + offset for offset in header[name]["data_offsets"])
        tensors[name] = torch.frombuffer(bytearray(content[first:end]), dtype=torch.float32).reshape(header[name]["shape"])
    return tensors


def exported(lockstep, run, model_format="pytorch"):
    """The folder to which a run's weights are exported."""
    out = run / f"exported-{model_format}"
    subprocess.run([lockstep, "export", run, "--format", model_format, "--out", out], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    return out


def farthest(ours, theirs):
    """(difference, name) of the numbers that differ most."""
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    return max(((ours[name] - theirs[name]).abs().max().item(), name) for name in ours)


def compare(name, steps, one_rate, rate, prepare, ours, theirs):
    """Prints how far trainings from the same weights are apart; returns whether that is within the tolerance. `prepare`(folder)
    writes the data. `ours`(folder, steps, rate) returns lockstep's losses, and a function that reads its parameters;
    `theirs`(start, steps, rate) PyTorch's losses and parameters, from the parameters `start`. Those are lockstep's after a step
    whose rate is too small to change a number."""
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        prepare(folder)
        start = ours(folder, 1, 1e-30)[1]()
        one = farthest(ours(folder, 1, one_rate)[1](), theirs(start, 1, one_rate)[1])
        losses = ours(folder, steps, rate)[0]
    peers = theirs(start, steps, rate)[0]
    apart = max(abs(a - b) for a, b in zip(losses, peers, strict=True))
    print(f"{name}: losses from {peers[0]:.6f} to {peers[-1]:.6f}, apart by at most {apart:.2g}; after one step numbers are "
          f"apart by at most {one[0]:.2g} ({one[1]})")
    print(f"  PyTorch's losses: {[round(loss, 7) for loss in peers]}")
    return apart <= TOLERANCE and one[0] <= TOLERANCE


def main(description, package, models, compare_model):
    """The command line: compare_model(lockstep, model, steps) for each model. Exits with 77 without the package."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("lockstep")
    parser.add_argument("--model", choices=models, action="append")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    try:
        importlib.import_module(package)
    except ImportError as error:
        print(f"skipped: {error}")
        sys.exit(77)
    good = [compare_model(arguments.lockstep, model, arguments.steps) for model in arguments.model or models]
    sys.exit(0 if all(good) else 1)
