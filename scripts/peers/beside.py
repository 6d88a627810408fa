"""What comparisons of trainings in lockstep and in PyTorch share: trainings and their losses, parameters under PyTorch's names,
and how far two trainings from the same weights are apart."""

import argparse
import dataclasses
import importlib
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile
import typing

TOLERANCE = 1e-5
MOMENTUM = 0.9


def train(lockstep, folder, name, config, data_dir=None, overrides=(), start=None):
    """Trains a config's text, from the weights of the file `start` if there is one; returns the losses by step, and the folder
    of the run."""
    run, text = folder / name, folder / f"{name}.textproto"
    text.write_text(config)
    command = [lockstep, "train", text, "--data-dir", data_dir or folder, "--out", run, "--quiet", "--device", "cpu"]
    if start:
        command += ["--from", start]
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


def write_tensors(path, tensors):
    """Writes a file of safetensors, of float32 and int64."""
    header, content = {}, b""
    for name, value in tensors.items():
        letter, dtype = ("f", "F32") if value.is_floating_point() else ("q", "I64")
        values = struct.pack(f"<{value.numel()}{letter}", *value.flatten().tolist())
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": [len(content), len(content) + len(values)]}
        content += values
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + content)


def exported(lockstep, run, model_format="pytorch"):
    """The folder to which a run's weights are exported."""
    out = run / f"exported-{model_format}"
    subprocess.run([lockstep, "export", run, "--format", model_format, "--out", out], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    return out


def farthest(ours, theirs):
    """(difference, name) of the numbers that differ most. What is NaN differs by infinity."""
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    return max((distance((ours[name] - theirs[name]).abs().max().item()), name) for name in ours)


def distance(difference):
    return math.inf if math.isnan(difference) else abs(difference)


@dataclasses.dataclass
class Case:
    """A model that both programs train, by SGD with momentum on one batch."""
    config: typing.Callable           # (steps, rate): the text of lockstep's config
    write_data: typing.Callable       # (folder): what the config reads
    make_peer: typing.Callable        # (): PyTorch's model, and a function without arguments: its loss on all samples
    rate: float                       # of the steps whose losses are compared
    one_rate: float                   # of the one step after which numbers are compared
    model_format: str = "pytorch"     # in which lockstep exports
    shared: dict = dataclasses.field(default_factory=dict)  # weights of PyTorch's that share another's numbers, by name

    def train_peer(self, start, steps, rate):
        """Losses of PyTorch's model, and its numbers at the end, from the numbers `start`."""
        import torch
        peer, loss_of = self.make_peer()
        self.load(peer, start)
        optimizer, losses = torch.optim.SGD(peer.parameters(), lr=rate, momentum=MOMENTUM), []
        for _ in range(steps):
            loss = loss_of()
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return losses, self.numbers_of(peer)

    def load(self, peer, numbers):
        """Every name must fit. Without versions in a state, PyTorch counts batches itself if a norm's count is missing."""
        peer.load_state_dict(dict(numbers) | {name: numbers[other] for name, other in self.shared.items()}, strict=True)

    def numbers_of(self, peer):
        return {name: value.clone() for name, value in peer.state_dict().items()
                if not name.endswith("num_batches_tracked") and name not in self.shared}

    def train(self, lockstep, folder, name, steps, rate, start=None):
        """lockstep's losses, and the folder of the run."""
        return train(lockstep, folder, name, self.config(steps, rate), start=start)

    def numbers_in(self, lockstep, run):
        return tensors_in(exported(lockstep, run, self.model_format) / "model.safetensors")


def shaken(numbers):
    """Other weights, in which nothing is 0 and no two are equal, so that nothing that is wrong is hidden."""
    import torch
    torch.manual_seed(3)
    shake = lambda value: (0.1 * value.std().item() if value.dim() > 1 else 0) or 0.1
    return {name: value if "running_" in name else value + shake(value) * torch.randn_like(value)
            for name, value in numbers.items()}


def compare(lockstep, name, case, steps):
    """Prints how far trainings from the same weights are apart; returns whether that is within the tolerance. Losses begin at
    the weights that lockstep draws: those after a step whose rate is too small to change a number. The one step begins at
    weights that lockstep reads from a file (`--from`)."""
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        case.write_data(folder)
        start = case.numbers_in(lockstep, case.train(lockstep, folder, "start", 1, 1e-30)[1])
        # What was 0 is 0 again: the sum of a 0 and a branch that begins at 0 is where a ReLU turns.
        start = {name: value * (value.abs() > 1e-20) for name, value in start.items()}
        losses = case.train(lockstep, folder, "losses", steps, case.rate)[0]
        other = shaken(start)
        write_tensors(folder / "other.safetensors", other)
        _, run = case.train(lockstep, folder, "one", 1, case.one_rate, folder / "other.safetensors")
        one = farthest(case.numbers_in(lockstep, run), case.train_peer(other, 1, case.one_rate)[1])
    peers = case.train_peer(start, steps, case.rate)[0]
    apart = max(distance(a - b) for a, b in zip(losses, peers, strict=True))
    print(f"{name}: losses from {peers[0]:.6f} to {peers[-1]:.6f}, apart by at most {apart:.2g}; after one step numbers are "
          f"apart by at most {one[0]:.2g} ({one[1]})")
    print(f"  PyTorch's losses: {[round(loss, 7) for loss in peers]}", flush=True)
    return apart <= TOLERANCE and one[0] <= TOLERANCE


def main(description, package, cases):
    """The command line: compares each case, or those that are named. Exits with 77 without the package."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("lockstep")
    parser.add_argument("--model", choices=cases, action="append")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    try:
        importlib.import_module(package)
    except ImportError as error:
        print(f"skipped: {error}")
        sys.exit(77)
    good = [compare(arguments.lockstep, model, cases[model], arguments.steps) for model in arguments.model or cases]
    sys.exit(0 if all(good) else 1)
