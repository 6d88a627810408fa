#!/usr/bin/env python3
"""PyTorch as scripts/bench_gpu.py's peer: a process that reads one request a line and answers each by a line, both JSON.

    {"do": "train", "model": "gpt" | "lenet" | "mlp", "variant": "eager" | "compile" | "graph", "shape": {...}, "batch": 16,
     "steps": 20}                -> {"samples_per_second", "peak_memory_bytes", "first_step_s"}
    {"do": "copy", "bytes": N}   -> {"bytes_per_second"}, bytes read and bytes written both counted
    {"do": "product", "size": N} -> {"flops"}, of bfloat16 matrices of random numbers

GPT trains in bfloat16 by autocast, with scaled_dot_product_attention and fused AdamW; the image models in float32 without
TF32, with fused Adam. A step copies its batch from pinned memory; the loss is not read. "graph": the whole step is one CUDA
graph. Each timing begins behind five steps more.
"""

import argparse
import json
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from pytorch_train import Gpt, lenet, mlp

UNTIMED = 5
BATCHES = 4          # different ones, taken in turn


class Training:
    """A model with its optimizer, for any batch size."""

    def __init__(self, device, model, shape):
        self.device, self.shape = device, shape
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
        self.compiled = torch.compile(self.loss, dynamic=False)

    def batches(self, batch):
        if self.is_gpt:
            size = (batch, self.shape["context"] + 1)
            tokens = [torch.randint(self.shape["tokens"], size) for _ in range(BATCHES)]
            pairs = [(t[:, :-1].contiguous(), t[:, 1:].contiguous()) for t in tokens]
        else:
            pairs = [(torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))) for _ in range(BATCHES)]
        return [tuple(t.pin_memory() for t in pair) for pair in pairs] if self.device == "cuda" else pairs

    def loss(self, x, y):
        with torch.autocast(self.device, torch.bfloat16, enabled=self.is_gpt):
            logits = self.model(x)
            return F.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))

    def step(self, loss, x, y):
        self.optimizer.zero_grad(set_to_none=True)
        loss(x, y).backward()
        if self.is_gpt:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def stepper(self, variant, batch):
        """A function of a batch in the host's memory."""
        if variant != "graph":
            loss = self.compiled if variant == "compile" else self.loss
            return lambda x, y: self.step(loss, x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True))
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
            self.step(self.loss, *static)

        def replay(x, y):
            static[0].copy_(x, non_blocking=True)
            static[1].copy_(y, non_blocking=True)
            graph.replay()

        return replay


class Worker:
    def __init__(self, device):
        self.device, self.trainings = device, {}

    def finish(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def train(self, request):
        model, batch, steps = request["model"], request["batch"], request["steps"]
        if model not in self.trainings:
            self.trainings[model] = Training(self.device, model, request["shape"])
        training = self.trainings[model]
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        step, batches = training.stepper(request["variant"], batch), training.batches(batch)
        step(*batches[0])
        self.finish()
        first = time.perf_counter() - begin
        for i in range(1, UNTIMED):
            step(*batches[i % BATCHES])
        self.finish()
        begin = time.perf_counter()
        for i in range(steps):
            step(*batches[i % BATCHES])
        self.finish()
        seconds = time.perf_counter() - begin
        peak = torch.cuda.max_memory_allocated() if self.device == "cuda" else None
        del step
        training.optimizer.zero_grad(set_to_none=True)
        return {"samples_per_second": steps * batch / seconds, "peak_memory_bytes": peak, "first_step_s": first}

    def median_seconds(self, action):
        times = []
        for _ in range(8):
            begin = time.perf_counter()
            for _ in range(4):
                action()
            self.finish()
            times.append((time.perf_counter() - begin) / 4)
        return sorted(times[2:])[3]

    def copy(self, request):
        source = torch.randint(127, (request["bytes"],), dtype=torch.int8, device=self.device)
        target = torch.empty_like(source)
        return {"bytes_per_second": 2 * request["bytes"] / self.median_seconds(lambda: target.copy_(source))}

    def product(self, request):
        size = request["size"]
        a, b = (torch.randn(size, size, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        c = torch.empty_like(a)
        return {"flops": 2 * size**3 / self.median_seconds(lambda: torch.matmul(a, b, out=c))}

    def answer(self, request):
        reply = {"train": self.train, "copy": self.copy, "product": self.product}[request["do"]](request)
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
