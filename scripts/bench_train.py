#!/usr/bin/env python3
"""Compares the speed of training, evaluation and generation on this machine's CPUs with PyTorch, eager and compiled, and JAX,
in one run: medians of interleaved rounds, and the ratio to the fastest peer, as the Markdown tables of docs/results.md.

    scripts/bench_train.py --data-dir DATA [--python PYTHON_WITH_TORCH_AND_JAX] [--lockstep build/release/bin/lockstep]
                           [--rounds 5] [--only MODEL ...] [--parts train evaluate generate] [--quick]

All train the model, batch and optimizer of configs/<model>.textproto on data in memory (cifar_resnet18: batches of 32);
lockstep uses synthetic data of the same shapes. REPRODUCIBLE divides the batch into the config's virtual_replicas. "one" is
one process of one thread, "two" two processes (MPI; DistributedDataParallel over gloo; no JAX). "light" is the share of
the time of a step of one process under FAST that its operations would take at the rates of the core's multiply-adds and
memory (docs/timeline.md, the speed of light). Evaluation is forward and loss.
Generation continues a prompt within the context, one token after the other; there the peer is generate() of transformers, with
a cache of keys and values, from the same weights, both choosing the most probable token. Peers that are not installed are left
out. DATA holds tinyshakespeare.txt, which only generation needs. --quick: few steps, to try the script out.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

from measure_targets import ENVIRONMENT

HERE = pathlib.Path(__file__).resolve().parent
# By model: steps of a measurement, classes or different tokens of synthetic data, further settings.
MODELS = {
    "mnist_mlp": (1500, 10, []),
    "mnist_lenet": (300, 10, []),
    "shakespeare_gpt": (100, 65, []),
    "cifar_resnet18": (12, 10, ["trainer.global_batch=32", "trainer.virtual_replicas=4", "optimizer.learning_rate=0.01"]),
    "shakespeare_lstm": (40, 65, []),
    "shakespeare_llama": (100, 65, []),
}
BATCH = {"mnist_mlp": 64, "mnist_lenet": 64, "shakespeare_gpt": 12, "cifar_resnet18": 32, "shakespeare_lstm": 32,
         "shakespeare_llama": 12}
WRITERS = ("shakespeare_gpt", "shakespeare_llama")   # of those that write text, transformers knows
PROMPT, WRITTEN = "ROMEO:\n", 57   # together the context of 64

# By the name of the column: script, module that it needs, flags, whether it runs with several processes.
PEERS = {"PyTorch": ("pytorch_train.py", "torch", [], True), "torch.compile": ("pytorch_train.py", "torch", ["--compile"], True),
         "JAX": ("jax_train.py", "jax", [], False)}
REDUCTIONS = ("FAST", "REPRODUCIBLE")


def steps_of(options, model):
    return max(10, MODELS[model][0] // 20) if options.quick else MODELS[model][0]


def run_lockstep(options, arguments, processes=1, **more):
    command = [options.lockstep, *arguments]
    if processes > 1:
        command = ["mpirun", "-n", str(processes)] + command
    run = subprocess.run(command, env={**os.environ, **ENVIRONMENT, "CUDA_VISIBLE_DEVICES": "", "XDG_CACHE_HOME": options.cache},
                         stdout=subprocess.PIPE, text=True, check=False, **more)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {run.returncode}")
    return run.stdout


def training(model, samples, settings):
    classes, more = MODELS[model][1:]
    arguments = ["train", str(HERE.parent / "configs" / f"{model}.textproto"), "--json", "--quiet", "--device", "cpu"]
    if model == "cifar_resnet18":  # whose data are files that are not here
        more = ["data.transforms=[]", "data.eval_transforms=[]", *more]
    for setting in [f"data.synthetic.classes={classes}", f"data.synthetic.samples={samples}", *more, *settings]:
        arguments += ["--set", setting]
    return arguments


def lockstep_trains(options, model, processes, reduction):
    """(samples per second, share of the speed of light if it is known)."""
    settings = ["data.synthetic.eval_samples=10", f"trainer.steps={steps_of(options, model)}", "trainer.eval_every_steps=0",
                "trainer.eval_at_end=false", f"parallel.reduction={reduction}"]
    report = json.loads(run_lockstep(options, training(model, 9000, settings), processes))
    return report["samples_per_second"], share_of_light(report)


def share_of_light(report):
    """The field speed_of_light of a report, wherever it stands; None in runs that are too short."""
    if isinstance(report, dict):
        if "speed_of_light" in report:
            return report["speed_of_light"]
        report = list(report.values())
    if isinstance(report, list):
        for value in report:
            if (found := share_of_light(value)) is not None:
                return found
    return None


def lockstep_evaluates(options, model):
    samples = BATCH[model] * steps_of(options, model)
    settings = [f"data.synthetic.eval_samples={samples}", "trainer.steps=1", "trainer.eval_every_steps=0", "trainer.eval_at_end=true",
                "checkpoint.at_end=false"]
    with tempfile.TemporaryDirectory() as folder:
        run_lockstep(options, training(model, 1000, settings) + ["--out", folder + "/run"])
        lines = [json.loads(line) for line in pathlib.Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return samples / [line["eval_ms"] for line in lines if "eval_ms" in line][-1] * 1000


def peer_rate(options, model, name, processes=1, evaluates=False):
    script, _, flags, _ = PEERS[name]
    command = [options.python, str(HERE / "peers" / script), model, str(steps_of(options, model)), *flags]
    if processes > 1:
        command += ["--processes", str(processes)]
    if evaluates:
        command += ["--evaluate"]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def installed_peers(options):
    found = []
    for name, (_, module, _, _) in PEERS.items():
        if subprocess.run([options.python, "-c", f"import {module}"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            found.append(name)
        else:
            print(f"{name}: {options.python} has no {module}; left out", file=sys.stderr)
    return found


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        facts = dict(map(str.strip, line.split(":", 1)) for line in file if ":" in line)
    sets = [name for name, flag in (("AVX2", "avx2"), ("AVX-512", "avx512f")) if flag in facts.get("flags", "").split()]
    family = f", family {facts['cpu family']} model {facts['model']}" if "cpu family" in facts else ""
    return f"{facts.get('model name', platform.machine())}{family}, {', '.join(sets) or 'neither AVX2 nor AVX-512'}"


def medians(options, measurements):
    """The median of each, whose rounds take turns."""
    rates = {name: [] for name in measurements}
    for _ in range(options.rounds):
        for name, measure in measurements.items():
            rates[name].append(measure())
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {name: statistics.median(samples) for name, samples in rates.items()}


def rate_text(rate):
    return "" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def row(*cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def head(*cells):
    row(*cells)
    print("|" + "---|" * len(cells), flush=True)


def ratio(rate, found, peers):
    best = max((found[name] for name in peers if name in found), default=None)
    return "" if best is None else f"{rate / best:.2f}"


def train_table(options, models, peers):
    head("Training, samples/s", "processes", *PEERS, "FAST", "ratio", "REPRODUCIBLE", "ratio", "light")
    for model in models:
        for processes in options.processes:
            shares = []

            def ours(reduction, model=model, processes=processes, shares=shares):
                rate, share = lockstep_trains(options, model, processes, reduction)
                if reduction == "FAST" and share is not None:
                    shares.append(share)
                return rate

            measurements = {name: lambda name=name: peer_rate(options, model, name, processes)
                            for name in peers if processes == 1 or PEERS[name][3]}
            measurements |= {reduction: lambda reduction=reduction: ours(reduction) for reduction in REDUCTIONS}
            found = medians(options, measurements)
            cells = [rate_text(found.get(name)) for name in PEERS]
            for reduction in REDUCTIONS:
                cells += [rate_text(found[reduction]), ratio(found[reduction], found, peers)]
            share = f"{statistics.median(shares):.0%}" if shares and processes == 1 else ""
            name = f"`{model}`, batch {BATCH[model]}" if processes == options.processes[0] else ""
            row(name, "one" if processes == 1 else "two", *cells, share)


def evaluation_table(options, models, peers):
    head("Evaluation, samples/s, one process", *PEERS, "lockstep", "ratio")
    for model in models:
        measurements = {name: lambda name=name: peer_rate(options, model, name, evaluates=True) for name in peers}
        found = medians(options, measurements | {"lockstep": lambda: lockstep_evaluates(options, model)})
        row(f"`{model}`", *(rate_text(found.get(name)) for name in PEERS), rate_text(found["lockstep"]),
            ratio(found["lockstep"], found, peers))


def prepare_writer(options, model, folder):
    """A checkpoint of few steps, and what transformers reads of it."""
    run, out = folder / f"{model}-run", folder / f"{model}-hf"
    run_lockstep(options, ["train", str(HERE.parent / "configs" / f"{model}.textproto"), "--data-dir", options.data_dir, "--out",
                           str(run), "--quiet", "--device", "cpu", "--set", "trainer.steps=20", "--set", "trainer.eval_at_end=false"])
    run_lockstep(options, ["export", str(run), "--format", "huggingface", "--out", str(out)])
    return run, out


def lockstep_writes(options, run):
    """Tokens per second: what some more texts take, without the start."""
    def seconds(samples):
        begin = time.perf_counter()
        run_lockstep(options, ["generate", "--checkpoint", str(run), "--prompt", PROMPT, "--tokens", str(WRITTEN), "--samples",
                               str(samples), "--temperature", "0", "--threads", "1", "--json"])
        return time.perf_counter() - begin
    more = 20 if options.quick else 200
    return more * WRITTEN / (seconds(more + 1) - seconds(1))


def transformers_writes(options, out):
    script = f"""
import time, torch, transformers
torch.set_num_threads(1)
model = transformers.AutoModelForCausalLM.from_pretrained({str(out)!r}).eval()
prompt = torch.arange({len(PROMPT)})[None]
write = lambda: model.generate(prompt, min_new_tokens={WRITTEN}, max_new_tokens={WRITTEN}, do_sample=False, use_cache=True,
                               attention_mask=torch.ones_like(prompt), pad_token_id=0)
write()
begin, times = time.perf_counter(), {3 if options.quick else 20}
for _ in range(times):
    write()
print(times * {WRITTEN} / (time.perf_counter() - begin))
"""
    run = subprocess.run([options.python, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
                         env={**os.environ, "HF_HUB_OFFLINE": "1"})
    return float(run.stdout)


def generation_table(options, models):
    if subprocess.run([options.python, "-c", "import transformers"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        print(f"generation: {options.python} has no transformers; left out", file=sys.stderr)
        return
    head("Generation, tokens/s, one thread", "transformers", "lockstep", "ratio")
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            run, out = prepare_writer(options, model, pathlib.Path(folder))
            found = medians(options, {"transformers": lambda: transformers_writes(options, out),
                                      "lockstep": lambda: lockstep_writes(options, run)})
            row(f"`{model}`", rate_text(found["transformers"]), rate_text(found["lockstep"]),
                f"{found['lockstep'] / found['transformers']:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--lockstep", default="build/release/bin/lockstep")
    parser.add_argument("--data-dir", help="folder of tinyshakespeare.txt")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=MODELS, nargs="+")
    parser.add_argument("--parts", choices=("train", "evaluate", "generate"), nargs="+", default=("train", "evaluate", "generate"))
    parser.add_argument("--processes", type=int, nargs="+", choices=(1, 2), default=(1, 2))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    models = options.only or list(MODELS)
    writers = [model for model in WRITERS if model in models]
    if "generate" in options.parts and writers and not options.data_dir:
        sys.exit("bench_train.py: generation needs --data-dir DATA with tinyshakespeare.txt; leave it out by --parts train evaluate")
    with tempfile.TemporaryDirectory() as options.cache:
        version = run_lockstep(options, ["--version"]).splitlines()[0]
        print(f"{processor()}. {version}, medians of {options.rounds}\n", flush=True)
        run_lockstep(options, ["bench", "--json"], stderr=subprocess.DEVNULL)   # keeps the machine's rates for the shares of them
        peers = installed_peers(options)
        if "train" in options.parts:
            train_table(options, models, peers)
        if "evaluate" in options.parts:
            print()
            evaluation_table(options, models, peers)
        if "generate" in options.parts and writers:
            print()
            generation_table(options, writers)


if __name__ == "__main__":
    main()
