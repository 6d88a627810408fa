#!/usr/bin/env python3
"""What `lockstep train` writes for TensorBoard, read by TensorBoard's own EventAccumulator.

    tests/cli/tensorboard_test.py LOCKSTEP

LOCKSTEP_TENSORBOARD_PYTHON is a Python that has the package `tensorboard`; default: this one. Exits with 77 if it has not.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

CONFIG = """
model { mlp { image: [4, 4, 1] hidden: [8] classes: 3 dropout: 0.1 } }
data { synthetic { samples: 240 eval_samples: 50 classes: 3 } }
trainer { global_batch: 24 virtual_replicas: 4 steps: 40 seed: 1 eval_every_steps: 10 }
optimizer { learning_rate: 0.05 sgd { momentum: 0.9 } }
checkpoint { every_steps: 10 }
"""
READ = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
read = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
read.Reload()
hparams = read.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
start = metadata.parse_session_start_info_plugin_data(hparams)
ends = metadata.SESSION_END_INFO_TAG in read.PluginTagToContent("hparams")
print(json.dumps({
    "scalars": {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]},
    "texts": {tag: read.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in ("run/config", "run/facts")},
    "written": [(e.step, e.tensor_proto.string_val[0].decode()) for e in read.Tensors("train/text")]
               if "train/text" in read.Tags()["tensors"] else [],
    "hparams": {name: value.number_value or value.string_value for name, value in start.hparams.items()},
    "ended": ends}))
"""
PYTHON = os.environ.get("LOCKSTEP_TENSORBOARD_PYTHON", sys.executable)
LOCKSTEP = ""


def read(run):
    done = subprocess.run([PYTHON, "-c", READ, str(run / "tensorboard")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class TensorBoard(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.run_folder = pathlib.Path(self.folder.name) / "run"
        self.config = pathlib.Path(self.folder.name) / "config.textproto"
        self.config.write_text(CONFIG)

    def train(self, *more):
        return subprocess.run([LOCKSTEP, "train", str(self.config), "--quiet", "--out", str(self.run_folder), *more],
                              capture_output=True, text=True, check=False)

    def lines(self):
        return [json.loads(line) for line in (self.run_folder / "metrics.jsonl").read_text().splitlines()]

    def check_equal_to_lines(self, scalars):
        for tag, field in (("train/loss", "loss"), ("time/step_ms", "step_ms"), ("eval/loss", "eval_loss"),
                           ("eval/accuracy", "eval_accuracy")):
            expected = [(line["step"], line[field]) for line in self.lines() if field in line]
            self.assertEqual([step for step, _ in scalars[tag]], [step for step, _ in expected], tag)
            for (_, found), (_, wanted) in zip(scalars[tag], expected):
                self.assertAlmostEqual(found, wanted, delta=1e-6 * max(1, abs(wanted)))

    def test_a_whole_run(self):
        self.assertEqual(self.train().returncode, 0)
        found = read(self.run_folder)
        self.check_equal_to_lines(found["scalars"])
        self.assertEqual(len(found["scalars"]["train/loss"]), 40)
        self.assertIn("    global_batch: 24", found["texts"]["run/config"])
        self.assertIn("| layout | dp=1 |", found["texts"]["run/facts"])
        self.assertEqual(found["hparams"]["trainer.global_batch"], 24)
        self.assertAlmostEqual(found["hparams"]["optimizer.learning_rate"], 0.05)
        self.assertTrue(found["ended"])

    def test_a_run_that_was_killed_and_resumed_has_each_step_once(self):
        killed = self.train("--failpoint", "kill@0,36", "--set", "checkpoint.background=false")
        self.assertNotEqual(killed.returncode, 0)
        # What it wrote of later steps than its last checkpoint stays in the first file.
        self.assertEqual(self.train("--resume", "auto", "--set", "trainer.steps=60", "--allow-config-change").returncode, 0)
        self.assertEqual(len(list((self.run_folder / "tensorboard").iterdir())), 2)
        found = read(self.run_folder)
        self.check_equal_to_lines(found["scalars"])
        self.assertEqual([step for step, _ in found["scalars"]["train/loss"]], list(range(1, 61)))

    def test_what_the_model_writes(self):
        (self.config.parent / "text").write_text("abcab" * 100)
        writes = ("--data-dir", str(self.config.parent), "--set", 'data={text {file: "text" context: 6}}',
                  "--set", "model={gpt {vocabulary: 3 context: 6 layers: 1 heads: 1 width: 8}}",
                  "--set", 'trainer.sample={every_steps: 20 prompt: "ab" tokens: 12}')
        self.assertEqual(self.train(*writes, "--stop-after", "30").returncode, 0)
        self.assertEqual(self.train(*writes, "--resume", "auto").returncode, 0)
        lines = [(line["step"], "    " + line["text"]) for line in self.lines() if "text" in line]
        self.assertEqual([step for step, _ in lines], [20, 40])
        self.assertEqual([tuple(text) for text in read(self.run_folder)["written"]], lines)

    def test_no_folder_if_the_config_says_so(self):
        self.assertEqual(self.train("--set", "metrics.tensorboard=false").returncode, 0)
        self.assertFalse((self.run_folder / "tensorboard").exists())

    def test_events_of_another_run(self):
        self.assertEqual(self.train("--stop-after", "10").returncode, 0)
        events = next((self.run_folder / "tensorboard").iterdir())
        events.rename(events.with_name("events.out.tfevents.1700000000.host.0123456789abcdef"))
        refused = self.train("--resume", "auto", "--set", "metrics.on_failure=STOP")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("is of another run", refused.stderr)
        gone_on = self.train("--resume", "auto")
        self.assertEqual(gone_on.returncode, 0)
        self.assertIn("is of another run", gone_on.stderr)
        self.assertIn("the run continues without it", gone_on.stderr)


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop(1)
    if subprocess.run([PYTHON, "-c", "import tensorboard"], capture_output=True, check=False).returncode != 0:
        print("skipped: no TensorBoard in", PYTHON)
        sys.exit(77)
    unittest.main()
