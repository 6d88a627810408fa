#!/usr/bin/env python3
"""Trains a preset and torchvision's model of that name from the same weights on the same images, and compares each of twenty
losses, and all parameters and running statistics after one step.

    scripts/compare_torchvision.py LOCKSTEP [--model resnet18|vgg11|vit ...] [--steps 20]

Needs the packages torch and torchvision; without them it exits with 77. The weights are lockstep's: those of a
checkpoint after a step whose rate is too small to change a number. Numbers are float32, sums on both sides in orders of their
own. Exits with 1 if a loss, or a number after one step, differs by more than 1e-5.
"""

import random
import struct

from peers import beside

SAMPLES, CLASSES, MOMENTUM = 8, 10, 0.9
# Height and width, the rate of one step, that of the steps whose losses are compared, and the preset. At rates at which a
# ResNet-18 learns, PyTorch's own losses in float32 and float64 differ by 4e-5 (3e-5) to 4e-4 (3e-3) within twenty steps: a
# ReLU's input that is 0 but for rounding turns a gradient on or off. Dropout would draw other numbers in PyTorch.
MODELS = {
    "resnet18": (16, 0.01, 2e-6, "resnet { depth: 18 small_stem: true classes: %d image: [16, 16, 3] }" % CLASSES),
    "vit": (16, 0.05, 0.01, "vit { patch: 4 layers: 2 heads: 2 width: 32 classes: %d image: [16, 16, 3] }" % CLASSES),
    "vgg11": (32, 0.05, 0.05, "vgg { depth: 11 hidden: 256 dropout: 0 classes: %d image: [32, 32, 3] }" % CLASSES),
}


def draw(size):
    """(pixels, labels) of all samples, as bytes: [samples, height, width, channels]."""
    numbers = random.Random(1)
    return bytes(numbers.getrandbits(8) for _ in range(SAMPLES * size * size * 3)), bytes(range(SAMPLES))


def write_data(folder, size):
    pixels, labels = draw(size)
    (folder / "images").write_bytes(struct.pack(">4B4I", 0, 0, 8, 4, SAMPLES, size, size, 3) + pixels)
    (folder / "labels").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, SAMPLES) + labels)


def config(model, steps, rate):
    return f"""
model {{ {MODELS[model][3]} }}
data {{ idx {{ train_images: "images" train_labels: "labels" mean: 0.5 deviation: 0.25 }} shuffle: false }}
trainer {{ global_batch: {SAMPLES} micro_batch: {SAMPLES} virtual_replicas: 1 steps: {steps} seed: 1 eval_at_end: false }}
optimizer {{ learning_rate: {rate} sgd {{ momentum: {MOMENTUM} }} }}
metrics {{ tensorboard: false machine_every_seconds: 0 }}
"""


def name_there(name):
    """A parameter's name in torchvision."""
    if name in ("class_token.weight", "encoder.pos_embedding.weight"):
        return name.removesuffix(".weight")
    return name.replace(".in_proj.", ".in_proj_")


def tensors_of(run):
    """Parameters and statistics of a run's checkpoint, in PyTorch's layout."""
    tensors = {}
    for path in sorted((run / "checkpoints").glob("step-*/model-*.safetensors")):
        for name, value in beside.tensors_in(path).items():
            there = name_there(name)
            value = value[None] if there in ("class_token", "encoder.pos_embedding") else value
            tensors[there] = (value.permute(0, 3, 1, 2) if value.dim() == 4 else value).contiguous()
    return tensors


def make_peer(model):
    import torch
    import torchvision
    if model == "vgg11":
        peer = torchvision.models.vgg11(num_classes=CLASSES, dropout=0)
        peer.avgpool = torch.nn.Identity()
        peer.classifier[0], peer.classifier[3] = torch.nn.Linear(512, 256), torch.nn.Linear(256, 256)
        peer.classifier[6] = torch.nn.Linear(256, CLASSES)
        return peer
    if model == "vit":
        return torchvision.models.VisionTransformer(image_size=16, patch_size=4, num_layers=2, num_heads=2, hidden_dim=32,
                                                    mlp_dim=128, num_classes=CLASSES)
    peer = torchvision.models.resnet18(num_classes=CLASSES)
    peer.conv1, peer.maxpool = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False), torch.nn.Identity()
    return peer


def state_of(peer):
    return {name: value.clone() for name, value in peer.state_dict().items() if not name.endswith("num_batches_tracked")}


def train_peer(model, start, steps, rate):
    """Losses, and the state at the end, of torchvision's model from the parameters `start`."""
    import torch
    size, peer = MODELS[model][0], make_peer(model)
    fresh = {name: value for name, value in state_of(peer).items() if "running_" in name}
    peer.load_state_dict(start | fresh, strict=False)
    pixels, labels = draw(size)
    images = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(SAMPLES, size, size, 3).permute(0, 3, 1, 2)
    images, labels = (images / 255 - 0.5) / 0.25, torch.tensor(list(labels))
    optimizer, losses = torch.optim.SGD(peer.parameters(), lr=rate, momentum=MOMENTUM), []
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(peer(images), labels)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses, state_of(peer)


def compare(lockstep, model, steps):
    size, one_rate, rate, _ = MODELS[model]

    def ours(folder, steps, rate):
        losses, run = beside.train(lockstep, folder, f"{model}-{steps}-{rate}", config(model, steps, rate))
        return losses, lambda: tensors_of(run)

    return beside.compare(model, steps, one_rate, rate, lambda folder: write_data(folder, size), ours,
                          lambda *given: train_peer(model, *given))


if __name__ == "__main__":
    beside.main(__doc__, "torchvision", MODELS, compare)
