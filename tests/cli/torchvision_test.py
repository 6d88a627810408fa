#!/usr/bin/env python3
"""The presets resnet and vgg beside torchvision's models, from the same weights on the same images.

    tests/cli/torchvision_test.py LOCKSTEP

LOCKSTEP_TORCHVISION_PYTHON is a Python that has the packages torch and torchvision; default: this one. What needs them is
skipped if it has not; losses are compared with those that PyTorch had in any case.
"""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "compare_torchvision.py"
PYTHON = os.environ.get("LOCKSTEP_TORCHVISION_PYTHON", sys.executable)
LOCKSTEP = ""
# What scripts/compare_torchvision.py prints of PyTorch 2.15's losses on a CPU.
LOSSES = {
}


def load_script():
    spec = importlib.util.spec_from_file_location("compare_torchvision", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Torchvision(unittest.TestCase):
    def test_losses_are_those_that_pytorch_had(self):
        script = load_script()
        for model, expected in LOSSES.items():
            with self.subTest(model), tempfile.TemporaryDirectory() as place:
                folder = pathlib.Path(place)
                script.write_data(folder, script.MODELS[model][0])
                losses, _ = script.train(LOCKSTEP, folder, model, len(expected))
                self.assertEqual(len(losses), len(expected))
                for step, (ours, theirs) in enumerate(zip(losses, expected)):
                    self.assertLess(abs(ours - theirs), 1e-5, f"step {step}: {ours}, not {theirs}")

    def test_trains_as_torchvision_does(self):
        done = subprocess.run([PYTHON, SCRIPT, LOCKSTEP], capture_output=True, text=True, check=False)
        if done.returncode == 77:
            self.skipTest(done.stdout.strip())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop(1)
    unittest.main()
