#!/usr/bin/env python3
"""Advice about links, GPUs and memory, each in a run of `lockstep train` that has the fault and in one that has not.

    tests/cli/advice_machines_test.py LOCKSTEP EMULATED NVML_FOLDER

EMULATED: the same program, whose GPU is emulated. NVML_FOLDER: of a library that stands for NVIDIA's and says what
STAND_IN_... variables ask for. Links are those of scripts/two_hosts.sh. A host that swaps is one whose /proc/vmstat says so,
in a mount namespace. What this system does not allow is skipped."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest

TWO_HOSTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts" / "two_hosts.sh"
CONFIG = """
model { mlp { image: [16, 16, 1] hidden: [%s] classes: 3 } }
data { synthetic { samples: 1024 eval_samples: 256 classes: 3 } }
trainer { global_batch: %d steps: %d seed: 1 }
optimizer { learning_rate: 0.01 sgd { momentum: 0.9 } }
parallel { reduction: FAST }
metrics { machine_every_seconds: 0.1 progress: false }
"""
RANKS = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LOCKSTEP = EMULATED = NVML = ""


class Advice(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def config(self, hidden="64", batch=64, steps=30):
        path = self.folder / "config.textproto"
        path.write_text(CONFIG % (hidden, batch, steps))
        return str(path)

    def report(self, before, program, config, *more, environment=None):
        ran = subprocess.run([*before, program, "train", config, "--json", *more], capture_output=True, text=True, check=False,
                             env={**RANKS, **(environment or {})}, timeout=300)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return json.loads(ran.stdout)

    @staticmethod
    def rules_of(report):
        return {one["rule"]: one for one in report["explanation"]["advice"]}

    def advice(self, *arguments, **more):
        """By rule."""
        return self.rules_of(self.report(*arguments, **more))


class Links(Advice):
    PAIR = f"advice{os.getpid()}"

    def two_hosts(self, *arguments):
        return subprocess.run([TWO_HOSTS, "--id", self.PAIR, *arguments], capture_output=True, text=True, check=False)

    def setUp(self):
        super().setUp()
        up = self.two_hosts("up")
        if up.returncode == 77:
            self.skipTest(up.stderr)
        self.addCleanup(self.two_hosts, "down")
        self.assertEqual(up.returncode, 0, up.stderr)

    def communication(self, batch=1024, *more):
        """The advice, and milliseconds of a step that it is about."""
        # Gradients of 1.6 MB, and milliseconds of computing.
        report = self.report([str(TWO_HOSTS), "--id", self.PAIR, "run", "-n", "2", "--"], LOCKSTEP,
                             self.config(hidden="512, 512", batch=batch, steps=12), "--device", "cpu", *more)
        found = self.rules_of(report).get("communication")
        return found, (found["cost"] if found else 0) * report["step_ms"]["mean"]

    def test_a_throttled_link(self):
        self.assertEqual(self.two_hosts("throttle", "20mbit").returncode, 0)
        found, slow_ms = self.communication()
        self.assertIsNotNone(found)
        self.assertGreater(found["cost"], 0.5)
        self.assertIn("--hostfile FILE", found["act"])
        self.assertEqual(self.two_hosts("unthrottle").returncode, 0)
        # Processes wait for each other's cores, too, if the machine is busy: for less than for such a link.
        self.assertLess(self.communication()[1], slow_ms / 2)

    def test_a_faster_layout_is_named(self):
        self.assertEqual(self.two_hosts("throttle", "20mbit").returncode, 0)
        # Activations of 32 samples are 64 KB. A machine that is busy with other things by turns is not predicted.
        for _ in range(4):
            found, _ = self.communication(32)
            if found["act"].startswith("--layout"):
                break
        self.assertRegex(found["act"], r"^--layout pp=2, .* [5-9][0-9] % less time")
        # The same from the other side, which waits for little.
        stages, slow_ms = self.communication(32, "--layout", "pp=2")
        self.assertNotIn("--layout dp", stages["act"] if stages else "")
        self.assertLess(slow_ms, 400)

    def test_no_layout_is_named_that_is_not_faster(self):
        self.assertEqual(self.two_hosts("throttle", "20mbit").returncode, 0)
        # Activations of 2 MB both ways, beside gradients of 1.6 MB.
        found, _ = self.communication(1024)
        self.assertTrue(found["act"].startswith("a larger trainer.global_batch"), found["act"])


class NoSharedMemory(Advice):
    def test_a_run_whose_ranks_cannot_share_memory(self):
        # It waits for communication because of that, so links are measured and layouts predicted when it ends.
        script = 'mount -t tmpfs -o size=256k tmpfs /dev/shm && exec "$0" "$@"'
        if subprocess.run(["unshare", "--mount", "sh", "-c", script, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("only root may mount folders")
        ran = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script, "mpirun", "--oversubscribe", "--bind-to", "none", "-n", "2", LOCKSTEP,
             "train", self.config(hidden="2048, 2048", batch=16, steps=600), "--json", "--device", "cpu"],
            capture_output=True, text=True, check=False, env=RANKS, timeout=300)
        if "MPI_INIT has failed" in ran.stderr:
            self.skipTest("without shared memory Open MPI finds no way between processes of this host")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("not through shared memory", ran.stderr)
        report = json.loads(ran.stdout)
        self.assertGreater(report["step_ms"]["mean"] * 600, 5000, "shorter runs predict nothing")
        self.assertIn("communication", self.rules_of(report))
        self.assertNotIn("no other layout is predicted", ran.stderr)


class Gpus(Advice):
    HEALTHY = {"STAND_IN_GPUS": "1", "STAND_IN_USE": "90"}

    def rules(self, *more, **gpu):
        environment = {**self.HEALTHY, **gpu, "LD_LIBRARY_PATH": NVML}
        return self.advice([], EMULATED, self.config(steps=12), "--device", "cuda", *more, environment=environment)

    def test_a_healthy_gpu(self):
        found = self.rules("--set", "precision.compute=BFLOAT16")
        for rule in ("hot_gpu", "small_batch", "precision"):
            self.assertNotIn(rule, found)

    def test_a_hot_gpu(self):
        found = self.rules("--set", "precision.compute=BFLOAT16", STAND_IN_HOT="0")["hot_gpu"]
        self.assertIn("GPU 0", found["saw"])
        self.assertIn("88 degrees", found["saw"])
        self.assertAlmostEqual(found["cost"], 1 - 1200 / 1980, places=2)

    def test_a_gpu_that_is_little_used(self):
        found = self.rules("--set", "precision.compute=BFLOAT16", STAND_IN_USE="20", STAND_IN_GIB_USED="10")["small_batch"]
        self.assertIn("GPU 0", found["saw"])
        self.assertAlmostEqual(found["cost"], 0.8, places=2)
        # The data set is the limit: the plan of all of it is small.
        self.assertIn("trainer.global_batch=1024", found["act"])
        full = self.rules("--set", "precision.compute=BFLOAT16", STAND_IN_USE="20", STAND_IN_GIB_USED="70")
        self.assertNotIn("small_batch", full)

    def test_products_in_float32(self):
        self.assertIn("BFLOAT16", self.rules()["precision"]["act"])


class GoesOn(Advice):
    def test_rank_0_gives_the_advice_that_it_can(self):
        out = self.folder / "run"
        run = subprocess.Popen(
            [LOCKSTEP, "train", self.config(steps=100_000_000), "--quiet", "--device", "cpu", "--out", str(out), "--set",
             "trainer.eval_every_steps=1"], env=RANKS, stderr=subprocess.PIPE)
        self.addCleanup(run.stderr.close)
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        deadline = time.monotonic() + 120
        while True:
            self.assertIsNone(run.poll())
            self.assertLess(time.monotonic(), deadline)
            shown = subprocess.run([LOCKSTEP, "explain", str(out), "--json"], capture_output=True, text=True, check=False)
            explanation = json.loads(shown.stdout) if shown.returncode == 0 else {"advice": []}
            rules = {one["rule"]: one for one in explanation["advice"]}
            if "evaluation" in rules:
                break
            time.sleep(0.1)
        self.assertTrue(explanation["goes_on"])
        self.assertIn("trainer.eval_every_steps", rules["evaluation"]["act"])
        self.assertNotIn("slow_rank", rules)


class Swap(Advice):
    def pages_swap(self, path, per_second, ends):
        """Counts pages as the kernel would. Writes in place: the file is mounted elsewhere."""
        began = time.monotonic()
        rest = pathlib.Path("/proc/vmstat").read_text().splitlines(keepends=True)
        rest = "".join(line for line in rest if not line.startswith("pswp"))
        with open(path, "w") as file:
            while not ends.is_set():
                pages = int(1_000_000 + per_second * (time.monotonic() - began))
                file.seek(0)
                # At the front and of a fixed length, so that no reader sees half of it.
                file.write(f"pswpin {pages:012}\npswpout {pages:012}\n" + rest)
                file.flush()
                ends.wait(0.02)

    def rules(self, per_second):
        path, ends = self.folder / "vmstat", threading.Event()
        writer = threading.Thread(target=self.pages_swap, args=(path, per_second, ends))
        writer.start()
        try:
            while not path.exists() or path.stat().st_size == 0:
                time.sleep(0.01)
            mounted = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /proc/vmstat && exec "$@"', str(path)]
            return self.advice(mounted, LOCKSTEP, self.config(hidden="512, 512", batch=512, steps=60), "--device", "cpu")
        finally:
            ends.set()
            writer.join()

    def setUp(self):
        super().setUp()
        allowed = subprocess.run(["unshare", "--mount", "sh", "-c", "mount --bind /proc/version /proc/vmstat"],
                                 capture_output=True, text=True, check=False)
        if allowed.returncode != 0:
            self.skipTest("only root may mount files: " + allowed.stderr)

    def test_a_host_that_swaps(self):
        found = self.rules(4e7 / PAGE_BYTES)["swap"]
        self.assertRegex(found["saw"], r"swaps [0-9.]+ MB/s")

    def test_a_host_that_does_not(self):
        self.assertNotIn("MB/s", self.rules(0).get("swap", {"saw": ""})["saw"])


if __name__ == "__main__":
    LOCKSTEP, EMULATED, NVML = (os.path.abspath(sys.argv.pop(1)) for _ in range(3))
    program = unittest.main(exit=False)
    skipped_all = program.result.testsRun == len(program.result.skipped)
    sys.exit(77 if program.result.wasSuccessful() and skipped_all else not program.result.wasSuccessful())
