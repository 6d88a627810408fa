#!/usr/bin/env python3
"""What changes no bit of a REPRODUCIBLE training on CPUs: the processor's instruction set, threads, and micro-batches.

    tests/cli/same_bits_test.py LOCKSTEP
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP = ""
COMMON = """
data {{ {data} }}
trainer {{ global_batch: 24 virtual_replicas: 6 steps: 4 seed: 1 eval_every_steps: 0 {trainer} }}
optimizer {{ learning_rate: 0.01 adam {{}} }}
parallel {{ reduction: REPRODUCIBLE }}
metrics {{ progress: false }}
"""
IMAGES = "synthetic { samples: 96 eval_samples: 24 classes: 3 }"
MODELS = {
    "mlp": ("mlp { image: [9, 9, 1] hidden: [40, 33] classes: 3 }", IMAGES),
    "no hidden layer": ("mlp { image: [9, 9, 1] classes: 3 }", IMAGES),
    "lenet": ("lenet { image: [28, 28, 1] classes: 3 }", IMAGES),
    "batch norm": ("""
        input { name: "image" shape: [12, 12, 3] } input { name: "label" type: INT32 }
        layer { name: "conv1" conv2d { channels: 10 kernel: 3 stride: 2 padding: 1 } }
        layer { name: "bn1" batch_norm {} } layer { name: "relu1" relu {} }
        layer { name: "conv2" conv2d { channels: 20 kernel: 3 padding: 1 } }
        layer { name: "bn2" batch_norm {} } layer { name: "relu2" relu {} }
        layer { name: "pool" global_pool2d {} } layer { name: "fc" linear { units: 3 } }
        layer { name: "loss" input: "fc" input: "label" softmax_cross_entropy {} }""", IMAGES),
    "gpt": ("gpt { vocabulary: 65 context: 16 layers: 2 heads: 2 width: 32 dropout: 0.1 }",
            'text { file: "text.txt" train_fraction: 0.9 }'),
}


class SameBits(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "text.txt").write_text("".join(chr(32 + (7 * i * i + i // 3) % 65) for i in range(2000)))

    def train(self, name, trainer="", instruction_set=None, more=()):
        """The hashes of a run and its losses, or None if the processor lacks the instruction set."""
        model, data = MODELS[name]
        config = self.folder / "config.textproto"
        config.write_text("model { %s }" % model + COMMON.format(data=data, trainer=trainer))
        environment = {**os.environ, "LOCKSTEP_INSTRUCTION_SET": instruction_set or ""}
        run = subprocess.run([LOCKSTEP, "train", str(config), "--data-dir", str(self.folder), "--json", *more], text=True,
                             capture_output=True, env=environment, stdin=subprocess.DEVNULL)
        if run.returncode == 2 and instruction_set and "LOCKSTEP_INSTRUCTION_SET" in run.stderr:
            return None
        self.assertEqual(run.returncode, 0, run.stderr)
        report = json.loads(run.stdout)
        return report["params_hash"], report["state_hash"]

    def test_instruction_sets(self):
        tried = set()
        for name in MODELS:
            expected = self.train(name)
            for instruction_set in ("AVX-512", "AVX2", "portable"):
                with self.subTest(name, instruction_set=instruction_set):
                    found = self.train(name, instruction_set=instruction_set)
                    if found is not None:
                        tried.add(instruction_set)
                        self.assertEqual(found, expected)
        self.assertIn("portable", tried)

    def test_an_instruction_set_that_is_not_there_is_refused(self):
        for name in ("mlp", "no hidden layer"):
            self.assertIsNone(self.train(name, instruction_set="AVX-1024", more=("--set", "parallel.intra_op_threads=2")))

    def test_threads(self):
        for name in MODELS:
            with self.subTest(name):
                self.assertEqual(self.train(name, more=("--set", "parallel.intra_op_threads=2")), self.train(name))

    def test_micro_batches(self):
        for name in MODELS:
            if name == "batch norm":
                continue
            with self.subTest(name):
                expected = self.train(name)
                for micro_batch in (1, 2, 4, 8, 24):
                    self.assertEqual(self.train(name, trainer=f"micro_batch: {micro_batch}"), expected, micro_batch)

    def test_virtual_replicas_that_are_computed_at_once_keep_the_statistics_of_each(self):
        # Four samples each, of which a micro-batch of four has one and one of 24 has six.
        self.assertEqual(self.train("batch norm", trainer="micro_batch: 4"), self.train("batch norm"))
        self.assertNotEqual(self.train("batch norm", trainer="micro_batch: 2"), self.train("batch norm"))


if __name__ == "__main__":
    LOCKSTEP = sys.argv[1]
    unittest.main(argv=sys.argv[:1], verbosity=2)
