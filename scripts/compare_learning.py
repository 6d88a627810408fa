#!/usr/bin/env python3
"""Trains models in lockstep and in PyTorch on the same real data from the same first weights, with several seeds, and compares
where they end: shakespeare_lstm and shakespeare_llama on tiny Shakespeare, and a ResNet-18 on drawn JPEGs of digits.

    scripts/compare_learning.py LOCKSTEP --data-dir DATA [--model MODEL ...] [--seeds 1 2 3] [--steps N] [--tolerance 0.01]

DATA holds tinyshakespeare.txt. Needs the packages torch (and transformers for shakespeare_llama, Pillow for resnet18_jpegs);
what lacks its packages is left out with a line, and if that is all, the script exits with 77. lockstep draws the weights. Both
train by the config's optimizer and schedule; batches and transforms of images are drawn by each in its own way. Both sets of
weights are evaluated by PyTorch, on the same samples. Exits with 1 if the means of all seeds differ by more than the tolerance:
of a text's losses, relative to PyTorch's; of the share of images that are told right, as a difference, since their losses end near
0, where seeds differ by tens of percent. A mean is compared because seeds differ among themselves; their spread is printed, too.
"""

import argparse
import importlib
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
from peers import beside  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONTEXT, EVALUATED = 64, 1024   # samples of the text that are evaluated


def cosine_rate(peak, minimum, warmup, steps, step):
    """The learning rate of a step, from 0: lockstep's warm-up and cosine."""
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - 1 - warmup)
    return minimum + 0.5 * (peak - minimum) * (1 + math.cos(math.pi * min(1.0, progress)))


class Text:
    """A language model of characters, by its shipped config."""

    def __init__(self, name, package, batch, decay, minimum):
        self.name, self.package, self.batch, self.decay, self.minimum = name, package, batch, decay, minimum
        self.steps, self.peak, self.warmup, self.clip_norm = 2000, 4e-3, 100, 1.0

    def prepare(self, options):
        import torch
        text = (pathlib.Path(options.data_dir) / "tinyshakespeare.txt").read_bytes()
        letters = sorted(set(text))
        ids = torch.tensor([letters.index(byte) for byte in text])
        border = int(len(ids) * 0.9)
        self.known, self.held_back = ids[:border], ids[border:]
        self.config = (ROOT / "configs" / f"{self.name}.textproto").read_text()
        self.data_dir = options.data_dir

    def overrides(self, seed, steps):
        return [f"trainer.seed={seed}", f"trainer.steps={steps}", "trainer.eval_every_steps=0", "trainer.eval_at_end=false"]

    def load(self, lockstep, run):
        import torch
        if self.package == "transformers":
            import transformers
            return transformers.AutoModelForCausalLM.from_pretrained(beside.exported(lockstep, run, "huggingface"))
        from pytorch_models import Lstm
        model = Lstm()
        model.load_state_dict(beside.tensors_in(beside.exported(lockstep, run) / "model.safetensors"))
        return model.to(torch.float32)

    def logits(self, model, tokens):
        return model(tokens).logits if self.package == "transformers" else model(tokens)

    def loss(self, model, samples):
        import torch
        logits = self.logits(model, samples[:, :-1])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten())

    def batches(self, seed):
        import torch
        generator = torch.Generator().manual_seed(seed)
        while True:
            begins = torch.randint(len(self.known) - CONTEXT, (self.batch,), generator=generator)
            yield torch.stack([self.known[begin:begin + CONTEXT + 1] for begin in begins])

    def optimizer(self, model):
        import torch
        # Norms and biases are exempt from decay, as lockstep's default says.
        groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": self.decay},
                  {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0}]
        return torch.optim.AdamW(groups, lr=self.peak, betas=(0.9, 0.99))

    measure = "loss"

    @staticmethod
    def apart(ours, theirs):
        return ours / theirs - 1

    def evaluation(self, model):
        import torch
        step = (len(self.held_back) - CONTEXT - 1) // EVALUATED
        samples = torch.stack([self.held_back[i * step:i * step + CONTEXT + 1] for i in range(EVALUATED)])
        with torch.no_grad():
            return sum(self.loss(model, part).item() * len(part) for part in samples.split(64)) / EVALUATED


class Jpegs:
    """ResNet-18 with the stem for small images, on colored JPEGs of digits in folders by class."""
    CONFIG = """
format_version: 1
model { resnet { image: [32, 32, 3] depth: 18 classes: 10 small_stem: true width: 16 } }
data {
  images { train: "train" eval: "eval" }
  transforms { resize {} }
  transforms { normalize { mean: 0.35 deviation: 0.25 } }
  eval_transforms { resize {} }
  eval_transforms { normalize { mean: 0.35 deviation: 0.25 } }
}
trainer { global_batch: 64 virtual_replicas: 1 micro_batch: 64 steps: 400 seed: 1 }
optimizer { learning_rate: 0.02 sgd { momentum: 0.9 nesterov: true } weight_decay: 5e-4 schedule { warmup_steps: 20 cosine {} } }
metrics { log_every_steps: 10 }
"""
    name, package, steps, peak, minimum, warmup, clip_norm, batch = "resnet18_jpegs", "PIL", 400, 0.02, 0.0, 20, None, 64

    def prepare(self, options):
        self.folder = tempfile.TemporaryDirectory()
        place = pathlib.Path(self.folder.name) / "jpegs"
        subprocess.run([options.lockstep, "data", "digits", "--as-images", "--out", place, "--train", "4000", "--eval", "2000"],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.config, self.data_dir = self.CONFIG, place
        self.known, self.held_back = self.read(place / "train"), self.read(place / "eval")

    @staticmethod
    def read(folder):
        import torch
        from PIL import Image
        images, labels = [], []
        for label, name in enumerate(sorted(path.name for path in folder.iterdir())):
            for path in sorted((folder / name).iterdir()):
                image = Image.open(path).convert("RGB").resize((32, 32), Image.Resampling.BILINEAR)
                images.append(torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).reshape(32, 32, 3).permute(2, 0, 1))
                labels.append(label)
        return (torch.stack(images) / 255 - 0.35) / 0.25, torch.tensor(labels)

    def overrides(self, seed, steps):
        return [f"trainer.seed={seed}", f"trainer.steps={steps}", "trainer.eval_at_end=false"]

    def load(self, lockstep, run):
        import torch
        from pytorch_models import resnet18
        tensors = beside.tensors_in(beside.exported(lockstep, run) / "model.safetensors")
        model = resnet18(width=16)
        names = {"conv1": "0", "bn1": "1", "fc": "13"}
        state = {}
        for name, value in tensors.items():
            first, _, rest = name.partition(".")
            if first.startswith("layer"):
                block, _, rest = rest.partition(".")
                state[f"{3 + 2 * (int(first[5:]) - 1) + int(block)}.{rest}"] = value
            else:
                state[f"{names[first]}.{rest}"] = value
        missing = model.load_state_dict(state, strict=False)
        assert not missing.unexpected_keys and all(key.endswith("num_batches_tracked") for key in missing.missing_keys), missing
        return model.to(memory_format=torch.channels_last)

    def loss(self, model, samples):
        import torch
        return torch.nn.functional.cross_entropy(model(samples[0]), samples[1])

    def batches(self, seed):
        import torch
        order = random.Random(seed)
        while True:
            places = list(range(len(self.known[1])))
            order.shuffle(places)
            for begin in range(0, len(places) - self.batch + 1, self.batch):
                part = torch.tensor(places[begin:begin + self.batch])
                yield self.known[0][part].contiguous(memory_format=torch.channels_last), self.known[1][part]

    def optimizer(self, model):
        import torch
        groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 5e-4},
                  {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0}]
        return torch.optim.SGD(groups, lr=self.peak, momentum=0.9, nesterov=True)

    measure = "accuracy"

    @staticmethod
    def apart(ours, theirs):
        return ours - theirs

    def evaluation(self, model):
        import torch
        model.eval()
        parts = zip(self.held_back[0].split(100), self.held_back[1].split(100))
        with torch.no_grad():
            return sum((model(images).argmax(1) == labels).sum().item() for images, labels in parts) / len(self.held_back[1])


MODELS = {model.name: model for model in (Text("shakespeare_lstm", "torch", 32, 0.01, 2e-4),
                                          Text("shakespeare_llama", "transformers", 12, 0.1, 4e-4), Jpegs())}


def train_peer(model, network, seed, steps):
    import torch
    network.train()
    optimizer = model.optimizer(network)
    for step, samples in zip(range(steps), model.batches(seed)):
        for group in optimizer.param_groups:
            group["lr"] = cosine_rate(model.peak, model.minimum, model.warmup, steps, step)
        loss = model.loss(network, samples)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if model.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(network.parameters(), model.clip_norm)
        optimizer.step()
    return network.eval()


def check(options, model):
    """Refuses a model's config at once, rather than after hours of others."""
    model.prepare(options)
    with tempfile.NamedTemporaryFile("w", suffix=".textproto") as file:
        file.write(model.config)
        file.flush()
        subprocess.run([options.lockstep, "config", "check", file.name, "--data-dir", str(model.data_dir)], check=True,
                       stdout=subprocess.DEVNULL)


def compare(options, model):
    steps = options.steps or model.steps
    ours, theirs = [], []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            train = lambda name, *more: beside.train(options.lockstep, folder, name, model.config, model.data_dir,
                                                     [*model.overrides(seed, steps), *more])[1]
            # A step whose rate is too small to change a number: what lockstep has drawn.
            first = train("first", "trainer.steps=1", "optimizer.learning_rate=1e-30", "optimizer.schedule={}")
            network = model.load(options.lockstep, first)
            ours.append(model.evaluation(model.load(options.lockstep, train("run")).eval()))
        theirs.append(model.evaluation(train_peer(model, network, seed, steps)))
        print(f"{model.name}, seed {seed}, {steps} steps: lockstep {ours[-1]:.4f}, PyTorch {theirs[-1]:.4f}", flush=True)
    apart = model.apart(statistics.mean(ours), statistics.mean(theirs))
    spread = max(max(values) - min(values) for values in (ours, theirs))
    print(f"{model.name}: mean {model.measure} {statistics.mean(ours):.4f} in lockstep, {statistics.mean(theirs):.4f} in PyTorch, "
          f"{apart:+.2%}; seeds differ by up to {spread:.4f}", flush=True)
    return abs(apart) <= options.tolerance


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, help="default: those of the config")
    parser.add_argument("--tolerance", type=float, default=0.01)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    options = parser.parse_args()
    good, chosen = True, []
    for name in options.model or MODELS:
        try:
            import torch
            importlib.import_module(MODELS[name].package)
        except ImportError as error:
            print(f"{name}: skipped: {error}")
            continue
        torch.set_num_threads(options.threads)
        check(options, MODELS[name])
        chosen.append(MODELS[name])
    for model in chosen:
        good = compare(options, model) and good
    sys.exit(77 if not chosen else 0 if good else 1)


if __name__ == "__main__":
    main()
