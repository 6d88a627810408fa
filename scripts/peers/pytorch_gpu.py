#!/usr/bin/env python3
"""PyTorch as the peer of scripts/bench_gpu.py and scripts/gpu_probe.py: a process that reads one request a line and answers
each by a line, both JSON.

    {"do": "train", "model": "gpt" | "lenet" | "mlp", "variant": "eager" | "compile" | "graph", "shape": {...}, "batch": 16,
     "steps": 20}                -> {"samples_per_second", "step_us", "peak_memory_bytes", "first_step_s", "parts_s": {...}}
    {"do": "copy", "bytes": N}   -> {"bytes_per_second"}, bytes read and bytes written both counted
    {"do": "product", "size": N} -> {"flops"}, of bfloat16 matrices of random numbers
    {"do": "convolution", "type": "float32" | "tf32" | "bfloat16", "batch", "side", "channels", "out_channels", "kernel",
     "padding"}                  -> {"forward_us", "input_gradient_us", "weight_gradient_us"}
    {"do": "attention", "backend": "cudnn" | "flash", "deterministic": true, "batch", "heads", "positions", "head_size", "dropout"}
                                 -> {"forward_us", "backward_us"}

GPT trains in bfloat16 by autocast, with scaled_dot_product_attention and fused AdamW; the image models in float32 without
TF32, with fused Adam. "compile": torch.compile of forward and loss, in its default mode for GPT and with CUDA graphs
(mode="reduce-overhead") for the image models. "graph": the whole step is one CUDA graph. A step copies its batch from pinned
memory. Behind five steps that do not count, `samples_per_second` is of steps of which none waits for the one before;
`step_us` is the median of steps of which each ends when the host has read its loss. `first_step_s`: from this process's start
to the end of its first step with the loss read; only the reply to a process's first request to train has it.
Convolutions are cuDNN's, by the fastest of its algorithms, in channels-last memory. Attention is causal, of bfloat16 tensors in
which a position's heads lie side by side, as a linear layer writes them.
"""

import argparse
import json
import os
import statistics
import sys
import time

BEGAN = time.perf_counter()

import torch
import torch.nn as nn
import torch.nn.functional as F

from pytorch_models import Gpt, lenet, mlp

IMPORTED = time.perf_counter()
UNTIMED = 5
BATCHES = 4          # different ones, taken in turn


def process_age():
    """Seconds since the kernel started this process, to a clock tick."""
    with open("/proc/self/stat", encoding="utf-8") as file:
        started = float(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


class Training:
    """A model with its optimizer, for any batch size."""

    def __init__(self, device, model, shape):
        self.device, self.shape, self.compiled = device, shape, None
        on_gpu = device == "cuda"
        if model == "gpt":
            size = {name: shape[name] for name in ("vocabulary", "context", "layers", "heads", "width")}
            self.model = Gpt(**size).to(device)
            for module in self.model.modules():
                if isinstance(module, (nn.Linear, nn.Embedding)):
                    nn.init.normal_(module.weight, std=0.02)
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=on_gpu)
        else:
            self.model = (mlp() if model == "mlp" else lenet()).to(device)
            # Graphs keep the number of steps on the device; it costs the other variants nothing.
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=on_gpu, capturable=on_gpu)
        self.is_gpt = model == "gpt"

    def batches(self, batch):
        if self.is_gpt:
            size = (batch, self.shape["context"] + 1)
            tokens = [torch.randint(self.shape["tokens"], size) for _ in range(BATCHES)]
            pairs = [(t[:, :-1].contiguous(), t[:, 1:].contiguous()) for t in tokens]
        else:
            pairs = [(torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))) for _ in range(BATCHES)]
        return [tuple(t.pin_memory() for t in pair) for pair in pairs] if self.device == "cuda" else pairs

    def to_device(self, *tensors):
        return [tensor.to(self.device, non_blocking=True) for tensor in tensors]

    def loss(self, x, y):
        with torch.autocast(self.device, torch.bfloat16, enabled=self.is_gpt):
            logits = self.model(x)
            return F.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))

    def step(self, loss, x, y):
        """The loss, in the device's memory."""
        self.optimizer.zero_grad(set_to_none=True)
        value = loss(x, y)
        value.backward()
        if self.is_gpt:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return value.detach()

    def stepper(self, variant, batch):
        """A function of a batch in the host's memory."""
        if variant == "eager":
            return lambda x, y: self.step(self.loss, *self.to_device(x, y))
        if variant == "compile":
            # What compiling imports takes seconds that are none of eager's.
            mode = "default" if self.is_gpt or self.device == "cpu" else "reduce-overhead"
            self.compiled = self.compiled or torch.compile(self.loss, dynamic=False, mode=mode)

            def compiled_step(x, y):
                torch.compiler.cudagraph_mark_step_begin()
                return self.step(self.compiled, *self.to_device(x, y))

            return compiled_step
        static = [t.to(self.device) for t in self.batches(batch)[0]]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step(self.loss, *static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            loss = self.step(self.loss, *static)

        def replay(x, y):
            static[0].copy_(x, non_blocking=True)
            static[1].copy_(y, non_blocking=True)
            graph.replay()
            return loss

        return replay


class Worker:
    def __init__(self, device):
        self.device, self.trainings = device, {}

    def finish(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def train(self, request):
        model, batch, steps = request["model"], request["batch"], request["steps"]
        is_first, asked = not self.trainings, time.perf_counter()
        if is_first and self.device == "cuda":
            torch.cuda.init()
            torch.zeros(1, device="cuda")
        context = time.perf_counter()
        if model not in self.trainings:
            self.trainings[model] = Training(self.device, model, request["shape"])
        training = self.trainings[model]
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        step, batches = training.stepper(request["variant"], batch), training.batches(batch)
        self.finish()
        made = time.perf_counter()
        step(*batches[0]).item()
        reply = {}
        if is_first:
            end, age = time.perf_counter(), process_age()
            parts = {"start": age - (end - BEGAN), "import": IMPORTED - BEGAN, "wait": asked - IMPORTED, "device": context - asked,
                     "model": made - context, "first_step": end - made}
            # Waiting for the request is the caller's time.
            reply = {"first_step_s": age - parts.pop("wait"), "parts_s": parts}
        for i in range(1, UNTIMED):
            step(*batches[i % BATCHES])
        self.finish()
        begin = time.perf_counter()
        for i in range(steps):
            step(*batches[i % BATCHES])
        self.finish()
        seconds = time.perf_counter() - begin
        times = [time.perf_counter()]
        for i in range(steps):
            step(*batches[i % BATCHES]).item()
            times.append(time.perf_counter())
        latency = statistics.median(after - before for before, after in zip(times, times[1:]))
        peak = torch.cuda.max_memory_allocated() if self.device == "cuda" else None
        del step
        training.optimizer.zero_grad(set_to_none=True)
        return {"samples_per_second": steps * batch / seconds, "step_us": 1e6 * latency, "peak_memory_bytes": peak, **reply}

    def median_seconds(self, action):
        """Of one call, as the device counts it: rounds of ten, behind one that does not count. As kernel_benchmark."""
        times = []
        for _ in range(6):
            if self.device == "cuda":
                events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                events[0].record()
            begin = time.perf_counter()
            for _ in range(10):
                action()
            if self.device == "cuda":
                events[1].record()
                torch.cuda.synchronize()
                times.append(events[0].elapsed_time(events[1]) / 1e4)
            else:
                times.append((time.perf_counter() - begin) / 10)
        return statistics.median(times[1:])

    def copy(self, request):
        source = torch.randint(127, (request["bytes"],), dtype=torch.int8, device=self.device)
        target = torch.empty_like(source)
        return {"bytes_per_second": 2 * request["bytes"] / self.median_seconds(lambda: target.copy_(source))}

    def product(self, request):
        size = request["size"]
        a, b = (torch.randn(size, size, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        c = torch.empty_like(a)
        return {"flops": 2 * size**3 / self.median_seconds(lambda: torch.matmul(a, b, out=c))}

    def convolution(self, request):
        kind = {"device": self.device, "dtype": torch.bfloat16 if request["type"] == "bfloat16" else torch.float32}
        size = request["side"] + 2 * request["padding"] - request["kernel"] + 1
        x, w, dy = (torch.randn(*shape, **kind).to(memory_format=torch.channels_last) for shape in (
            (request["batch"], request["channels"], request["side"], request["side"]),
            (request["out_channels"], request["channels"], request["kernel"], request["kernel"]),
            (request["batch"], request["out_channels"], size, size)))
        padding = [request["padding"]] * 2

        def gradient(mask):
            return lambda: torch.ops.aten.convolution_backward(dy, x, w, None, [1, 1], padding, [1, 1], False, [0, 0], 1, mask)

        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, request["type"] == "tf32"
        try:
            with torch.no_grad():
                return {"forward_us": 1e6 * self.median_seconds(lambda: F.conv2d(x, w, padding=padding)),
                        "input_gradient_us": 1e6 * self.median_seconds(gradient([True, False, False])),
                        "weight_gradient_us": 1e6 * self.median_seconds(gradient([False, True, False]))}
        finally:
            torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = False, False

    def attention(self, request):
        from torch.nn.attention import SDPBackend, sdpa_kernel   # not in PyTorch before 2.3, which can do the rest

        size = [request[name] for name in ("batch", "positions", "heads", "head_size")]
        q, k, v = (torch.randn(size, device=self.device, dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for _ in range(3))
        backend = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}[request["backend"]]

        def forward():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=request["dropout"])

        torch.use_deterministic_algorithms(request["deterministic"])
        torch.utils.deterministic.fill_uninitialized_memory = False    # or outputs would be written twice
        try:
            with sdpa_kernel(backend):
                output = forward()
                gradient = torch.randn_like(output)
                return {"forward_us": 1e6 * self.median_seconds(forward),
                        "backward_us": 1e6 * self.median_seconds(
                            lambda: torch.autograd.grad(output, (q, k, v), gradient, retain_graph=True))}
        finally:
            torch.use_deterministic_algorithms(False)

    def answer(self, request):
        action = {"train": self.train, "copy": self.copy, "product": self.product, "convolution": self.convolution,
                  "attention": self.attention}[request["do"]]
        reply = action(request)
        if self.device == "cuda":
            torch.cuda.empty_cache()     # for lockstep, which runs in between
        return reply


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(1)
    worker = Worker(options.device)
    for line in sys.stdin:
        try:
            reply = worker.answer(json.loads(line))
        except Exception as error:       # a variant that does not work is told, and the next is tried
            reply = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
