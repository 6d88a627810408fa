#!/usr/bin/env python3
"""Finds out on a GPU what speed alone does not show: prints a part of gpu_probe as a table.

    scripts/gpu_probe.py PART [--probe build/release/bin/gpu_probe] [--python PYTHON_WITH_TORCH]

products      GPT-2's products by each of cuBLASLt's first eight algorithms, which of them lockstep uses, and what cuBLASLt
              refuses, with or without epilogue
attention     lockstep's attention and PyTorch's scaled_dot_product_attention of the same shape, by cuDNN and by flash
              attention; also deterministic
convolutions  ResNet-50's convolutions, and those of cuDNN (cudnn_probe, beside gpu_probe), also deterministic; and whether
              cuDNN writes gradients of weights as float32
launches      what launches, stream writes, events, graphs and pinning cost the host and the stream

The last line is the part's main figure. Exit code 1: something of lockstep itself failed; 77: there is no GPU. If PyTorch or
cuDNN is MISSING, only lockstep is measured. The time limit, or SIGTERM, ends the run; earlier results are printed.
"""

import argparse
import glob
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time

from bench_gpu import HERE, Clock, OutOfTime, Peer, cell, ratio, stop, why_no_torch

FIGURE_LENGTH = 100
PHASES = ("forward", "input_gradient", "weight_gradient")


class Output:
    """The JSON lines that a program prints, as far as it came."""

    def __init__(self):
        self.lines = []
        self.pending = b""    # the beginning of a line
        self.code = None      # none: it was stopped
        self.problem = ""     # the last thing that it said on stderr

    def collect(self, command, clock, environment=None):
        with tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment)
            except OSError as error:
                self.code, self.problem = 127, str(error)
                return self
            try:
                while self._read(process.stdout, clock):
                    pass
                self.code = process.wait(timeout=clock.left())
            except subprocess.TimeoutExpired:
                raise OutOfTime from None
            finally:
                process.kill()
                process.wait()
                self._read_the_rest(process.stdout)
                errors.seek(0)
                self.problem = (errors.read().decode(errors="replace").strip().splitlines() or [""])[-1]
        return self

    def _read(self, pipe, clock):
        """Whether there may be more. A process that the program has started may keep the pipe open: what comes in time counts."""
        if not select.select([pipe], [], [], clock.left())[0]:
            raise OutOfTime
        return self._take(os.read(pipe.fileno(), 65536))

    def _read_the_rest(self, pipe):
        """What was written before the program was ended."""
        with pipe:
            os.set_blocking(pipe.fileno(), False)
            try:
                while self._take(os.read(pipe.fileno(), 65536)):
                    pass
            except BlockingIOError:
                pass

    def _take(self, data):
        *whole, self.pending = (self.pending + data).split(b"\n")
        for line in whole:
            try:
                self.lines += [json.loads(line)] if line.startswith(b"{") else []
            except ValueError:       # cut off, or mixed with another message: the others count
                self.problem = self.problem or f"a line is damaged: {line[:60]!r}"
        return bool(data)

    def why(self):
        return self.problem or f"exit code {self.code}"


class Probe:
    """One part: what was measured, and what became of it."""

    def __init__(self, options):
        self.options, self.clock = options, Clock(options.time_limit)
        self.own, self.cudnn = Output(), Output()
        self.torch = []            # (what was asked, reply)
        self.missing = ""          # of the peers
        self.is_cut_short = False

    def run(self):
        try:
            self.own.collect([*shlex.split(self.options.probe), self.options.part, *self.tiny()], self.clock)
            if self.lines() and self.options.part == "attention":
                self.ask_torch()
            elif self.lines() and self.options.part == "convolutions":
                self.run_cudnn()
        except OutOfTime:
            self.is_cut_short = True
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)   # what there is will be told

    def tiny(self):
        return ["--tiny"] if self.options.tiny else []

    def lines(self):
        """lockstep's, without the first one, which tells of the device."""
        return self.own.lines[1:]

    def failures(self):
        found = [f"{line['name'] if 'name' in line else said_attention(line)}: {line['error']}" for line in self.lines() if "error" in line]
        if self.own.code not in (0, 1, None) or (self.own.code == 1 and not found):
            found.append(self.own.why())
        if not self.lines() and not found:
            found.append("nothing was measured")
        return found

    def ask_torch(self):
        self.missing = why_no_torch(self.options.python) or ""
        if self.missing:
            return
        with tempfile.TemporaryDirectory() as cache:
            peer = Peer(self.options, self.clock, cache)
            try:
                for request in self.requests():
                    self.torch.append((request, peer.ask(do="attention", **request)))
            finally:
                self.missing = peer.missing or ""
                peer.close()

    def requests(self):
        shape = {name: self.lines()[0][name] for name in ("batch", "heads", "positions", "head_size")}
        for dropout, deterministic in ((0, False), (0, True), (0.1, False)):
            for backend in ("cudnn", "flash"):
                yield {**shape, "backend": backend, "deterministic": deterministic, "dropout": dropout}

    def run_cudnn(self):
        output = self.cudnn.collect([*shlex.split(self.options.cudnn), *self.tiny()], self.clock,
                                    with_cuda_libraries(self.options.python))
        if output.code != 0:
            self.missing = output.why()


def with_cuda_libraries(python):
    """The environment, in which the loader looks for cuDNN and what that loads in CUDA's folders and in those of Python's packages,
    after all others."""
    namespace = "import nvidia; print(*nvidia.__path__, sep='\\n')"
    try:
        packages = subprocess.run([python, "-c", namespace], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        roots = packages.stdout.splitlines()
    except OSError:
        roots = []
    folders = [os.environ.get("LD_LIBRARY_PATH", ""), *glob.glob("/usr/local/cuda*/lib64")]
    for root in roots:
        folders += glob.glob(os.path.join(root, "*", "lib"))
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(folder for folder in folders if folder)}


def said_attention(line):
    return f"dropout {line['dropout']:g}" if line["dropout"] else "no dropout"


def total_ms(lines, time):
    """Of a step: `time` in microseconds of each, as often as the model has it."""
    return sum(line["count"] * (time(line) or 0) for line in lines) / 1e3


# A report of each part prints its table and returns its figure.


def taken(line):
    return next((each for each in line.get("candidates", []) if each["taken"] and "us" in each), None)


def fastest(line):
    return min((each for each in line.get("candidates", []) if "us" in each), key=lambda each: each["us"], default=None)


def us_of(candidate):
    return candidate["us"] if candidate else None


def report_products(probe):
    products = [line for line in probe.lines() if "name" in line]
    print("products of GPT-2, bfloat16: microseconds; the algorithm that lockstep takes (TFLOP/s, workspace, waves), the fastest one, "
          "and all that cuBLASLt offers, its favourite first")
    print(f"  {'':<30}{'epilogue':>9}{'taken':>9}{'TFLOP/s':>9}{'MiB':>6}{'waves':>7}{'fastest':>9}{'':>5}  all")
    for line in products:
        own, best = taken(line) or {}, fastest(line) or {}
        everything = [cell(each.get("us"), ".0f") for each in line.get("candidates", [])]
        rank = f"#{line['candidates'].index(best) + 1}" if best else ""
        workspace = ratio(own.get("workspace_bytes"), 1 << 20)
        print(f"  {line['name']:<30}{line.get('epilogue', '-'):>9}{cell(own.get('us'), '.1f'):>9}{cell(own.get('tflops'), '.0f'):>9}"
              f"{cell(workspace, '.0f'):>6}{cell(own.get('waves'), '.1f'):>7}{cell(best.get('us'), '.1f'):>9}{rank:>5}  {' '.join(everything)}")
    report_algorithms(products)
    asked = next((line for line in probe.lines() if "asked" in line), {"asked": 0, "refused": [], "epilogue_refused": []})
    for what, names in (("refused", asked["refused"]), ("refused with its epilogue", asked["epilogue_refused"])):
        for name in names:
            print(f"  {what}: {name}")
    return products_figure(products, asked)


def report_algorithms(products):
    """Of those whose fastest algorithm is not the one that is taken."""
    for line in products:
        own, best = taken(line), fastest(line)
        if own and own is not best:
            print(f"  {line['name']}: taken {own['algorithm']}; fastest {best['algorithm']}")


def products_figure(products, asked):
    plain = [line for line in products if not line["fused"]]
    fused = {line["name"].partition(",")[0]: line for line in products if line["fused"]}
    with_fused = [fused.get(line["name"], line) for line in plain]
    as_taken = total_ms(plain, lambda line: us_of(taken(line)))
    best = total_ms(plain, lambda line: us_of(fastest(line)))
    return (f"{as_taken:.1f} ms a step, by the fastest {best:.1f}; fused_gelu {total_ms(with_fused, lambda line: us_of(taken(line))):.1f}; "
            f"refused {len(asked['refused'])} of {asked['asked']}, epilogues {len(asked['epilogue_refused'])}")


def attention_row(name, reply, flops, reference):
    forward, backward = reply.get("forward_us"), reply.get("backward_us")
    both = forward + backward if forward and backward else None
    print(f"  {name:<28}{cell(forward, '.1f'):>9}{cell(ratio(flops, (forward or 0) * 1e6), '.0f'):>6}"
          f"{cell(backward, '.1f'):>11}{cell(ratio(2.5 * flops, (backward or 0) * 1e6), '.0f'):>6}{cell(both, '.1f'):>11}"
          f"{cell(ratio(both, reference), '.2f'):>7}{'  ' + reply['error'][:60] if 'error' in reply else ''}")
    return both


def report_attention(probe):
    first = next((line for line in probe.lines() if "backward_us" in line), None)
    if first is None:
        return "nothing was measured"
    flops = first["forward_flops"]
    print(f"causal attention of {first['batch']} x {first['heads']} heads, {first['positions']} positions of {first['head_size']}, bfloat16")
    print(f"  {'':<28}{'forward':>9}{'TF/s':>6}{'backward':>11}{'TF/s':>6}{'both, us':>11}{'ratio':>7}")
    own = {}
    for line in probe.lines():
        own[line["dropout"]] = attention_row(f"lockstep, {said_attention(line)}", line, flops, own.get(0))
    times = {}
    for request, reply in probe.torch:
        name = f"{'cuDNN' if request['backend'] == 'cudnn' else 'flash'}, {'deterministic' if request['deterministic'] else said_attention(request)}"
        times[name] = attention_row(name, reply, flops, own.get(request["dropout"]))
    figure = f"{own[0] / 1e3:.2f} ms" if own.get(0) else "- ms"
    for name in ("cuDNN, no dropout", "cuDNN, deterministic", "flash, no dropout", "flash, deterministic"):
        if not probe.missing:
            figure += f"; {name.replace(', no dropout', '').replace(', deterministic', ' determ.')} {cell(ratio(times.get(name), 1e3), '.2f')}"
    return figure


def report_convolutions(probe):
    other = {line["name"]: line for line in probe.cudnn.lines[1:]}
    print("convolutions of ResNet-50, 64 images, NHWC, bfloat16: microseconds of lockstep's columns and products (always deterministic), "
          "cuDNN's, and cuDNN's deterministic ones")
    print(f"  {'':<22}{'forward':>24}{'input gradient':>24}{'weight gradient':>24}{'float32 gradient':>18}")
    for line in probe.lines():
        peer = other.get(line["name"], {})
        cells = ""
        for phase in PHASES:
            cells += f"{cell(line.get(phase + '_us'), '.0f'):>10}{plan_cells(peer.get(phase))}"
        print(f"  {line['name']:<22}{cells}{plan_cells(peer.get('float32_weight_gradient')):>18}")
    refused = [(phase, plan["why"]) for line in other.values() for phase, plan in line.items() if phase != "name" and "why" in plan]
    for phase, why in dict.fromkeys(refused):
        print(f"  {phase.replace('_', ' ')} not computed by cuDNN: {why}")
    return convolutions_figure(probe.lines(), other)


def plan_cells(plan):
    return f"{cell((plan or {}).get('us'), '.0f'):>7}{cell((plan or {}).get('deterministic_us'), '.0f'):>7}"


def convolutions_figure(lines, other):
    own, by_larger = (total_ms(lines, lambda line, of=of: sum(line.get(f"{phase}_{of}") or 0 for phase in PHASES))
                      for of in ("us", "by_64_mib_us"))
    figure = f"{own:.1f} ms a step" + (f", by 64 MiB {by_larger:.1f}" if by_larger else "")
    if len(other) < len(lines):
        return figure + (f"; cuDNN did {len(other)} of {len(lines)} shapes" if other else "")

    def time(kind):
        return total_ms(lines, lambda line: sum(other[line["name"]].get(phase, {}).get(kind) or 0 for phase in PHASES))

    wide = [line["float32_weight_gradient"] for line in other.values()]
    counts = [sum(kind in plan for plan in wide) for kind in ("us", "deterministic_us")]
    return (figure + f"; cuDNN {time('us'):.1f} ({cell(ratio(time('us'), own), '.2f')}), deterministic {time('deterministic_us'):.1f}; "
            f"float32 dW {counts[0]} of {len(wide)}, determ. {counts[1]}")


def report_launches(probe):
    print("microseconds of a call: for the host while the stream is held up, and of the stream")
    print(f"  {'':<44}{'host':>9}{'stream':>9}")
    for line in probe.lines():
        rest = {name: value for name, value in line.items() if name not in ("name", "host_us", "stream_us", "gated", "error")}
        notes = [f"{name} {str(value).lower() if isinstance(value, bool) else value}" for name, value in rest.items()]
        if line.get("gated") is False:
            notes.append("the host had to wait for the stream")
        print(f"  {line['name']:<44}{cell(line.get('host_us'), '.2f'):>9}{cell(line.get('stream_us'), '.2f'):>9}  {', '.join(notes)}")
    return launches_figure({line["name"]: line for line in probe.lines()})


def launches_figure(lines):
    def pair(name):
        line = lines.get(name, {})
        return f"{cell(line.get('host_us'), '.1f')} + {cell(line.get('stream_us'), '.1f')}"

    def fact(name, field, yes="yes", no="no"):
        value = lines.get(name, {}).get(field)
        return "-" if value is None else (yes if value else no)

    graph = lines.get("graph, empty kernels: 1000", {}).get("stream_us")
    queue = lines.get("queue, empty kernels", {})
    fit = "-" if "fit" not in queue else f"{'>' if queue['all_fit'] else ''}{queue['fit']}"
    name = "empty kernel" if "empty kernel" in lines else "kernel of 64 sums"
    return (f"launch {pair(name)} us, write {pair('stream write')} (works: {fact('stream write', 'works')}, "
            f"captured: {fact('graph of 100 stream writes', 'works')}), in graphs {cell(ratio(graph, 1000), '.1f')}, queue {fit}")


REPORTS = {"products": report_products, "attention": report_attention, "convolutions": report_convolutions, "launches": report_launches}


def report(probe):
    """Prints the table; returns the exit code."""
    if probe.own.code == 77:
        print(f"no GPU: {probe.own.why()}"[:FIGURE_LENGTH])
        return 77
    for line in probe.own.lines[:1] + probe.cudnn.lines[:1]:
        print(", ".join(str(value) for value in line.values()))
    figure = REPORTS[probe.options.part](probe)
    failures = probe.failures()
    for failure in failures:
        print(f"failed: {failure}")
    if probe.missing:
        peer = "PyTorch" if probe.options.part == "attention" else "cuDNN"
        print(f"{peer} is MISSING: {probe.missing}")
        figure = f"{figure}; {peer} is MISSING"
    if probe.is_cut_short:
        figure = f"cut short; {figure}"
    if failures:
        figure = f"{len(failures)} failed; {figure}"
    print(figure[:FIGURE_LENGTH])
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=tuple(REPORTS))
    parser.add_argument("--probe", metavar="COMMAND", default=os.path.join(HERE, "..", "build", "release", "bin", "gpu_probe"))
    parser.add_argument("--cudnn", metavar="COMMAND", help="cudnn_probe; default beside gpu_probe")
    parser.add_argument("--python", default=sys.executable, help="Python that has PyTorch")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="device of PyTorch")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to try this script")
    parser.add_argument("--time-limit", type=float, default=55, metavar="SECONDS", help="stop then, and report what was measured")
    options = parser.parse_args()
    if not options.cudnn:
        *before, program = shlex.split(options.probe)
        options.cudnn = shlex.join([*before, os.path.join(os.path.dirname(program), "cudnn_probe")])
    signal.signal(signal.SIGTERM, stop)
    probe = Probe(options)
    probe.run()
    return report(probe)


if __name__ == "__main__":
    sys.exit(main())
