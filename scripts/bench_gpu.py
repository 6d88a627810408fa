#!/usr/bin/env python3
"""Compares training speed on one GPU with PyTorch, in one run: medians of interleaved rounds, and their ratios.

    scripts/bench_gpu.py [--python PYTHON_WITH_TORCH] [--lockstep build/release/bin/lockstep] [--rounds 3]
    scripts/bench_gpu.py --device cpu --tiny            # tries this script itself, on any machine

Measures in this order, round after round, as time allows:
- GPT-2 124M in bfloat16 at the first of the micro-batches of 1024 tokens, one micro-batch a step: lockstep, PyTorch eager and
  torch.compile (scripts/peers/pytorch_gpu.py says how they train). Model FLOPs utilization counts 6N + 6LCT operations a
  token (N: parameters without the position embeddings, which are in no product; causal attention is counted once, not
  twice), against the 989 TFLOP/s of H100's and H200's data sheets and against a bfloat16 product measured in the same run;
- steps of LeNet-5 and the MLP in float32, against eager, torch.compile and CUDA graphs;
- ceilings: a copy within the device's memory, and that product: by lockstep (kernel_benchmark) and by PyTorch;
- GPT-2 again at the first micro-batch, with precision.fused_gelu;
- once: convolutions of lockstep and of PyTorch, which uses cuDNN;
- GPT-2 at the other micro-batches.
Tokens per second count all steps but the first five. A step's time is a median over steps that end when the host has read
their loss, on all sides. lockstep reads the loss of every step, so its mean is over such steps, too; PyTorch's mean is over
steps that wait for nothing.

Batches: PyTorch has four, drawn before its first step, in pinned memory, so it never waits for one. lockstep generates
every batch anew, in threads beside the training. The image models, whose steps are short, have up to eight threads, 64
batches ahead. The comparison is fair if that is fast enough: each value of lockstep's comes with `data_wait_ms`, the mean
time that a step waited for its batch. The table of the image models has it in microseconds.

The time to the first step is from the start of a process, by the kernel's record, to the end of its first step with the loss
read. PyTorch has a process for each variant; torch.compile begins with an empty cache. lockstep's peak memory is its whole
plan, PyTorch's is the most that was allocated; neither counts the driver's memory. Without PyTorch, only lockstep is
measured. Each value is printed, and written to --json-out, as soon as it is known. SIGTERM ends the run like its time limit.
"""

import argparse
import json
import os
import select
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
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


def why_no_torch(python):
    """Nothing where this Python has PyTorch. Not imported, which takes long from a cold disk; whether it can be is told later."""
    probe = [python, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"]
    if shutil.which(python) and not subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode:
        return None
    return f"{python} has no PyTorch"


class Peer:
    """A PyTorch process; `missing` says why there is none."""

    def __init__(self, options, clock, cache):
        self.clock, self.missing, self.unread = clock, None, b""
        script = os.path.join(HERE, "peers", "pytorch_gpu.py")
        self.process = subprocess.Popen([options.python, script, "--device", options.device], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, bufsize=0, env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache})

    def ask(self, **request):
        if self.missing:
            return {"error": self.missing}
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            line = self.read_line()
        except BrokenPipeError:
            line = b""
        if line:
            return json.loads(line)
        self.missing = "PyTorch's process ended"
        return {"error": self.missing}

    def read_line(self):
        """The next line; empty if the process ended before its end. Raises OutOfTime if none comes in time.

        No thread looks after the time: a signal that ends this wait would leave it behind, and Python waits for threads.
        """
        while b"\n" not in self.unread:
            if select.select([self.process.stdout], [], [], self.clock.left())[0]:
                piece = self.process.stdout.read(65536)
                if not piece:
                    return b""
                self.unread += piece
        line, _, self.unread = self.unread.partition(b"\n")
        return line

    def close(self):
        """At once: who asked to stop has little patience, and there is nothing to be saved."""
        self.process.kill()
        self.process.wait()


class Benchmark:
    def __init__(self, options):
        self.options = options
        self.clock = Clock(options.time_limit)
        self.shape = TINY_GPT if options.tiny else GPT
        self.no_torch = why_no_torch(options.python)
        self.peers = {}                  # (family of models, variant) -> Peer
        self.cache = tempfile.TemporaryDirectory()
        self.values = {}                 # (what, who) -> list of replies
        self.failures = []

    def run_program(self, command):
        """What it prints, or {"error"}."""
        try:
            ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=self.clock.left(),
                                 check=False)
        except subprocess.TimeoutExpired:
            raise OutOfTime from None
        except OSError as error:
            return {"error": str(error)}
        if ran.returncode:
            return {"error": (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]}
        return {"lines": [json.loads(line) for line in ran.stdout.splitlines()]}

    def lockstep(self, config, batch, steps, overrides):
        path = os.path.join(HERE, "..", "configs", f"{config}.textproto")
        command = [self.options.lockstep, "train", path, "--json", "--quiet", "--device", self.options.device]
        overrides = [*overrides, f"trainer.global_batch={batch}", "trainer.virtual_replicas=1", f"trainer.steps={steps + 5}",
                     "trainer.eval_every_steps=0", "trainer.eval_at_end=false", "trainer.check_every_steps=0"]
        for override in overrides:
            command += ["--set", override]
        reply = self.run_program(command)
        if "error" in reply:
            return reply
        (result,) = reply["lines"]
        parts = {name: milliseconds / 1e3 for name, milliseconds in result["startup_parts_ms"].items()}
        return {**result, "step_us": result["step_ms"]["p50"] * 1e3, "first_step_s": result["first_step_ms"] / 1e3, "parts_s": parts}

    def lockstep_gpt(self, batch, fused_gelu=False):
        shape = self.shape
        model = " ".join(f"{name}: {shape[name]}" for name in ("vocabulary", "context", "layers", "heads", "width"))
        return self.lockstep("gpt2_124m", batch, self.steps(20),
                             [f"model.gpt={{{model}}}", f"data.synthetic.classes={shape['tokens']}", f"trainer.micro_batch={batch}",
                              f"precision.fused_gelu={str(fused_gelu).lower()}"])

    def lockstep_small(self, model):
        threads = max(1, min(8, len(os.sched_getaffinity(0)) - 1))
        return self.lockstep(f"mnist_{model}", SMALL_BATCH, self.steps(1000),
                             ["data.synthetic.classes=10", "data.synthetic.samples=9000", "data.synthetic.eval_samples=10",
                              f"data.prefetch_threads={threads}", "data.prefetch_depth=64"])

    def steps(self, count):
        return 5 if self.options.tiny else count

    def kernels(self, what):
        if not self.options.kernels:
            return {"error": "there is no kernel_benchmark for CPUs"}
        return self.run_program([*shlex.split(self.options.kernels), *(["--tiny"] if self.options.tiny else []), what])

    def ceilings(self):
        reply = self.kernels("ceilings")
        return reply if "error" in reply else reply["lines"][0]

    def torch(self, family, process, **request):
        """What this process answers; there is one for each variant, whose training is the first thing that it does."""
        if self.no_torch:
            return {"error": self.no_torch}
        if (family, process) not in self.peers:
            self.peers[family, process] = Peer(self.options, self.clock, self.cache.name)
        return self.peers[family, process].ask(**request)

    def train_torch(self, model, variant, batch, steps):
        return self.torch("gpt" if model == "gpt" else "small", variant, do="train", model=model, variant=variant, shape=self.shape,
                          batch=batch, steps=steps)

    def convolutions(self):
        """lockstep's, and PyTorch's of the same shapes as they come."""
        reply = self.kernels("convolutions")
        for own in reply.get("lines", []):
            self.keep(("convolution", own["name"], own["type"]), "lockstep", own)
        for own in reply.get("lines", []):
            key = ("convolution", own["name"], own["type"])
            self.keep(key, "cuDNN", self.torch("small", "eager", do="convolution", **own))
        return reply

    def gpt(self, batch):
        what, steps = ("gpt", batch), self.steps(20)
        yield what, "lockstep", lambda: self.lockstep_gpt(batch)
        yield what, "eager", lambda: self.train_torch("gpt", "eager", batch, steps)
        if not self.options.no_compile:
            yield what, "compile", lambda: self.train_torch("gpt", "compile", batch, steps)

    def small(self, model):
        yield model, "lockstep", lambda: self.lockstep_small(model)
        for variant in self.options.variants:
            yield model, variant, lambda v=variant: self.train_torch(model, v, SMALL_BATCH, self.steps(1000))

    def measurements(self, number):
        """(what, who, action) of a round; those without `who` keep what they measure by themselves."""
        size, count = (8192, 2 << 30) if self.options.device == "cuda" else (256, 4 << 20)
        yield from self.gpt(self.options.micro_batches[0])
        yield from self.small("lenet")
        yield from self.small("mlp")
        yield "ceilings", "lockstep's", self.ceilings
        yield "copy", "PyTorch's", lambda: self.torch("small", "eager", do="copy", bytes=count)
        yield "product", "PyTorch's", lambda: self.torch("small", "eager", do="product", size=size)
        if self.options.device == "cuda":
            largest = self.options.micro_batches[0]
            yield ("gpt", largest), "fused", lambda: self.lockstep_gpt(largest, fused_gelu=True)
        if number == 0:
            yield "convolutions", None, self.convolutions
        for batch in self.options.micro_batches[1:]:
            yield from self.gpt(batch)

    def keep(self, what, who, reply):
        if "error" in reply:
            self.failures.append((what, who, reply["error"]))
            return
        self.values.setdefault((what, who), []).append(reply)
        self.save()
        if isinstance(what, str) or what[0] != "convolution":
            print(f"{said(what)} {who}: {brief(reply)}", flush=True)

    def save(self):
        if not self.options.json_out:
            return
        with open(self.options.json_out + ".part", "w", encoding="utf-8") as file:
            json.dump([{"what": what, "who": who, "replies": replies} for (what, who), replies in self.values.items()], file, indent=1)
        os.replace(self.options.json_out + ".part", self.options.json_out)

    def run(self):
        try:
            for number in range(self.options.rounds):
                for what, who, action in self.measurements(number):
                    self.clock.left()
                    reply = action()
                    if who or "error" in reply:
                        self.keep(what, who or "lockstep's", reply)
                print(f"round {number + 1} of {self.options.rounds}, {self.clock.left():.0f} s left", flush=True)
        except OutOfTime:
            print(f"stopped by the time limit of {self.options.time_limit:.0f} s", flush=True)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)   # as in stop()
            for peer in self.peers.values():
                peer.close()
            self.cache.cleanup()

    def unmeasured(self):
        """What of lockstep's training has no value."""
        return [(what, who) for what, who, _ in self.measurements(0) if who == "lockstep" and (what, who) not in self.values]

    def failed(self):
        """Whether lockstep failed, or a time limit left no time for what comes first."""
        first = [("gpt", self.options.micro_batches[0]), "lenet", "mlp"]
        return any(who == "lockstep" for _, who, _ in self.failures) or any(what in first for what, _ in self.unmeasured())

    def median(self, what, who, field):
        values = [reply[field] for reply in self.values.get((what, who), []) if reply.get(field) is not None]
        return statistics.median(values) if values else None

    def first_step(self, what, who):
        """The first reply that has it: (seconds, parts)."""
        for reply in self.values.get((what, who), []):
            if "first_step_s" in reply:
                return reply["first_step_s"], reply["parts_s"]
        return None, {}


def said(what):
    return what if isinstance(what, str) else " x".join(str(word) for word in what)


def brief(reply):
    """One value's line while the run goes on."""
    words = [f"{reply[name]:.4g} {name}" for name in ("samples_per_second", "step_us", "data_wait_ms", "first_step_s", "copy_bytes_per_second",
                                                      "product_flops", "bytes_per_second", "flops") if reply.get(name) is not None]
    return ", ".join(words)


def cell(value, form):
    return format(value, form) if value is not None else "-"


def ratio(value, reference):
    return value / reference if value is not None and reference else None


def report_ceilings(bench):
    """The highest product, which the table of GPT is held against."""
    median = bench.median
    own = {"copy": median("ceilings", "lockstep's", "copy_bytes_per_second"), "product": median("ceilings", "lockstep's", "product_flops")}
    other = {"copy": median("copy", "PyTorch's", "bytes_per_second"), "product": median("product", "PyTorch's", "flops")}
    print()
    for who, values in (("lockstep", own), ("PyTorch", other)):
        print(f"ceilings by {who}: copy {cell(ratio(values['copy'], 1e12), '.2f')} TB/s read and written, "
              f"bfloat16 product {cell(ratio(values['product'], 1e12), '.1f')} TFLOP/s")
    return max((values["product"] for values in (own, other) if values["product"]), default=None)


def report_gpt(bench, product):
    shape, median = bench.shape, bench.median
    per_token = gpt_flops_per_token(shape)
    print(f"\nGPT: L={shape['layers']} C={shape['width']} T={shape['context']}, vocabulary {shape['vocabulary']}, "
          f"N={gpt_parameters(shape) - shape['context'] * shape['width']:,}: 6N + 6LCT = {per_token / 1e9:.4f} GFLOP a token; bfloat16")
    print(f"{'batch':>6}  {'':<9} {'tokens/s':>10} {'ms a step':>10} {'MFU':>6} {'of product':>10} {'peak GiB':>9} {'to eager':>9} "
          f"{'to compile':>10} {'rounds':>6}")
    summary = []
    for batch in bench.options.micro_batches:
        what = ("gpt", batch)
        people = ["lockstep", *(["fused"] if (what, "fused") in bench.values else []), "eager", "compile"]
        rates = {who: median(what, who, "samples_per_second") for who in people}
        for who, rate in rates.items():
            tokens = rate and rate * shape["context"]
            flops = tokens and tokens * per_token
            print(f"{batch:>6}  {who:<9} {cell(tokens, '.0f'):>10} {cell(ratio(median(what, who, 'step_us'), 1e3), '.2f'):>10} "
                  f"{cell(ratio(flops, DATA_SHEET_FLOPS), '.1%'):>6} {cell(ratio(flops, product), '.1%'):>10} "
                  f"{cell(ratio(median(what, who, 'peak_memory_bytes'), 1 << 30), '.2f'):>9} {cell(ratio(rate, rates['eager']), '.2f'):>9} "
                  f"{cell(ratio(rate, rates['compile']), '.2f'):>10} {len(bench.values.get((what, who), [])):>6}")
        summary.append(f"GPT x{batch} {cell(ratio(rates['lockstep'], rates['eager']), '.2f')} of eager, "
                       f"{cell(ratio(rates['lockstep'], rates['compile']), '.2f')} of compile")
    return summary


def report_small(bench):
    people = ("lockstep", "eager", "compile", "graph")
    print(f"\nmicroseconds a step of {SMALL_BATCH} samples, float32: median with each step's loss read; mean (PyTorch's without waiting)")
    print(f"  {'':<14}" + " ".join(f"{who:>9}" for who in people))
    summary = []
    for model in ("lenet", "mlp"):
        times = {who: bench.median(model, who, "step_us") for who in people}
        means = {who: ratio(SMALL_BATCH * 1e6, bench.median(model, who, "samples_per_second")) for who in people}
        for name, values in ((f"{model}, median", times), (f"{model}, mean", means)):
            print(f"  {name:<14}" + " ".join(f"{cell(value, '.1f'):>9}" for value in values.values()))
        waited = bench.median(model, "lockstep", "data_wait_ms")
        print(f"  {'waits for data':<14}{cell(waited and waited * 1e3, '.1f'):>10}")
        summary.append(f"{model} {cell(ratio(times['eager'], times['lockstep']), '.2f')} x eager")
    return summary


def report_first_steps(bench):
    print("\nseconds from a process's start to the end of its first step")
    for what in (("gpt", bench.options.micro_batches[0]), "lenet"):
        for who in ("lockstep", "eager", "compile"):
            seconds, parts = bench.first_step(what, who)
            listed = ", ".join(f"{name} {value:.2f}" for name, value in parts.items() if value >= 0.005)
            print(f"  {said(what):<8} {who:<9} {cell(seconds, '.2f'):>7}  {listed}".rstrip())


def report_convolutions(bench):
    measured = [what for what, who in bench.values if who == "lockstep" and what[0] == "convolution"]
    if not measured:
        return
    phases = ("forward_us", "input_gradient_us", "weight_gradient_us")
    print("\nconvolutions, channels last, microseconds of the device: lockstep, cuDNN by PyTorch (its fastest algorithm), cuDNN / lockstep")
    print(f"  {'':<27}{'forward':>24}{'input gradient':>26}{'weight gradient':>26}")
    for what in measured:
        cells = ""
        for phase in phases:
            own, other = bench.median(what, "lockstep", phase), bench.median(what, "cuDNN", phase)
            cells += f"{cell(own, '.1f'):>10}{cell(other, '.1f'):>9}{cell(ratio(other, own), '.2f'):>7}"
        print(f"  {what[1]:<16} {what[2]:<9}{cells}")


def report(bench):
    """Prints the tables; the last line sums up."""
    summary = report_gpt(bench, report_ceilings(bench)) + report_small(bench)
    report_first_steps(bench)
    report_convolutions(bench)
    if bench.no_torch:
        print(f"not measured: {bench.no_torch}")
    for what, who, error in dict.fromkeys(bench.failures):
        if error != bench.no_torch:
            print(f"not measured: {said(what)} {who}: {error}")
    told = {(what, who) for what, who, _ in bench.failures}
    for what, who in bench.unmeasured():
        if (what, who) not in told:
            print(f"not measured: {said(what)} {who}: no time was left")
    missing = "; PyTorch is MISSING" if bench.no_torch else ""
    print("; ".join(summary) + missing)


def stop(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)   # once is enough: what there is will be told
    raise OutOfTime


def whole_numbers(text):
    return [int(word) for word in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", default=os.path.join(HERE, "..", "build", "release", "bin", "lockstep"))
    parser.add_argument("--kernels", metavar="COMMAND", help="kernel_benchmark; default beside lockstep")
    parser.add_argument("--python", default=sys.executable, help="Python that has PyTorch")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--micro-batches", type=whole_numbers, metavar="LIST", help="default: 64,32,16; with --tiny: 4,2")
    parser.add_argument("--tiny", action="store_true", help="tiny models, few steps, one round")
    parser.add_argument("--no-compile", action="store_true", help="skip torch.compile")
    parser.add_argument("--time-limit", type=float, default=1800, metavar="SECONDS", help="stop then, and report what was measured")
    parser.add_argument("--json-out", metavar="FILE", help="file for every measured value")
    options = parser.parse_args()
    if options.tiny:
        options.rounds = 1
    options.micro_batches = options.micro_batches or ([4, 2] if options.tiny else [64, 32, 16])
    if options.device == "cuda":
        options.kernels = options.kernels or os.path.join(os.path.dirname(options.lockstep), "kernel_benchmark")
    options.variants = ["eager", *([] if options.no_compile else ["compile"]), *(["graph"] if options.device == "cuda" else [])]
    signal.signal(signal.SIGTERM, stop)
    bench = Benchmark(options)
    bench.run()
    report(bench)
    return 1 if bench.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
