#!/usr/bin/env python3
"""The models of configs/ in JAX, a jitted step on random data; prints samples per second.

    jax_train.py MODEL STEPS [--evaluate]

One process on one core. --evaluate: forward and loss alone. The first fifth of the steps, compiling included, is not counted.
What scripts/bench_train.py measures lockstep against, beside pytorch_train.py.
"""

import argparse
import functools
import math
import os
import time

os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})   # before JAX counts cores and starts as many threads
os.environ["JAX_PLATFORMS"] = "cpu"

import jax                      # noqa: E402
import jax.numpy as jnp         # noqa: E402
from jax import lax             # noqa: E402

LAYERS, HEADS, KEY_HEADS, WIDTH, HIDDEN, UNITS, CONTEXT, VOCABULARY = 4, 4, 2, 128, 384, 256, 64, 65


def dense(key, inputs, outputs):
    return {"w": jax.random.normal(key, (inputs, outputs)) / math.sqrt(inputs), "b": jnp.zeros(outputs)}


def linear(layer, x):
    return x @ layer["w"] + layer["b"]


def dense_layers(key, sizes):
    return [dense(k, a, b) for k, a, b in zip(jax.random.split(key, len(sizes)), sizes, sizes[1:])]


def through(layers, x):
    for layer in layers[:-1]:
        x = jax.nn.relu(linear(layer, x))
    return linear(layers[-1], x)


def mlp_parameters(key):
    return dense_layers(key, (784, 256, 128, 10))


def mlp(parameters, x):
    return through(parameters, x.reshape(x.shape[0], -1))


def lenet_parameters(key):
    a, b, c = jax.random.split(key, 3)
    return {"convolutions": [{"w": jax.random.normal(a, (5, 5, 1, 6)) / 5, "b": jnp.zeros(6)},
                             {"w": jax.random.normal(b, (5, 5, 6, 16)) / 12, "b": jnp.zeros(16)}],
            "layers": dense_layers(c, (400, 120, 84, 10))}


def lenet(parameters, x):
    for layer, padding in zip(parameters["convolutions"], ("SAME", "VALID")):
        x = lax.conv_general_dilated(x, layer["w"], (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + layer["b"])
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return through(parameters["layers"], x.reshape(x.shape[0], -1))


def gpt_parameters(key):
    def norm():
        return {"w": jnp.ones(WIDTH), "b": jnp.zeros(WIDTH)}

    def block(k):
        a, b, c, d = jax.random.split(k, 4)
        return {"ln_1": norm(), "ln_2": norm(), "attn": dense(a, WIDTH, 3 * WIDTH), "proj": dense(b, WIDTH, WIDTH),
                "fc": dense(c, WIDTH, 4 * WIDTH), "out": dense(d, 4 * WIDTH, WIDTH)}

    a, b, *blocks = jax.random.split(key, 2 + LAYERS)
    return {"wte": 0.02 * jax.random.normal(a, (VOCABULARY, WIDTH)), "wpe": 0.02 * jax.random.normal(b, (CONTEXT, WIDTH)),
            "blocks": [block(k) for k in blocks], "ln_f": norm()}


def layer_norm(layer, x):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * layer["w"] + layer["b"]


def gpt(parameters, tokens):
    x = parameters["wte"][tokens] + parameters["wpe"]
    for block in parameters["blocks"]:
        parts = linear(block["attn"], layer_norm(block["ln_1"], x)).reshape(*x.shape[:2], 3, HEADS, WIDTH // HEADS)
        y = jax.nn.dot_product_attention(parts[:, :, 0], parts[:, :, 1], parts[:, :, 2], is_causal=True)
        x = x + linear(block["proj"], y.reshape(x.shape))
        x = x + linear(block["out"], jax.nn.gelu(linear(block["fc"], layer_norm(block["ln_2"], x)), approximate=True))
    return layer_norm(parameters["ln_f"], x) @ parameters["wte"].T


def rms_norm(weight, x):
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight


def llama_parameters(key):
    size = WIDTH // HEADS

    def block(k):
        a, b, c, d, e = jax.random.split(k, 5)
        matrix = lambda key, inputs, outputs: 0.02 * jax.random.normal(key, (inputs, outputs))
        return {"ln_1": jnp.ones(WIDTH), "ln_2": jnp.ones(WIDTH), "qkv": matrix(a, WIDTH, (HEADS + 2 * KEY_HEADS) * size),
                "o": matrix(b, WIDTH, WIDTH), "gate": matrix(c, WIDTH, HIDDEN), "up": matrix(d, WIDTH, HIDDEN),
                "down": matrix(e, HIDDEN, WIDTH)}

    a, *blocks = jax.random.split(key, 1 + LAYERS)
    return {"embed": 0.02 * jax.random.normal(a, (VOCABULARY, WIDTH)), "blocks": [block(k) for k in blocks],
            "norm": jnp.ones(WIDTH)}


def llama(parameters, tokens):
    size = WIDTH // HEADS
    angles = jnp.tile(jnp.outer(jnp.arange(CONTEXT), 10000.0 ** (-jnp.arange(0, size, 2) / size)), (1, 2))[:, None]
    cosines, sines = jnp.cos(angles), jnp.sin(angles)
    x = parameters["embed"][tokens]
    for block in parameters["blocks"]:
        parts = (rms_norm(block["ln_1"], x) @ block["qkv"]).reshape(*x.shape[:2], -1, size)
        turned, values = parts[:, :, :HEADS + KEY_HEADS], parts[:, :, HEADS + KEY_HEADS:]
        half = jnp.concatenate((-turned[..., size // 2:], turned[..., :size // 2]), axis=-1)
        turned = turned * cosines + half * sines
        y = jax.nn.dot_product_attention(turned[:, :, :HEADS], turned[:, :, HEADS:], values, is_causal=True)
        x = x + y.reshape(x.shape) @ block["o"]
        z = rms_norm(block["ln_2"], x)
        x = x + (jax.nn.silu(z @ block["gate"]) * (z @ block["up"])) @ block["down"]
    return rms_norm(parameters["norm"], x) @ parameters["embed"].T


def lstm_parameters(key):
    a, b, c, d, e, f = jax.random.split(key, 6)
    uniform = lambda key, *shape: jax.random.uniform(key, shape, minval=-1 / 16, maxval=1 / 16)
    layer = lambda x, h, inputs: {"ih": uniform(x, inputs, 4 * UNITS), "hh": uniform(h, UNITS, 4 * UNITS), "b": jnp.zeros(4 * UNITS)}
    return {"encoder": 0.1 * jax.random.normal(a, (VOCABULARY, WIDTH)), "layers": [layer(b, c, WIDTH), layer(d, e, UNITS)],
            "decoder": dense(f, UNITS, VOCABULARY)}


def lstm(parameters, tokens):
    x = parameters["encoder"][tokens]
    for layer in parameters["layers"]:
        def unit(state, gates, layer=layer):
            h, c = state
            i, f, g, o = jnp.split(gates + h @ layer["hh"], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((x.shape[0], UNITS))
        x = lax.scan(unit, (zeros, zeros), (x @ layer["ih"] + layer["b"]).swapaxes(0, 1))[1].swapaxes(0, 1)
    return linear(parameters["decoder"], x)


RESNET = ((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1))


def resnet_parameters(key, evaluating=False):
    keys = iter(jax.random.split(key, 32))

    def convolution(kernel, inputs, outputs):
        weight = jax.random.normal(next(keys), (kernel, kernel, inputs, outputs)) * math.sqrt(2 / (kernel * kernel * outputs))
        statistics = {"mean": jnp.zeros(outputs), "variance": jnp.ones(outputs)} if evaluating else {}
        return {"w": weight, "scale": jnp.ones(outputs), "shift": jnp.zeros(outputs), **statistics}

    blocks = []
    for inputs, outputs, _ in RESNET:
        block = {"conv1": convolution(3, inputs, outputs), "conv2": convolution(3, outputs, outputs)}
        if inputs != outputs:
            block["downsample"] = convolution(1, inputs, outputs)
        blocks.append(block)
    return {"stem": convolution(3, 3, 64), "blocks": blocks, "fc": dense(next(keys), 512, 10)}


def normalized_convolution(layer, x, stride=1, evaluating=False):
    """With batch norm by the batch's statistics, or by constant ones in evaluations. Running ones, which cost next to nothing,
    are left out."""
    x = lax.conv_general_dilated(x, layer["w"], (stride, stride), [((layer["w"].shape[0] - 1) // 2,) * 2] * 2,
                                 dimension_numbers=("NHWC", "HWIO", "NHWC"))
    if evaluating:
        return (x - layer["mean"]) * lax.rsqrt(layer["variance"] + 1e-5) * layer["scale"] + layer["shift"]
    mean = x.mean((0, 1, 2))
    return (x - mean) * lax.rsqrt(x.var((0, 1, 2)) + 1e-5) * layer["scale"] + layer["shift"]


def resnet(parameters, x, evaluating=False):
    normalized = functools.partial(normalized_convolution, evaluating=evaluating)
    x = jax.nn.relu(normalized(parameters["stem"], x))
    for block, (_, _, stride) in zip(parameters["blocks"], RESNET):
        y = jax.nn.relu(normalized(block["conv1"], x, stride))
        y = normalized(block["conv2"], y)
        x = jax.nn.relu(y + (normalized(block["downsample"], x, stride) if "downsample" in block else x))
    return linear(parameters["fc"], x.mean((1, 2)))


def adam(parameters, gradients, state, decay, beta2):
    step = state["step"] + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], gradients)
    v = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, state["v"], gradients)
    rate, correction = 1e-3 / (1 - 0.9**step), 1 / jnp.sqrt(1 - beta2**step)
    parameters = jax.tree.map(lambda p, m, v: p * (1 - 1e-3 * decay) - rate * m / (jnp.sqrt(v) * correction + 1e-8),
                              parameters, m, v)
    return parameters, {"step": step, "m": m, "v": v}


def clipped(gradients):
    norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(gradients)))
    return jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / (norm + 1e-6)), gradients)


def sgd(parameters, gradients, state):
    """Nesterov's momentum, and decay."""
    gradients = jax.tree.map(lambda g, p: g + 5e-4 * p, gradients, parameters)
    momentum = jax.tree.map(lambda b, g: 0.9 * b + g, state["m"], gradients)
    parameters = jax.tree.map(lambda p, g, b: p - 0.01 * (g + 0.9 * b), parameters, gradients, momentum)
    return parameters, {**state, "m": momentum}


# By name: first parameters, network, batch, shape of an image or nothing for tokens, weight decay of Adam, its beta2.
MODELS = {"mnist_mlp": (mlp_parameters, mlp, 64, (28, 28, 1), 0.0, 0.999),
          "mnist_lenet": (lenet_parameters, lenet, 64, (28, 28, 1), 0.0, 0.999),
          "shakespeare_gpt": (gpt_parameters, gpt, 12, None, 0.1, 0.99),
          "cifar_resnet18": (resnet_parameters, resnet, 32, (32, 32, 3), None, None),
          "shakespeare_lstm": (lstm_parameters, lstm, 32, None, 0.01, 0.99),
          "shakespeare_llama": (llama_parameters, llama, 12, None, 0.1, 0.99)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("steps", type=int)
    parser.add_argument("--evaluate", action="store_true")
    options = parser.parse_args()
    make, network, batch, image, decay, beta2 = MODELS[options.model]
    if options.evaluate and network is resnet:
        make, network = functools.partial(resnet_parameters, evaluating=True), functools.partial(resnet, evaluating=True)
    key = jax.random.key(0)
    if image is None:
        x = jax.random.randint(key, (batch, CONTEXT), 0, VOCABULARY)
        y = jax.random.randint(key, (batch, CONTEXT), 0, VOCABULARY)
    else:
        x, y = jax.random.normal(key, (batch, *image)), jax.random.randint(key, (batch,), 0, 10)

    def loss_of(parameters, x, y):
        return -jnp.take_along_axis(jax.nn.log_softmax(network(parameters, x)), y[..., None], -1).mean()

    def train_step(parameters, state, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
        if image is None:
            gradients = clipped(gradients)
        update = sgd(parameters, gradients, state) if decay is None else adam(parameters, gradients, state, decay, beta2)
        return *update, loss

    step, evaluate = jax.jit(train_step, donate_argnums=(0, 1)), jax.jit(loss_of)
    parameters = make(key)
    state = {"step": jnp.zeros(()), "m": jax.tree.map(jnp.zeros_like, parameters), "v": jax.tree.map(jnp.zeros_like, parameters)}
    counted_from, begin = max(1, options.steps // 5), 0.0
    for number in range(options.steps):
        if number == counted_from:
            begin = time.perf_counter()
        if options.evaluate:
            loss = evaluate(parameters, x, y)
        else:
            parameters, state, loss = step(parameters, state, x, y)
        float(loss)
    jax.block_until_ready(parameters)
    print(f"{(options.steps - counted_from) * batch / (time.perf_counter() - begin):.2f}", flush=True)


if __name__ == "__main__":
    main()
