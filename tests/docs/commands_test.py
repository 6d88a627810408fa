#!/usr/bin/env python3
"""Runs the commands that README.md, docs and examples show, as they stand there, one file after the other in a folder of its own.

    tests/docs/commands_test.py [FILE]...

What stands for a name (FOLDER, DIR, DATA, CONFIG) is filled in; trainings stop after a few steps, and sweeps are made short, by a
program of the same name that passes on to the real one. Data of others is read from LOCKSTEP_TEST_DATA; where it is not there, such
commands are skipped, and what is about GPUs in a build without code for them. What is not run stands in NOT_RUN with its reason: a command that is neither run nor there fails.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = os.environ.get("LOCKSTEP_PROGRAM", str(ROOT / "build" / "release" / "bin" / "lockstep"))
DATA = pathlib.Path(os.environ.get("LOCKSTEP_TEST_DATA", ROOT.parent / "shared" / "data"))
LIMIT_S = 240
# Words that begin a command; other indented lines are output, or files.
COMMAND = re.compile(r"(~/\S+|\$lockstep|build/release/bin/lockstep|lockstep|mpirun|launcher/lockstep-run|scripts/\S+|cmake|examples/\S+\.sh|sbatch|srun|kubectl|docker|podman|sudo|apt-get|dpkg)\s")
OUTPUT = re.compile(r"lockstep(-run)?:")
NOT_RUN = {
    r"scripts/(quickstart|test|install_dependencies|package)\.sh": "builds or installs: .ci/run and tests of their own do it",
    r"scripts/(bench|measure|gpu|make|write)_": "takes long, or needs a GPU or PyTorch",
    r"scripts/two_hosts\.sh": "tests/launcher/two_hosts_test.py does it",
    r"scripts/slurm_cluster\.sh": "tests/launcher/slurm_test.py does it",
    r"~/lockstep/": "tests/launcher/install_test.py installs elsewhere",
    r"cmake ": ".ci/run builds",
    r"lockstep train \| eval": "names the commands",
    r"examples/\w+/run\.sh": "tests/examples/examples_test.py runs them",
    r"mpirun -n 2 --host a,b": "needs two hosts",
    r"launcher/lockstep-run .*(--hostfile|--host )": "needs several hosts; tests/launcher does it with stand-ins",
    r".*gpt2_124m\.textproto (--out|--device cuda)": "needs GPUs",
    r"(sbatch|srun|kubectl|docker|podman|sudo|apt-get|dpkg) ": "needs a cluster, or changes the machine",
}
# May end with other codes than 0: what is refused, and what warns (of being root).
EXPECTED = {r"lockstep train configs/too_large\.textproto$": [2], r".*lockstep doctor": [0, 1]}
SMALL = """
model { mlp { image: [4, 4, 1] hidden: [8] classes: 3 } }
data { synthetic { samples: 240 eval_samples: 50 classes: 3 } }
trainer { global_batch: 24 virtual_replicas: 4 steps: 12 seed: 1 }
optimizer { learning_rate: 0.05 sgd { momentum: 0.9 } }
"""
# Passes on to the real program, with less to do.
SHORT = r"""#!%s
import os, sys
words, program, data = sys.argv[1:], %r, %r
command = words[0] if words else ""
def replaced(option, value):
    if option in words:
        words[words.index(option) + 1] = value
    else:
        words.extend([option, value])
if command == "train":
    replaced("--stop-after", "12" if "--resume" in words else "6")
    words.extend(["--set", "metrics.log_every_steps=1"])
    if any(word.startswith("metrics.noise_scale_every_steps=") for word in words):
        words.extend(["--set", "metrics.noise_scale_every_steps=1"])
elif command == "data" and words[1:2] == ["mnist"]:
    replaced("--from", data + "/mnist")
elif command == "data" and words[1:2] == ["shakespeare"]:
    replaced("--from", data + "/tinyshakespeare.txt")
elif command == "verify":
    replaced("--steps", "4")
    if "--resume-at" in words:
        replaced("--resume-at", "2")
elif command == "chaos":
    replaced("--runs", "1")
elif command == "compare":
    for option, value in [("--steps", "10"), ("--minutes", "0"), ("--proof-steps", "2")]:
        replaced(option, value)
elif command == "profile":
    replaced("--steps", "2")
elif command == "rates":
    replaced("--steps", "20")
elif command == "bench":
    replaced("--seconds", "0.001")
os.execv(program, [program] + words)
"""


def files():
    found = [ROOT / "README.md"] + sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "examples").glob("**/README.md"))
    return [path for path in found if path.exists()]


def commands_of(path):
    """Indented lines that begin as a command does, those that go on joined, comments cut off."""
    lines, commands = path.read_text().split("\n"), []
    while lines:
        line = lines.pop(0)
        if not re.match(r"    \S", line) or not COMMAND.match(line.strip() + " ") or OUTPUT.match(line.strip()):
            continue
        command = line.strip()
        while command.endswith("\\") and lines:
            command = command[:-1] + lines.pop(0).strip()
        commands.append(re.sub(r"\s{2,}#.*", "", command))
    return commands


def reason_not_to(command):
    for pattern, reason in NOT_RUN.items():
        if re.match(pattern, command.replace("$lockstep", "lockstep").replace("build/release/bin/", "")):
            return reason
    return ""


def filled_in(command):
    """With data and configs; None where the data is not there."""
    wanted = "" if "shakespeare" in command else "mnist"
    if re.search(r"\b(FOLDER|DIR|DATA)\b", command):
        if not (DATA / wanted).is_dir() or (not wanted and not (DATA / "tinyshakespeare.txt").exists()):
            return None
        command = re.sub(r"\bDATA/mnist\b", str(DATA / "mnist"), command)
        command = re.sub(r"(?<=--data-dir )(FOLDER|DIR|DATA)\b", str(DATA / wanted), command)
    command = re.sub(r"\bCONFIG\b", "small.textproto", command)
    command = command.replace("$lockstep", "lockstep").replace("build/release/bin/lockstep", "lockstep")
    return re.sub(r"^launcher/lockstep-run ", f"{ROOT}/launcher/lockstep-run --program $PWD/bin/lockstep ", command)


class Folder:
    """Where the commands of a file run: what a checkout has, and what it calls by other names."""

    def __init__(self):
        self.held = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.held.name)
        for name in ["configs", "launcher", "scripts", "examples", "docs"]:
            (self.path / name).symlink_to(ROOT / name)
        (self.path / "bin").mkdir()
        short = self.path / "bin" / "lockstep"
        short.write_text(SHORT % (sys.executable, PROGRAM, str(DATA)))
        short.chmod(0o755)
        (self.path / "small.textproto").write_text(SMALL)
        self.environment = {**os.environ, "PATH": f"{self.path}/bin:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
                            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                            "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
                            "OMPI_MCA_mpi_yield_when_idle": "1"}
        # What files begin with, that go on from README's first training.
        self.prepare("lockstep data digits --out digits --train 600 --eval 100")
        self.prepare("mkdir -p runs/quickstart && ln -s ../../digits runs/quickstart/digits")
        self.prepare("lockstep train configs/digits_quickstart.textproto --data-dir digits --out runs/digits")

    def prepare(self, command):
        code, output = self.run(command)
        assert code == 0, f"{command}: {output}"

    def run(self, command):
        ran = subprocess.run(["bash", "-c", command], cwd=self.path, env=self.environment, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
        return ran.returncode, ran.stdout


NO_GPU_CODE = "has no GPU kernel in this build of lockstep: build it with -DLOCKSTEP_CUDA=ON"


def has_gpu_code():
    told = subprocess.run([PROGRAM, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return "GPUs by CUDA" in told


def main():
    chosen = [pathlib.Path(name).resolve() for name in sys.argv[1:]] or files()
    failed, ran, skipped = [], 0, 0
    for path in chosen:
        commands = commands_of(path)
        folder = Folder() if any(not reason_not_to(command) for command in commands) else None
        for command in commands:
            if reason_not_to(command):
                continue
            filled = filled_in(command)
            if filled is None:
                skipped += 1
                continue
            # A file shows the same folder more than once.
            out = re.search(r"--(?:out|picture) (\S+)", filled)
            if out and " --resume" not in filled:
                folder.run(f"rm -rf {shlex.quote(out.group(1))}")
            began = time.monotonic()
            code, output = folder.run(filled)
            if code == 69 and NO_GPU_CODE in output and not has_gpu_code():
                skipped += 1
                continue
            ran += 1
            expected = next((codes for pattern, codes in EXPECTED.items() if re.match(pattern, command)), [0])
            print(f"{path.relative_to(ROOT)}: {command}: {'ok' if code in expected else 'FAILED'}, {time.monotonic() - began:.1f} s",
                  flush=True)
            if code not in expected:
                failed.append(f"{path.relative_to(ROOT)}: {command}\nended with {code}, expected {expected}:\n{output[-2000:]}")
    print(f"{ran} commands ran, {skipped} were skipped for want of data or of code for GPUs, {len(failed)} failed")
    for text in failed:
        print("\n" + text)
    sys.exit(1 if failed else 77 if ran == 0 and skipped else 0)


if __name__ == "__main__":
    main()
