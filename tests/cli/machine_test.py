#!/usr/bin/env python3
"""Figures of machines: what two ranks of `lockstep train` write to metrics.jsonl, TensorBoard, Prometheus and the report.

    tests/cli/machine_test.py LOCKSTEP

LOCKSTEP_TENSORBOARD_PYTHON is a Python that has the package `tensorboard`; default: this one.
"""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

CONFIG = """
model { mlp { image: [4, 4, 1] hidden: [8] classes: 3 dropout: 0.1 } }
data { synthetic { samples: 240 eval_samples: 50 classes: 3 } }
trainer { global_batch: 24 virtual_replicas: 4 steps: 100000000 seed: 1 }
optimizer { learning_rate: 0.05 sgd { momentum: 0.9 } }
metrics { log_every_steps: 10 progress: false }
"""
READ = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
read = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
read.Reload()
print(json.dumps({tag: [e.step for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}))
"""
PYTHON = os.environ.get("LOCKSTEP_TENSORBOARD_PYTHON", sys.executable)
RANKS = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
         "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
         "OMPI_MCA_mpi_yield_when_idle": "1"}
LOCKSTEP = ""
PATIENCE = 200


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Machine(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name) / "run"
        self.config = pathlib.Path(folder.name) / "config.textproto"
        self.config.write_text(CONFIG)

    def start(self, ranks, *more):
        launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
        command = [*launcher, LOCKSTEP, "train", str(self.config), "--quiet", "--json", "--out", str(self.out), *more]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=RANKS)
        self.addCleanup(run.stdout.close)
        self.addCleanup(run.stderr.close)
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        return run

    def lines(self):
        path = self.out / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def machines(self):
        return [line for line in self.lines() if line.get("kind") == "machine"]

    @staticmethod
    def page(port):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            return answer.read().decode()

    def await_true(self, what):
        deadline = time.monotonic() + PATIENCE
        while not what():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

    def stop(self, run):
        """The report of a run that was asked to stop."""
        run.send_signal(signal.SIGUSR1)
        out, err = run.communicate(timeout=PATIENCE)
        self.assertIn(run.returncode, (130, 143), err)
        return json.loads(out)

    def test_two_ranks(self):
        port = free_port()
        run = self.start(2, "--set", "metrics.machine_every_seconds=0.1", "--set", f"metrics.prometheus_port={port}")
        self.await_true(lambda: any("loss" in line for line in self.lines()))
        self.await_true(lambda: {line.get("rank") for line in self.machines() if line["step"] > 0} >= {None, 0, 1})
        self.await_true(lambda: 'rank="1"' in self.page(port))
        page = self.page(port)
        report = self.stop(run)

        host = next(line for line in self.machines() if "rank" not in line)
        self.assertTrue(0 <= host["processor_share"] <= 1)
        self.assertGreater(host["memory_size_bytes"], host["memory_used_bytes"])
        for rank in (0, 1):
            process = next(line for line in self.machines() if line.get("rank") == rank and line["step"] > 0)
            self.assertEqual(process["host"], host["host"])
            self.assertGreaterEqual(process["processor_cores"], 0)  # the kernel counts in hundredths of a second
            self.assertGreater(process["memory_resident_bytes"], process["memory_private_bytes"])

        self.assertIn('lockstep_host_processor_ratio{host="', page)
        for rank in (0, 1):
            self.assertRegex(page, f'lockstep_process_processor_cores{{host="[^"]*",rank="{rank}"}} ')

        machine = report["machine"]
        self.assertEqual(len(machine["hosts"]), 1)
        self.assertEqual([process["rank"] for process in machine["processes"]], [0, 1])
        self.assertEqual(machine["gpus"], [])
        self.assertLessEqual(machine["hosts"][0]["processor_share"]["mean"], machine["hosts"][0]["processor_share"]["max"])
        # Those who draw losses see nothing of it.
        drawn = subprocess.run([LOCKSTEP, "metrics", str(self.out)], capture_output=True, text=True, check=False)
        self.assertEqual(drawn.returncode, 0, drawn.stderr)
        # The run goes on, and what it has of machines stays.
        before = len(self.machines())
        resumed = self.start(2, "--resume", "auto", "--set", "metrics.machine_every_seconds=0.1")
        self.await_true(lambda: len(self.machines()) > before)
        self.stop(resumed)
        self.check_page(page)
        self.check_tensorboard()

    def check_page(self, page):
        promtool = shutil.which("promtool")
        if promtool is not None:
            checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False)
            self.assertEqual(checked.returncode, 0, checked.stderr)

    def check_tensorboard(self):
        done = subprocess.run([PYTHON, "-c", READ, str(self.out / "tensorboard")], capture_output=True, text=True, check=False)
        if "No module named" in done.stderr:
            self.skipTest("no TensorBoard; all but that was checked")
        self.assertEqual(done.returncode, 0, done.stderr)
        scalars = json.loads(done.stdout)
        for tag in ("machine/processor_share", "machine/memory_used_bytes", "rank0/processor_cores", "rank1/processor_cores"):
            steps = scalars[tag]
            self.assertEqual(steps, sorted(set(steps)), tag)

    def test_nothing_if_the_config_says_so(self):
        run = self.start(1, "--set", "metrics.machine_every_seconds=0", "--set", "trainer.steps=2000")
        out, err = run.communicate(timeout=PATIENCE)
        self.assertEqual(run.returncode, 0, err)
        self.assertEqual(self.machines(), [])
        self.assertNotIn("machine", json.loads(out))

    def test_an_interval_that_is_none(self):
        for seconds in ("-1", "0.001"):
            run = self.start(1, "--set", f"metrics.machine_every_seconds={seconds}")
            _, err = run.communicate(timeout=PATIENCE)
            self.assertEqual(run.returncode, 2)
            self.assertIn("metrics.machine_every_seconds", err)


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop(1)
    program = unittest.main(exit=False)
    skipped_all = program.result.testsRun == len(program.result.skipped)
    sys.exit(77 if program.result.wasSuccessful() and skipped_all else not program.result.wasSuccessful())
