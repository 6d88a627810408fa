#!/usr/bin/env python3
"""`metrics.histogram_every_steps`: histograms of parameters and gradients, read by TensorBoard's own EventAccumulator.

    tests/cli/histograms_test.py LOCKSTEP

LOCKSTEP_TENSORBOARD_PYTHON is a Python that has the package `tensorboard`; default: this one. Exits with 77 if it has not.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

MLP = """
model { mlp { image: [4, 4, 1] hidden: [8, 8] classes: 3 dropout: 0.1 } }
data { synthetic { samples: 240 eval_samples: 50 classes: 3 } }
trainer { global_batch: 24 virtual_replicas: 4 steps: 20 seed: 1 clip_norm: 0.5 }
optimizer { learning_rate: 0.05 sgd { momentum: 0.9 } }
parallel { reduction: REPRODUCIBLE }
metrics { progress: false histogram_every_steps: 10 }
"""
READ = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util
read = EventAccumulator(sys.argv[1], size_guidance={"tensors": 0})
read.Reload()
print(json.dumps({tag: [(e.step, tensor_util.make_ndarray(e.tensor_proto).tolist()) for e in read.Tensors(tag)]
                  for tag in read.Tags()["tensors"] if read.SummaryMetadata(tag).plugin_data.plugin_name == "histograms"}))
"""
SIZES = {"fc1.weight": 128, "fc1.bias": 8, "fc2.weight": 64, "fc2.bias": 8, "fc3.weight": 24, "fc3.bias": 3}
PYTHON = os.environ.get("LOCKSTEP_TENSORBOARD_PYTHON", sys.executable)
RANKS = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
         "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
         "OMPI_MCA_mpi_yield_when_idle": "1"}
LOCKSTEP = ""


class Histograms(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.config = self.folder / "config.textproto"
        self.config.write_text(MLP)

    def train(self, ranks, out, *more):
        launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
        command = [*launcher, LOCKSTEP, "train", str(self.config), "--quiet", "--json", "--out", str(self.folder / out), *more]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, env=RANKS)

    def read(self, out):
        done = subprocess.run([PYTHON, "-c", READ, str(self.folder / out / "tensorboard")], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_every_layout_has_the_same(self):
        alone = self.train(1, "alone")
        self.assertEqual(alone.returncode, 0, alone.stderr)
        without = self.train(1, "without", "--set", "metrics.histogram_every_steps=0")
        self.assertEqual(json.loads(alone.stdout)["state_hash"], json.loads(without.stdout)["state_hash"])
        self.assertEqual(self.read("without"), {})
        expected = self.read("alone")
        self.assertEqual(set(expected), {f"{kind}/{name}" for kind in ("parameters", "gradients") for name in SIZES})
        for tag, histograms in expected.items():
            self.assertEqual([step for step, _ in histograms], [10, 20], tag)
            for _, rows in histograms:
                self.assertEqual(sum(count for _, _, count in rows), SIZES[tag.partition("/")[2]], tag)
                for (_, right, _), (left, _, _) in zip(rows, rows[1:]):
                    self.assertEqual(left, right, tag)
        for ranks, layout in ((2, "dp=2"), (2, "dp=1,pp=2"), (4, "dp=4,shard=optimizer"), (3, "dp=2,sync=ps,servers=1")):
            done = self.train(ranks, layout, "--layout", layout)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.read(layout), expected, layout)

    def test_layouts_without_common_steps_are_refused(self):
        for mode in ("async", "stale,bound=1"):
            refused = self.train(3, "a", "--layout", f"dp=2,sync=ps,servers=1,mode={mode}", "--set", "parallel.reduction=FAST")
            self.assertEqual(refused.returncode, 2, refused.stderr)
            self.assertIn("metrics.histogram_every_steps", refused.stderr)

    def test_they_need_tensorboard(self):
        refused = self.train(1, "a", "--set", "metrics.tensorboard=false")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("metrics.histogram_every_steps", refused.stderr)

    def test_a_skipped_step_has_none(self):
        self.train(1, "a", "--set", "optimizer.learning_rate=1e30", "--set", "trainer.nonfinite=SKIP", "--set", "trainer.nonfinite_limit=1000")
        lines = [json.loads(line) for line in (self.folder / "a" / "metrics.jsonl").read_text().splitlines()]
        self.assertTrue(any(line["step"] == 10 and line.get("skipped") for line in lines))
        self.assertEqual(self.read("a"), {})


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop(1)
    if subprocess.run([PYTHON, "-c", "import tensorboard"], capture_output=True, check=False).returncode != 0:
        print("skipped: no TensorBoard in", PYTHON)
        sys.exit(77)
    unittest.main()
