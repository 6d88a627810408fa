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
        1.9454669, 1.942238, 1.9362006, 1.9278127, 1.9175506, 1.9058909, 1.8933005, 1.880222, 1.8670678, 1.8542076,
        1.841966, 1.8306122, 1.8203574, 1.8113518, 1.8036819, 1.7973729, 1.7923933, 1.7886585, 1.7860427, 1.7843872,
    ],
    "classifier": [
        1.0968224, 1.0963439, 1.0954705, 1.0943043, 1.0929521, 1.0915163, 1.090086, 1.0887324, 1.0875065, 1.0864394,
        1.0855424, 1.0848124, 1.0842336, 1.0837824, 1.0834301, 1.0831469, 1.0829046, 1.0826771, 1.0824435, 1.0821873,
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
