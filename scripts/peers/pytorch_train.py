#!/usr/bin/env python3
"""The models of configs/ in PyTorch, trained for a number of steps on random data; prints samples per second.

    pytorch_train.py MODEL STEPS [--compile] [--processes N] [--threads T]

MODEL: mnist_mlp, mnist_lenet, shakespeare_gpt. With several processes: DistributedDataParallel over gloo. The first fifth
of the steps, in which --compile compiles, is not counted. What scripts/bench_train.py measures lockstep against.
"""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def lenet():
    return nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.attn(self.ln_1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocabulary=65, context=64, layers=4, heads=4, width=128):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.wte.weight
        self.register_buffer("positions", torch.arange(context))

    def forward(self, tokens):
        return self.head(self.ln_f(self.blocks(self.wte(tokens) + self.wpe(self.positions))))


def setup(name, samples):
    if name == "shakespeare_gpt":
        model = Gpt()
        x, y = torch.randint(65, (samples, 64)), torch.randint(65, (samples, 64))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, foreach=True)
    else:
        model = mlp() if name == "mnist_mlp" else lenet()
        x, y = torch.randn(samples, 1, 28, 28), torch.randint(10, (samples,))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)
    return model, x, y, optimizer


BATCH = {"mnist_mlp": 64, "mnist_lenet": 64, "shakespeare_gpt": 12}


def train(rank, options):
    torch.manual_seed(rank)
    torch.set_num_threads(options.threads)
    if options.processes > 1:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", str(options.port))
        dist.init_process_group("gloo", rank=rank, world_size=options.processes)
    batch = BATCH[options.model]
    model, x, y, optimizer = setup(options.model, batch // options.processes)
    network = nn.parallel.DistributedDataParallel(model) if options.processes > 1 else model
    if options.compile:
        network = torch.compile(network)
    counted_from, begin = options.steps // 5, 0.0
    for step in range(options.steps):
        if step == counted_from:
            begin = time.perf_counter()
        logits = network(x)
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if options.model == "shakespeare_gpt":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
    elapsed = time.perf_counter() - begin
    if rank == 0:
        print(f"{(options.steps - counted_from) * batch / elapsed:.1f}", flush=True)
    if options.processes > 1:
        dist.barrier()
        sys.stdout.flush()
        # gloo's threads, if they are still there when Python ends, may abort a process that has done all its work.
        os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(BATCH))
    parser.add_argument("steps", type=int)
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--port", type=int, default=29511)
    options = parser.parse_args()
    if options.processes == 1:
        train(0, options)
    else:
        mp.spawn(train, args=(options,), nprocs=options.processes)


if __name__ == "__main__":
    main()
