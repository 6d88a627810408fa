"""Goldens of layers without positions, and of losses: one function for each op, which yields (case, {name: tensor})."""

import torch
import torch.nn.functional as F

from goldens.parts import channels_last, integers, random, run


def linear():
    yield "plain", run(F.linear, [random(3, 5)], {"weight": random(4, 5), "bias": random(4)})
    yield "sequence_without_bias", run(F.linear, [random(2, 3, 7)], {"weight": random(5, 7)})


def narrow_linear():
    """PyTorch's own two-byte linear layer: products and sums in float32, everything that is stored rounded."""
    for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        narrow = lambda *shape: random(*shape).to(dtype)
        tensors = run(F.linear, [narrow(6, 40)], {"weight": narrow(9, 40), "bias": narrow(9)},
                      cast_gradient=lambda gradient: gradient.to(dtype))
        yield name, {key: tensor.double() for key, tensor in tensors.items()}


def conv2d():
    def case(batch, size, in_channels, channels, kernel, stride, padding, bias=True, **more):
        parameters = {"weight": random(channels, in_channels // more.get("groups", 1), kernel, kernel)}
        if bias:
            parameters["bias"] = random(channels)
        convolve = lambda x, weight, bias=None: F.conv2d(x, weight, bias, stride=stride, padding=padding, **more)
        return run(convolve, [random(batch, in_channels, *size)], parameters, channels_last)

    yield "kernel3_padding1", case(2, (5, 4), 3, 2, 3, 1, 1)
    yield "kernel3_stride2_without_bias", case(1, (7, 7), 2, 3, 3, 2, 0, bias=False)
    yield "kernel1", case(2, (3, 3), 4, 5, 1, 1, 0)
    yield "groups2", case(2, (4, 5), 4, 6, 3, 1, 1, groups=2)
    yield "depthwise_stride2", case(2, (5, 6), 3, 3, 3, 2, 1, groups=3)
    yield "dilation2", case(1, (5, 6), 3, 2, 3, 1, 2, dilation=2)
    yield "groups2_dilation3_stride2", case(1, (7, 6), 4, 4, 3, 2, 3, groups=2, dilation=3)


def pool2d():
    def case(pool, batch, size, channels):
        return run(pool, [random(batch, channels, *size)], {}, channels_last)

    yield "max_kernel2", case(lambda x: F.max_pool2d(x, 2), 2, (5, 6), 3)
    yield "max_kernel3_stride2_padding1", case(lambda x: F.max_pool2d(x, 3, 2, 1), 1, (7, 6), 2)
    yield "average_kernel2", case(lambda x: F.avg_pool2d(x, 2), 2, (4, 5), 3)
    yield "average_kernel3_stride2_padding1", case(
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), 1, (7, 6), 2)
    yield "average_kernel3_stride2_padding1_counted", case(
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=True), 1, (7, 6), 2)


def global_pool2d():
    yield "plain", run(lambda x: x.mean(dim=(2, 3)), [random(2, 3, 4, 5)], {}, channels_last)


def upsample2d():
    def case(image, **options):
        function = lambda x: F.interpolate(x, **options)
        return run(function, [random(2, 3, *image)], {}, channels_last)

    yield "nearest_twice", case((4, 5), scale_factor=2, mode="nearest")
    yield "nearest_by_half_more", case((5, 7), scale_factor=1.5, mode="nearest")
    yield "nearest_to_size", case((5, 7), size=(9, 4), mode="nearest")
    yield "bilinear_twice", case((4, 5), scale_factor=2, mode="bilinear")
    yield "bilinear_by_1_7", case((5, 7), scale_factor=1.7, mode="bilinear")
    yield "bilinear_to_size", case((5, 7), size=(3, 16), mode="bilinear")
    yield "bilinear_aligned", case((5, 7), size=(9, 4), mode="bilinear", align_corners=True)
    yield "bilinear_aligned_by_3", case((3, 4), scale_factor=3, mode="bilinear", align_corners=True)
    yield "nearest_keeps_size", case((5, 7), scale_factor=1.1, mode="nearest")
    yield "nearest_twice_by_2_1", case((4, 5), scale_factor=2.1, mode="nearest")
    yield "nearest_by_0_7", case((10, 5), scale_factor=0.7, mode="nearest")
    yield "bilinear_keeps_size", case((5, 4), scale_factor=1.1, mode="bilinear")


def batch_norm():
    def case(shape, epsilon, training):
        channels = shape[1]
        statistics = {"running_mean": random(channels), "running_var": random(channels, low=0.5, high=1.5)}
        # With momentum 1 PyTorch's new running statistics are the batch's own: what we call their gradients.
        own = {name: tensor.clone() for name, tensor in statistics.items()}
        normalize = lambda x, weight, bias: F.batch_norm(
            x, own["running_mean"], own["running_var"], weight, bias, training, 1.0, epsilon)
        tensors = run(normalize, [random(*shape)], {"weight": random(channels), "bias": random(channels)}, channels_last)
        tensors |= statistics
        if training:
            tensors |= {f"gradient of {name}": tensor for name, tensor in own.items()}
        return tensors

    yield "image", case((2, 3, 4, 3), 1e-5, True)
    yield "flat", case((5, 4), 1e-3, True)
    yield "evaluation", case((2, 3, 2, 2), 1e-5, False)


def mean_squared_error():
    yield "sum", run(lambda p, t: F.mse_loss(p, t, reduction="sum"), [random(3, 4), random(3, 4)], {})


def activation(function):
    # Dense where the curves bend, and a few values far out.
    x = torch.cat([torch.linspace(-6, 6, 61), torch.tensor([-30.0, -12.5, 12.5, 30.0, 1e-3, -1e-5])])
    return run(function, [x.float().double().reshape(1, -1)], {})


def relu():
    yield "wide", activation(torch.relu)


def gelu():
    yield "wide", activation(lambda x: F.gelu(x, approximate="tanh"))
    yield "by_erf", activation(F.gelu)


def silu():
    yield "wide", activation(F.silu)


def sigmoid():
    yield "wide", activation(torch.sigmoid)


def tanh():
    yield "wide", activation(torch.tanh)


def layer_norm():
    def case(shape, **parameters):
        normalize = lambda x, weight, bias=None: F.layer_norm(x, shape[-1:], weight, bias, 1e-5)
        return run(normalize, [random(*shape)], parameters)

    yield "bias", case((2, 3, 19), weight=random(19), bias=random(19))
    yield "no_bias", case((3, 5), weight=random(5))


def rms_norm():
    def case(shape, epsilon):
        return run(lambda x, weight: F.rms_norm(x, shape[-1:], weight, epsilon), [random(*shape)],
                   {"weight": random(shape[-1])})

    yield "rows", case((2, 3, 19), 1e-5)
    yield "large_epsilon", case((3, 5), 1e-2)


def multiply():
    yield "plain", run(torch.mul, [random(2, 3, 5), random(2, 3, 5)], {})


def softmax_cross_entropy():
    logits, labels = random(3, 4, 7, low=-5, high=5), integers(3, 4, below=7)
    ignored = 2
    tensors = run(lambda x: F.cross_entropy(x.flatten(0, 1), labels.flatten().long(), ignore_index=ignored), [logits], {})
    count = (labels != ignored).sum().double()
    yield "ignored", {"input0": tensors["input0"], "input1": labels, "count": count,
                      "loss sum": tensors["output0"] * count, "gradient of input0": tensors["gradient of input0"]}

    def smooth(x, labels, **options):
        return F.cross_entropy(x.flatten(0, 1), labels, label_smoothing=0.25, **options)

    ignored = 5
    count = (labels != ignored).sum().double()
    logits = logits.detach()
    tensors = run(lambda x: smooth(x, labels.flatten().long(), ignore_index=ignored), [logits], {})
    yield "smoothed", {"input0": tensors["input0"], "input1": labels, "count": count,
                       "loss sum": tensors["output0"] * count, "gradient of input0": tensors["gradient of input0"]}

    # Shares of the second class, among them none, all of it, and that of the first class itself.
    others, shares = integers(3, 4, below=7), integers(3, 4, below=2**24)
    shares[0, 0], shares[0, 1], others[0, 2] = 0, 2**24, labels[0, 2]
    weights = shares.double().unsqueeze(-1) / 2**24
    dense = (1 - weights) * F.one_hot(labels.long(), 7) + weights * F.one_hot(others.long(), 7)
    logits = logits.detach()
    tensors = run(lambda x: smooth(x, dense.flatten(0, 1)), [logits], {})
    yield "mixed", {"input0": tensors["input0"], "input1": labels, "input2": torch.stack([others, shares], dim=-1),
                    "count": torch.tensor(12.0, dtype=torch.float64), "loss sum": tensors["output0"] * 12,
                    "gradient of input0": tensors["gradient of input0"]}


OPS = [linear, narrow_linear, conv2d, pool2d, global_pool2d, upsample2d, batch_norm, mean_squared_error, relu, gelu, silu, sigmoid, tanh, layer_norm, rms_norm, multiply, softmax_cross_entropy]
