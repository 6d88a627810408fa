#!/usr/bin/env python3
"""The models of configs/ in JAX, a jitted step on random data; prints samples per second.

    jax_train.py MODEL STEPS

MODEL: mnist_mlp, mnist_lenet, shakespeare_gpt. One process on one core. The first fifth of the steps, compiling included, is
not counted. What scripts/bench_train.py measures lockstep against, beside pytorch_train.py.
"""

import argparse
import math
import os
import time

os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})   # before JAX counts cores and starts as many threads
os.environ["JAX_PLATFORMS"] = "cpu"

import jax                      # noqa: E402
import jax.numpy as jnp         # noqa: E402
from jax import lax             # noqa: E402

BATCH = {"mnist_mlp": 64, "mnist_lenet": 64, "shakespeare_gpt": 12}
LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY = 4, 4, 128, 64, 65


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


MODELS = {"mnist_mlp": (mlp_parameters, mlp), "mnist_lenet": (lenet_parameters, lenet),
          "shakespeare_gpt": (gpt_parameters, gpt)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(BATCH))
    parser.add_argument("steps", type=int)
    options = parser.parse_args()
    batch, is_gpt = BATCH[options.model], options.model == "shakespeare_gpt"
    make, network = MODELS[options.model]
    key = jax.random.key(0)
    x = jax.random.randint(key, (batch, CONTEXT), 0, VOCABULARY) if is_gpt else jax.random.normal(key, (batch, 28, 28, 1))
    y = jax.random.randint(key, (batch, CONTEXT) if is_gpt else (batch,), 0, VOCABULARY if is_gpt else 10)

    def loss_of(parameters, x, y):
        return -jnp.take_along_axis(jax.nn.log_softmax(network(parameters, x)), y[..., None], -1).mean()

    def train_step(parameters, state, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
        if is_gpt:
            gradients = clipped(gradients)
        parameters, state = adam(parameters, gradients, state, 0.1 if is_gpt else 0.0, 0.99 if is_gpt else 0.999)
        return parameters, state, loss

    step = jax.jit(train_step, donate_argnums=(0, 1))
    parameters = make(key)
    state = {"step": jnp.zeros(()), "m": jax.tree.map(jnp.zeros_like, parameters), "v": jax.tree.map(jnp.zeros_like, parameters)}
    counted_from, begin = options.steps // 5, 0.0
    for number in range(options.steps):
        if number == counted_from:
            begin = time.perf_counter()
        parameters, state, loss = step(parameters, state, x, y)
        float(loss)
    jax.block_until_ready(parameters)
    print(f"{(options.steps - counted_from) * batch / (time.perf_counter() - begin):.1f}", flush=True)


if __name__ == "__main__":
    main()
