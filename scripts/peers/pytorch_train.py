#!/usr/bin/env python3
"""The models of configs/ in PyTorch (pytorch_models.py), trained for a number of steps on random data; prints samples per
second.

    pytorch_train.py MODEL STEPS [--compile] [--processes N] [--threads T] [--evaluate]

With several processes: DistributedDataParallel over gloo. --evaluate: forward and loss alone, without gradients. The first
fifth of the steps, in which --compile compiles, is not counted. What scripts/bench_train.py measures lockstep against.
"""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn

from pytorch_models import MODELS, loss_of


def one_step(network, x, y, peer, parameters, optimizer, evaluates):
    if evaluates:
        with torch.no_grad():
            return loss_of(network, x, y).item()
    loss = loss_of(network, x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if peer.clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters, peer.clip_norm)
    optimizer.step()
    return loss.item()


def train(rank, options):
    torch.manual_seed(rank)
    torch.set_num_threads(options.threads)
    if options.processes > 1:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", str(options.port))
        dist.init_process_group("gloo", rank=rank, world_size=options.processes)
    peer = MODELS[options.model]
    model = peer.make()
    x, y = peer.sample(peer.batch // options.processes)
    optimizer, parameters = peer.optimizer(model.parameters()), list(model.parameters())
    if options.evaluate:
        model.eval()
    network = nn.parallel.DistributedDataParallel(model) if options.processes > 1 else model
    if options.compile:
        network = torch.compile(network)
    counted_from, begin = max(1, options.steps // 5), 0.0
    for step in range(options.steps):
        if step == counted_from:
            begin = time.perf_counter()
        one_step(network, x, y, peer, parameters, optimizer, options.evaluate)
    elapsed = time.perf_counter() - begin
    if rank == 0:
        print(f"{(options.steps - counted_from) * peer.batch / elapsed:.2f}", flush=True)
    if options.processes > 1:
        dist.barrier()
        sys.stdout.flush()
        # gloo's threads, if they are still there when Python ends, may abort a process that has done all its work.
        os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("steps", type=int)
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--port", type=int, default=29511)
    options = parser.parse_args()
    if options.steps < 2:
        sys.exit("pytorch_train.py: takes at least two steps, of which the first is not counted")
    if options.processes == 1:
        train(0, options)
    else:
        mp.spawn(train, args=(options,), nprocs=options.processes)


if __name__ == "__main__":
    main()
