#!/usr/bin/env python3
"""Timelines of `lockstep train --timeline`, read by Holistic Trace Analysis: its temporal breakdown is ours.

    tests/cli/hta_test.py LOCKSTEP

LOCKSTEP_HTA_PYTHON is a Python that has the package `HolisticTraceAnalysis`; default: this one. Exits with 77 if it has not.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

CONFIG = """
model { mlp { image: [8, 8, 1] hidden: [64, 64] classes: 5 dropout: 0.1 } }
data { synthetic { samples: 640 classes: 5 } }
trainer { global_batch: 64 micro_batch: 16 virtual_replicas: 2 steps: 30 seed: 1 }
optimizer { learning_rate: 0.05 sgd { momentum: 0.9 } }
"""
READ = """
import json, pathlib, sys
from hta.trace_analysis import TraceAnalysis
files = {int(path.stem.split("-")[1]): str(path) for path in pathlib.Path(sys.argv[1]).glob("rank-*.json")}
table = TraceAnalysis(trace_files=files, trace_dir=sys.argv[1]).get_temporal_breakdown(visualize=False)
sys.stdout.write("RESULT " + table.to_json(orient="records"))
"""
PYTHON = os.environ.get("LOCKSTEP_HTA_PYTHON", sys.executable)
LOCKSTEP = ""


def run(command, environment=None):
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env={**os.environ, **(environment or {})})
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Hta(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.config = self.folder / "config.textproto"
        self.config.write_text(CONFIG)

    def breakdowns(self, ranks, layout):
        """Ours and HTA's, by rank."""
        file, traces = self.folder / "steps.json", self.folder / "traces"
        launcher = ["mpirun", "--oversubscribe", "-n", str(ranks)] if ranks > 1 else []
        run([*launcher, LOCKSTEP, "train", str(self.config), "--layout", layout, "--quiet", "--timeline", str(file),
             "--timeline-steps", "11:16"])
        ours = json.loads(run([LOCKSTEP, "timeline", str(file), "--json", "--per-rank", str(traces)]))
        read = run([PYTHON, "-c", READ, str(traces)], {"HTA_DISABLE_NS_ROUNDING": "1"})  # to whole us, of kernels of a few us
        theirs = json.loads(read[read.index("RESULT ") + len("RESULT "):])
        return {row["rank"]: row for row in ours["ranks"]}, {row["rank"]: row for row in theirs}

    def agree(self, ranks, layout):
        ours, theirs = self.breakdowns(ranks, layout)
        self.assertEqual(sorted(ours), list(range(ranks)))
        self.assertEqual(sorted(theirs), list(range(ranks)))
        for rank, row in ours.items():
            total = row["total_us"]
            self.assertGreater(total, 0)
            for own, other in (("compute_us", "compute_time(us)"), ("communication_us", "non_compute_time(us)"),
                               ("idle_us", "idle_time(us)"), ("total_us", "kernel_time(us)")):
                self.assertLess(abs(row[own] - theirs[rank][other]) / total, 0.01, f"{layout}: rank {rank}, {own}")

    def test_one_rank(self):
        self.agree(1, "dp=1")

    def test_replicas(self):
        self.agree(2, "dp=2")

    def test_pipeline(self):
        self.agree(2, "pp=2")

    def test_workers_that_do_not_wait(self):
        self.agree(3, "dp=2,sync=ps,servers=1,mode=async")


if __name__ == "__main__":
    if subprocess.run([PYTHON, "-c", "import hta"], capture_output=True, check=False).returncode != 0:
        print("skipped: there is no Holistic Trace Analysis; set LOCKSTEP_HTA_PYTHON")
        sys.exit(77)
    LOCKSTEP = sys.argv.pop(1)
    unittest.main()
