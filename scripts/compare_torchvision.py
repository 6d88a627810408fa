#!/usr/bin/env python3
"""Trains a preset and torchvision's model of that name from the same weights on the same images, and compares each of twenty
losses, and all parameters and running statistics after one step. The presets mlp and lenet have models of torch.nn as peers.

    scripts/compare_torchvision.py LOCKSTEP [--model resnet18|resnet50|resnext50|vgg11|vgg11_bn|vit|mlp|lenet ...] [--steps 20]

Needs the packages torch and torchvision; without them it exits with 77. Weights go from lockstep to PyTorch by `lockstep export
--format pytorch`, and into the one step by `train --from`. Numbers are float32, sums on both sides in orders of their own. Exits
with 1 if a loss, or a number after one step, differs by more than 1e-5.
"""

import dataclasses
import random
import struct

from peers import beside

SAMPLES, CLASSES = 8, 10


def draw(shape):
    """(pixels, labels) of all samples, as bytes: [samples, height, width, channels]."""
    numbers = random.Random(1)
    height, width, channels = shape
    return bytes(numbers.getrandbits(8) for _ in range(SAMPLES * height * width * channels)), bytes(range(SAMPLES))


def images_of(shape):
    """PyTorch's images [samples, channels, height, width], and the labels."""
    import torch
    pixels, labels = draw(shape)
    images = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(SAMPLES, *shape).permute(0, 3, 1, 2)
    return (images / 255 - 0.5) / 0.25, torch.tensor(list(labels))


def write_data(folder, shape):
    pixels, labels = draw(shape)
    (folder / "images").write_bytes(struct.pack(">4B4I", 0, 0, 8, 4, SAMPLES, *shape) + pixels)
    (folder / "labels").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, SAMPLES) + labels)


def config(preset, steps, rate):
    return f"""
model {{ {preset} }}
data {{ idx {{ train_images: "images" train_labels: "labels" mean: 0.5 deviation: 0.25 }} shuffle: false }}
trainer {{ global_batch: {SAMPLES} micro_batch: {SAMPLES} virtual_replicas: 1 steps: {steps} seed: 1 eval_at_end: false }}
optimizer {{ learning_rate: {rate} sgd {{ momentum: {beside.MOMENTUM} }} }}
metrics {{ tensorboard: false machine_every_seconds: 0 }}
"""


def resnet18():
    import torch
    import torchvision
    peer = torchvision.models.resnet18(num_classes=CLASSES)
    peer.conv1, peer.maxpool = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False), torch.nn.Identity()
    return peer


def narrow_resnet50(width, **groups):
    """torchvision's ResNet-50 with `width` channels in place of 64."""
    import torch
    from torchvision.models import resnet

    class Narrow(resnet.ResNet):
        def _make_layer(self, block, planes, blocks, stride=1, dilate=False):
            if planes == 64:
                self.inplanes = width  # of the stem below
            return super()._make_layer(block, planes * width // 64, blocks, stride, dilate)

    peer = Narrow(resnet.Bottleneck, [3, 4, 6, 3], num_classes=CLASSES, **groups)
    peer.conv1, peer.bn1 = torch.nn.Conv2d(3, width, 7, 2, 3, bias=False), torch.nn.BatchNorm2d(width)
    peer.fc = torch.nn.Linear(32 * width, CLASSES)
    return peer


def vgg11(width, hidden, pixels, batch_norm):
    """torchvision's VGG with `width` channels in place of 64, whose classifier reads all `pixels` that are left."""
    import torch
    from torchvision.models import vgg
    layers = [width if layer == 64 else layer if layer == "M" else layer * width // 64 for layer in vgg.cfgs["A"]]
    peer = vgg.VGG(vgg.make_layers(layers, batch_norm), num_classes=CLASSES, dropout=0)
    peer.avgpool = torch.nn.Identity()
    peer.classifier[0], peer.classifier[3] = torch.nn.Linear(8 * width * pixels, hidden), torch.nn.Linear(hidden, hidden)
    peer.classifier[6] = torch.nn.Linear(hidden, CLASSES)
    return peer


def vit():
    import torchvision
    return torchvision.models.VisionTransformer(image_size=16, patch_size=4, num_layers=2, num_heads=2, hidden_dim=32,
                                                mlp_dim=128, num_classes=CLASSES)


def mlp():
    import collections

    from torch import nn
    return nn.Sequential(collections.OrderedDict(
        flatten=nn.Flatten(), fc1=nn.Linear(8 * 6 * 3, 32), relu1=nn.ReLU(), fc2=nn.Linear(32, 16), relu2=nn.ReLU(),
        fc3=nn.Linear(16, CLASSES)))


def lenet():
    import collections

    from torch import nn
    return nn.Sequential(collections.OrderedDict(
        conv1=nn.Conv2d(3, 6, 5, padding=2), relu1=nn.ReLU(), pool1=nn.MaxPool2d(2), conv2=nn.Conv2d(6, 16, 5), relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2), flatten=nn.Flatten(), fc1=nn.Linear(16 * 5 * 3, 120), relu3=nn.ReLU(), fc2=nn.Linear(120, 84),
        relu4=nn.ReLU(), fc3=nn.Linear(84, CLASSES)))


@dataclasses.dataclass
class ImageCase(beside.Case):
    shape: tuple = ()   # height, width, channels


def case(shape, preset, make, rate, one_rate):
    preset = preset.replace("{", f"{{ image: {list(shape)} classes: {CLASSES} ", 1)

    def make_peer():
        import torch
        peer, (images, labels) = make(), images_of(shape)
        return peer, lambda: torch.nn.functional.cross_entropy(peer(images), labels)

    return ImageCase(config=lambda steps, rate: config(preset, steps, rate), write_data=lambda folder: write_data(folder, shape),
                     make_peer=make_peer, rate=rate, one_rate=one_rate, shape=shape)


# At rates at which this ResNet-18 learns, PyTorch's own losses in float32 and float64 differ by 4e-5 (at 3e-5) to 4e-4 (at 3e-3)
# within twenty steps: a ReLU's input that is 0 but for rounding turns a gradient on or off. So it takes twenty small steps, and
# one of usual size. With blocks that begin as the identity (zero_init) the losses of ResNet-50 differ by 4e-7 at 0.01; with groups
# by 3e-7 at 1e-3, but 5e-4 at 0.01. Dropout would draw other numbers in PyTorch.
CASES = {
    "resnet18": case((16, 16, 3), "resnet { depth: 18 small_stem: true }", resnet18, 2e-6, 0.01),
    "resnet50": case((64, 64, 3), "resnet { depth: 50 width: 16 zero_init: true }", lambda: narrow_resnet50(16), 0.01, 0.01),
    "resnext50": case((64, 64, 3), "resnet { depth: 50 width: 16 groups: 4 width_per_group: 32 zero_init: true }",
                      lambda: narrow_resnet50(16, groups=4, width_per_group=32), 1e-3, 0.01),
    "vit": case((16, 16, 3), "vit { patch: 4 layers: 2 heads: 2 width: 32 }", vit, 0.01, 0.05),
    "vgg11": case((32, 32, 3), "vgg { depth: 11 hidden: 256 dropout: 0 }", lambda: vgg11(64, 256, 1, False), 0.05, 0.05),
    "vgg11_bn": case((64, 64, 3), "vgg { depth: 11 width: 16 hidden: 64 dropout: 0 batch_norm: true }",
                     lambda: vgg11(16, 64, 4, True), 0.01, 0.01),
    "mlp": case((8, 6, 3), "mlp { hidden: [32, 16] }", mlp, 0.01, 0.05),
    "lenet": case((28, 20, 3), "lenet {}", lenet, 0.01, 0.05),
}

if __name__ == "__main__":
    beside.main(__doc__, "torchvision", CASES)
