#!/usr/bin/env python3
"""Writes tests/ops/goldens/<op>.txt: inputs, parameters, outputs and gradients of ops as PyTorch computes them, and
tests/optim/goldens: the parameters after each of five updates, their moving averages, and learning rates by step.

    python3 scripts/make_goldens.py [OP ...]      # needs torch, and transformers for llama and rotary_embedding; without OP: all

PyTorch runs in double precision on numbers that float32 represents exactly, so the files hold the true values (except for
narrow_linear). Images are
[batch, channels, height, width] in PyTorch and [batch, height, width, channels] in the files; convolution weights
are [out, in, kernel, kernel] in PyTorch and [out, kernel, kernel, in] in the files.

A file has, for each case, the line "case <name>", then for each tensor the line
"tensor <dtype> <rank> <dimensions...> <name>" and one line of values. Names are input<i>, output<i>, the parameter's
name, and "gradient of " any of these. A new op is a function that yields (case, {name: tensor}) and a line in OPS.
"""

import pathlib
import sys

import torch
import torch.nn.functional as F

TESTS = pathlib.Path(__file__).resolve().parent.parent / "tests"


def random(*shape, low=-1.0, high=1.0):
    return (low + (high - low) * torch.rand(*shape)).float().double()


def integers(*shape, below):
    return torch.randint(below, shape, dtype=torch.int32)


def run(function, inputs, parameters, layout=lambda name, tensor: tensor, cast_gradient=lambda gradient: gradient):
    """Tensors of one case: forward, and backward with random gradients of the outputs. Where `function` returns a
    scalar (a loss), its gradient is one and it is left out. `layout` turns PyTorch's layout into ours."""
    leaves = {f"input{i}": tensor for i, tensor in enumerate(inputs)} | parameters
    for tensor in leaves.values():
        tensor.requires_grad_(tensor.is_floating_point())
    outputs = function(*inputs, **parameters)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    gradients = [cast_gradient(random(*output.shape) if output.dim() else torch.ones(()).double()) for output in outputs]
    torch.autograd.backward(outputs, gradients)
    tensors = dict(leaves)
    for i, (output, gradient) in enumerate(zip(outputs, gradients)):
        tensors[f"output{i}"] = output
        if output.dim():
            tensors[f"gradient of output{i}"] = gradient
    for name, tensor in leaves.items():
        if tensor.grad is not None:
            tensors[f"gradient of {name}"] = tensor.grad
    return {name: layout(name, tensor.detach()) for name, tensor in tensors.items()}


def channels_last(name, tensor):
    return tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor


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


def rotary_embedding():
    """As transformers writes it for Llama: x cos + rotate_half(x) sin."""
    def rotate(x, size, heads, frequencies=None):
        batch, positions, channels = x.shape
        if frequencies is None:
            frequencies = 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies).repeat(1, 2)[:, None]
        split = x.reshape(batch, positions, channels // size, size)
        turned, same = split[:, :, :heads], split[:, :, heads:]
        half = torch.cat((-turned[..., size // 2:], turned[..., :size // 2]), dim=-1)
        return torch.cat((turned * angles.cos() + half * angles.sin(), same), dim=2).reshape(x.shape)

    yield "two_of_three_heads", run(lambda x: rotate(x, 6, 2), [random(2, 5, 18)], {})

    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    scaled = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 64}
    config = LlamaConfig(hidden_size=16, num_attention_heads=1, head_dim=16, rope_parameters=scaled)
    by_llama_3 = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0].double()
    yield "scaled_as_in_llama_3", run(lambda x: rotate(x, 16, 1, by_llama_3), [random(2, 40, 16)], {})


def embedding():
    yield "repeated", run(F.embedding, [integers(3, 9, below=11)], {"weight": random(11, 7)})


def attention():
    def attend(qkv, heads, key_heads=None, causal=True):
        key_heads = key_heads or heads
        batch, positions, width = qkv.shape
        size = width // (heads + 2 * key_heads)
        q, k, v = (part.reshape(batch, positions, -1, size).transpose(1, 2)
                   for part in qkv.split([heads * size, key_heads * size, key_heads * size], dim=2))
        k, v = (part.repeat_interleave(heads // key_heads, dim=1) for part in (k, v))
        scores = q @ k.transpose(2, 3) / size ** 0.5
        hidden = (torch.ones(positions, positions).tril() == 0) & causal
        weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        return (weights @ v).transpose(1, 2).reshape(batch, positions, heads * size)

    yield "two_heads", run(lambda x: attend(x, 2), [random(2, 6, 3 * 10, low=-2, high=2)], {})
    yield "two_blocks", run(lambda x: attend(x, 1), [random(1, 66, 3 * 3, low=-2, high=2)], {})
    yield "grouped", run(lambda x: attend(x, 4, 2), [random(2, 6, 8 * 5, low=-2, high=2)], {})
    yield "not_causal", run(lambda x: attend(x, 2, causal=False), [random(2, 6, 6 * 5, low=-2, high=2)], {})

    def attend_marked(qkv, marks, heads, key_heads, causal):
        """By PyTorch's own function, with marks as a mask of lengths or as numbers of documents. Of a query that sees nothing
        PyTorch makes NaN; here it gives 0."""
        batch, positions, width = qkv.shape
        size = width // (heads + 2 * key_heads)
        q, k, v = (part.reshape(batch, positions, -1, size).transpose(1, 2)
                   for part in qkv.split([heads * size, key_heads * size, key_heads * size], dim=2))
        k, v = (part.repeat_interleave(heads // key_heads, dim=1) for part in (k, v))
        counts = marks != 0 if marks.is_floating_point() else marks >= 0
        seen = marks[:, :, None] == marks[:, None, :]
        seen &= counts[:, :, None] & counts[:, None, :]
        if causal:
            seen &= torch.ones(positions, positions).tril() == 1
        # A query without a key sees itself, for a result that is thrown away.
        allowed = (seen | torch.eye(positions, dtype=torch.bool))[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        y = torch.where(counts[:, None, :, None], y, 0.0)
        return y.transpose(1, 2).reshape(batch, positions, heads * size)

    def marked(marks, heads, key_heads, size, causal):
        x = random(*marks.shape, (heads + 2 * key_heads) * size, low=-2, high=2)
        return run(lambda x, marks: attend_marked(x, marks, heads, key_heads, causal), [x, marks], {})

    def mask(positions, *lengths):
        return torch.tensor([[float(t < length) for t in range(positions)] for length in lengths]).double()

    def documents(*samples):
        return torch.tensor([[d for d, length in documents for _ in range(length)] for documents in samples], dtype=torch.int32)

    yield "masked", marked(mask(6, 4, 6, 1), 4, 2, 3, True)
    yield "masked_not_causal", marked(mask(6, 4, 6, 1), 2, 2, 4, False)
    yield "documents", marked(documents([(0, 2), (1, 3), (2, 1), (-1, 1)], [(0, 7)]), 2, 1, 4, True)
    yield "documents_not_causal", marked(documents([(0, 60), (4, 7), (5, 3)]), 1, 1, 3, False)


def lstm():
    """nn.LSTM of one layer; with lengths, on packed sequences, whose mask is input1."""
    def case(batch, positions, width, units, both=False, lengths=None):
        module = torch.nn.LSTM(width, units, batch_first=True, bidirectional=both).double()
        theirs = {name.replace("_l0", ""): name for name, _ in module.named_parameters()}
        parameters = {name: random(*module.get_parameter(there).shape) for name, there in theirs.items()}

        def compute(x, mask=None, **weights):
            state = {theirs[name]: weight for name, weight in weights.items()}
            if mask is None:
                return torch.func.functional_call(module, state, (x,))[0]
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            output = torch.func.functional_call(module, state, (packed,))[0]
            return torch.nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=positions)[0]

        inputs = [random(batch, positions, width)]
        if lengths:
            inputs.append(torch.tensor([[float(t < length) for t in range(positions)] for length in lengths]).double())
        return run(compute, inputs, parameters)

    yield "forward", case(2, 4, 3, 5)
    yield "both_directions", case(2, 3, 4, 3, both=True)
    yield "lengths", case(3, 4, 2, 4, both=True, lengths=[2, 4, 1])


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


def llama():
    """transformers' LlamaForCausalLM in float32: its weights under our names, the logits of four samples, and the losses
    of twenty steps on them, with the weights after the first step and at the end."""
    import transformers

    def ours(model):
        weights = {name.removeprefix("model."): value.detach().clone() for name, value in model.named_parameters()}
        for block in {name.rsplit("q_proj", 1)[0] for name in weights if "q_proj" in name}:
            weights[block + "qkv_proj.weight"] = torch.cat([weights.pop(f"{block}{part}_proj.weight") for part in "qkv"])
        return weights

    def case(key_heads, tied, make_optimizer):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=11, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=key_heads, max_position_embeddings=8, rms_norm_eps=1e-5, tie_word_embeddings=tied)).float()
        for name, value in model.named_parameters():
            torch.nn.init.normal_(value, 1.0 if "norm" in name else 0.0, 0.3)
        tokens, labels = integers(4, 8, below=11), integers(4, 8, below=11)
        tensors = {"tokens": tokens, "labels": labels} | ours(model)
        optimizer, losses = make_optimizer(model.parameters()), []
        for step in range(20):
            logits = model(input_ids=tokens.long()).logits
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten().long())
            if step == 0:
                tensors["logits"] = logits.detach().clone()
            losses.append(loss.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == 0:
                tensors |= {f"after one step {name}": value for name, value in ours(model).items()}
        return tensors | {"losses": torch.stack(losses)}

    # At a rate of 0.1, PyTorch's own losses in float32 and in float64 differ by 2.3e-5 after twenty steps; here, by 3e-6.
    yield "grouped", case(2, False, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9))
    yield "tied", case(4, True, lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.9, 0.99), eps=1e-3, weight_decay=0))


def optimizers():
    def case(kind, **options):
        p = torch.nn.Parameter(random(13))
        tensors = {"parameters": p.detach().clone()}
        optimizer = kind([p], **options)
        gradients, steps = [], []
        for _ in range(5):
            p.grad = random(13)
            optimizer.step()
            gradients.append(p.grad.clone())
            steps.append(p.detach().clone())
        return tensors | {"gradients": torch.stack(gradients), "after each step": torch.stack(steps)}

    sgd, adam, adamw = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
    yield "sgd", case(sgd, lr=0.1)
    yield "sgd_decay", case(sgd, lr=0.1, weight_decay=0.3)
    yield "sgd_momentum", case(sgd, lr=0.1, momentum=0.9, weight_decay=0.2)
    yield "sgd_nesterov", case(sgd, lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.2)
    yield "adam", case(adam, lr=0.05, betas=(0.9, 0.99), eps=1e-8)
    yield "adam_decay", case(adam, lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3)
    yield "adamw", case(adamw, lr=0.05, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.3)


def late_gradients():
    """A parameter that has no gradient in the first three of eight steps, beside one that always has."""
    def case(kind, **options):
        late, always = torch.nn.Parameter(random(13)), torch.nn.Parameter(random(13))
        tensors = {"parameters": late.detach().clone()}
        optimizer = kind([late, always], **options)
        gradients, steps = [], []
        for step in range(8):
            always.grad = random(13)
            if step >= 3:
                late.grad = random(13)
                gradients.append(late.grad.clone())
            optimizer.step()
            steps.append(late.detach().clone())
        return tensors | {"gradients": torch.stack(gradients), "after each step": torch.stack(steps[3:])}

    yield "adam", case(torch.optim.Adam, lr=0.05, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    yield "adamw", case(torch.optim.AdamW, lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3)


def averages():
    """Moving averages as torch.optim.swa_utils has them. Up to `start` updates they are the parameters."""
    def case(kind, decay, start, **options):
        model = torch.nn.Linear(13, 1, bias=False).double()
        model.weight.data = random(1, 13)
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay))
        optimizer = kind(model.parameters(), **options)
        tensors = {"parameters": model.weight.detach().clone()}
        gradients, steps = [], []
        for step in range(6):
            model.weight.grad = random(1, 13)
            optimizer.step()
            if step + 1 <= start:
                average.n_averaged.zero_()
            average.update_parameters(model)
            gradients.append(model.weight.grad.clone())
            steps.append(average.module.weight.detach().clone())
        return tensors | {"gradients": torch.stack(gradients), "average after each step": torch.stack(steps)}

    yield "sgd", case(torch.optim.SGD, 0.9, 0, lr=0.1)
    yield "sgd_momentum", case(torch.optim.SGD, 0.75, 3, lr=0.1, momentum=0.9)
    yield "adamw", case(torch.optim.AdamW, 0.5, 2, lr=0.05, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.3)


def muon():
    """torch.optim.Muon, whose iterations are made to run in double precision, not in bfloat16."""
    def case(rows, columns, **options):
        p = torch.nn.Parameter(random(rows, columns))
        tensors = {"parameters": p.detach().clone()}
        optimizer = torch.optim.Muon([p], **options)
        gradients, steps = [], []
        narrow, torch.bfloat16 = torch.bfloat16, torch.float64
        try:
            for _ in range(5):
                p.grad = random(rows, columns)
                optimizer.step()
                gradients.append(p.grad.clone())
                steps.append(p.detach().clone())
        finally:
            torch.bfloat16 = narrow
        return tensors | {"gradients": torch.stack(gradients), "after each step": torch.stack(steps)}

    yield "wide", case(5, 12, lr=0.05, weight_decay=0)
    yield "tall", case(12, 5, lr=0.05, weight_decay=0.3)
    yield "plain_momentum", case(7, 4, lr=0.05, momentum=0.8, nesterov=False, ns_steps=3, weight_decay=0)
    yield "match_adamw", case(6, 6, lr=0.05, adjust_lr_fn="match_rms_adamw", weight_decay=0.1)


def schedules():
    """Learning rates of optimizer steps, from the first on."""
    kinds = torch.optim.lr_scheduler

    def case(steps, rate, make):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
        schedule = make(optimizer)
        rates = []
        for _ in range(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return {"rates": torch.tensor(rates, dtype=torch.float64)}

    def one_cycle(steps, **options):
        # Past its end PyTorch refuses: it has a step more than is read.
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
        schedule = kinds.OneCycleLR(optimizer, max_lr=0.5, total_steps=steps, cycle_momentum=False, **options)
        rates = [optimizer.param_groups[0]["lr"]]
        for _ in range(steps - 1):
            optimizer.step()
            schedule.step()
            rates.append(optimizer.param_groups[0]["lr"])
        return {"rates": torch.tensor(rates, dtype=torch.float64)}

    yield "step", case(10, 0.4, lambda o: kinds.StepLR(o, step_size=3, gamma=0.5))
    yield "multi_step", case(10, 0.4, lambda o: kinds.MultiStepLR(o, milestones=[2, 5, 7], gamma=0.1))
    yield "linear", case(10, 0.4, lambda o: kinds.LinearLR(o, start_factor=1, end_factor=0.2, total_iters=9))
    yield "polynomial", case(10, 0.4, lambda o: kinds.PolynomialLR(o, total_iters=9, power=2.5))
    yield "cosine", case(10, 0.4, lambda o: kinds.CosineAnnealingLR(o, T_max=9, eta_min=0.01))
    yield "one_cycle", one_cycle(20)
    yield "one_cycle_linear", one_cycle(17, pct_start=0.25, anneal_strategy="linear", div_factor=10, final_div_factor=100)
    yield "one_cycle_three_phase", one_cycle(21, pct_start=0.4, three_phase=True)
    yield "stable_decay", case(20, 0.4, lambda o: kinds.SequentialLR(
        o, [kinds.LinearLR(o, start_factor=1 / 4, end_factor=1, total_iters=3), kinds.ConstantLR(o, factor=1),
            kinds.LinearLR(o, start_factor=1, end_factor=0.25, total_iters=6)], milestones=[4, 13]))


OF_OPTIM = [optimizers, late_gradients, averages, muon, schedules]
OPS = [linear, narrow_linear, conv2d, pool2d, global_pool2d, upsample2d, batch_norm, mean_squared_error, relu, gelu, silu, sigmoid, tanh, layer_norm,
       rms_norm, multiply, embedding, rotary_embedding, attention, lstm, softmax_cross_entropy, llama,
       *OF_OPTIM]


def write(op):
    folder = TESTS / ("optim" if op in OF_OPTIM else "ops") / "goldens"
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
