#!/usr/bin/env python3
"""Training speed on one GPU beside PyTorch, in one run: interleaved, medians, and their ratios.

    scripts/bench_gpu.py [--python PYTHON_WITH_TORCH] [--lockstep build/release/bin/lockstep] [--rounds 3]
    scripts/bench_gpu.py --device cpu --tiny            # tries this script itself, on any machine

Measures
- GPT-2 124M in bfloat16 at several micro-batches of 1024 tokens, one micro-batch a step: lockstep, PyTorch eager and
  torch.compile (scripts/peers/pytorch_gpu.py says how they train). Model FLOPs utilization counts 6N + 6LCT operations a
  token (N: parameters without the position embeddings, which are in no product; causal attention is counted once, not
  twice), against the 989 TFLOP/s of H100's and H200's data sheets and against a bfloat16 product measured in the same run;
- the latency of small steps: LeNet-5 and the MLP in float32, against eager and CUDA graphs;
- ceilings: a copy within the device's memory, and that product;
- the time from starting a program to the end of its first step. lockstep's takes a typical step for the first. PyTorch's
  includes its import; torch.compile's is what it takes on top of that, with whatever its cache holds.
lockstep's peak memory is its whole plan, PyTorch's what was allocated at most; neither counts what the driver takes. Without
PyTorch lockstep is measured alone.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
DATA_SHEET_FLOPS = 989e12
GPT = {"vocabulary": 50304, "tokens": 50257, "context": 1024, "layers": 12, "heads": 12, "width": 768}
TINY_GPT = {"vocabulary": 128, "tokens": 100, "context": 32, "layers": 2, "heads": 2, "width": 32}
SMALL_BATCH = 64


def gpt_parameters(shape):
    c = shape["width"]
    return shape["vocabulary"] * c + shape["context"] * c + shape["layers"] * (12 * c * c + 13 * c) + 2 * c


def gpt_flops_per_token(shape):
    n = gpt_parameters(shape) - shape["context"] * shape["width"]
    return 6 * n + 6 * shape["layers"] * shape["width"] * shape["context"]


class OutOfTime(Exception):
    pass


class Clock:
    """What is left of the time limit."""

    def __init__(self, limit):
        self.end = time.monotonic() + limit

    def left(self):
        left = self.end - time.monotonic()
        if left < 1:
            raise OutOfTime
        return left


class Peer:
    """The PyTorch process; `missing` says why there is none."""

    def __init__(self, options, clock):
        self.clock, self.missing, self.began = clock, None, time.monotonic()
        script = os.path.join(HERE, "peers", "pytorch_gpu.py")
        probe = [options.python, "-c", "import torch"]
        if not shutil.which(options.python) or subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode:
            self.missing = f"{options.python} has no PyTorch"
            return
        self.began = time.monotonic()
        self.process = subprocess.Popen([options.python, script, "--device", options.device], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        if self.missing:
            return {"error": self.missing}
        timer = threading.Timer(self.clock.left(), self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if line:
            return json.loads(line)
        self.clock.left()
        self.missing = "PyTorch's process ended"
        return {"error": self.missing}

    def close(self):
        if not hasattr(self, "process"):
            return
        try:
            self.process.stdin.close()
            self.process.wait(20)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()


class Benchmark:
    def __init__(self, options):
        self.options = options
        self.clock = Clock(options.time_limit)
        self.shape = TINY_GPT if options.tiny else GPT
        self.peer = Peer(options, self.clock)
        self.first_eager_s = None
        self.values = {}                 # (what, who) -> list of replies
        self.failures = []

    def lockstep(self, config, batch, steps, overrides):
        path = os.path.join(HERE, "..", "configs", f"{config}.textproto")
        command = [self.options.lockstep, "train", path, "--json", "--quiet", "--device", self.options.device]
        overrides = [*overrides, f"trainer.global_batch={batch}", "trainer.virtual_replicas=1", f"trainer.steps={steps + 5}",
                     "trainer.eval_every_steps=0", "trainer.eval_at_end=false", "trainer.check_every_steps=0"]
        for override in overrides:
            command += ["--set", override]
        try:
            ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=self.clock.left(),
                                 check=False)
        except subprocess.TimeoutExpired:
            raise OutOfTime from None
        except OSError as error:
            return {"error": str(error)}
        if ran.returncode:
            return {"error": (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]}
        reply = json.loads(ran.stdout)
        reply["first_step_s"] = (reply["startup_ms"] + reply["step_ms"]["p50"]) / 1e3
        return reply

    def lockstep_gpt(self, batch):
        shape = self.shape
        model = " ".join(f"{name}: {shape[name]}" for name in ("vocabulary", "context", "layers", "heads", "width"))
        return self.lockstep("gpt2_124m", batch, self.steps(20),
                             [f"model.gpt={{{model}}}", f"data.synthetic.classes={shape['tokens']}", f"trainer.micro_batch={batch}"])

    def lockstep_small(self, model):
        return self.lockstep(f"mnist_{model}", SMALL_BATCH, self.steps(1000),
                             ["data.synthetic.classes=10", "data.synthetic.samples=9000", "data.synthetic.eval_samples=10"])

    def steps(self, count):
        return 5 if self.options.tiny else count

    def torch(self, model, variant, batch, steps):
        reply = self.peer.ask(do="train", model=model, variant=variant, shape=self.shape, batch=batch, steps=steps)
        if self.first_eager_s is None and "error" not in reply:
            self.first_eager_s = reply["first_step_s"] + self.peer_import_s
        return reply

    def measurements(self):
        """(what, who, action) in the order of one round."""
        on_gpu = self.options.device == "cuda"
        size, count = (8192, 2 << 30) if on_gpu else (256, 4 << 20)
        for batch in self.options.micro_batches:
            what, steps = ("gpt", batch), self.steps(20)
            yield what, "lockstep", lambda b=batch: self.lockstep_gpt(b)
            yield what, "eager", lambda b=batch, s=steps: self.torch("gpt", "eager", b, s)
            if not self.options.no_compile:
                yield what, "compile", lambda b=batch, s=steps: self.torch("gpt", "compile", b, s)
        for model in ("lenet", "mlp"):
            yield model, "lockstep", lambda m=model: self.lockstep_small(m)
            for variant in ("eager", "graph") if on_gpu else ("eager",):
                yield model, variant, lambda m=model, v=variant: self.torch(m, v, SMALL_BATCH, self.steps(1000))
        yield "copy", "device", lambda: self.peer.ask(do="copy", bytes=count)
        yield "product", "device", lambda: self.peer.ask(do="product", size=size)

    def run(self):
        try:
            # Of a process that has done nothing yet: what PyTorch takes until it answers at all.
            self.peer.ask(do="copy", bytes=1 << 10)
            self.peer_import_s = time.monotonic() - self.peer.began
            for number in range(self.options.rounds):
                for what, who, action in self.measurements():
                    reply = action()
                    if "error" in reply:
                        self.failures.append((what, who, reply["error"]))
                    else:
                        self.values.setdefault((what, who), []).append(reply)
                print(f"round {number + 1} of {self.options.rounds}, {self.clock.left():.0f} s left", file=sys.stderr, flush=True)
        except OutOfTime:
            print(f"stopped by the time limit of {self.options.time_limit:.0f} s", flush=True)
        finally:
            self.peer.close()

    def unmeasured(self):
        """What of lockstep itself has no value."""
        return [(what, who) for what, who, _ in self.measurements() if who == "lockstep" and (what, who) not in self.values]

    def median(self, what, who, field):
        values = [reply[field] for reply in self.values.get((what, who), []) if reply.get(field) is not None]
        return statistics.median(values) if values else None


def cell(value, form):
    return format(value, form) if value is not None else "-"


def ratio(value, reference):
    return value / reference if value is not None and reference else None


def report(bench):
    """Prints the tables; the last line sums up."""
    shape, median = bench.shape, bench.median
    product = median("product", "device", "flops")
    per_token = gpt_flops_per_token(shape)
    print(f"ceilings: copy {cell(ratio(median('copy', 'device', 'bytes_per_second'), 1e12), '.2f')} TB/s read and written, "
          f"bfloat16 product {cell(ratio(product, 1e12), '.1f')} TFLOP/s")
    print(f"\nGPT: L={shape['layers']} C={shape['width']} T={shape['context']}, vocabulary {shape['vocabulary']}, "
          f"N={gpt_parameters(shape) - shape['context'] * shape['width']:,}: 6N + 6LCT = {per_token / 1e9:.4f} GFLOP a token; bfloat16")
    print(f"{'batch':>6}  {'':<9} {'tokens/s':>10} {'MFU':>6} {'of product':>10} {'peak GiB':>9} {'to eager':>9} {'to compile':>10} "
          f"{'rounds':>6}")
    summary = []
    for batch in bench.options.micro_batches:
        rates = {who: median(("gpt", batch), who, "samples_per_second") for who in ("lockstep", "eager", "compile")}
        for who, rate in rates.items():
            tokens = rate and rate * shape["context"]
            flops = tokens and tokens * per_token
            memory = median(("gpt", batch), who, "peak_memory_bytes")
            print(f"{batch:>6}  {who:<9} {cell(tokens, '.0f'):>10} {cell(ratio(flops, DATA_SHEET_FLOPS), '.1%'):>6} "
                  f"{cell(ratio(flops, product), '.1%'):>10} {cell(ratio(memory, 1 << 30), '.2f'):>9} "
                  f"{cell(ratio(rate, rates['eager']), '.2f'):>9} "
                  f"{cell(ratio(rate, rates['compile']), '.2f'):>10} {len(bench.values.get((('gpt', batch), who), [])):>6}")
        summary.append(f"GPT x{batch} {cell(ratio(rates['lockstep'], rates['eager']), '.2f')} of eager, "
                       f"{cell(ratio(rates['lockstep'], rates['compile']), '.2f')} of compile")
    print(f"\nmicroseconds a step of {SMALL_BATCH} samples, float32: lockstep, eager, CUDA graph")
    for model in ("lenet", "mlp"):
        times = {who: ratio(SMALL_BATCH * 1e6, median(model, who, "samples_per_second")) for who in ("lockstep", "eager", "graph")}
        print(f"  {model:<6} " + " ".join(f"{cell(value, '.1f'):>9}" for value in times.values()))
        summary.append(f"{model} {cell(ratio(times['eager'], times['lockstep']), '.2f')} x eager")
    smallest = ("gpt", bench.options.micro_batches[0])
    compiled = bench.values.get((smallest, "compile"), [{}])[0].get("first_step_s")
    print(f"\nseconds to the first step of GPT x{smallest[1]}: lockstep {cell(median(smallest, 'lockstep', 'first_step_s'), '.2f')}, "
          f"eager {cell(bench.first_eager_s, '.2f')}, compile {cell(compiled, '.2f')} more")
    if bench.peer.missing:
        print(f"not measured: {bench.peer.missing}")
    for what, who, error in dict.fromkeys(bench.failures):
        if error != bench.peer.missing:
            print(f"not measured: {what} {who}: {error}")
    told = {(what, who) for what, who, _ in bench.failures}
    for what, who in bench.unmeasured():
        if (what, who) not in told:
            print(f"not measured: {what} {who}: no time was left")
    print("; ".join(summary))


def whole_numbers(text):
    return [int(word) for word in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", default=os.path.join(HERE, "..", "build", "release", "bin", "lockstep"))
    parser.add_argument("--python", default=sys.executable, help="one that has PyTorch")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--micro-batches", type=whole_numbers, metavar="LIST", help="default 16,32,64; with --tiny 2,4")
    parser.add_argument("--tiny", action="store_true", help="a model of nothing, few steps, one round")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--time-limit", type=float, default=1800, metavar="SECONDS", help="stop, and report what there is")
    parser.add_argument("--json-out", metavar="FILE", help="every measured value")
    options = parser.parse_args()
    if options.tiny:
        options.rounds = 1
    options.micro_batches = options.micro_batches or ([2, 4] if options.tiny else [16, 32, 64])
    bench = Benchmark(options)
    bench.run()
    report(bench)
    if options.json_out:
        with open(options.json_out, "w", encoding="utf-8") as file:
            json.dump([{"what": what, "who": who, "replies": replies} for (what, who), replies in bench.values.items()], file, indent=1)
    return 1 if bench.unmeasured() or any(who == "lockstep" for _, who, _ in bench.failures) else 0


if __name__ == "__main__":
    sys.exit(main())
