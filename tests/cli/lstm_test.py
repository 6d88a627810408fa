#!/usr/bin/env python3
"""The preset lstm beside torch.nn.LSTM, from the same weights on the same texts.

    tests/cli/lstm_test.py LOCKSTEP

LOCKSTEP_TORCHVISION_PYTHON is a Python that has the package torch; default: this one. What needs it is skipped if it has not;
losses are compared with those that PyTorch had in any case.
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import beside_pytorch

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOCKSTEP = ""
# What scripts/compare_lstm.py prints of PyTorch's losses on a CPU.
LOSSES = {
    "language": [
        1.9799646, 1.9760021, 1.9685971, 1.9583187, 1.9457575, 1.9315029, 1.9161283, 1.9001732, 1.8841361,
        1.8684624, 1.853539, 1.839686, 1.827155, 1.8161241, 1.806698, 1.7989079, 1.7927169, 1.7880268,
        1.784687, 1.7825079,
    ],
    "classifier": [
        1.0917757, 1.0915416, 1.0911109, 1.0905269, 1.0898347, 1.0890775, 1.0882934, 1.0875137, 1.0867605,
        1.0860484, 1.0853834, 1.0847652, 1.0841875, 1.0836411, 1.0831141, 1.0825953, 1.0820731, 1.0815384,
        1.0809846, 1.0804071,
    ],
}


class Lstm(unittest.TestCase):
    def test_losses_are_those_that_pytorch_had(self):
        beside_pytorch.expect_losses(self, LOCKSTEP, "compare_lstm", LOSSES)

    def test_trains_as_pytorch_does(self):
        beside_pytorch.expect_same_training(self, LOCKSTEP, "compare_lstm", "LOCKSTEP_TORCHVISION_PYTHON")

    def test_reviews_that_the_script_makes_up_train(self):
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            subprocess.run([sys.executable, ROOT / "scripts" / "make_reviews.py", "--out", folder, "--count", "60"], check=True)
            self.assertEqual(len((folder / "reviews.tsv").read_text().splitlines()), 60)
            subprocess.run([LOCKSTEP, "train", ROOT / "configs" / "reviews_lstm.textproto", "--data-dir", folder, "--quiet",
                            "--device", "cpu", "--set", "trainer.steps=3", "--set", "trainer.eval_every_steps=0"], check=True,
                           stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop(1)
    unittest.main()
