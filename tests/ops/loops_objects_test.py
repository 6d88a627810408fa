#!/usr/bin/env python3
"""Compiles the loops of src/ops/cpu/loops and src/optim/loops for several processors and reads the objects: no scalar fused multiply-add, which
is what compilers make of vectors that they do not like, no symbol that the linker could merge with one that was compiled
for another processor, and nothing that runs before main, on whatever processor that is.

    tests/ops/loops_objects_test.py COMPILER OPTIONS..."""

import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parents[2]
LOOPS = [ROOT / "src/ops/cpu/loops", ROOT / "src/optim/loops"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
# Each with what stands for it where a compiler does not know the name.
PROCESSORS = {
    "x86-64": (["-march=x86-64"],),
    "x86-64-v3": (["-march=x86-64-v3"], ["-mavx2", "-mfma"]),
    "skylake-avx512": (["-march=skylake-avx512"], ["-mavx2", "-mfma", *AVX512]),
    "icelake-server": (["-march=icelake-server"], ["-mavx2", "-mfma", *AVX512]),
    "znver4": (["-march=znver4"], ["-march=znver3", *AVX512]),
}
SCALAR = re.compile(r"\tvfn?m(add|sub)\d+ss\s")
PACKED = re.compile(r"\tvfn?m(add|sub)\d+ps\s")
FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")


def run(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def compiled(compiler, options, source, target):
    return run(compiler, "-std=c++20", f"-I{ROOT}/include", f"-I{ROOT}/src", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden",
               *options, "-c", str(source), "-o", target)


def problems_of(name, path):
    """What is wrong with an object; and how many packed multiply-adds it has."""
    scalar, packed, function = collections.Counter(), 0, "?"
    for line in run("objdump", "-dC", "--no-show-raw-insn", path).stdout.splitlines():
        if match := FUNCTION.match(line):
            function = match.group(1)
        scalar[function] += bool(SCALAR.search(line))
        packed += bool(PACKED.search(line))
    found = [f"{name}: {count} scalar multiply-adds in {function}" for function, count in scalar.items() if count > 0]
    if re.search(r"\s\.(init_array|ctors)", run("objdump", "-h", path).stdout):
        found.append(f"{name}: runs something before main")
    for line in run("objdump", "-tC", path).stdout.splitlines():
        # Weak, defined, and not in a namespace of this instruction set alone.
        if re.match(r"^[0-9a-f]+ .w", line) and "*UND*" not in line and not re.search(r"lockstep::(ops::|optim::)?(avx512|avx2|portable)::", line):
            found.append(f"{name}: others may define it, too: {line.strip()}")
    return found, packed


def look_at(compiler, options, processor, source, folder):
    target = os.path.join(folder, f"{processor}.{source.stem}.o")
    name = f"{source.name} for {processor}"
    for flags in PROCESSORS[processor]:
        tried = compiled(compiler, [*options, *flags], source, target)
        if tried.returncode == 0:
            return problems_of(name, target)
    return [f"{name} does not compile:\n{tried.stdout}"], 0


def main():
    if shutil.which("objdump") is None:
        print("objdump is missing: nothing was looked at")
        return SKIPPED
    compiler, options = sys.argv[1], sys.argv[2:]
    sources = [source for folder in LOOPS for source in sorted(folder.glob("*.cpp")) if source.name != "loops.cpp"]
    problems, packed = [], dict.fromkeys(PROCESSORS, 0)
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        work = [(processor, source) for processor in PROCESSORS for source in sources]
        results = pool.map(lambda item: look_at(compiler, options, *item, folder), work)
        for (processor, _), (found, count) in zip(work, results):
            problems += found
            packed[processor] += count
    problems += [f"{processor}: no packed multiply-add: this test does not see them" for processor in packed
                 if packed[processor] == 0 and processor != "x86-64"]
    print("\n".join(problems) or f"{len(work)} objects, packed multiply-adds: " + ", ".join(f"{p} {n}" for p, n in packed.items()))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
